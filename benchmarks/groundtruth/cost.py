"""Measure the overhead of watching a script: the same loop watched and unwatched, in turns.

Two processes of one script differ by more than the overhead: of two unwatched processes, one had steps of 2 ms that were 13
% shorter over six rounds. Hasten is therefore attached and detached within one process, between two steps. Two thirds of the
turns are unwatched, in two groups; the difference between these groups shows the accuracy of the result. Turns run forwards
and backwards (AB BA). The unit is a round, which is a fresh process.

TraceML cannot be detached. It is measured between processes, together with Hasten once more: all processes except one are
suspended, and the starting order rotates with the rounds. TraceML wakes up every two seconds by wall-clock time, even if its
processes were suspended, so turns are that long. The accuracy of these results can be judged from Hasten, which has both.

Every step is timed by the script itself, at the end of each step, so time while it was suspended is not included.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from benchmarks.groundtruth import traceml
from benchmarks.groundtruth.processes import end_tree, freeze, thaw, tree
from benchmarks.groundtruth.steps import HEAD, ROOM
from benchmarks.result_file import ResultFile, Row
from hasten.core.errors import TrialError
from hasten.core.stats import paired_interval

STEPS = Path(__file__).with_name("steps.py")
TOGGLED = Path(__file__).with_name("toggled.py")
SIZES: Mapping[str, Mapping[str, int]] = {
    "2ms": {"width": 384, "depth": 4, "batch": 32},
    "100ms": {"width": 1024, "depth": 4, "batch": 512},
}
"""Arguments of the script for steps of about this length on two cores; the actual lengths are in the result."""
STEP_S: Mapping[str, float] = {"2ms": 2e-3, "100ms": 0.1}
"""Assumed step lengths: watching costs a fixed time per step, and the score's numbers are fractions of these."""
WATCHED = """
import sys
from hasten.script.entry.launch import Watch, run_watched
sys.exit(run_watched(sys.argv[1:], Watch(mode="observe", updates=0, seconds=0.0)).code)
"""
"""Watches to the end, with every hook of a profiling run; it rests after its first steps (`hasten.script.watch.record`)."""
UNWATCHED, AGAIN, OURS = "unwatched", "unwatched again", "watched by hasten"
TRACEML, TRACEML_MARKED = "traceml run", "traceml run, steps marked"
CONFIDENCE = 0.95
WARM_STEPS, WARM_S, START_LIMIT_S, RUN_LIMIT_S = 20, 2.0, 90.0, 600.0
LEAST_STEPS, TRIES = 3, 5
WARM_TURNS = 6
"""Turns of steps before the first counted one."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Arms that take turns.

    Attributes:
        arms: The first is the unwatched one.
        turns: Number of turns in a round, by size.
        rounds: Number of rounds with fresh processes.
    """

    arms: tuple[str, ...]
    turns: Mapping[str, int]
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Inside(Session):
    """All arms are turns of one process.

    Attributes:
        steps: Number of steps in a turn, by size.
    """

    steps: Mapping[str, int]

    def measure(self, size: str, number: int, _traceml_path: Path | None) -> Row:
        """Measure a round; see `measure_inside`."""
        return measure_inside(self, size, number)


@dataclass(frozen=True, kw_only=True)
class Between(Session):
    """Each arm is a separate process, suspended while another has its turn.

    Attributes:
        turn_s: Seconds of a turn, by size.
    """

    turn_s: Mapping[str, float]

    def measure(self, size: str, number: int, traceml_path: Path | None) -> Row:
        """Measure a round; see `measure_round`."""
        return measure_round(self, size, number, traceml_path)


SESSIONS: Mapping[str, Inside | Between] = {
    "hasten": Inside(
        arms=(UNWATCHED, OURS, AGAIN), steps={"2ms": 200, "100ms": 14}, turns={"2ms": 24, "100ms": 16}, rounds=6
    ),
    "traceml": Between(
        arms=(UNWATCHED, OURS, TRACEML, TRACEML_MARKED), turn_s={"2ms": 2.0, "100ms": 2.0}, turns={"2ms": 6, "100ms": 6},
        rounds=4,
    ),
}  # fmt: skip


