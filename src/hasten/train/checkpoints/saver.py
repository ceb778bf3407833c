"""Save a run as it goes on: a moment's stall, a process that writes, and a bound on what it all costs.

How often is chosen from measured cost: the stall of a snapshot, and what training loses while it is written (Mohan et al.
2021, CheckFreq). One checkpoint is under way at a time. A write that fails is told at once and tried again; the checkpoint
before it stays whole.

Several ranks do the same at the same update. Each writes its own file; when all have written, they tell each other what, and
rank 0 says that the checkpoint is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from hasten.core.errors import MachineError
from hasten.train.checkpoints.file import SnapshotMemory
from hasten.train.checkpoints.folder import CheckpointFolder, Saved
from hasten.train.checkpoints.state import capture
from hasten.train.checkpoints.writer import Done, WriterProcess
from hasten.train.loop import Loop
from hasten.train.records.lock import hold_folder

_TRIES = 3
_SPARE = 1.02
_FIRST_AFTER_S = 30.0
"""Seconds of training before the first checkpoint, where their frequency is chosen by cost."""
_SMOOTH = 0.1


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often to save.

    Attributes:
        every: Updates from one checkpoint to the next; None chooses it by cost.
        overhead_frac: Share of the training time that checkpoints may take, where it is chosen.
        keep: Checkpoints that stay, the best beside them.
    """

    every: int | None = None
    overhead_frac: float = 0.02
    keep: int = 3


@dataclass
class Costs:
    """What checkpoints cost until now.

    Attributes:
        stall_s: Of the last snapshot.
        dip_s: What updates lost while the last one was written.
        update_s: Of an update while nothing is written, smoothed.
    """

    stall_s: float = 0.0
    dip_s: float = 0.0
    update_s: float = 0.0

    def interval(self, overhead_frac: float) -> int:
        """Updates between checkpoints that keep their cost within a share of the training time."""
        lost = self.stall_s + self.dip_s
        if self.update_s <= 0 or lost <= 0:
            return 1
        return max(1, round(lost / (overhead_frac * self.update_s)))


@dataclass(frozen=True)
class Turn:
    """What is to be done about checkpoints after an update; of several ranks, what all of them do.

    Attributes:
        written: No file of the checkpoint under way is still being written.
        due: It is time for another one.
    """

    written: bool
    due: bool


