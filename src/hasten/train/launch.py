"""Start the ranks of a run on this machine, end them together, and start them again where one of them died.

A rank that dies takes the others with it: they would wait for it for ever. What asks a run to end (SIGTERM, SIGUSR1, Ctrl-C)
is passed on to all ranks, which save and end by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from hasten.train.group import ATTEMPT, LAUNCHER, PROGRESS, PROGRESS_BYTES, open_store, rank_environment
from hasten.train.stop import ASKING

POLL_S = 0.05
STOP_S = 60.0
"""How long the other ranks have to save and end by themselves, where all were asked to and one has ended."""
_SIGNALED = 128
"""What a shell adds to the number of the signal that ended a process."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a group of ranks ended.

    Attributes:
        status: Exit status, as a shell has it: of the rank that failed first, else 0.
        rank: The one that failed first; None where none did.
        update: The last update that some rank ended; None before the first one.
        asked: A signal asked for the end.
    """

    status: int
    rank: int | None = None
    update: int | None = None
    asked: bool = False

    @property
    def words(self) -> str:
        """What happened."""
        number = self.status - _SIGNALED
        how = f"was ended by {signal.Signals(number).name}" if number in list(signal.Signals) else f"failed ({self.status})"
        where = "before its first update" if self.update is None else f"after update {self.update}"
        return f"rank {self.rank} {how} {where}"


def launch(world: int, command: Sequence[str], *, restarts: int = 0, say: Callable[[str], None] = print) -> int:
    """Run a command as a group of `world` ranks, and return its exit status: of the rank that failed first, else 0.

    Args:
        world: Ranks.
        command: What each of them runs. When they are started again, `restarted` of hasten.train.group says so.
        restarts: How often they are started again at most, where one died.
        say: Told why they are started again, or not.
    """
    before: Ended | None = None
    for attempt in range(restarts + 1):
        ended = run_group(world, command, attempt=attempt)
        if ended.status == 0 or ended.asked or restarts == 0:
            return ended.status
        why_not = why_no_restart(ended, before, restarts - attempt)
        if why_not:
            say(f"{ended.words}, and is not started again: {why_not}")
            return ended.status
        say(f"{ended.words}; all ranks go on from the newest checkpoint (restart {attempt + 1} of {restarts})")
        before = ended
    raise AssertionError("the last attempt returns")


def why_no_restart(ended: Ended, before: Ended | None, left: int) -> str:
    """Why a group that failed is not started again; empty where it is.

    Args:
        ended: How it ended.
        before: How the attempt before it ended; None where there was none.
        left: How often it may be started again.
    """
    if before is not None and before.update == ended.update:
        return "it is the second time in a row at this place. Mend what it says above, then go on with --resume"
    return "" if left else "it was, as often as --restarts says. The same command with --resume goes on"


def run_group(world: int, command: Sequence[str], *, attempt: int = 0) -> Ended:
    """Run a command once as a group of ranks, until all have ended or one has failed.

    Args:
        world: Ranks.
        command: What each of them runs.
        attempt: How often they were started before.
    """
    store = open_store()
    with tempfile.TemporaryFile() as progress, PassedOn() as passed:
        progress.write(bytes(world * PROGRESS_BYTES))
        progress.flush()
        ours = {
            **os.environ,
            LAUNCHER: str(os.getpid()),
            PROGRESS: str(progress.fileno()),
            ATTEMPT: str(attempt),
        }
        try:
            for rank in range(world):
                # In sessions of their own: a terminal's Ctrl-C then reaches them once, through us.
                environ = rank_environment(rank, world, store.port, ours)
                passed.ranks.append(
                    subprocess.Popen(  # noqa: S603  the command of our caller
                        list(command), env=environ, start_new_session=True, pass_fds=[progress.fileno()]
                    )
                )
            failed = _first_failure(passed)
        finally:
            _end(passed.ranks)
        told = os.pread(progress.fileno(), world * PROGRESS_BYTES, 0)
        update = max(int.from_bytes(told[at : at + PROGRESS_BYTES], "little") for at in range(0, len(told), PROGRESS_BYTES))
        asked = passed.number is not None
        if failed is None:
            return Ended(status=0, update=update or None, asked=asked)
        code = passed.ranks[failed].returncode
        return Ended(status=code if code > 0 else _SIGNALED - code, rank=failed, update=update or None, asked=asked)


class PassedOn:
    """While it is entered, signals that ask for an end go on to all ranks; a second Ctrl-C kills them.

    Outside of the main thread it hears none.

    Attributes:
        ranks: Who is told.
        number: The first signal that came; None as long as none did.
    """

    def __init__(self) -> None:
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.number: int | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._pass) for number in ASKING}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave before

    def _pass(self, number: int, _frame: FrameType | None) -> None:
        again = self.number is not None and number == signal.SIGINT
        self.number = number if self.number is None else self.number
        for process in self.ranks:
            process.send_signal(signal.SIGKILL if again else number)


def say_on_stderr(words: str) -> None:
    """Say something as `hasten` does."""
    sys.stderr.write(f"hasten: {words}\n")
    sys.stderr.flush()


def _first_failure(passed: PassedOn) -> int | None:
    """Wait until all ranks ended well (None) or one failed, and say which; those that a signal ended before the others."""
    until = float("inf")
    while True:
        codes = [process.poll() for process in passed.ranks]
        failed = sorted((code > 0, rank) for rank, code in enumerate(codes) if code)
        if None not in codes or (failed and passed.number is None):
            return failed[0][1] if failed else None
        if passed.number is not None and any(code is not None for code in codes):
            until = min(until, time.monotonic() + STOP_S)
        if time.monotonic() > until:
            for process in passed.ranks:
                process.kill()
        time.sleep(POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill who has not ended; a checkpoint under way is finished by the process that writes it."""
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait()
