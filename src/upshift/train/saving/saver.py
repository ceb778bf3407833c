"""Save a run as it goes on: a moment's stall, a process that writes, and a bound on what it all costs.

How often is chosen from measured cost: the stall of a snapshot, and what training loses while it is written (Mohan et al.
2021, CheckFreq). One checkpoint is under way at a time. A write that fails is told at once and tried again; the checkpoint
before it stays whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from upshift.core.errors import DataError, MachineError
from upshift.core.files import write_atomically
from upshift.train.loop import Loop
from upshift.train.saving.folder import CheckpointFolder, Saved
from upshift.train.saving.memory import SnapshotMemory
from upshift.train.saving.process import Done, WriterProcess
from upshift.train.saving.state import capture

_TRIES = 3
_SPARE = 1.02
_FIRST_AFTER_S = 30.0
"""Seconds of training before the first checkpoint, where their frequency is chosen by cost."""
_OTHERS_S = 600.0
"""How long rank 0 waits for the files of the others."""
_SMOOTH = 0.1
_PATIENCE_S = 30.0
"""How long to wait for a folder that another process holds."""


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
        write_s: From the snapshot until it was durable.
        update_s: Of an update while nothing is written, smoothed.
    """

    stall_s: float = 0.0
    dip_s: float = 0.0
    write_s: float = 0.0
    update_s: float = 0.0

    def interval(self, overhead_frac: float) -> int:
        """Updates between checkpoints that keep their cost within a share of the training time."""
        lost = self.stall_s + self.dip_s
        if self.update_s <= 0 or lost <= 0:
            return 1
        return max(1, round(lost / (overhead_frac * self.update_s)))


class Saver:
    """Saves a loop's run. To be closed.

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
        self, loop: Loop, run: Path, pace: Pace, *, facts: Mapping[str, Any] | None = None, say: Callable[[str], None] = print
    ) -> None:
        self._loop, self._pace, self._facts, self._say = loop, pace, dict(facts or {}), say
        self.folder = CheckpointFolder(run)
        self.costs = Costs()
        self._lock = hold_folder(run, loop.ranks.rank, say)
        self._memory = SnapshotMemory()
        self._process = WriterProcess(self._memory.handle, [self._lock])
        self._update = -1  # of the checkpoint under way
        self._last = loop.position.update
        self._failed = 0
        self._best = False
        self._started = self._ordered = self._before = perf_counter()
        self._busy_s, self._busy_updates = 0.0, 0

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint, by this rank's clock."""
        return not self._process.is_busy and self._is_due(perf_counter())

    def after_update(self, due: bool | None = None) -> Saved | None:
        """Look after the checkpoint under way, and begin one where it is time; the one that became durable, if any.

        Args:
            due: What all ranks agreed on, where there are several; None decides here.

        Raises:
            MachineError: Checkpoints cannot be written, and it was tried several times.
        """
        self._note_update(perf_counter() - self._before)
        saved = self._look(0.0)
        if self.is_due() if due is None else due:
            self.save()
        self._before = perf_counter()
        return saved

    def save(self, *, best: bool = False, wait: bool = False) -> Saved | None:
        """Take a snapshot now and have it written.

        Args:
            best: Mark it as the best when it is whole.
            wait: Return when it is durable.

        Raises:
            MachineError: As in `after_update`.
        """
        self._look(None)
        loop = self._loop
        loop.read_losses()
        started = perf_counter()
        state = capture(loop, leads=loop.ranks.rank == 0)
        size = self._memory.take(state.tensors, state.meta)
        self._update, self._best, self._last = loop.position.update, best, loop.position.update
        try:
            folder = self.folder.place(self._update)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            self._fail(f"{self.folder.path} cannot be written ({error.strerror})")
            return None
        if free < _SPARE * size:
            self._fail(f"{folder} has room for {free:,} bytes, and the checkpoint takes {size:,}")
            return None
        self._process.write(folder / f"rank{loop.ranks.rank}.safetensors", size)
        self._ordered = perf_counter()
        self.costs.stall_s = self._ordered - started
        self._busy_s, self._busy_updates = 0.0, 0
        return self._look(None) if wait else None

    def close(self) -> None:
        """Wait for the checkpoint under way, and let the process and the memory go."""
        try:
            self._look(None)
        finally:
            self._process.close()
            self._memory.close()
            os.close(self._lock)

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

    def _look(self, timeout_s: float | None) -> Saved | None:
        """Take up what the process answered; the checkpoint that is durable now, if any."""
        done = self._process.poll(timeout_s)
        if done is None:
            return None
        if done.error:
            self._fail(f"{done.path} could not be written: {done.error}")
            return None
        self.costs.write_s = perf_counter() - self._ordered
        self.costs.dip_s = max(0.0, self._busy_s - self._busy_updates * self.costs.update_s)
        self._failed = 0
        return self._commit(done)

    def _commit(self, done: Done) -> Saved | None:
        ranks = self._loop.ranks
        if ranks.world > 1:
            told = {"num_bytes": done.num_bytes, "sha256": done.sha256}
            write_atomically(done.path.with_suffix(".done"), json.dumps(told))
            if ranks.rank != 0:
                return None
        files = {done.path.name: (done.num_bytes, done.sha256)}
        for rank in range(1, ranks.world):
            files[f"rank{rank}.safetensors"] = self._of(done.path.with_name(f"rank{rank}.done"))
        saved = self.folder.commit(self._update, files, world=ranks.world, facts=self._facts)
        for rank in range(ranks.world):
            done.path.with_name(f"rank{rank}.done").unlink(missing_ok=True)
        if self._best:
            self.folder.mark_best(self._update)
        self.folder.prune(self._pace.keep)
        return saved

    def _of(self, path: Path) -> tuple[int, str]:
        """What another rank wrote."""
        until = monotonic() + _OTHERS_S
        while monotonic() < until:
            if path.exists():
                told = json.loads(path.read_text(encoding="utf-8"))
                return int(told["num_bytes"]), str(told["sha256"])
            sleep(0.02)
        raise MachineError(f"{path.stem} did not write its part of checkpoint {self._update} within {_OTHERS_S:.0f} s.")

    def _fail(self, words: str) -> None:
        """Tell of a checkpoint that could not be written; the next update tries again, some times."""
        self._failed += 1
        if self._failed >= _TRIES:
            raise MachineError(
                f"No checkpoint can be written, {self._failed} times in a row: {words}. Make room there, or choose another "
                f"folder (--out). The checkpoints before are whole."
            )
        self._say(f"checkpoint {self._update}: {words}; it is tried again.")


def hold_folder(run: Path, rank: int, say: Callable[[str], None]) -> int:
    """A handle that holds the run's folder; a run that was killed holds it until its last checkpoint is written.

    Raises:
        DataError: Another run holds it.
    """
    run.mkdir(parents=True, exist_ok=True)
    handle = os.open(run / f".running.{rank}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = monotonic() + _PATIENCE_S
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if monotonic() > until:
                os.close(handle)
                raise DataError(f"another run is at work in {run}: wait for it, or choose another folder (--out).") from error
            if not told:
                say(f"waiting for another run in {run}, or for the last checkpoint of one that was killed")
                told = True
            sleep(0.02)
        else:
            return handle
