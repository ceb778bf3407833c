"""Start the ranks of a run on this machine, stop them together, and start them again if one of them died.

A rank that dies takes the others with it, which would wait for it forever. A stop signal (SIGTERM, SIGUSR1, Ctrl-C) is sent
to every rank once; the ranks agree on an update, save and exit.

torchrun's agent (torch.distributed.elastic, torch 2.13) does not replace this module. It starts ranks again and ends them
together, but cannot keep three promises: a run that was asked to stop and saved exits with 0 (the agent raises
SignalException, and torchrun exits with 1); when a rank dies the others are killed (the agent sends SIGTERM, at which they
would try to save with a rank that is gone); a run that fails twice at the same update is not started a third time. A signal
that arrives while it starts ranks also misses the one just started. `hasten run` works under torchrun without them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hasten.train.process_group import ATTEMPT, LAUNCHER, PROGRESS, PROGRESS_BYTES, open_store, rank_environment
from hasten.train.signals import StopRequest

POLL_S = 0.05
STOP_S = 60.0
"""How long the other ranks may take to save and exit once all were asked to stop and one has exited."""
BROKEN_S = 5.0
"""The same if that one was ended by a signal: the others cannot save together with it."""
SIGNALED = 128
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
        number = self.status - SIGNALED
        how = f"was ended by {signal.Signals(number).name}" if number in list(signal.Signals) else f"failed ({self.status})"
        where = "before its first update" if self.update is None else f"after update {self.update}"
        return f"rank {self.rank} {how} {where}"


def launch(world: int, command: Sequence[str], *, restarts: int = 0, say: Callable[[str], None] = print) -> int:
    """Run a command as a group of `world` ranks, and return its exit status: of the rank that failed first, else 0.

    Args:
        world: Ranks.
        command: What each of them runs. When they are started again, `restarted` of hasten.train.process_group says so.
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
    """Run a command once as a group of ranks, until all have exited or one has failed.

    Args:
        world: Ranks.
        command: What each of them runs.
        attempt: How often they were started before.
    """
    store = open_store()
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as progress, StopRequest(raises=False) as stop:
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
                if stop.signal is not None:
                    break  # those that were started wait for the rest, and are told in `_first_failure`
                # In sessions of their own: a terminal's Ctrl-C then reaches them once, through us.
                environ = rank_environment(rank, world, store.port, ours)
                ranks.append(
                    subprocess.Popen(  # noqa: S603  the command of our caller
                        list(command), env=environ, start_new_session=True, pass_fds=[progress.fileno()]
                    )
                )
            failed = _first_failure(ranks, stop)
        finally:
            _end(ranks)
        numbers = os.pread(progress.fileno(), world * PROGRESS_BYTES, 0)
        starts = range(0, len(numbers), PROGRESS_BYTES)
        update = max(int.from_bytes(numbers[start : start + PROGRESS_BYTES], "little") for start in starts) or None
        asked = stop.signal is not None
        if failed is not None:
            code = ranks[failed].returncode
            return Ended(status=code if code > 0 else SIGNALED - code, rank=failed, update=update, asked=asked)
        if stop.signal is not None and len(ranks) < world:
            return Ended(status=SIGNALED + stop.signal, asked=True)
        return Ended(status=0, update=update, asked=asked)


def say_on_stderr(words: str) -> None:
    """Say something as `hasten` does."""
    sys.stderr.write(f"hasten: {words}\n")
    sys.stderr.flush()


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]], stop: StopRequest) -> int | None:
    """Wait until all ranks exited well (None) or one failed, and return which; ranks ended by a signal come first.

    A stop signal is sent from here, not from a signal handler, so each rank gets it exactly once, whenever it was started.
    """
    is_sent, deadline = False, float("inf")
    while True:
        if stop.signal is not None and not is_sent:
            is_sent = True
            for process in ranks:
                process.send_signal(stop.signal)
        codes = [process.poll() for process in ranks]
        failed = sorted((code > 0, rank) for rank, code in enumerate(codes) if code)
        if None not in codes or (failed and stop.signal is None):
            return failed[0][1] if failed else None
        deadline = min(deadline, time.monotonic() + _patience_s(codes))
        if stop.is_urgent or time.monotonic() > deadline:
            for process in ranks:
                process.kill()
        time.sleep(POLL_S)


def _patience_s(codes: Sequence[int | None]) -> float:
    """How long to wait for the ranks that still run, after a stop signal: forever while all of them do."""
    ended = [code for code in codes if code is not None]
    if not ended:
        return float("inf")
    return BROKEN_S if min(ended) < 0 else STOP_S


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the ranks that still run; the writer process finishes a checkpoint under way."""
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait()
