"""Train whole runs in fresh processes, in pairs, and compare two plans by time to target.

Only whole runs are used: a schedule spans all planned updates, so the beginning of a run would judge only its warm-up. The
held-out metric is measured during the run with the plain arithmetic, and its time is not counted. Neither is compilation,
which happens in the warm-up. Caches fill as the run progresses, as they would for a user.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from hasten.core.errors import TrialError
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, MIN_FLOOR_FRAC, Floor, Verdict
from hasten.tune.proof.time_to_target import Curve, TargetComparison, WholeRun, read_look
from hasten.tune.trials.machine_load import Meter
from hasten.tune.trials.pair import WARMUP_UPDATES, warmup
from hasten.tune.trials.trial import Trial, TrialSetting
from hasten.tune.trials.turns import named

POINTS = 16
"""Number of measurements of the held-out metric in a run, besides the one before the first update."""
MAX_RETAKES_PER_PAIR = 1
"""Whole runs are expensive: a disturbed pair is repeated once."""

Arm = Literal["A", "B"]


@dataclass(frozen=True, kw_only=True)
class TargetDesign:
    """How a comparison by time to target is run; fixed before the first measurement.

    Attributes:
        quality: The held-out metric, its direction and margin.
        points: Measurements of it in a run.
        max_batches: Held-out batches per measurement; None for all.
        seed: The seed of the first pair; later pairs increment it. It also determines the order of the first pair.
        looks: Numbers of pairs at which the verdict may be read.
        deadline: Monotonic time after which no further pair is started; None for no limit.
        floor: The smallest difference that counts, and its basis.
        side_by_side: Whether both runs of a pair are alive at once and take turns between measurements, the idle one frozen.
            This cancels drift within a run, but keeps both in memory.
    """

    quality: Quality
    points: int = POINTS
    max_batches: int | None = None
    seed: int = 0
    looks: Sequence[int] = LOOKS
    deadline: float | None = None
    floor: Floor = field(default_factory=lambda: Floor(MIN_FLOOR_FRAC, "the default"))
    side_by_side: bool = False


def compare_to_target(
    setting: TrialSetting,
    base: Plan,
    candidate: Plan,
    design: TargetDesign,
    *,
    on_pair: Callable[[TargetComparison], None] = lambda _: None,
) -> TargetComparison:
    """Compare two plans by time to target.

    Args:
        setting: Settings that all trials share.
        base: The plan of arm A, which sets the target of each pair.
        candidate: The plan of arm B.
        design: How the comparison is run.
        on_pair: Called after each pair with the comparison so far.

    Returns:
        The comparison; it ends early once no further pair could make it `faster`.

    Raises:
        TrialError: A trial crashed, hung, ran out of memory, or its loss became NaN; or the job does not define the length
            of the run, or does not return the metric that its quality names.
    """
    comparison = TargetComparison(quality=design.quality, floor=design.floor)
    base_first = random.Random(f"hasten-target-{design.seed}").random() < 0.5  # noqa: S311  an order, not a secret
    plans: dict[Arm, Plan] = {"A": base, "B": candidate}
    for wanted in design.looks:
        while comparison.pairs < wanted:
            started = monotonic()
            arms: tuple[Arm, Arm] = ("A", "B") if base_first == (comparison.pairs % 2 == 0) else ("B", "A")
            runs = _take_pair(setting, plans, arms, design, comparison)
            comparison.add(runs["A"], runs["B"])
            on_pair(comparison)
            late = design.deadline is not None and 2 * monotonic() - started > design.deadline
            if comparison.hopeless or late:
                read_look(comparison, design.looks)
                return comparison
        read_look(comparison, design.looks)
        if comparison.verdict is not Verdict.UNDECIDED:
            break
    return comparison


def planned_looks(pairs: int) -> tuple[int, ...]:
    """Return the looks for a budget of `pairs` pairs, the last one at the last pair; fixed before the first pair."""
    within = tuple(look for look in LOOKS if look <= pairs)
    return within or (pairs,)


def _take_pair(
    setting: TrialSetting, plans: Mapping[Arm, Plan], arms: Sequence[Arm], design: TargetDesign, comparison: TargetComparison
) -> dict[Arm, WholeRun]:
    """Run a pair, and repeat it once if other processes disturbed it and there is time."""
    started = monotonic()
    runs = run_pair(setting, plans, arms, comparison.pairs, design)
    for _ in range(MAX_RETAKES_PER_PAIR):
        late = design.deadline is not None and 2 * monotonic() - started > design.deadline
        if late or not any(run.spoilt for run in runs.values()):
            break
        comparison.retaken += 1
        runs = run_pair(setting, plans, arms, comparison.pairs, design)
    return runs


def run_pair(
    setting: TrialSetting, plans: Mapping[Arm, Plan], arms: Sequence[Arm], pair: int, design: TargetDesign
) -> dict[Arm, WholeRun]:
    """Run both arms of a pair to their ends; `arms` is in the order in which they start."""
    together = [list(arms)] if design.side_by_side else [[arm] for arm in arms]
    runs: dict[Arm, WholeRun] = {}
    for group in together:
        runs |= _run_together(setting, plans, group, pair, design)
    return runs


def _run_together(
    setting: TrialSetting, plans: Mapping[Arm, Plan], arms: Sequence[Arm], pair: int, design: TargetDesign
) -> dict[Arm, WholeRun]:
    with ExitStack() as stack:
        running: dict[Arm, _Running] = {}
        for arm in arms:
            running[arm] = stack.enter_context(_Running(setting, plans[arm], pair, design, alone=len(arms) == 1))
        meter = Meter()  # read before the processes end, because the CPU time of their workers would be lost
        turn = 0
        while any(not run.done for run in running.values()):
            for arm in arms if turn % 2 == 0 else reversed(arms):
                running[arm].advance()
            turn += 1
        account = meter.read()
        share, spoilt = account.foreign_cpu_frac, account.spoilt
        return {arm: replace(run.result(arm, pair), foreign_cpu_frac=share, spoilt=spoilt) for arm, run in running.items()}


class _Running:
    """A run in progress, in its own process; frozen between two turns unless it is alone."""

    def __init__(self, setting: TrialSetting, plan: Plan, pair: int, design: TargetDesign, *, alone: bool) -> None:
        self._setting, self._plan, self._design, self._alone = setting, plan, design, alone
        with named(plan.names):
            self._trial = Trial(setting, plan, seed=design.seed + pair)
        self._updates: list[int] = []
        self._seconds: list[float] = []
        self._metric: list[float] = []
        self._items = 0
        self._setup_s = 0.0
        self._stops: list[int] = []

    def __enter__(self) -> Self:
        try:
            with named(self._plan.names):
                self._begin()
        except BaseException:
            self._trial.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._trial.end()

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return not self._stops

    def advance(self) -> None:
        """Train to the next measurement, and take it. Does nothing once the run is done."""
        if self.done:
            return
        self._trial.thaw()
        with named(self._plan.names):
            stop = self._stops.pop(0)
            answer = self._trial.call("run", updates=stop - self._updates[-1], timeout_s=self._patience_s())
            self._items += sum(answer["items"])
            self._measure(stop, self._seconds[-1] + sum(answer["times"]))
        self._freeze()

    def result(self, arm: Arm, pair: int) -> WholeRun:
        """Return the run as it is recorded."""
        curve = Curve(updates=tuple(self._updates), seconds=tuple(self._seconds), metric=tuple(self._metric))
        return WholeRun(arm=arm, pair=pair, curve=curve, items=self._items, setup_s=self._setup_s)

    def _begin(self) -> None:
        """Warm up, go back to the start, and take the first measurement."""
        planned, trial = self._trial.call("horizon")["updates"], self._trial
        if planned is None:
            message = "The length of the run is unknown: set num_updates in the job to compare by time to target."
            raise TrialError(message, kind="raised")
        self._setup_s = trial.call("warm", **warmup(trial, WARMUP_UPDATES, most=planned))["seconds"]
        trial.call("rewind")
        points = min(self._design.points, planned)
        self._stops = [round(planned * point / points) for point in range(1, points + 1)]
        self._measure(0, 0.0)
        self._freeze()

    def _measure(self, update: int, seconds: float) -> None:
        name = self._design.quality.metric
        metrics = self._trial.call("validate", max_batches=self._design.max_batches)["metrics"]
        if name not in metrics:
            message = f"quality names {name!r}, but metric() returned {sorted(metrics)}. Change one of them."
            raise TrialError(message, kind="raised")
        self._updates.append(update)
        self._seconds.append(seconds)
        self._metric.append(metrics[name])

    def _freeze(self) -> None:
        if not self._alone:
            self._trial.freeze()

    def _patience_s(self) -> float:
        """Return the timeout of a stretch of the run: the time to the deadline plus the timeout of any command."""
        deadline = self._design.deadline
        return self._setting.hang_s + (0.0 if deadline is None else max(deadline - monotonic(), 0.0))
