"""Screen a candidate: two resident processes take turns on the same updates, the idle one frozen.

Cheap, because both start from the same weights and see the same batches, so losses and gradients are compared as well. How
the two processes are started and brought to the first counted update differs between jobs and scripts, and is injected: see
`Processes`, `job_processes.py` and `hasten.tune.scripts.processes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from hasten.core.card import Numerics
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import MIN_FLOOR_FRAC, Interval, Verdict, aa_floor_frac, judge, paired_interval
from hasten.tune.proof.compare import NEIGHBOUR, Comparison
from hasten.tune.proof.numerics import GateVerdict
from hasten.tune.search.resident_process import Resident
from hasten.tune.trials.pair import warmup
from hasten.tune.trials.samples import Sample
from hasten.tune.trials.trial import TrialSetting
from hasten.tune.trials.turns import interleave, join_turns

TURNS = 5
MORE_TURNS = 8
SLICES = 20
"""A turn of both processes is cut into so many slices of each at most."""
CONFIDENCE = 0.95
MAX_RETAKES = 4
"""Turns that a neighbour spoilt are taken again, so many in all."""
FUTILE_TURNS = 3
MAX_FLOOR_FRAC = 0.25
LOUD_FRAC = 2 * MIN_FLOOR_FRAC
LOUD_TURNS = 15
"""Turns of the second comparison of a job with itself, where the first gave a floor above `LOUD_FRAC`."""


@dataclass(kw_only=True)
class Screening:
    """What screening a candidate gave.

    Attributes:
        comparison: Base (A) against base with the candidate (B).
        gate: What the numerics gate says; None where it did not come so far.
        evidence: The candidate's own checks.
        setup_s: Seconds it costs once: compilation, filling caches.
        peak_bytes: Peak memory by arm.
        losses: By arm, of the counted updates.
    """

    comparison: Comparison
    gate: GateVerdict | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)
    setup_s: float = 0.0
    peak_bytes: dict[str, int] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)

    @property
    def fired(self) -> bool:
        """Whether every check of the candidate passed."""
        return bool(self.evidence) and all(check["passed"] for check in self.evidence)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Two processes that are warm, before the first counted update.

    Attributes:
        base: The base process, perhaps another one than before.
        evidence: The checks of what was added.
        warm_s: Seconds that the challenger took to warm up.
        usual_s: Seconds that it would take without compiling, for so many seconds of an update.
    """

    base: Resident
    evidence: list[dict[str, Any]]
    warm_s: float
    usual_s: Callable[[float], float]


class Processes(Protocol):
    """Starts the two processes of a screening, gets them ready, and asks them what the numerics gate needs.

    Every method but `shortens_turns` raises TrialError where a process fails.
    """

    @property
    def setting(self) -> TrialSetting:
        """What all trials share."""
        ...

    @property
    def most_updates(self) -> int | None:
        """Counted updates that a process can do; None for any number."""
        ...

    def start(self, plan: Plan) -> Resident:
        """Start a base process."""
        ...

    def challenge(self, base: Resident, plan: Plan) -> tuple[Resident, Resident]:
        """Start a challenger beside a base that is alive and frozen; gives the base, perhaps a new one, and it."""
        ...

    def get_ready(self, base: Resident, challenger: Resident, added: Sequence[Optimization]) -> Ready:
        """Warm both up, and see whether what was added fires; the base may stay as it is where it does not."""
        ...

    def judge(
        self, base: Resident, challenger: Resident, added: Sequence[Optimization], others: Sequence[Sequence[float]],
        say: Callable[[str], None],
    ) -> GateVerdict:  # fmt: skip
        """What the numerics gate says of two frozen processes; `others`: losses of the plain job with other seeds."""
        ...

    def shortens_turns(self, error: TrialError) -> bool:
        """Whether a failure says that the updates came to an end, so that shorter turns would do."""
        ...


def numerics_of(added: Sequence[Optimization]) -> Numerics:
    """The class that techniques are judged as together: the one that allows most."""
    return max((item.numerics for item in added), key=list(Numerics).index, default=Numerics.EXACT)


def checks_of(traced: dict[str, list[dict[str, Any]]], added: Sequence[Optimization]) -> list[dict[str, Any]]:
    """The checks of what was added, from the answer to `trace`; none where one of them gave none."""
    checks = [traced.get(item.card.name, []) for item in added]
    return [check for some in checks for check in some] if all(checks) else []


