"""The two processes of a screening of a job. Both can go back to the start of the run, so the base stays alive.

The base process is started once and kept from candidate to candidate; a winning candidate becomes the base. The gate
compares gradients at the initial weights and, if these differ much, again at weights that the base has trained to, see
`resident_process.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.core.card import Numerics
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.tune.proof.numerics import GateVerdict, Settled, numerics_of
from hasten.tune.search.resident_process import Resident, judge_numerics, settled_pairs
from hasten.tune.search.screening import Ready, checks_of
from hasten.tune.trials.pair import warmup
from hasten.tune.trials.trial import Trial, TrialSetting


@dataclass(frozen=True, kw_only=True)
class JobProcesses:
    """Starts and prepares processes of a job; see `hasten.tune.search.screening.Processes`.

    Attributes:
        setting: Settings that all trials share.
        seed: The seed of all trials; None uses the job's own.
    """

    setting: TrialSetting
    seed: int | None = None

    @property
    def most_updates(self) -> None:
        """No limit: a job can go back to its start, and continue from epoch to epoch."""
        return

    def start(self, plan: Plan) -> Resident:
        """Start a process and warm it up."""
        trial = Trial(self.setting, plan, seed=self.seed)
        try:
            trial.call("warm", **warmup(trial, 2))
        except BaseException:
            trial.end()
            raise
        return Resident(trial=trial)

    def challenge(self, base: Resident, plan: Plan) -> tuple[Resident, Resident]:
        """Start a challenger next to the frozen base. The base is restarted if it died."""
        alive = self._revived(base)
        alive.trial.freeze()
        try:
            return alive, Resident(trial=Trial(self.setting, plan, seed=self.seed))
        except BaseException:
            if alive is not base:
                alive.end()
            raise

    def get_ready(self, base: Resident, challenger: Resident, added: Sequence[Optimization]) -> Ready:
        """Warm the challenger up, trace one of its steps, and sample its gradients."""
        trial = challenger.trial
        warm = trial.call("warm", **warmup(trial, 2))
        checks = checks_of(trial.call("trace")["evidence"], added) if added else []
        fired = bool(checks) and all(check["passed"] for check in checks)
        if fired and numerics_of(added) is not Numerics.TRAINING:
            challenger.sample(numerics_of(added), Path(self.setting.folder))
        if fired or not added:
            base = self._revived(base)  # the system may have ended it only now
        return Ready(
            base=base, evidence=checks, warm_s=warm["seconds"], usual_s=lambda update_s: warm["updates"] * update_s
        )  # fmt: skip

    def judge(
        self, base: Resident, challenger: Resident, added: Sequence[Optimization], others: Sequence[Sequence[float]],
        say: Callable[[str], None],
    ) -> GateVerdict:  # fmt: skip
        """Sample what is still missing of both processes, and return the verdict."""
        numerics, folder = numerics_of(added), Path(self.setting.folder)
        if numerics is not Numerics.TRAINING:
            for resident in (base, challenger):
                resident.awake(lambda r: r.sample(numerics, folder))

        def settled() -> Iterable[Settled]:
            say("  the gradients differ at the initial weights: training on and comparing again")
            return settled_pairs(base, challenger, folder)

        return judge_numerics(added, base, challenger, others, settled)

    def shortens_turns(self, error: TrialError) -> bool:
        """Return False: a job has no end."""
        return False

    def _revived(self, base: Resident) -> Resident:
        """Return the base, restarted if it died: a candidate is not responsible for failures of the base."""
        if base.trial.alive:
            return base
        base.end()
        return self.start(base.trial.plan)
