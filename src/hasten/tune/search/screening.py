"""Screen a candidate: two resident processes take turns on the same updates, the idle one frozen.

This is cheap, and because both start from the same weights and see the same batches, losses and gradients can be compared as
well. Jobs and scripts differ in how the two processes are started and brought to the first counted update, so that part is
injected: see `Processes`, `job_processes.py` and `hasten.tune.scripts.processes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol

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
"""Number of turns after which a clear verdict ends a screening."""
MORE_TURNS = 8
"""Maximum number of turns of a screening."""
SLICES = 20
"""Maximum number of slices per turn and process."""
CONFIDENCE = 0.95
MAX_RETAKES = 4
"""Maximum number of turns that are repeated because other processes disturbed them."""
FUTILE_TURNS = 3
"""Minimum number of turns before a screening may stop early."""
MAX_FLOOR_FRAC = 0.25
"""Upper limit of the noise floor."""
LOUD_FRAC = 2 * MIN_FLOOR_FRAC
"""Noise floor above which the comparison of a job with itself is repeated."""
LOUD_TURNS = 15
"""Number of turns of that second comparison."""
NOT_REPEATABLE = "two plain runs with the same seed differ as well"


@dataclass(kw_only=True)
class Screening:
    """The result of screening a candidate.

    Attributes:
        comparison: Base (A) against base with the candidate (B).
        gate: The verdict of the numerics gate; None if it was not reached.
        evidence: The candidate's own checks.
        setup_s: Seconds of one-off costs: compilation, cache filling.
        warming_s: Seconds of it that every process spends before it is at full speed: compilation.
        peak_bytes: Peak memory by arm.
        losses: Losses of the counted updates by arm.
    """

    comparison: Comparison
    gate: GateVerdict | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)
    setup_s: float = 0.0
    warming_s: float = 0.0
    peak_bytes: dict[str, int] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)

    @property
    def fired(self) -> bool:
        """Whether every check of the candidate passed."""
        return bool(self.evidence) and all(check["passed"] for check in self.evidence)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Two warm processes, before the first counted update.

    Attributes:
        base: The base process, which may be a new one.
        evidence: The checks of the added techniques.
        warm_s: Seconds of the challenger's warm-up.
        usual_s: Returns the seconds of that warm-up without compilation, given the seconds of an update.
    """

    base: Resident
    evidence: list[dict[str, Any]]
    warm_s: float
    usual_s: Callable[[float], float]


class Processes(Protocol):
    """Starts the two processes of a screening, prepares them, and collects what the numerics gate needs.

    Every method but `shortens_turns` raises TrialError if a process fails.
    """

    @property
    def setting(self) -> TrialSetting:
        """Settings that all trials share."""
        ...

    @property
    def most_updates(self) -> int | None:
        """Maximum number of updates that a process can count; None for no limit."""
        ...

    def start(self, plan: Plan) -> Resident:
        """Start a base process."""
        ...

    def challenge(self, base: Resident, plan: Plan) -> tuple[Resident, Resident]:
        """Start a challenger next to a live, frozen base. Returns the base (perhaps a new process) and the challenger."""
        ...

    def get_ready(self, base: Resident, challenger: Resident, added: Sequence[Optimization]) -> Ready:
        """Warm both up, and check whether the added techniques take effect. If not, the base may stay as it is."""
        ...

    def judge(
        self, base: Resident, challenger: Resident, added: Sequence[Optimization], others: Sequence[Sequence[float]],
        say: Callable[[str], None],
    ) -> GateVerdict:  # fmt: skip
        """Return the gate's verdict on two frozen processes; `others`: losses of the plain job with other seeds."""
        ...

    def shortens_turns(self, error: TrialError) -> bool:
        """Return whether a failure means that the updates ran out, so that shorter turns would succeed."""
        ...


def checks_of(traced: dict[str, list[dict[str, Any]]], added: Sequence[Optimization]) -> list[dict[str, Any]]:
    """Return the checks of the added techniques from the answer to `trace`; none if one of them gave none."""
    checks = [traced.get(item.card.name, []) for item in added]
    return [check for some in checks for check in some] if all(checks) else []


