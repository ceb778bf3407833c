"""Start the ranks of a run on this machine, stop them together, and restart them if one dies.

If a rank dies, the others are killed, because they would wait for it forever. A stop signal (SIGTERM, SIGUSR1, Ctrl-C) is
sent to every rank once. The ranks then agree on an update, save and exit.

torchrun's agent (torch.distributed.elastic, torch 2.13) does not replace this module. It restarts ranks and ends them
together, but lacks three guarantees:

- A run that was asked to stop and has saved exits with 0. The agent raises SignalException, and torchrun exits with 1.
- If a rank dies, the others are killed. The agent sends SIGTERM, and they would try to save with a missing rank.
- A run that fails twice at the same update is not started a third time.

A signal that arrives while the agent starts ranks also misses the most recent one. `hasten run` works under torchrun without
these guarantees.
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
"""Seconds between two checks of the ranks."""
STOP_S = 60.0
"""Seconds for the other ranks to save and exit, after all were asked to stop and one has exited."""
BROKEN_S = 5.0
"""The same in seconds if that rank was ended by a signal: the others cannot save without it."""
SIGNALED = 128
"""The number that a shell adds to the signal number for the exit status of a process ended by a signal."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a group of ranks ended.

    Attributes:
        status: Exit status as in a shell: that of the rank that failed first, or 0.
        rank: The rank that failed first; None if none failed.
        update: The last update that any rank completed; None before the first.
        asked: Whether a signal asked the group to stop.
    """

    status: int
    rank: int | None = None
    update: int | None = None
    asked: bool = False

    @property
    def words(self) -> str:
        """The message that describes the end."""
        number = self.status - SIGNALED
        how = f"was ended by {signal.Signals(number).name}" if number in list(signal.Signals) else f"failed ({self.status})"
        where = "before its first update" if self.update is None else f"after update {self.update}"
        return f"rank {self.rank} {how} {where}"


def launch(world: int, command: Sequence[str], *, restarts: int = 0, say: Callable[[str], None] = print) -> int:
    """Run a command as a group of `world` ranks. Return the exit status of the rank that failed first, or 0.

    Args:
        world: Number of ranks.
        command: The command that each rank runs. After a restart, `hasten.train.process_group.restarted` returns True.
        restarts: Largest number of restarts after a rank died.
        say: Called with the reason for a restart, or for not restarting.
    """
    before: Ended | None = None
    for attempt in range(restarts + 1):
        ended = run_group(world, command, attempt=attempt)
        if ended.status == 0 or ended.asked or restarts == 0:
            return ended.status
        why_not = why_no_restart(ended, before, restarts - attempt)
        if why_not:
            say(f"{ended.words}. It is not restarted: {why_not}")
            return ended.status
        say(f"{ended.words}. All ranks resume from the newest checkpoint (restart {attempt + 1} of {restarts})")
        before = ended
    raise AssertionError("the last attempt returns")


def why_no_restart(ended: Ended, before: Ended | None, left: int) -> str:
    """Return why a failed group is not restarted; empty if it is restarted.

    Args:
        ended: How it ended.
        before: How the previous attempt ended; None if there was none.
        left: Number of restarts left.
    """
    if before is not None and before.update == ended.update:
        return "it failed at the same update twice in a row. Fix the error above, then continue with --resume"
    return "" if left else "the limit of --restarts is reached. Run the same command with --resume to continue"


def run_group(world: int, command: Sequence[str], *, attempt: int = 0) -> Ended:
    """Run a command once as a group of ranks, until all have exited or one has failed.

    Args:
        world: Number of ranks.
        command: The command that each rank runs.
        attempt: Number of earlier attempts.
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
                    break  # the ranks already started wait for the rest; `_first_failure` sends them the signal
                # Each rank gets its own session, so a terminal's Ctrl-C reaches it only once, through this process.
                environ = rank_environment(rank, world, store.port, ours)
                ranks.append(
                    subprocess.Popen(  # noqa: S603  the caller's command
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


def say_on_stderr(message: str) -> None:
    """Print a message of `hasten` to stderr."""
    sys.stderr.write(f"hasten: {message}\n")
    sys.stderr.flush()


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]], stop: StopRequest) -> int | None:
    """Wait until all ranks have exited with 0 or one has failed. Return the failed rank, or None.

    Ranks ended by a signal come before others. A stop signal is sent from here, not from a signal handler, so each rank gets
    it exactly once, regardless of when it was started.
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
    """Return the seconds to wait for the running ranks after a stop signal; infinite while all of them run."""
    ended = [code for code in codes if code is not None]
    if not ended:
        return float("inf")
    return BROKEN_S if min(ended) < 0 else STOP_S


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the ranks that still run. The writer process finishes a checkpoint in progress."""
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait()
