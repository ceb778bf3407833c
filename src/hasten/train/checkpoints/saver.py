"""Save checkpoints during training: a short stall for a snapshot, a process that writes it, and bounded overhead.

The interval is chosen from measured costs: the stall of a snapshot, and the slowdown of training while it is written (Mohan
et al. 2021, CheckFreq). Only one checkpoint is in progress at a time. A failed write is reported immediately and retried,
and the previous checkpoint stays intact.

Several ranks save at the same update. Each writes its own file. When all have finished, they exchange sizes and checksums,
and rank 0 writes the manifest.
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
"""Number of failed writes in a row that stop the run."""
_SPARE = 1.02
"""Required free disk space as a multiple of the checkpoint's size."""
_FIRST_AFTER_S = 30.0
"""Seconds of training before the first checkpoint, if the interval is chosen from costs."""
_SMOOTH = 0.1
"""Weight of the newest update in the smoothed update time."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often to save.

    Attributes:
        every: Updates from one checkpoint to the next; None chooses the interval from measured costs.
        overhead_frac: Largest share of the training time for checkpoints, if the interval is chosen from costs.
        keep: Number of newest checkpoints to keep, in addition to the best.
    """

    every: int | None = None
    overhead_frac: float = 0.02
    keep: int = 3


@dataclass
class Costs:
    """The measured costs of checkpoints.

    Attributes:
        stall_s: Seconds that the last snapshot stalled training.
        dip_s: Seconds that updates lost while the last checkpoint was written.
        update_s: Smoothed seconds of an update while no checkpoint is written.
    """

    stall_s: float = 0.0
    dip_s: float = 0.0
    update_s: float = 0.0

    def interval(self, overhead_frac: float) -> int:
        """Return the updates between checkpoints that limit their cost to a share of the training time."""
        lost = self.stall_s + self.dip_s
        if self.update_s <= 0 or lost <= 0:
            return 1
        return max(1, round(lost / (overhead_frac * self.update_s)))


@dataclass(frozen=True)
class Turn:
    """What to do about checkpoints after an update, the same on all ranks.

    Attributes:
        written: No file of the checkpoint in progress is still being written.
        due: The next checkpoint is due.
    """

    written: bool
    due: bool


class Saver:
    """Saves checkpoints of a run. Close it, or use it as a context manager, which does not wait for other ranks on an error.

    Args:
        loop: The loop of the run.
        run: The run's folder, which is locked for this run.
        pace: How often to save.
        facts: Plain data to store with each checkpoint: fingerprints, plan, seed.
        say: Called with messages for the user.

    Raises:
        DataError: Another run is using the folder.

    Attributes:
        costs: The measured costs of checkpoints.
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
        self._update = self._whole = -1  # updates of the checkpoint in progress, and of the last complete one
        self._under_way = False  # whether a checkpoint is in progress and not settled
        self._done: Done | None = None  # the result of writing this rank's file
        self._last = loop.position.update
        self._failed = 0
        self._best = False
        self._started = self._before = perf_counter()
        self._busy_s, self._busy_updates = 0.0, 0

    def turn(self) -> Turn:
        """Return what to do, by this rank's clock."""
        written = self._is_written(0.0)
        return Turn(written, due=written and self._is_due(perf_counter()))

    def after_update(self, turn: Turn | None = None) -> Saved | None:
        """Settle the checkpoint in progress if it is written, start the next one if due, and return the settled one.

        Args:
            turn: What all ranks agreed on; None decides by this rank alone.

        Raises:
            MachineError: Several writes in a row failed.
        """
        self._note_update(perf_counter() - self._before)
        saved = self._settle() if (self._is_written(0.0) if turn is None else turn.written) else None
        if self.turn().due if turn is None else turn.due:
            self.save()
        self._before = perf_counter()
        return saved

    def save(self, *, best: bool = False, wait: bool = False) -> Saved | None:
        """Take a snapshot now and start writing it. All ranks must call it together.

        Args:
            best: Mark it as the best when it is complete.
            wait: Wait until it is on disk.

        Returns:
            With `wait`, the checkpoint on rank 0; otherwise None.

        Raises:
            MachineError: Several writes in a row failed.
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
        self._under_way, self._done = True, self._start_writing(f"rank{loop.ranks.rank}.safetensors", size)
        self.costs.stall_s = perf_counter() - started
        self._busy_s, self._busy_updates = 0.0, 0
        if loop.ranks.world == 1 and self._done is not None:
            return self._settle()
        return self._finish() if wait else None

    def settle(self) -> None:
        """Wait for the checkpoint in progress. All ranks must call it together.

        Raises:
            MachineError: Several writes in a row failed.
        """
        self._finish()

    def went_back(self) -> None:
        """Restart the count of updates after a rollback to an earlier update."""
        self._last, self._whole = self._loop.position.update, -1

    def close(self, *, together: bool = True) -> None:
        """Wait for the checkpoint in progress, and release the process and the memory.

        Args:
            together: Whether all ranks close. If not, a checkpoint of several ranks in progress is abandoned.
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

    def _start_writing(self, name: str, size: int) -> Done | None:
        """Have the process write the snapshot. Return None, or a result with an error if it cannot be written."""
        try:
            folder = self.folder.place(self._update)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            message = f"{self.folder.path} cannot be written ({error.strerror})"
            return Done(self.folder.path / name, size, "", message)
        if free < _SPARE * size:
            message = f"{folder} has {free:,} bytes free, but the checkpoint needs {size:,}"
            return Done(folder / name, size, "", message)
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
        """Wait up to `timeout_s` for this rank's file, and return whether no write is in progress any more."""
        if self._under_way and self._done is None:
            self._done = self._process.poll(timeout_s)
            if self._done is not None and self._done.error:
                self._done = replace(self._done, error=f"{self._done.path} could not be written: {self._done.error}")
        return not self._under_way or self._done is not None

    def _finish(self) -> Saved | None:
        """Wait until all ranks have written the checkpoint in progress, and settle it."""
        self._is_written(None)
        return self._settle()

    def _settle(self) -> Saved | None:
        """Collect the results of all ranks for the checkpoint in progress. Return the checkpoint on rank 0 if complete."""
        done, ranks = self._done, self._loop.ranks
        if done is None:
            return None
        self._under_way, self._done = False, None
        results = ranks.gather((done.num_bytes, done.checksum, done.error))
        errors = [error for _, _, error in results if error]
        if errors:
            self._fail(errors[0])
            return None
        self.costs.dip_s = max(0.0, self._busy_s - self._busy_updates * self.costs.update_s)
        self._failed, self._whole = 0, self._update
        if ranks.world == 1:  # the writer process has already written the manifest
            return self.folder.find(self._update)
        if ranks.rank != 0:
            return None
        files = {f"rank{rank}.safetensors": (size, digest) for rank, (size, digest, _) in enumerate(results)}
        saved = self.folder.commit(self._update, files, world=ranks.world, facts=self._facts)
        if self._best:
            self.folder.mark_best(self._update)
        self.folder.prune(self._pace.keep)
        return saved

    def _fail(self, message: str) -> None:
        """Report a failed write. The next update retries, up to a limit."""
        self._failed += 1
        if self._failed >= _TRIES:
            raise MachineError(
                f"Writing a checkpoint failed {self._failed} times in a row: {message}. Free some space, or choose another "
                f"folder (--out). Earlier checkpoints are intact."
            )
        if self._loop.ranks.rank == 0:
            self._say(f"checkpoint {self._update} failed: {message}. It will be retried.")