class Screen:
    """Keeps the base process and screens candidates against it.

    Args:
        processes: Starts processes and brings them to the first counted update.
        plan: The initial base plan.
        uneven: Whether updates differ in length by nature.
        others: Loss curves of the empty plan with other seeds, which show the effect of chance.
        say: Called with a message at each step.
        slices: Maximum slices per turn and process; use 1 if data that a process waits for arrives while it is frozen.

    Attributes:
        floor_frac: The noise floor.
        repeatable: Whether two runs under the same plan gave bit-equal losses; known after `calibrate`.
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
        self.repeatable = True

    @property
    def setting(self) -> TrialSetting:
        """Settings that all trials share."""
        return self.processes.setting

    @property
    def plan(self) -> Plan:
        """The base plan."""
        return self.base.trial.plan

    @property
    def filling_s(self) -> float:
        """Seconds of cache filling per measured update under the base plan."""
        return self.base.filling_s

    def close(self) -> None:
        """End all processes."""
        for resident in (self.base, self.challenger):
            if resident is not None:
                resident.end()

    def freeze(self) -> None:
        """Freeze all processes, so that other processes have the machine to themselves."""
        for resident in (self.base, self.challenger):
            if resident is not None:
                resident.trial.freeze()

    def screen(
        self,
        candidate: Optimization | None,
        plan: Plan,
        updates: int,
        *,
        partner: Optimization | None = None,
        most_turns: int = MORE_TURNS,
    ) -> Screening:
        """Screen `plan` against the base.

        Args:
            candidate: The added technique, whose evidence and numerics class count; None if something was removed.
            plan: The plan of the challenger.
            updates: Updates per turn; fewer if the process cannot do that many.
            partner: A second technique that was added together with the candidate.
            most_turns: Maximum number of turns of each process.

        Raises:
            TrialError: The challenger crashed, hung, ran out of memory, or its loss became NaN.
        """
        added = [item for item in (candidate, partner) if item is not None]
        while True:
            try:
                return self._screen(added, plan, self._fitting(updates, most_turns), most_turns)
            except TrialError as error:
                if not self.processes.shortens_turns(error):
                    raise

    def challenge(self, plan: Plan) -> Resident:
        """Start a challenger under `plan`, replacing the previous one, next to a live, frozen base.

        Raises:
            TrialError: It could not be started.
        """
        self._drop_challenger()
        self.base, self.challenger = self.processes.challenge(self.base, plan)
        return self.challenger

    def challenges(self, plan: Plan) -> bool:
        """Return whether the challenger runs under exactly this plan."""
        return self.challenger is not None and self.challenger.trial.plan == plan

    def stand_by(self, plan: Plan) -> None:
        """Make a fresh, warm process under `plan` the challenger, for a plan that was screened before other plans.

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
        """Profile the base process, or a new one if a script has too few steps left in the present one."""
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
        """Screen the base plan against itself (A/A) to measure the noise floor, and whether losses repeat.

        The floor applies to the whole tuning and hides every smaller gain. A floor that a noisy moment may have raised is
        therefore measured again over more turns, and the second result counts, whether higher or lower.

        Args:
            updates: Updates per turn.
            again_s: Repeat the measurement only if that takes less than this, in seconds.
        """
        started = monotonic()
        screening = self.screen(None, self.plan, updates, most_turns=TURNS)
        floor = _floor_of(screening.comparison)
        needed_s = (monotonic() - started) * LOUD_TURNS / TURNS
        if floor is not None and floor > LOUD_FRAC and needed_s < again_s:
            self.say(f"  a noise floor of {floor:.1%} is high: comparing the job with itself again, for longer")
            screening = self.screen(None, self.plan, updates, most_turns=LOUD_TURNS)
            floor = _floor_of(screening.comparison) or floor
        if floor is not None:
            self.floor_frac = floor
        self.repeatable = self._repeats()
        return screening

    def _screen(self, added: list[Optimization], plan: Plan, updates: int, most_turns: int) -> Screening:
        screening = Screening(comparison=Comparison(kind="screening"))
        challenger = self.challenge(plan)
        ready = self.processes.get_ready(self.base, challenger, added)
        self.base, screening.evidence = ready.base, ready.evidence
        if added and not screening.fired:
            return screening
        self._turns(screening, challenger, updates, most_turns)
        steady_s = screening.comparison.samples[-1].seconds / updates
        screening.warming_s = max(ready.warm_s - 2 * ready.usual_s(steady_s), 0.0)
        screening.setup_s += screening.warming_s
        screening.losses = {"A": list(self.base.losses), "B": list(challenger.losses)}
        if added:
            gate = self.processes.judge(self.base, challenger, added, self.others, self.say)
            if gate.verdict == "failed" and not self.repeatable:
                gate = replace(gate, why=f"{gate.why}; {NOT_REPEATABLE}")
            screening.gate = gate
        for arm, resident in (("A", self.base), ("B", challenger)):
            screening.peak_bytes[arm] = resident.awake(lambda r: int(r.trial.call("memory", reset=False)["peak_bytes"]))
        return screening

    def _repeats(self) -> bool:
        """Return whether base and challenger, under the same plan, gave bit-equal losses."""
        if self.challenger is None:
            return False
        both = list(zip(self.base.losses, self.challenger.losses, strict=False))
        return bool(both) and all(a == b for a, b in both)

    def _fitting(self, updates: int, turns: int) -> int:
        """Return the updates per turn, limited to what a process can do."""
        most = self.processes.most_updates
        if most is None:
            return updates
        if most < turns + MAX_RETAKES:
            message = f"Only {most} steps can be counted, and a comparison needs at least {turns + MAX_RETAKES}."
            raise TrialError(f"{message} Give the script more data or more epochs.", kind="raised")
        return min(updates, most // (turns + MAX_RETAKES))

    def _turns(self, screening: Screening, challenger: Resident, updates: int, most_turns: int) -> None:
        """Let both processes take turns on the same stretches of updates, in ABBA order."""
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
                for resident in (challenger, self.base):  # caches hold only the samples of the planned turns
                    resident.awake(lambda r: r.trial.call("prime", updates=r.trial.plan.updates_for(updates)))
            both = self._turn(challenger, turn, updates)
            comparison.samples += both
            comparison.retaken += any(sample.spoilt for sample in both)
            clean = turn + 1 - comparison.retaken
            if clean == most_turns or (turn + 1 >= FUTILE_TURNS and read_turns(comparison, clean, self.floor_frac)):
                break
        read_turns(comparison, turn + 1 - comparison.retaken, self.floor_frac)

    def _turn(self, challenger: Resident, turn: int, updates: int) -> list[Sample]:
        """Take one turn of both, in alternating slices, so that a slow moment affects both arms."""
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
    """Judge the turns so far. Returns True if further turns could not change the decision."""
    base, candidate = comparison.times("A"), comparison.times("B")
    if len(base) < FUTILE_TURNS:
        comparison.why = f"only {len(base)} clean turns: {NEIGHBOUR}"
        return False
    comparison.interval = paired_interval(base, candidate, CONFIDENCE)
    comparison.verdict = judge(comparison.interval, floor_frac)
    comparison.why = f"screened in turns, noise floor {floor_frac:.1%}"
    hopeless = comparison.interval.high < 1.0
    clear = comparison.verdict is Verdict.FASTER and comparison.interval.low > 1.0 + 2 * floor_frac
    return hopeless or clear or (clean >= TURNS and comparison.verdict is not Verdict.UNDECIDED)


def _floor_of(comparison: Comparison) -> float | None:
    """Return the noise floor that a comparison of a plan with itself supports; None with too few clean turns."""
    if comparison.interval is None:
        return None
    scatter = aa_floor_frac(comparison.times("A"), comparison.times("B")).frac
    return min(max(scatter, aa_departure(comparison.interval)), MAX_FLOOR_FRAC)


def aa_departure(interval: Interval) -> float:
    """Return how far the ratio of a plan against itself is from 1, as a share."""
    return max(interval.ratio, 1.0 / interval.ratio) - 1.0
