"""Screen candidates on a script: it cannot go back to its start, so every screening is a pair of fresh processes.

Both begin from the same seeds, do the same number of steps before anything is counted, and see the same batches, so that
losses and gradients can be held against each other step by step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hasten.core.card import Numerics, Trait
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.numerics import GateVerdict, Settled, UpdateSample, loss_shift
from hasten.tune.search.resident_process import Resident
from hasten.tune.search.screening import MAX_RETAKES, MORE_TURNS, Screen, Screening
from hasten.tune.trials.pair import COMPILE_WARMUP_UPDATES
from hasten.tune.trials.trial import Trial

SAMPLED_STEPS = 3
BEFORE = 1 + SAMPLED_STEPS + COMPILE_WARMUP_UPDATES + 2
"""Steps that both arms do before any is counted: the first, the sampled, the warm-up, the traced ones."""
MAX_DRAWS_SHIFT = 2.0
"""The largest shift of the loss curve, in shifts that another seed makes, where other random numbers augment the samples."""
_ENDED = re.compile(r"came to its end after (\d+) steps")


class ScriptScreen(Screen):
    """Holds a process of the script under the base plan, and screens candidates in pairs of fresh ones.

    Attributes:
        most_steps: Steps that the script is known to have; None as long as its end was not met.
        draws: Whether its samples draw random numbers.
    """

    most_steps: int | None = None
    draws: bool = False

    def screen(
        self,
        candidate: Optimization | None,
        plan: Plan,
        updates: int,
        *,
        beside: Optimization | None = None,
        most_turns: int = MORE_TURNS,
    ) -> Screening:
        """Screen `plan` against the base, see `Screen.screen`. A script with few steps has shorter turns.

        Raises:
            TrialError: The challenger failed, or the script has too few steps.
        """
        try:
            return self._screen(candidate, plan, self._fitting(updates, most_turns), beside, most_turns)
        except TrialError as error:
            met = _ENDED.search(str(error))
            if met is None or self.most_steps is not None:
                raise
            self.most_steps = int(met[1])
            return self._screen(candidate, plan, self._fitting(updates, most_turns), beside, most_turns)

    def _fitting(self, updates: int, turns: int) -> int:
        """Updates per turn, no more than the script has.

        Raises:
            TrialError: It has too few for any turn.
        """
        if self.most_steps is None:
            return updates
        most = (self.most_steps - BEFORE) // (turns + MAX_RETAKES)
        if most < 1:
            words = (
                f"The script has {self.most_steps} steps, and {BEFORE + turns + MAX_RETAKES} are needed to compare anything."
            )
            raise TrialError(f"{words} Give it more to do, with more data or epochs.", kind="raised")
        return min(updates, most)

    def _screen(
        self, candidate: Optimization | None, plan: Plan, updates: int, beside: Optimization | None, most_turns: int
    ) -> Screening:
        screening = Screening(comparison=Comparison(kind="screening"))
        challenger = self.challenge(plan)
        both = (self.base, challenger)
        added = [item for item in (candidate, beside) if item is not None]
        numerics = max((item.numerics for item in added), key=list(Numerics).index, default=Numerics.EXACT)
        seconds = {}
        for resident in both:
            if added:
                resident.awake(self._sample_steps)
            warm = resident.awake(lambda r: r.trial.call("warm", updates=COMPILE_WARMUP_UPDATES))
            seconds[resident.trial.pid] = warm["seconds"]
        if added:
            traced = [resident.awake(lambda r: r.trial.call("trace"))["evidence"] for resident in both][1]
            found = [traced.get(item.card.name, []) for item in added]
            screening.evidence = [check for checks in found for check in checks] if all(found) else []
            if not screening.fired:
                return screening
        self._turns(screening, updates, most_turns)
        screening.setup_s += max(seconds[challenger.trial.pid] - 2 * seconds[self.base.trial.pid], 0.0)
        if added:
            screening.gate = self._judge_script(numerics, added)
        for arm, resident in (("A", self.base), ("B", challenger)):
            memory = resident.awake(lambda r: r.trial.call("memory", reset=False))
            screening.peak_bytes[arm] = int(memory["peak_bytes"])
        return screening

    def challenge(self, plan: Plan) -> Resident:
        """Start both arms anew, the base too, and leave both frozen at their first step.

        One after the other: threads of both wait for one another on the same cores (46 s for a first step, on two cores).

        Raises:
            TrialError: One could not be started.
        """
        self._drop_challenger()
        base_plan, filling_s = self.plan, self.filling_s
        self.base.end()
        self.base = Resident(trial=Trial(self.setting, base_plan, seed=self.seed), filling_s=filling_s)
        self.base.trial.freeze()
        self.challenger = Resident(trial=Trial(self.setting, plan, seed=self.seed))
        self.challenger.trial.freeze()
        return self.challenger

    def _start_base(self, plan: Plan) -> Resident:
        return Resident(trial=Trial(self.setting, plan, seed=self.seed))

    def _settled(self, base: Resident, challenger: Resident) -> Iterable[Settled]:
        """Nothing: a script does not go back to weights that it had."""
        return ()

    def _sample_steps(self, resident: Resident) -> None:
        path = Path(self.setting.folder) / f"gradients-{resident.trial.pid}.npy"
        told = resident.trial.call("sample", steps=SAMPLED_STEPS, path=str(path.resolve()))
        resident.gradients = np.load(path, allow_pickle=False)
        resident.updates = UpdateSample.from_dict(told["updates"])
        path.unlink()

    def _judge_script(self, numerics: Numerics, added: list[Optimization]) -> GateVerdict:
        found = self._judge(numerics)
        if found.verdict != "failed" or self.challenger is None:
            return found
        reason = ""
        if self.draws and all(Trait.OTHER_DRAWS in item.card.traits for item in added):
            reason = "the samples are augmented at random, and workers draw other numbers"
        elif all(Trait.TRIMS in item.card.traits for item in added):
            cut = self.challenger.awake(lambda r: r.trial.call("cut"))
            if cut["draws"] and not cut["difference"]:
                reason = "without dropout the results are the same, and with it other shapes draw other numbers"
        if not reason:
            return found
        compared = min(map(len, (self.base.losses, self.challenger.losses, *self.others)))
        base, changed = self.base.losses[:compared], self.challenger.losses[:compared]
        shift = loss_shift(base, changed, [other[:compared] for other in self.others])
        why = (
            f"{reason}: the loss moved {shift:.2g} of what another seed moves it (at most {MAX_DRAWS_SHIFT}), over "
            f"{compared} steps"
        )
        return GateVerdict(numerics=Numerics.ROUNDING, verdict="passed" if shift <= MAX_DRAWS_SHIFT else "failed", why=why)


def other_curve(trial: Trial, updates: int) -> list[float]:
    """Losses of a fresh trial at those steps that a screening counts."""
    trial.call("warm", updates=BEFORE - 1)
    losses: list[float] = trial.call("run", updates=updates)["losses"]
    return losses
