"""Screen a candidate: two resident processes take turns on the same updates, the idle one frozen.

Cheap, because the base process stays alive from candidate to candidate and a candidate that wins becomes the base. Both
start from the same weights and see the same batches, so losses and gradients can be held against each other as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from hasten.core.card import Numerics
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import MIN_FLOOR_FRAC, Interval, Verdict, aa_floor_frac, judge, paired_interval
from hasten.tune.proof.compare import NEIGHBOUR, Comparison
from hasten.tune.proof.numerics import GateVerdict, Settled
from hasten.tune.search.resident_process import Resident, judge_numerics, settled_pairs
from hasten.tune.trials.pair import warmup
from hasten.tune.trials.samples import Sample
from hasten.tune.trials.trial import Trial, TrialSetting
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
    """

    comparison: Comparison
    gate: GateVerdict | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)
    setup_s: float = 0.0
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def fired(self) -> bool:
        """Whether every check of the candidate passed."""
        return bool(self.evidence) and all(check["passed"] for check in self.evidence)


class Screen:
    """Holds the base process and screens candidates against it.

    Args:
        setting: What all trials share.
        plan: The base plan to begin with.
        uneven: Updates differ by nature.
        others: Loss curves of the empty plan with other seeds: what chance does.
        seed: The seed of all trials; None takes the job's own.
        say: Told what is going on.
        slices: A turn of both is cut into so many slices of each at most; 1 where a frozen process gets what it waits for.
    """

    def __init__(
        self,
        setting: TrialSetting,
        plan: Plan,
        *,
        uneven: bool,
        others: list[list[float]],
        seed: int | None = None,
        say: Callable[[str], None] = lambda _: None,
        slices: int = SLICES,
    ) -> None:
        self.setting, self.uneven, self.others, self.seed, self.say = setting, uneven, others, seed, say
        self.slices = slices
        self.base = self._start_base(plan)
        self.challenger: Resident | None = None
        self.floor_frac = MIN_FLOOR_FRAC

    @property
    def plan(self) -> Plan:
        """The base plan."""
        return self.base.trial.plan

    @property
    def filling_s(self) -> float:
        """Seconds that each measured update under the base plan costs beforehand, where caches are filled for it."""
        return self.base.filling_s

    def close(self) -> None:
        """End all processes."""
        for resident in (self.base, self.challenger):
            if resident is not None:
                resident.end()

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
            updates: Updates per turn.
            beside: A second one that was added together with the candidate.
            most_turns: Stop after so many turns of each.

        Raises:
            TrialError: The challenger crashed, hung, ran out of memory or lost its loss to NaN.
        """
        screening = Screening(comparison=Comparison(kind="screening"))
        self.challenger = self.challenge(plan)
        trial = self.challenger.trial
        warm = trial.call("warm", **warmup(trial, 2))
        added = [item for item in (candidate, beside) if item is not None]
        numerics = max((item.numerics for item in added), key=list(Numerics).index, default=Numerics.EXACT)
        if added:
            traced = trial.call("trace")["evidence"]
            found = [traced.get(item.card.name, []) for item in added]
            screening.evidence = [check for checks in found for check in checks] if all(found) else []
            if not screening.fired:
                return screening
            if numerics is not Numerics.TRAINING:
                self.challenger.sample(numerics, Path(self.setting.folder))
        self._revive_base()  # the kernel may have needed until now to end it
        self._turns(screening, updates, most_turns)
        steady_s = screening.comparison.samples[-1].seconds / updates
        screening.setup_s += max(warm["seconds"] - 2 * warm["updates"] * steady_s, 0.0)
        if added:
            screening.gate = self._judge(numerics)
        for arm, resident in (("A", self.base), ("B", self.challenger)):
            screening.peak_bytes[arm] = resident.awake(lambda r: int(r.trial.call("memory", reset=False)["peak_bytes"]))
        return screening

    def challenge(self, plan: Plan) -> Resident:
        """Start a challenger under `plan`, in the place of the one before, beside a base that is alive and frozen.

        Raises:
            TrialError: It could not be started.
        """
        self._drop_challenger()
        self._revive_base()
        self.base.trial.freeze()
        self.challenger = Resident(trial=Trial(self.setting, plan, seed=self.seed))
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
        """Profile the base process."""
        self._drop_challenger()
        self.base.losses.clear()
        self.base.trial.thaw()
        return self.base.trial.call("profile", slice_s=slice_s, quick=quick)

    def calibrate(self, updates: int, *, again_s: float = math.inf) -> Screening:
        """A/A: screen the base plan against itself, to learn what this machine's noise supports, and whether it repeats.

        A floor stands for the whole tuning, and hides every gain below it. So one that a loud moment may have lifted is
        taken once more, over more turns; what those say counts, be it higher or lower.

        Args:
            updates: Per turn.
            again_s: It is taken once more only where that takes less than so many seconds: a small budget has better uses.
        """
        started = monotonic()
        found = self.screen(None, self.plan, updates, most_turns=TURNS)
        floor = _floor_of(found.comparison)
        needed_s = (monotonic() - started) * LOUD_TURNS / TURNS
        if floor is not None and floor > LOUD_FRAC and needed_s < again_s:
            self.say(f"  {floor:.1%} is much: comparing the job with itself once more, for longer")
            found = self.screen(None, self.plan, updates, most_turns=LOUD_TURNS)
            floor = _floor_of(found.comparison) or floor
        if floor is not None:
            self.floor_frac = floor
        return found

    def repeats(self) -> bool:
        """Whether base and challenger, under the same plan, gave bit-equal losses."""
        if self.challenger is None:
            return False
        both = list(zip(self.base.losses, self.challenger.losses, strict=False))
        return bool(both) and all(a == b for a, b in both)

    def _start_base(self, plan: Plan) -> Resident:
        trial = Trial(self.setting, plan, seed=self.seed)
        try:
            trial.call("warm", **warmup(trial, 2))
        except BaseException:
            trial.end()
            raise
        return Resident(trial=trial)

    def _revive_base(self) -> None:
        """Start the base anew if it died: a candidate is not to blame for what befell the base."""
        if not self.base.trial.alive:
            self.base.end()
            self.base = self._start_base(self.plan)

    def _turns(self, screening: Screening, updates: int, most_turns: int) -> None:
        """Take turns on the same stretches of updates, first one then the other, ABBA."""
        comparison, challenger = screening.comparison, self.challenger
        if challenger is None:
            return
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
            if clean == most_turns or (turn + 1 >= FUTILE_TURNS and self._read(comparison, clean)):
                break
        self._read(comparison, turn + 1 - comparison.retaken)

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

    def _read(self, comparison: Comparison, turns: int) -> bool:
        """Read the turns so far; True when no further turn could change what happens to the candidate."""
        base, candidate = comparison.times("A"), comparison.times("B")
        if len(base) < FUTILE_TURNS:
            comparison.why = f"only {len(base)} clean turns: {NEIGHBOUR}"
            return False
        comparison.interval = paired_interval(base, candidate, CONFIDENCE)
        comparison.verdict = judge(comparison.interval, self.floor_frac)
        comparison.why = f"screened in turns, floor {self.floor_frac:.1%}"
        hopeless = comparison.interval.high < 1.0
        clear = comparison.verdict is Verdict.FASTER and comparison.interval.low > 1.0 + 2 * self.floor_frac
        decided = comparison.verdict is not Verdict.UNDECIDED
        return hopeless or clear or (turns >= TURNS and decided)

    def _judge(self, numerics: Numerics) -> GateVerdict:
        if self.challenger is None:
            raise TrialError("There is no challenger to judge.", kind="raised")
        base, challenger, folder = self.base, self.challenger, Path(self.setting.folder)
        if numerics is not Numerics.TRAINING:
            for resident in (base, challenger):
                resident.awake(lambda r: r.sample(numerics, folder))
        return judge_numerics(numerics, base, challenger, self.others, lambda: self._settled(base, challenger))

    def _settled(self, base: Resident, challenger: Resident) -> Iterable[Settled]:
        """The gradients of both a little later in the run, for further looks."""
        self.say("  the gradients differ at the initial weights: training on, to look once more")
        return settled_pairs(base, challenger, Path(self.setting.folder))

    def _drop_challenger(self) -> None:
        if self.challenger is not None:
            self.challenger.end()
            self.challenger = None


def _floor_of(comparison: Comparison) -> float | None:
    """The floor that a comparison of a plan with itself supports; None where too few turns were clean."""
    if comparison.interval is None:
        return None
    scatter = aa_floor_frac(comparison.times("A"), comparison.times("B")).frac
    return min(max(scatter, aa_departure(comparison.interval)), MAX_FLOOR_FRAC)


def aa_departure(interval: Interval) -> float:
    """How far the ratio of a plan against itself is from 1, as a share: what two resident processes differ by."""
    return max(interval.ratio, 1.0 / interval.ratio) - 1.0
