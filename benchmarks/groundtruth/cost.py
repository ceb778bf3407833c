"""What watching a script costs it: the same script watched and not watched, alive together and taking turns.

Every process is frozen but one. A turn is judged by the times that the script itself notes at the end of each step, so
what happened while it was frozen is in none of them. Turns go forwards and backwards through the arms (AB BA). The unit is a
round of fresh processes: what a process happens to be given (addresses, cores) stays with it, so turns sharpen a round's
ratio, and the interval is that of rounds. Two unwatched processes beside each other show what that is worth.

TraceML wakes every two seconds by its own clock, whether its processes were frozen or not: its turns are that long, against
an unwatched process of its own turns.
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
from benchmarks.groundtruth.kept import Kept, Row
from benchmarks.groundtruth.processes import end_tree, freeze, thaw, tree
from benchmarks.groundtruth.steps import HEAD, ROOM
from upshift.core.errors import TrialError
from upshift.core.stats import paired_interval

STEPS = Path(__file__).with_name("steps.py")
SIZES: Mapping[str, Mapping[str, int]] = {
    "2ms": {"width": 384, "depth": 4, "batch": 32},
    "100ms": {"width": 1024, "depth": 4, "batch": 512},
}
"""Of the script, for steps of about so long on two cores; how long they were is in the result."""
WATCHED = """
import sys
from upshift.script.entry.launch import Watch, run_watched
sys.exit(run_watched(sys.argv[1:], Watch(mode="observe", updates=0, seconds=0.0)).code)
"""
"""Watches to the end: every seam of a profiling run, for as long as the script runs."""
UNWATCHED, AGAIN, OURS = "unwatched", "unwatched again", "watched by upshift"
TRACEML, TRACEML_MARKED = "traceml run", "traceml run, steps marked"
CONFIDENCE = 0.95
WARM_STEPS, WARM_S, START_LIMIT_S = 20, 2.0, 90.0
LEAST_STEPS, TRIES = 3, 5


@dataclass(frozen=True, kw_only=True)
class Session:
    """Arms that take turns with each other.

    Attributes:
        arms: The first is the unwatched one.
        turn_s: Seconds of a turn, by size.
        turns: In a round, by size.
        rounds: Of fresh processes.
    """

    arms: tuple[str, ...]
    turn_s: Mapping[str, float]
    turns: Mapping[str, int]
    rounds: int


SESSIONS: Mapping[str, Session] = {
    "upshift": Session(
        arms=(UNWATCHED, OURS, AGAIN), turn_s={"2ms": 0.25, "100ms": 0.8}, turns={"2ms": 40, "100ms": 16}, rounds=6
    ),
    "traceml": Session(
        arms=(UNWATCHED, TRACEML, TRACEML_MARKED), turn_s={"2ms": 2.0, "100ms": 2.0}, turns={"2ms": 6, "100ms": 6}, rounds=4
    ),
}


class Arm:
    """A living script that is frozen but for its turns.

    Args:
        command: That runs it, watched or not, without its `--notes`.
        folder: For its notes.

    Raises:
        TrialError: It ended, or took no steps.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._path = folder / "notes"
        self._path.write_bytes(bytes(8 * (HEAD + ROOM)))
        self._log = (folder / "log").open("w+", encoding="utf-8")
        self._words = [*command, "--notes", str(self._path)]
        environment = {**traceml.environment(), "TMPDIR": str(folder)}  # it is ended by force, and leaves its files there
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
        """Let it start and warm up, and freeze it with all that it started."""
        deadline = monotonic() + START_LIMIT_S
        while self._count() < WARM_STEPS:
            if self._process.poll() is not None or monotonic() > deadline:
                self._log.seek(0)
                raise TrialError(f"{' '.join(self._words)} took no steps: {self._log.read()[-500:]}", kind="raised")
            sleep(0.05)
        sleep(WARM_S)
        self._pids = [self._numbers()[1]]
        self.freeze()

    def freeze(self) -> None:
        """Stop it, the script first; what it has started meanwhile is looked for once the others stand still."""
        freeze(self._pids)
        newcomers = [pid for pid in tree(self._process.pid) if pid not in self._pids]
        freeze(newcomers)
        self._pids += newcomers

    def turn(self, seconds: float) -> float:
        """Let it run about so long, or longer where its steps do; seconds a step.

        They are those between the ends of its first and its last step in this turn.

        Raises:
            TrialError: It takes no steps any more.
        """
        for number in range(TRIES):
            before = self._count()
            thaw(self._pids)
            sleep(seconds * 2**number)
            self.freeze()
            count = self._count()
            if count - before >= LEAST_STEPS:
                return (self._time(count - 1) - self._time(before)) / (count - 1 - before)
        raise TrialError(f"No {LEAST_STEPS} steps in a turn of {seconds} s.", kind="hung")

    def _count(self) -> int:
        return self._numbers()[0]

    def _numbers(self) -> memoryview:
        return memoryview(self._path.read_bytes()[: 8 * HEAD]).cast("q")

    def _time(self, step: int) -> float:
        return memoryview(self._path.read_bytes()).cast("d")[HEAD + step % ROOM]


