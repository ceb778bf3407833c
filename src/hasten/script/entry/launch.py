"""Run a script in a child process, watched, and otherwise as if we were not there.

The child gets our arguments, folder, terminal and signals. One variable names a file in a private folder; both are gone
when it ends. This module knows the standard library alone.
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
"""Begins the names of the marks that such processes leave."""
ELSEWHERE_WORDS = (
    "The script trains in {count} of the processes that it starts itself, and only its own process can be watched. Let it "
    "train there (one rank, without multiprocessing), or start its ranks with torchrun and profile that."
)
GRACE_S = 15.0
"""How long a script that was told to end may take for it."""

Mode = Literal["observe", "profile", "replay", "silent", "cut"]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a script is watched.

    Attributes:
        mode: `observe` leaves all as it is. The others end the script once enough was seen, and keep its checkpoints out
            of its folder; `replay` also gives kept batches in place of the loader's; `silent` also prints and logs nothing;
            `cut` also cuts padding off the loader's batches.
        updates: Observe this many steps at most.
        seconds: And no longer than this, from the first step on.
    """

    mode: Mode = "observe"
    updates: int = 200
    seconds: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of it.

    Attributes:
        code: The exit code of the script; negative for a signal, as `subprocess` has it.
        ranks: What each rank saw, by rank; empty where nothing was seen.
        failures: What of ours failed, by rank.
        elsewhere: In how many processes that it started itself the script trained.
    """

    code: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    elsewhere: int = 0


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
        watch: How.
        env: The environment; ours unless given.
        quiet: Its output goes nowhere.
        say: Told before the run what of it cannot be kept apart, and after it what is left.
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
        return Seen(
            code=code, ranks=_results(folder), failures=_failures(folder), elsewhere=trained_elsewhere(folder)
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a run under a plan.

    Attributes:
        code: The exit code of the script; negative for a signal.
        ranks: By rank: `applied` (names), `failures` (name -> why not, or not any more), `steps`, `stopped` (names of what
            acted and had to stop), `stale` (why batches may have differed from those of the script alone, where they may).
        failures: What of ours failed, by rank.
    """

    code: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def run_under(command: Sequence[str], plan: Mapping[str, Any], *, env: Mapping[str, str]) -> Ran:
    """Run `python COMMAND` under a plan, and otherwise as if we were not there.

    Args:
        command: A script and its arguments, or `-m`, a module and its arguments.
        plan: Name -> settings of what is applied.
        env: The environment, with what the plan requires of it.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-attach-") as name:
        folder = Path(name)
        started = entered(folder, {"module": "hasten.script.plan.session", "plan": dict(plan)}, env)
        with _forwarding() as forward:
            child = subprocess.Popen([sys.executable, *command], env=started)  # noqa: S603
            forward(child)
            code = child.wait()
        return Ran(code=code, ranks=_results(folder, "applied"), failures=_failures(folder))


@contextmanager
def _apart(
    command: Sequence[str], folder: Path, watch: Watch, environ: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[tuple[Sequence[str], bool]]:
    """Keep apart what a measured run writes: gives what its command begins with, and whether its files are its own."""
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
    """The environment in which the first Python process lets us in.

    Args:
        folder: A private folder, for the time the process lives.
        config: For `module.install` in the process; `module` is `hasten.script.watch.session` unless named.
        before: The environment it would have without us.
    """
    pythonpath = before.get("PYTHONPATH")
    (folder / CONFIG).write_text(json.dumps({**config, "pythonpath": pythonpath}), encoding="utf-8")
    return {**before, **way_in(folder, pythonpath)}


def way_in(folder: Path, pythonpath: str | None) -> dict[str, str]:
    """The variables by which a Python process finds us."""
    paths = os.pathsep.join([str(SITE), pythonpath]) if pythonpath else str(SITE)
    return {VARIABLE: str(folder / CONFIG), "PYTHONPATH": paths}


def trained_elsewhere(folder: Path) -> int:
    """In how many processes that the script has started itself it trains."""
    return sum(1 for _ in folder.glob(f"{ELSEWHERE}-*"))


def _wait(child: subprocess.Popen[bytes], folder: Path, watch: Watch) -> int:
    """The exit code. A script that we told to end and that goes on is ended from here; so is one that trains elsewhere."""
    if watch.mode == "observe":
        return child.wait()
    told: float | None = None
    elsewhere: float | None = None
    while True:
        try:
            return child.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if told is None and (folder / "seen-0.json").exists():
                told = monotonic()
            if told is None and elsewhere is None and trained_elsewhere(folder):
                elsewhere = monotonic()
            if told is None and elsewhere is not None and monotonic() - elsewhere > watch.seconds:
                _end_all(child)
            if told is not None and monotonic() - told > GRACE_S:
                child.terminate() if monotonic() - told < 2 * GRACE_S else child.kill()


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(child.pid).children(recursive=True), child):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Give a function that takes the child, to which SIGINT and SIGTERM go, those received before it too.

    A Ctrl-C at the terminal has reached the child already.
    """
    children: list[subprocess.Popen[bytes]] = []
    received: deque[int] = deque()

    def deliver() -> None:
        with suppress(IndexError):  # a signal handler that ran meanwhile has delivered all of them
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
    before = {number: signal.signal(number, forward) for number in numbers}  # what is ignored, the child ignores as well
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_the_terminal() -> bool:
    """Whether we stand in the foreground of a terminal, so that Ctrl-C goes to the child as well."""
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
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{what}-*.json")):
        try:
            found[int(path.stem.split("-")[1])] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # a process that was killed while it wrote has seen nothing
    return found


def _failures(folder: Path) -> dict[int, str]:
    return {int(path.stem.split("-")[1]): path.read_text(encoding="utf-8") for path in sorted(folder.glob("failed-*.txt"))}


def exit_like(code: int) -> None:
    """End this process as the child ended: with its exit code, or by the same signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
        code = 128 - code
    sys.exit(code)
