"""Train whole runs in fresh processes, in pairs, and compare two plans by time to target.

Never less than the whole run: a schedule spans the updates that are planned, so the beginning of a run would judge its
warm-up alone. The held-out metric is measured on the way with the plain arithmetic, and its time is not counted; nor is
compilation, which the warm-up before the run pays. Caches fill as the run goes on, as they would for a user.
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
"""Measurements of the held-out metric in a run, besides the one before the first update."""
MAX_RETAKES_PER_PAIR = 1
"""A whole run is dear: a pair that a neighbour spoilt is run again once."""

Arm = Literal["A", "B"]


@dataclass(frozen=True, kw_only=True)
class TargetDesign:
    """How a comparison by time to target is run; fixed before the first measurement.

    Attributes:
        quality: The held-out metric, its direction and margin.
        points: Measurements of it in a run.
        max_batches: Of held-out data; None for all.
        seed: The first pair's seed; the next pairs count on from it. Also draws the order of the first pair.
        looks: Numbers of pairs at which the verdict may be read.
        deadline: Monotonic time after which no further pair is started; None for no bound.
        floor: The smallest difference that counts, and where it came from.
        side_by_side: Both runs of a pair live at once and take turns from measurement to measurement, the idle one frozen:
            it cancels what drifts within a run, but holds both in memory.
    """

    quality: Quality
    points: int = POINTS
    max_batches: int | None = None
    seed: int = 0
    looks: Sequence[int] = LOOKS
    deadline: float | None = None
    floor: Floor = field(default_factory=lambda: Floor(MIN_FLOOR_FRAC, "the smallest that counts"))
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
        setting: What all trials share.
        base: Arm A, which sets the target of each pair.
        candidate: Arm B.
        design: How.
        on_pair: Called after each pair, with the comparison so far.

    Returns:
        The comparison; it ends early once no further pair could make it `faster`.

    Raises:
        TrialError: A trial crashed, hung, ran out of memory or lost its loss to NaN; or the job does not say how long the
            run is, or does not give the metric that its quality names.
    """
    comparison = TargetComparison(quality=design.quality, floor=design.floor)
    base_first = random.Random(f"hasten-target-{design.seed}").random() < 0.5  # noqa: S311  an order, no secret
    plans: dict[Arm, Plan] = {"A": base, "B": candidate}
    for look, wanted in enumerate(design.looks):
        while comparison.pairs < wanted:
            started = monotonic()
            arms: tuple[Arm, Arm] = ("A", "B") if base_first == (comparison.pairs % 2 == 0) else ("B", "A")
            runs = _take_pair(setting, plans, arms, design, comparison)
            comparison.add(runs["A"], runs["B"])
            on_pair(comparison)
            late = design.deadline is not None and 2 * monotonic() - started > design.deadline
            if comparison.hopeless or late:
                read_look(comparison, look, design.looks)
                return comparison
        read_look(comparison, look, design.looks)
        if comparison.verdict is not Verdict.UNDECIDED:
            break
    return comparison


def planned_looks(pairs: int) -> tuple[int, ...]:
    """The looks that a budget of so many pairs holds, the last of them at the last pair; fixed before the first one."""
    within = tuple(look for look in LOOKS if look <= pairs)
    return within or (pairs,)


def _take_pair(
    setting: TrialSetting, plans: Mapping[Arm, Plan], arms: Sequence[Arm], design: TargetDesign, comparison: TargetComparison
) -> dict[Arm, WholeRun]:
    """Run a pair, and once more where a neighbour spoilt it and there is time."""
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
    """Run both arms of a pair to their ends; `arms` says who begins."""
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
        meter = Meter()  # its account ends before the processes do, whose workers' time would be lost with them
        turn = 0
        while any(not run.done for run in running.values()):
            for arm in arms if turn % 2 == 0 else reversed(arms):
                running[arm].go_on()
            turn += 1
        account = meter.read()
        share, spoilt = account.foreign_cpu_frac, account.spoilt
        return {arm: replace(run.told(arm, pair), foreign_cpu_frac=share, spoilt=spoilt) for arm, run in running.items()}


class _Running:
    """A run on its way, in a process of its own; frozen between two turns unless it is alone."""

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
        """Whether the run is at its end."""
        return not self._stops

    def go_on(self) -> None:
        """Train to the next measurement, and take it; nothing once the run is done."""
        if self.done:
            return
        self._trial.thaw()
        with named(self._plan.names):
            stop = self._stops.pop(0)
            answer = self._trial.call("run", updates=stop - self._updates[-1], timeout_s=self._patience_s())
            self._items += sum(answer["items"])
            self._measure(stop, self._seconds[-1] + sum(answer["times"]))
        self._rest()

    def told(self, arm: Arm, pair: int) -> WholeRun:
        """The run as it is recorded."""
        curve = Curve(updates=tuple(self._updates), seconds=tuple(self._seconds), metric=tuple(self._metric))
        return WholeRun(arm=arm, pair=pair, curve=curve, items=self._items, setup_s=self._setup_s)

    def _begin(self) -> None:
        """Warm up, go back to the start, and measure there."""
        planned, trial = self._trial.call("horizon")["updates"], self._trial
        if planned is None:
            words = "The job does not say how long the run is: set num_updates to compare by time to target."
            raise TrialError(words, kind="raised")
        self._setup_s = trial.call("warm", **warmup(trial, WARMUP_UPDATES, most=planned))["seconds"]
        trial.call("rewind")
        points = min(self._design.points, planned)
        self._stops = [round(planned * point / points) for point in range(1, points + 1)]
        self._measure(0, 0.0)
        self._rest()

    def _measure(self, update: int, seconds: float) -> None:
        name = self._design.quality.metric
        metrics = self._trial.call("validate", max_batches=self._design.max_batches)["metrics"]
        if name not in metrics:
            words = f"quality names the metric {name!r}, but metric() gave {sorted(metrics)}. Correct one of them."
            raise TrialError(words, kind="raised")
        self._updates.append(update)
        self._seconds.append(seconds)
        self._metric.append(metrics[name])

    def _rest(self) -> None:
        if not self._alone:
            self._trial.freeze()

    def _patience_s(self) -> float:
        """How long a stretch of the run may take: what the deadline leaves, and then as long as any command."""
        deadline = self._design.deadline
        return self._setting.hang_s + (0.0 if deadline is None else max(deadline - monotonic(), 0.0))