class Arm:
    """A running script that is suspended except during its turns.

    Args:
        command: Command that runs it, watched or not, without `--notes`.
        folder: Folder for its notes.

    Raises:
        TrialError: It ended, or ran no steps.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._path = folder / "notes"
        self._path.write_bytes(bytes(8 * (HEAD + ROOM)))
        self._log = (folder / "log").open("w+", encoding="utf-8")
        self._words = [*command, "--notes", str(self._path)]
        environment = {**traceml.environment(), "TMPDIR": str(folder)}  # it is killed, and leaves its files there
        self._process = subprocess.Popen(
            self._words, cwd=folder, env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_tree(self._process.pid)
        self._process.wait()
        self._log.close()

    def get_ready(self) -> None:
        """Let it start and warm up, then suspend it with all its child processes."""
        deadline = monotonic() + START_LIMIT_S
        while self._count() < WARM_STEPS:
            if self._process.poll() is not None or monotonic() > deadline:
                raise TrialError(f"{' '.join(self._words)} ran no steps: {self._said()}", kind="raised")
            sleep(0.05)
        sleep(WARM_S)
        self._pids = [self._numbers()[1]]
        self.freeze()

    def freeze(self) -> None:
        """Suspend it, the script first; children started meanwhile are found once the others are suspended."""
        freeze(self._pids)
        newcomers = [pid for pid in tree(self._process.pid) if pid not in self._pids]
        freeze(newcomers)
        self._pids += newcomers

    def turn(self, seconds: float) -> float:
        """Let it run for about this time, or longer if its steps do; return seconds per step.

        The time is measured between the ends of its first and its last step in this turn.

        Raises:
            TrialError: It no longer runs steps.
        """
        for number in range(TRIES):
            before = self._count()
            thaw(self._pids)
            sleep(seconds * 2**number)
            self.freeze()
            count = self._count()
            if count - before >= LEAST_STEPS:
                return (self._time(count - 1) - self._time(before)) / (count - 1 - before)
        raise TrialError(f"Fewer than {LEAST_STEPS} steps in a turn of {seconds} s.", kind="hung")

    def run(self, steps: int) -> list[float]:
        """Let it run from its start for this number of steps, and stop it; return the time at the end of each, [steps].

        Raises:
            TrialError: It ended, or takes too long.
        """
        if steps > ROOM:
            raise ValueError(f"The notes have room for {ROOM} steps, not {steps}.")
        deadline = monotonic() + RUN_LIMIT_S
        while self._count() < steps:
            if self._process.poll() is not None or monotonic() > deadline:
                raise TrialError(f"{' '.join(self._words)} did not run {steps} steps: {self._said()}", kind="raised")
            sleep(0.05)
        self._pids = [self._numbers()[1]]
        self.freeze()
        times = memoryview(self._path.read_bytes()).cast("d")
        return [float(times[HEAD + step]) for step in range(steps)]

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-500:]

    def _count(self) -> int:
        return self._numbers()[0]

    def _numbers(self) -> memoryview:
        return memoryview(self._path.read_bytes()[: 8 * HEAD]).cast("q")

    def _time(self, step: int) -> float:
        return memoryview(self._path.read_bytes()).cast("d")[HEAD + step % ROOM]


def _sizes(size: str) -> list[str]:
    return [word for name, value in SIZES[size].items() for word in (f"--{name}", str(value))]


def commands(size: str, traceml_path: Path | None, folder: Path) -> dict[str, list[str]]:
    """Return the command of each arm."""
    sizes = _sizes(size)
    found = {
        UNWATCHED: [sys.executable, str(STEPS), *sizes],
        OURS: [sys.executable, "-c", WATCHED, str(STEPS), *sizes],
    }
    if traceml_path is not None:
        found |= {
            TRACEML: traceml.arguments(traceml_path, STEPS, sizes, folder / "plain"),
            TRACEML_MARKED: traceml.arguments(traceml_path, traceml.MARKED, [str(STEPS), *sizes], folder / "marked"),
        }
    return found


def measure_inside(session: Inside, size: str, number: int) -> Row:
    """Measure one round in one process: seconds per step of each arm, turn by turn.

    The first third of a turn does not count, because Python re-specializes its code after attaching or detaching.
    """
    steps = session.steps[size]
    order = [arm for turn in range(session.turns[size]) for arm in in_turn(session.arms, number + turn)]
    watched = "".join(str(int(arm == OURS)) for arm in order)
    warm, skipped = WARM_TURNS * steps, steps // 3
    command = [sys.executable, str(TOGGLED), watched, str(steps), str(warm), *_sizes(size)]
    with tempfile.TemporaryDirectory(prefix="cost-") as name, Arm(command, Path(name)) as arm:
        ends = arm.run(warm + steps * len(order))
    seconds: dict[str, list[float]] = {arm: [] for arm in session.arms}
    for turn, whose in enumerate(order):
        first, last = warm + turn * steps + skipped, warm + (turn + 1) * steps - 1
        seconds[whose].append((ends[last] - ends[first]) / (last - first))
    return {"round": number, "seconds": seconds, "load": os.getloadavg()[0]}


def measure_round(session: Between, size: str, number: int, traceml_path: Path | None = None) -> Row:
    """Measure one round of fresh processes: seconds per step of each arm, turn by turn."""
    with tempfile.TemporaryDirectory(prefix="cost-") as name, ExitStack() as stack:
        folder = Path(name)
        arms: dict[str, Arm] = {}
        known, first = commands(size, traceml_path, folder), number % len(session.arms)
        for at, arm in enumerate([*session.arms[first:], *session.arms[:first]]):
            place = folder / str(at)
            place.mkdir()
            arms[arm] = stack.enter_context(Arm(known[arm], place))
            arms[arm].get_ready()
        seconds: dict[str, list[float]] = {arm: [] for arm in session.arms}
        for turn in range(session.turns[size]):
            for arm in in_turn(session.arms, number + turn):
                seconds[arm].append(arms[arm].turn(session.turn_s[size]))
    return {"round": number, "seconds": seconds, "load": os.getloadavg()[0]}


def in_turn(arms: Sequence[str], turn: int) -> list[str]:
    """Return the order of the arms: forwards and backwards in turn; each pair starts with another arm."""
    at = turn // 2 % len(arms)
    order = [*arms[at:], *arms[:at]]
    return order[::-1] if turn % 2 else order


def run_cost(results: ResultFile, traceml_path: Path | None, *, rounds: int | None = None, again: bool = False) -> None:
    """Measure the missing rounds, starting with the shorter session of each size.

    Args:
        results: Storage for the rounds as they are measured.
        traceml_path: The command of TraceML; without it, its session is skipped.
        rounds: Number of rounds of each session; defaults to its own number.
        again: Repeat all rounds.
    """
    for name, session in SESSIONS.items():
        if name == "traceml" and traceml_path is None:
            continue
        for size in SIZES:
            part = f"own_cost_{name}_{size}"
            known = results.beside.get(part)
            found = known["rounds"] if not again and results.fresh(known) and known is not None else []
            for number in range(len(found), rounds or session.rounds):
                found = [*found, session.measure(size, number, traceml_path)]
                results.put_beside(part, {"arms": list(session.arms), "rounds": found})
                print(f"{name} {size} round {number + 1}: {_told(cost_of(session.arms, found))}", flush=True)


def cost_of(arms: Sequence[str], rounds: Sequence[Mapping[str, Any]]) -> Row:
    """Return the overhead of each arm except the first as a fraction, with an interval from two rounds on.

    If there are two unwatched groups of turns, a watched arm is compared with both, and the second group with the first.
    """
    level = {arm: [_level(one["seconds"][arm]) for one in rounds] for arm in arms}
    first = level[arms[0]]
    both = [math.sqrt(one * other) for one, other in zip(first, level.get(AGAIN, first), strict=True)]
    found: Row = {"step_ms": median(first) * 1e3, "rounds": len(rounds), "confidence": CONFIDENCE, "arms": {}}
    for arm in arms[1:]:
        base = first if arm == AGAIN else both
        ratios = [mine / plain for mine, plain in zip(level[arm], base, strict=True)]
        frac = math.exp(fmean(map(math.log, ratios))) - 1.0
        row: Row = {"cost_frac": frac, "cost_s": frac * median(base), "low": None, "high": None}
        if len(rounds) > 1:
            interval = paired_interval(level[arm], base, CONFIDENCE)
            row |= {"low": interval.low - 1.0, "high": interval.high - 1.0}
        found["arms"][arm] = row
    return found


def _level(turns: Sequence[float]) -> float:
    """Return the seconds per step of a process: the geometric mean over its turns, so that their ratios average."""
    return math.exp(fmean(map(math.log, turns)))


def _told(cost: Mapping[str, Any]) -> str:
    arms = ", ".join(f"{arm} {row['cost_frac']:+.2%}" for arm, row in cost["arms"].items())
    return f"steps of {cost['step_ms']:.2f} ms: {arms}"


def own_cost(beside: Mapping[str, Any]) -> Row:
    """Return the numbers of the score, and those of each session and size."""
    sessions: Row = {}
    for name in SESSIONS:
        for size in SIZES:
            part = beside.get(f"own_cost_{name}_{size}")
            if part:
                sessions.setdefault(name, {})[size] = cost_of(part["arms"], part["rounds"])
    ours = sessions.get("hasten", {})
    fracs = {
        f"own_cost_frac_{size}": ours[size]["arms"][OURS]["cost_s"] / STEP_S[size] if size in ours else None
        for size in SIZES
    }
    return {**fracs, "own_cost": sessions}
