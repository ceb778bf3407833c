"""Run a script in a child process and watch it, otherwise exactly as without Hasten.

The child inherits arguments, working folder, terminal and signals. One variable names a file in a private folder; both are
removed when the child ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Literal

import psutil

from hasten.script.entry.apart import Apart
from hasten.script.entry.hooks import VARIABLE

SITE = Path(__file__).resolve().parent / "site"
CONFIG = "config.json"
ELSEWHERE = "elsewhere"
"""Prefix of the marker files that training child processes create."""
REFUSED = "refused.txt"
"""File that says why a plan is not valid."""
READY = "ready"
"""Prefix of the files in which loader workers write when they are ready to make their first batch."""
ELSEWHERE_WORDS = (
    "The script trains in {count} child processes that it starts itself, but only its own process can be watched. Train in "
    "the script's process (one rank, without multiprocessing), or start its ranks with torchrun and profile that command."
)
GRACE_S = 15.0
"""Seconds that a script gets to end before it is terminated."""

Mode = Literal["observe", "profile", "replay", "silent", "cut", "trace"]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a script is watched.

    Attributes:
        mode: `observe` only observes. The other modes end the script once enough was observed, and keep checkpoints out of
            its folder. In addition, `replay` returns cached batches instead of the loader's, `silent` suppresses prints and
            logs, `cut` trims the padding from the loader's batches, and `trace` traces the operators of a few steps.
        updates: Maximum number of steps.
        seconds: Maximum number of seconds, from the first step on.
    """

    mode: Mode = "observe"
    updates: int = 200
    seconds: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Result of a watched run.

    Attributes:
        code: Exit code of the script; negative for a signal, as in `subprocess`.
        ranks: Observations by rank; empty if there are none.
        failures: Errors in Hasten by rank.
        elsewhere: Number of child processes in which the script trained.
    """

    code: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    elsewhere: int = 0

    @property
    def failed(self) -> bool:
        """Whether the script failed while it was watched. What happens after watching has stopped does not count."""
        return self.code != 0 and self.ranks.get(0, {}).get("ended", True)

    @property
    def interrupted(self) -> bool:
        """Whether SIGINT ended the script.

        Python forgets that, and ends with 1, if its exit handlers evaluate code, as torch's do where tabulate is installed.
        """
        error = str(self.ranks.get(0, {}).get("error"))
        return self.code == -signal.SIGINT or (self.code == 1 and error.startswith(KeyboardInterrupt.__name__))


def run_watched(
    command: Sequence[str],
    watch: Watch | None = None,
    *,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Seen:
    """Run `python COMMAND` and watch it.

    Args:
        command: A script and its arguments, or `-m`, a module and its arguments.
        watch: What to observe; the defaults of `Watch` if None.
        env: Environment of the script; by default that of this process.
        quiet: Discard the script's output.
        say: Called with messages about files that cannot be isolated, before the run, or restored, after it.
    """
    watch, before = watch or Watch(), dict(os.environ if env is None else env)
    with tempfile.TemporaryDirectory(prefix="hasten-attach-") as name:
        folder = Path(name)
        sink = subprocess.DEVNULL if quiet else None
        with _forwarding() as forward, _apart(command, folder, watch, before, say) as (prefix, private):
            started = _watched_environment(folder, watch, before, private=private)
            child = subprocess.Popen([*prefix, sys.executable, *command], env=started, stdout=sink, stderr=sink)  # noqa: S603
            forward(child)
            code = _wait(child, folder, watch)
        ranks = _results(folder, "partial") | _results(folder)
        return Seen(code=code, ranks=ranks, failures=_failures(folder), elsewhere=trained_elsewhere(folder))


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Result of a run under a plan.

    Attributes:
        code: Exit code of the script; negative for a signal.
        ranks: By rank: `applied` (names), `failures` (name -> why it is not applied, or no longer), `steps`, `stopped`
            (names of optimizations that had to be stopped), `stale` (why batches may have differed from the unchanged
            script's).
        failures: Errors in Hasten by rank.
        refused: Why the script was ended before its training, because the plan is not valid; "" if it is.
    """

    code: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    refused: str = ""


