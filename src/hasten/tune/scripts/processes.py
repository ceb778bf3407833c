"""The two processes of a screening of a script: it cannot go back to its start, so both are started anew each time.

Both begin from the same seeds, do the same number of steps before anything is counted, and see the same batches, so that
losses and gradients can be compared step by step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hasten.core.card import Numerics, Trait
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seams import DATA_SEAMS
from hasten.tune.proof.numerics import GateVerdict, Settled, UpdateSample, loss_shift
from hasten.tune.search.resident_process import Resident, judge_numerics
from hasten.tune.search.screening import Ready, checks_of, numerics_of
from hasten.tune.trials.pair import COMPILE_WARMUP_UPDATES
from hasten.tune.trials.trial import Trial, TrialSetting

SAMPLED_STEPS = 3
BEFORE = 1 + SAMPLED_STEPS + COMPILE_WARMUP_UPDATES + 2
"""Steps that both arms do before any is counted: the first, the sampled, the warm-up, the traced ones."""
MAX_DRAWS_SHIFT = 2.0
"""The largest shift of the loss curve, in shifts that another seed makes, where other random numbers augment the samples."""
_ENDED = re.compile(r"came to its end after (\d+) steps")


@dataclass(kw_only=True)
class ScriptProcesses:
    """Starts and readies processes of a script; see `hasten.tune.search.screening.Processes`.

    Attributes:
        setting: What all trials share.
        seed: Of all trials.
        draws: Whether the samples of the script draw random numbers.
        most_steps: Steps that the script is known to have; None as long as its end was not met.
    """

    setting: TrialSetting
    seed: int
    draws: bool
    most_steps: int | None = None

    @property
    def most_updates(self) -> int | None:
        """Steps after those that are not counted; None as long as the end of the script was not met."""
        return None if self.most_steps is None else max(self.most_steps - BEFORE, 0)

    def start(self, plan: Plan) -> Resident:
        """Start a process; it stands at the script's first step."""
        return Resident(trial=Trial(self.setting, plan, seed=self.seed))

    def challenge(self, base: Resident, plan: Plan) -> tuple[Resident, Resident]:
        """Start both anew, and leave both frozen at their first step.

        One after the other: threads of both wait for one another on the same cores (46 s for a first step, on two cores).
        """
        base.end()
        fresh = Resident(trial=Trial(self.setting, base.trial.plan, seed=self.seed), filling_s=base.filling_s)
        fresh.trial.freeze()
        try:
            challenger = self.start(plan)
        except BaseException:
            fresh.end()
            raise
        challenger.trial.freeze()
        return fresh, challenger

    def get_ready(self, base: Resident, challenger: Resident, added: Sequence[Optimization]) -> Ready:
        """Sample the first steps of both, warm both up, and trace a step of both."""
        seconds = []
        for resident in (base, challenger):
            if added:
                resident.awake(self._sample_steps)
            warm = resident.awake(lambda r: r.trial.call("warm", updates=COMPILE_WARMUP_UPDATES))
            seconds.append(warm["seconds"])
        traced = [resident.awake(lambda r: r.trial.call("trace"))["evidence"] for resident in (base, challenger) if added]
        return Ready(
            base=base, evidence=checks_of(traced[1], added) if added else [], warm_s=seconds[1], usual_s=lambda _: seconds[0]
        )  # fmt: skip

    def judge(
        self, base: Resident, challenger: Resident, added: Sequence[Optimization], others: Sequence[Sequence[float]],
        say: Callable[[str], None],
    ) -> GateVerdict:  # fmt: skip
        """Judge; where other random numbers explain a difference, the loss may move as far as another seed moves it."""
        verdict = judge_numerics(numerics_of(added), base, challenger, others, _nothing_later)
        if verdict.verdict == "passed" and any(item.card.seam in DATA_SEAMS for item in added):
            verdict = _after_a_change(verdict, challenger)
        reason = self._other_draws(challenger, added) if verdict.verdict == "failed" else ""
        if not reason:
            return verdict
        compared = min(map(len, (base.losses, challenger.losses, *others)))
        curves = [other[:compared] for other in others]
        shift = loss_shift(base.losses[:compared], challenger.losses[:compared], curves)
        why = (
            f"{reason}: the loss moved {shift:.2g} of what another seed moves it (at most {MAX_DRAWS_SHIFT}), over "
            f"{compared} steps"
        )
        return GateVerdict(numerics=Numerics.ROUNDING, verdict="passed" if shift <= MAX_DRAWS_SHIFT else "failed", why=why)

    def shortens_turns(self, error: TrialError) -> bool:
        """Whether the script came to its end, for the first time: its number of steps is known from then on."""
        ended = _ENDED.search(str(error))
        if ended is None or self.most_steps is not None:
            return False
        self.most_steps = int(ended[1])
        return True

    def _sample_steps(self, resident: Resident) -> None:
        path = Path(self.setting.folder) / f"gradients-{resident.trial.pid}.npy"
        answer = resident.trial.call("sample", steps=SAMPLED_STEPS, path=str(path.resolve()))
        resident.gradients = np.load(path, allow_pickle=False)
        resident.updates = UpdateSample.from_dict(answer["updates"])
        path.unlink()

    def _other_draws(self, challenger: Resident, added: Sequence[Optimization]) -> str:
        """Why these techniques draw other random numbers, where they do; empty where they do not."""
        if self.draws and all(Trait.OTHER_DRAWS in item.card.traits for item in added):
            return "the samples are augmented at random, and workers draw other numbers"
        if all(Trait.TRIMS in item.card.traits for item in added):
            cut = challenger.awake(lambda r: r.trial.call("cut"))
            if cut["draws"] and not cut["difference"]:
                return "without dropout the results are the same, and with it other shapes draw other numbers"
        return ""


def _after_a_change(passed: GateVerdict, challenger: Resident) -> GateVerdict:
    """The verdict once an epoch after a change was tried: what is compared step by step lies within one epoch."""
    why = challenger.awake(lambda r: r.trial.call("boundary"))["why"]
    if why:
        return replace(passed, verdict="failed", why=f"{why} (tried in an epoch after every sample had become another)")
    return replace(passed, why=f"{passed.why}; after a change between epochs the batches are the script's too")


def _nothing_later() -> Iterable[Settled]:
    """No gradients later in the run: a script does not go back to weights that it had."""
    return ()