class Screen:
    """Holds the base process and screens candidates against it.

    Args:
        processes: How processes are started and brought to the first counted update.
        plan: The base plan to begin with.
        uneven: Updates differ by nature.
        others: Loss curves of the empty plan with other seeds: what chance does.
        say: Told what is going on.
        slices: A turn of both is cut into so many slices of each at most; 1 where a frozen process gets what it waits for.
    """

    def __init__(
        self,
        processes: Processes,
        plan: Plan,
        *,
        uneven: bool,
        others: Sequence[Sequence[float]],
        say: Callable[[str], None] = lambda _: None,
        slices: int = SLICES,
    ) -> None:
        self.processes, self.uneven, self.others, self.say, self.slices = processes, uneven, others, say, slices
        self.base = processes.start(plan)
        self.challenger: Resident | None = None
        self.floor_frac = MIN_FLOOR_FRAC

    @property
    def setting(self) -> TrialSetting:
        """What all trials share."""
        return self.processes.setting

    @property
    def plan(self) -> Plan:
        """The base plan."""
        return self.base.trial.plan

    @property
    def filling_s(self) -> float:
        """Seconds of filling caches beforehand, for each measured update under the base plan."""
        return self.base.filling_s

    def close(self) -> None:
        """End all processes."""
        for resident in (self.base, self.challenger):
            if resident is not None:
                resident.end()

    def freeze(self) -> None:
        """Freeze all processes, so that others may use the machine alone."""
        for resident in (self.base, self.challenger):
            if resident is not None:
                resident.trial.freeze()

    def screen(
        self,
        candidate: Optimization | None,
        plan: Plan,
        updates: int,
        *,
        beside: Optimization | None = None,
        most_turns: int = MORE_TURNS,
    ) -> Screening:
        """Screen `plan` against the base.

        Args:
            candidate: What was added, whose evidence and numerics class count; None when something was taken away.
            plan: The plan of the challenger.
            updates: Updates per turn; fewer where there are not so many.
            beside: A second one that was added together with the candidate.
            most_turns: Stop after so many turns of each.

        Raises:
            TrialError: The challenger crashed, hung, ran out of memory or lost its loss to NaN.
        """
        added = [item for item in (candidate, beside) if item is not None]
        while True:
            try:
                return self._screen(added, plan, self._fitting(updates, most_turns), most_turns)
            except TrialError as error:
                if not self.processes.shortens_turns(error):
                    raise

    def challenge(self, plan: Plan) -> Resident:
        """Start a challenger under `plan`, in the place of the one before, beside a base that is alive and frozen.

        Raises:
            TrialError: It could not be started.
        """
        self._drop_challenger()
        self.base, self.challenger = self.processes.challenge(self.base, plan)
        return self.challenger

    def challenges(self, plan: Plan) -> bool:
        """Whether the challenger runs under exactly this plan."""
        return self.challenger is not None and self.challenger.trial.plan == plan

    def stand_by(self, plan: Plan) -> None:
        """Make a fresh, warm process under `plan` the challenger: one that was screened before others were.

        Raises:
            TrialError: It could not be started.
        """
        self.challenge(plan).awake(lambda r: r.trial.call("warm", **warmup(r.trial, 2)))

    def promote(self) -> None:
        """Make the challenger the base."""
        if self.challenger is None:
            raise TrialError("There is no challenger to promote.", kind="raised")
        self.base.end()
        self.base, self.challenger = self.challenger, None
        self.base.trial.thaw()

    def profile(self, *, slice_s: float, quick: bool) -> dict[str, Any]:
        """Profile the base process; one that was started for it, where a script has too few steps left in this one."""
        self._drop_challenger()
        self.base.losses.clear()
        self.base.trial.thaw()
        try:
            return self.base.trial.call("profile", slice_s=slice_s, quick=quick)
        except TrialError:
            if self.processes.most_updates is None:
                raise
        self.base.end()
        self.base = self.processes.start(self.base.trial.plan)
        return self.base.trial.call("profile", slice_s=slice_s, quick=quick)

    def calibrate(self, updates: int, *, again_s: float = math.inf) -> Screening:
        """A/A: screen the base plan against itself, to learn what this machine's noise supports, and whether it repeats.

        A floor stands for the whole tuning, and hides every gain below it. So one that a loud moment may have lifted is
        measured once more, over more turns; what those say counts, be it higher or lower.

        Args:
            updates: Per turn.
            again_s: It is measured once more only where that takes less than so many seconds.
        """
        started = monotonic()
        screening = self.screen(None, self.plan, updates, most_turns=TURNS)
        floor = _floor_of(screening.comparison)
        needed_s = (monotonic() - started) * LOUD_TURNS / TURNS
        if floor is not None and floor > LOUD_FRAC and needed_s < again_s:
            self.say(f"  {floor:.1%} is much: comparing the job with itself once more, for longer")
            screening = self.screen(None, self.plan, updates, most_turns=LOUD_TURNS)
            floor = _floor_of(screening.comparison) or floor
        if floor is not None:
            self.floor_frac = floor
        return screening

    def repeats(self) -> bool:
        """Whether base and challenger, under the same plan, gave bit-equal losses."""
        if self.challenger is None:
            return False
        both = list(zip(self.base.losses, self.challenger.losses, strict=False))
        return bool(both) and all(a == b for a, b in both)

    def _screen(self, added: list[Optimization], plan: Plan, updates: int, most_turns: int) -> Screening:
        screening = Screening(comparison=Comparison(kind="screening"))
        challenger = self.challenge(plan)
        ready = self.processes.get_ready(self.base, challenger, added)
        self.base, screening.evidence = ready.base, ready.evidence
        if added and not screening.fired:
            return screening
        self._turns(screening, challenger, updates, most_turns)
        steady_s = screening.comparison.samples[-1].seconds / updates
        screening.setup_s += max(ready.warm_s - 2 * ready.usual_s(steady_s), 0.0)
        screening.losses = {"A": list(self.base.losses), "B": list(challenger.losses)}
        if added:
            screening.gate = self.processes.judge(self.base, challenger, added, self.others, self.say)
        for arm, resident in (("A", self.base), ("B", challenger)):
            screening.peak_bytes[arm] = resident.awake(lambda r: int(r.trial.call("memory", reset=False)["peak_bytes"]))
        return screening

    def _fitting(self, updates: int, turns: int) -> int:
        """Updates per turn, no more than a process can do."""
        most = self.processes.most_updates
        if most is None:
            return updates
        if most < turns + MAX_RETAKES:
            words = f"{most} steps can be counted, and {turns + MAX_RETAKES} are needed to compare anything."
            raise TrialError(f"{words} Give the script more to do, with more data or epochs.", kind="raised")
        return min(updates, most // (turns + MAX_RETAKES))

    def _turns(self, screening: Screening, challenger: Resident, updates: int, most_turns: int) -> None:
        """Take turns on the same stretches of updates, first one then the other, ABBA."""
        comparison = screening.comparison
        for resident in (self.base, challenger):
            resident.losses.clear()
            resident.skipped.clear()
        total = updates * most_turns
        for arm, resident in (("B", challenger), ("A", self.base)):
            resident.trial.thaw()
            resident.trial.call("rewind")
            primed = resident.trial.call("prime", updates=resident.trial.plan.updates_for(total))["seconds"]
            resident.trial.call("memory", reset=True)
            resident.filling_s = primed / total
            if arm == "B":
                screening.setup_s += primed
            resident.trial.freeze()
        for turn in range(most_turns + MAX_RETAKES):
            if turn >= most_turns:
                for resident in (challenger, self.base):  # caches hold only what the planned turns need
                    resident.awake(lambda r: r.trial.call("prime", updates=r.trial.plan.updates_for(updates)))
            both = self._turn(challenger, turn, updates)
            comparison.samples += both
            comparison.retaken += any(sample.spoilt for sample in both)
            clean = turn + 1 - comparison.retaken
            if clean == most_turns or (turn + 1 >= FUTILE_TURNS and read_turns(comparison, clean, self.floor_frac)):
                break
        read_turns(comparison, turn + 1 - comparison.retaken, self.floor_frac)

    def _turn(self, challenger: Resident, turn: int, updates: int) -> list[Sample]:
        """A turn of both, in slices that take turns themselves: a slow moment then falls on both arms."""
        residents = {"A": self.base, "B": challenger}
        arms = ("AB", "BA")[turn % 2]
        trials = {arm: residents[arm].trial for arm in arms}
        answers, account = interleave(trials, arms, updates, turns=self.slices)
        for arm, taken in answers.items():
            residents[arm].losses += [loss for answer in taken for loss in answer["losses"]]
            residents[arm].skipped.append(taken[-1]["skipped"])
        return [join_turns(arm, turn, answers[arm], account, uneven=self.uneven) for arm in arms]

    def _drop_challenger(self) -> None:
        if self.challenger is not None:
            self.challenger.end()
            self.challenger = None


def read_turns(comparison: Comparison, clean: int, floor_frac: float) -> bool:
    """Read the turns so far; True when no further turn could change what happens to the candidate."""
    base, candidate = comparison.times("A"), comparison.times("B")
    if len(base) < FUTILE_TURNS:
        comparison.why = f"only {len(base)} clean turns: {NEIGHBOUR}"
        return False
    comparison.interval = paired_interval(base, candidate, CONFIDENCE)
    comparison.verdict = judge(comparison.interval, floor_frac)
    comparison.why = f"screened in turns, floor {floor_frac:.1%}"
    hopeless = comparison.interval.high < 1.0
    clear = comparison.verdict is Verdict.FASTER and comparison.interval.low > 1.0 + 2 * floor_frac
    return hopeless or clear or (clean >= TURNS and comparison.verdict is not Verdict.UNDECIDED)


def _floor_of(comparison: Comparison) -> float | None:
    """The floor that a comparison of a plan with itself supports; None where too few turns were clean."""
    if comparison.interval is None:
        return None
    scatter = aa_floor_frac(comparison.times("A"), comparison.times("B")).frac
    return min(max(scatter, aa_departure(comparison.interval)), MAX_FLOOR_FRAC)


def aa_departure(interval: Interval) -> float:
    """How far the ratio of a plan against itself is from 1, as a share: what two resident processes differ by."""
    return max(interval.ratio, 1.0 / interval.ratio) - 1.0