def commands(size: str, traceml_path: Path | None, folder: Path) -> dict[str, list[str]]:
    """How each arm is started."""
    sizes = [word for name, value in SIZES[size].items() for word in (f"--{name}", str(value))]
    found = {
        UNWATCHED: [sys.executable, str(STEPS), *sizes],
        AGAIN: [sys.executable, str(STEPS), *sizes],
        OURS: [sys.executable, "-c", WATCHED, str(STEPS), *sizes],
    }
    if traceml_path is not None:
        found |= {
            TRACEML: traceml.arguments(traceml_path, STEPS, sizes, folder / "plain"),
            TRACEML_MARKED: traceml.arguments(traceml_path, traceml.MARKED, [str(STEPS), *sizes], folder / "marked"),
        }
    return found


def measure_round(session: Session, size: str, number: int, traceml_path: Path | None = None) -> Row:
    """One round of fresh processes: seconds a step, turn by turn, of each arm."""
    with tempfile.TemporaryDirectory(prefix="cost-") as name, ExitStack() as stack:
        folder = Path(name)
        arms: dict[str, Arm] = {}
        for at, (arm, command) in enumerate(commands(size, traceml_path, folder).items()):
            if arm in session.arms:
                place = folder / str(at)
                place.mkdir()
                arms[arm] = stack.enter_context(Arm(command, place))
                arms[arm].get_ready()
        seconds: dict[str, list[float]] = {arm: [] for arm in session.arms}
        for turn in range(session.turns[size]):
            for arm in in_turn(session.arms, number + turn):
                seconds[arm].append(arms[arm].turn(session.turn_s[size]))
    return {"round": number, "seconds": seconds, "load": os.getloadavg()[0]}


def in_turn(arms: Sequence[str], turn: int) -> list[str]:
    """Who comes when: forwards and backwards in turns, each pair of turns begun by another."""
    at = turn // 2 % len(arms)
    order = [*arms[at:], *arms[:at]]
    return order[::-1] if turn % 2 else order


def run_cost(kept: Kept, traceml_path: Path | None, *, rounds: int | None = None, again: bool = False) -> None:
    """Measure the rounds that are missing, the shorter session of each size first.

    Args:
        kept: Where the rounds are written as they come.
        traceml_path: The command of TraceML; its session is left out without one.
        rounds: Of each session; its own number unless given.
        again: Measure all of them anew.
    """
    for name, session in SESSIONS.items():
        if name == "traceml" and traceml_path is None:
            continue
        for size in SIZES:
            part = f"own_cost_{name}_{size}"
            known = kept.beside.get(part)
            found = known["rounds"] if not again and kept.fresh(known) and known is not None else []
            for number in range(len(found), rounds or session.rounds):
                found = [*found, measure_round(session, size, number, traceml_path)]
                kept.put_beside(part, {"arms": list(session.arms), "turn_s": session.turn_s[size], "rounds": found})
                print(f"{name} {size} round {number + 1}: {_told(cost_of(session.arms, found))}", flush=True)


def cost_of(arms: Sequence[str], rounds: Sequence[Mapping[str, Any]]) -> Row:
    """Of each arm but the first, what it takes more than the first, as a share; with an interval from two rounds on."""
    level = {arm: [_level(one["seconds"][arm]) for one in rounds] for arm in arms}
    base = level[arms[0]]
    found: Row = {"step_ms": median(base) * 1e3, "rounds": len(rounds), "confidence": CONFIDENCE, "arms": {}}
    for arm in arms[1:]:
        ratios = [mine / plain for mine, plain in zip(level[arm], base, strict=True)]
        row: Row = {"cost_frac": math.exp(fmean(map(math.log, ratios))) - 1.0, "low": None, "high": None}
        if len(rounds) > 1:
            interval = paired_interval(level[arm], base, CONFIDENCE)
            row |= {"low": interval.low - 1.0, "high": interval.high - 1.0}
        found["arms"][arm] = row
    return found


def _level(turns: Sequence[float]) -> float:
    """Seconds a step of a process: the geometric mean over its turns, so that their ratios average."""
    return math.exp(fmean(map(math.log, turns)))


def _told(cost: Mapping[str, Any]) -> str:
    arms = ", ".join(f"{arm} {row['cost_frac']:+.2%}" for arm, row in cost["arms"].items())
    return f"steps of {cost['step_ms']:.2f} ms: {arms}"


def own_cost(beside: Mapping[str, Any]) -> Row:
    """The figures of the score, and those of each session and size."""
    sessions: Row = {}
    for name in SESSIONS:
        for size in SIZES:
            part = beside.get(f"own_cost_{name}_{size}")
            if part:
                sessions.setdefault(name, {})[size] = cost_of(part["arms"], part["rounds"])
    ours = sessions.get("upshift", {})
    fracs = {f"own_cost_frac_{size}": ours[size]["arms"][OURS]["cost_frac"] if size in ours else None for size in SIZES}
    return {**fracs, "own_cost": sessions}
