"""The two processes of a screening of a script. A script cannot go back to its start, so both are restarted each time.

Both start from the same seeds, do the same number of steps before counting, and see the same batches, so that losses and
gradients can be compared step by step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np

from hasten.core.card import Trait
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seams import DATA_SEAMS
from hasten.tune.proof.numerics import GateVerdict, Settled, UpdateSample, judge_other_draws
from hasten.tune.search.resident_process import Resident, judge_numerics
from hasten.tune.search.screening import Ready, checks_of
from hasten.tune.trials.pair import COMPILE_WARMUP_UPDATES
from hasten.tune.trials.trial import Trial, TrialSetting

SAMPLED_STEPS = 3
BEFORE = 1 + SAMPLED_STEPS + COMPILE_WARMUP_UPDATES + 2
"""Steps that both arms do before counting: the first one, the sampled, the warm-up and the traced ones."""
_ENDED = re.compile(r"The script ended after (\d+) steps")


@dataclass(kw_only=True)
class ScriptProcesses:
    """Starts and prepares processes of a script; see `hasten.tune.search.screening.Processes`.

    Attributes:
        setting: Settings that all trials share.
        seed: The seed of all trials.
        draws: Whether the script's samples draw random numbers.
        most_steps: Number of steps of the script; None until a trial has reached its end.
    """

    setting: TrialSetting
    seed: int
    draws: bool
    most_steps: int | None = None

    @property
    def most_updates(self) -> int | None:
        """Maximum number of counted steps; None until a trial has reached the end of the script."""
        return None if self.most_steps is None else max(self.most_steps - BEFORE, 0)

    def start(self, plan: Plan) -> Resident:
        """Start a process and stop it at the script's first step."""
        return Resident(trial=Trial(self.setting, plan, seed=self.seed))

    def challenge(self, base: Resident, plan: Plan) -> tuple[Resident, Resident]:
        """Restart both processes, and leave both frozen at their first step.

        They start one after the other. Side by side, their threads wait for each other on the same cores (46 s for a first
        step on two cores).
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
        """Sample the first steps of both, warm both up, and trace one step of each."""
        seconds = []
        for resident in (base, challenger):
            started = monotonic()
            if added:
                resident.awake(self._sample_steps)
            resident.awake(lambda r: r.trial.call("warm", updates=COMPILE_WARMUP_UPDATES))
            seconds.append(monotonic() - started)
        traced = [resident.awake(lambda r: r.trial.call("trace"))["evidence"] for resident in (base, challenger) if added]
        return Ready(
            base=base, evidence=checks_of(traced[1], added) if added else [], warm_s=seconds[1], usual_s=lambda _: seconds[0]
        )  # fmt: skip

    def judge(
        self, base: Resident, challenger: Resident, added: Sequence[Optimization], others: Sequence[Sequence[float]],
        say: Callable[[str], None],
    ) -> GateVerdict:  # fmt: skip
        """Return the verdict. If other random numbers explain a difference, the loss may move as with another seed."""
        verdict = judge_numerics(added, base, challenger, others, _nothing_later)
        if verdict.verdict == "passed" and any(item.card.seam in DATA_SEAMS for item in added):
            verdict = _after_a_change(verdict, challenger)
        reason = self._other_draws(challenger, added) if verdict.verdict == "failed" else ""
        if not reason:
            return verdict
        return judge_other_draws(reason, base.losses, challenger.losses, others)

    def shortens_turns(self, error: TrialError) -> bool:
        """Return whether the script ended for the first time. From then on its number of steps is known."""
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
        """Return why these techniques draw other random numbers; empty if they do not."""
        if self.draws and all(Trait.OTHER_DRAWS in item.card.traits for item in added):
            return "the samples are augmented at random, and loader workers draw other random numbers"
        if all(Trait.TRIMS in item.card.traits for item in added):
            cut = challenger.awake(lambda r: r.trial.call("cut"))
            if cut["draws"] and not cut["difference"]:
                return "results are equal without dropout; with dropout, other shapes draw other random numbers"
        return ""


def _after_a_change(passed: GateVerdict, challenger: Resident) -> GateVerdict:
    """Return the verdict after also testing an epoch after a change. The step-by-step comparison covers one epoch only."""
    why = challenger.awake(lambda r: r.trial.call("boundary"))["why"]
    if why:
        return replace(passed, verdict="failed", why=f"{why} (tested in an epoch after every sample had changed)")
    return replace(passed, why=f"{passed.why}; the batches also match after a change between epochs")


def _nothing_later() -> Iterable[Settled]:
    """Return nothing: a script cannot go back to weights that it had earlier."""
    return ()