class Saver:
    """Saves a loop's run. To be closed, or a context manager; then an error does not wait for the other ranks.

    Args:
        loop: The run.
        run: Its folder, for this run alone as long as it lives.
        pace: How often.
        facts: Noted with each checkpoint: fingerprints, plan, seed; plain data.
        say: Told what a person must know.

    Raises:
        DataError: Another run is at work in the folder.

    Attributes:
        costs: What checkpoints cost until now.
    """

    def __init__(
        self,
        loop: Loop,
        run: Path,
        pace: Pace,
        *,
        facts: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._loop, self._pace, self._facts, self._say = loop, pace, dict(facts or {}), say
        self.folder = CheckpointFolder(run)
        self.costs = Costs()
        self._lock = hold_folder(run, loop.ranks.rank, say)
        self._memory = SnapshotMemory()
        self._process = WriterProcess(self._memory.handle, [self._lock])
        self._process.start()
        self._update = self._whole = -1  # of the checkpoint under way, and of the last one that is whole
        self._under_way = False  # until it is settled
        self._done: Done | None = None  # what came of this rank's part of it
        self._last = loop.position.update
        self._failed = 0
        self._best = False
        self._started = self._before = perf_counter()
        self._busy_s, self._busy_updates = 0.0, 0

    def turn(self) -> Turn:
        """What is to be done, by this rank's clock."""
        written = self._is_written(0.0)
        return Turn(written, due=written and self._is_due(perf_counter()))

    def after_update(self, turn: Turn | None = None) -> Saved | None:
        """Look after the checkpoint under way, and begin one where it is time; the one that became durable, if any.

        Args:
            turn: What all ranks agreed on, where there are several; None decides here.

        Raises:
            MachineError: Checkpoints cannot be written, and it was tried several times.
        """
        self._note_update(perf_counter() - self._before)
        saved = self._settle() if (self._is_written(0.0) if turn is None else turn.written) else None
        if self.turn().due if turn is None else turn.due:
            self.save()
        self._before = perf_counter()
        return saved

    def save(self, *, best: bool = False, wait: bool = False) -> Saved | None:
        """Take a snapshot now and have it written; all ranks together.

        Args:
            best: Mark it as the best when it is whole.
            wait: Return when it is durable.

        Returns:
            With `wait`, the checkpoint on rank 0; else None.

        Raises:
            MachineError: As in `after_update`.
        """
        loop = self._loop
        saved = self._finish()
        if self._whole == loop.position.update:
            if best and loop.ranks.rank == 0:
                self.folder.mark_best(self._whole)
            return saved
        loop.read_losses()
        started = perf_counter()
        state = capture(loop)
        size = self._memory.take(state.tensors, state.meta)
        self._update, self._best, self._last = loop.position.update, best, loop.position.update
        self._under_way, self._done = True, self._ordered_to_write(f"rank{loop.ranks.rank}.safetensors", size)
        self.costs.stall_s = perf_counter() - started
        self._busy_s, self._busy_updates = 0.0, 0
        if loop.ranks.world == 1 and self._done is not None:
            return self._settle()
        return self._finish() if wait else None

    def settle(self) -> None:
        """Wait for the checkpoint under way; all ranks together.

        Raises:
            MachineError: As in `after_update`.
        """
        self._finish()

    def went_back(self) -> None:
        """The run stands at an earlier update now: count from there."""
        self._last, self._whole = self._loop.position.update, -1

    def close(self, *, together: bool = True) -> None:
        """Wait for the checkpoint under way, and let the process and the memory go.

        Args:
            together: Whether all ranks do so. Where not, a checkpoint of several ranks that is under way is given up.
        """
        try:
            if together or self._loop.ranks.world == 1:
                self._finish()
        finally:
            self._process.close()
            self._memory.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(together=kind is None)

    def _ordered_to_write(self, name: str, size: int) -> Done | None:
        """Order the snapshot to be written; what came of it where it cannot be."""
        try:
            folder = self.folder.place(self._update)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            words = f"{self.folder.path} cannot be written ({error.strerror})"
            return Done(self.folder.path / name, size, "", words)
        if free < _SPARE * size:
            words = f"{folder} has room for {free:,} bytes, and the checkpoint takes {size:,}"
            return Done(folder / name, size, "", words)
        alone = self._loop.ranks.world == 1
        commit = {"update": self._update, "facts": self._facts, "best": self._best, "keep": self._pace.keep}
        self._process.write(folder / name, size, commit=commit if alone else None)
        return None

    def _is_due(self, now: float) -> bool:
        done = self._loop.position.update - self._last
        if done <= 0:
            return False
        if self._failed:
            return True
        if self._pace.every is not None:
            return done >= self._pace.every
        if not self.costs.stall_s:
            return now - self._started >= _FIRST_AFTER_S
        return done >= self.costs.interval(self._pace.overhead_frac)

    def _note_update(self, seconds: float) -> None:
        if self._process.is_busy:
            self._busy_s += seconds
            self._busy_updates += 1
        elif self.costs.update_s:
            self.costs.update_s += _SMOOTH * (seconds - self.costs.update_s)
        else:
            self.costs.update_s = seconds

    def _is_written(self, timeout_s: float | None) -> bool:
        """Whether this rank's part of the checkpoint under way was written, or could not be; waits so long for it."""
        if self._under_way and self._done is None:
            self._done = self._process.poll(timeout_s)
            if self._done is not None and self._done.error:
                self._done = replace(self._done, error=f"{self._done.path} could not be written: {self._done.error}")
        return not self._under_way or self._done is not None

    def _finish(self) -> Saved | None:
        """Wait until the checkpoint under way is written by all ranks, and settle it."""
        self._is_written(None)
        return self._settle()

    def _settle(self) -> Saved | None:
        """Take up what all ranks wrote of the checkpoint under way; on rank 0 the checkpoint, where it is whole now."""
        done, ranks = self._done, self._loop.ranks
        if done is None:
            return None
        self._under_way, self._done = False, None
        told = ranks.gather((done.num_bytes, done.checksum, done.error))
        errors = [error for _, _, error in told if error]
        if errors:
            self._fail(errors[0])
            return None
        self.costs.dip_s = max(0.0, self._busy_s - self._busy_updates * self.costs.update_s)
        self._failed, self._whole = 0, self._update
        if ranks.world == 1:  # the process that wrote it has said so
            return self.folder.find(self._update)
        if ranks.rank != 0:
            return None
        files = {f"rank{rank}.safetensors": (size, digest) for rank, (size, digest, _) in enumerate(told)}
        saved = self.folder.commit(self._update, files, world=ranks.world, facts=self._facts)
        if self._best:
            self.folder.mark_best(self._update)
        self.folder.prune(self._pace.keep)
        return saved

    def _fail(self, words: str) -> None:
        """Tell of a checkpoint that could not be written; the next update tries again, some times."""
        self._failed += 1
        if self._failed >= _TRIES:
            raise MachineError(
                f"No checkpoint can be written, {self._failed} times in a row: {words}. Make room there, or choose another "
                f"folder (--out). The checkpoints before are whole."
            )
        if self._loop.ranks.rank == 0:
            self._say(f"checkpoint {self._update}: {words}; it is tried again.")