def run_under(
    command: Sequence[str],
    plan: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    proved: Mapping[str, Any] | None = None,
    where: str = "plan",
    target: str = "",
    following: Mapping[str, Any] | None = None,
) -> Ran:
    """Run `python COMMAND` under a plan, otherwise exactly as without Hasten.

    The script's own process checks the plan once it has loaded torch: this process would need seconds to load it too.

    Args:
        command: A script and its arguments, or `-m`, a module and its arguments.
        plan: Settings of the optimizations, by name. They need not be valid.
        env: Environment of the script, including the variables that the plan requires.
        proved: Where the plan was proved, as in the plan file.
        where: The plan's name in messages.
        target: The script as an argument of `hasten tune`, for messages.
        following: How its training is followed, see `hasten.script.monitoring.Following`; None: not at all.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-attach-") as name:
        folder = Path(name)
        config: dict[str, Any] = {"module": "hasten.script.plan.session", "plan": dict(plan), "proved": proved or {}}
        config |= {"where": where, "target": target, "following": following}
        started = entered(folder, config, env)
        with _forwarding() as forward:
            child = subprocess.Popen([sys.executable, *command], env=started)  # noqa: S603
            forward(child)
            code = child.wait()
        refused = folder / REFUSED
        words = refused.read_text(encoding="utf-8") if refused.exists() else ""
        return Ran(code=code, ranks=_results(folder, "applied"), failures=_failures(folder), refused=words)


@contextmanager
def _apart(
    command: Sequence[str], folder: Path, watch: Watch, environ: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[tuple[Sequence[str], bool]]:
    """Isolate the files that a measured run writes. Yields its command prefix and whether it has its own file system."""
    if watch.mode == "observe":
        yield (), False
        return
    apart = Apart(command, [folder], environ)
    try:
        if apart.words:
            say(apart.words)
        yield apart.prefix, apart.private
    finally:
        if left := apart.end():
            say(left)


def _watched_environment(folder: Path, watch: Watch, before: Mapping[str, str], *, private: bool) -> dict[str, str]:
    config = {"mode": watch.mode, "updates": watch.updates, "seconds": watch.seconds, "private": private}
    return entered(folder, config, before)


def entered(folder: Path, config: Mapping[str, Any], before: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which the first Python process loads Hasten's hooks.

    Args:
        folder: A private folder that exists while the process lives.
        config: Passed to `module.install` in the process. `module` is `hasten.script.watch.session` by default.
        before: The environment without Hasten.
    """
    pythonpath = before.get("PYTHONPATH")
    (folder / CONFIG).write_text(json.dumps({**config, "pythonpath": pythonpath}, default=str), encoding="utf-8")
    return {**before, **way_in(folder, pythonpath)}


def way_in(folder: Path, pythonpath: str | None) -> dict[str, str]:
    """Return the environment variables through which a Python process finds Hasten's hooks."""
    paths = os.pathsep.join([str(SITE), pythonpath]) if pythonpath else str(SITE)
    return {VARIABLE: str(folder / CONFIG), "PYTHONPATH": paths}


def trained_elsewhere(folder: Path) -> int:
    """Return the number of child processes in which the script trains."""
    return sum(1 for _ in folder.glob(f"{ELSEWHERE}-*"))


def _wait(child: subprocess.Popen[bytes], folder: Path, watch: Watch) -> int:
    """Return the exit code. Terminates a script that does not end when stopped, or that trains in child processes."""
    if watch.mode == "observe":
        return child.wait()
    stopped: float | None = None
    elsewhere: float | None = None
    while True:
        try:
            return child.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if stopped is None and (folder / "seen-0.json").exists():
                stopped = monotonic()
            if stopped is None and elsewhere is None and trained_elsewhere(folder):
                elsewhere = monotonic()
            if stopped is None and elsewhere is not None and monotonic() - elsewhere > watch.seconds:
                _end_all(child)
            if stopped is not None and monotonic() - stopped > GRACE_S:
                child.terminate() if monotonic() - stopped < 2 * GRACE_S else child.kill()


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants."""
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(child.pid).children(recursive=True), child):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yield a function that takes the child. SIGINT and SIGTERM are forwarded to it, including earlier ones.

    A Ctrl-C at the terminal already reaches the child directly.
    """
    children: list[subprocess.Popen[bytes]] = []
    received: deque[int] = deque()

    def deliver() -> None:
        with suppress(IndexError):  # a signal handler that ran in between has delivered all of them
            while children and received:
                number = received.popleft()
                if children[0].poll() is None:
                    children[0].send_signal(number)

    def forward(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _at_the_terminal():
            received.append(number)
            deliver()

    def forward_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        deliver()

    numbers = [item for item in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(item) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in numbers}  # the child inherits ignored signals
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_the_terminal() -> bool:
    """Return whether this process is in the foreground of a terminal, so that Ctrl-C reaches the child too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _results(folder: Path, what: str = "seen") -> dict[int, dict[str, Any]]:
    results: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{what}-*.json")):
        try:
            results[int(path.stem.split("-")[1])] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # the process was killed while writing
    return results


def _failures(folder: Path) -> dict[int, str]:
    return {int(path.stem.split("-")[1]): path.read_text(encoding="utf-8") for path in sorted(folder.glob("failed-*.txt"))}


def exit_like(code: int) -> None:
    """End this process like the child: with the same exit code, or by the same signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
        code = 128 - code
    sys.exit(code)
