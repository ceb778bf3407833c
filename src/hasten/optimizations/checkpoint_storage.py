"""Write a checkpoint to a faster folder first, and copy it to the run's folder while training goes on.

Relieves:  checkpoint: the training thread waits for the faster disk alone.
Numerics:  exact: the same file.
Limits:    only folders that the user allows, with `Job.scratch` or `--scratch`; the copy in the run's folder always follows,
           so what lies on a RAM disk is never the only copy for longer than that takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import PlanError
from hasten.core.facts import RUN_FOLDER, Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.scratch import allowed_scratch
from hasten.core.seams import Seam, Undo, replace_attribute

LEAST_GAIN = 1.5
"""How many times as fast a folder must have been measured to be worth a detour."""


@dataclass(frozen=True, kw_only=True)
class CheckpointStorage(Optimization):
    """A stop on the way to the run's folder.

    Attributes:
        folder: The faster folder, one that the user allows; empty is off.
    """

    folder: str = ""

    card: ClassVar[Card] = Card(
        name="checkpoint_storage",
        summary="checkpoints written to a faster folder first and then copied to the run's own",
        relieves=Bottleneck.CHECKPOINT,
        numerics=Numerics.EXACT,
        seam=Seam.AROUND,
        source="Wang et al. 2023, GEMINI: fast failure recovery with in-memory checkpoints",
        prior=0.5,
        event="checkpoint",
        conflicts=("background_checkpoint",),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where an allowed folder was measured to be clearly faster than the run's."""
        plain = facts.write_mb_s.get(RUN_FOLDER, 0.0)
        others = {folder: speed for folder, speed in facts.write_mb_s.items() if folder != RUN_FOLDER}
        if not others:
            return Fit.no("no other folder is allowed: name a faster one with --scratch DIR or in Job.scratch")
        if plain <= 0:
            return Fit.no("how fast the run's own folder can be written was not measured")
        best = max(others, key=lambda folder: others[folder])
        gain = others[best] / plain
        if gain < LEAST_GAIN:
            return Fit.no(
                f"{best} is written at {others[best]:.0f} MB/s and the run's folder at {plain:.0f}: "
                f"{gain:.2f} times as fast, and {LEAST_GAIN} counts"
            )
        share = facts.epoch_frac(facts.checkpoint_s * (1.0 - 1.0 / gain))
        return Fit.yes(max_gain_frac=share, settings=[cls(folder=best)])

    def apply(self, live: LiveJob) -> Undo:
        """Switch it on.

        Raises:
            PlanError: The user does not allow the folder, or it is not there.
        """
        allowed = allowed_scratch(live.job)
        if not self.folder or Path(self.folder).resolve() not in allowed:
            raise PlanError(
                f"checkpoint_storage wants to write to {self.folder!r}, which is not allowed "
                f"({', '.join(map(str, allowed)) or 'no folder is'}). Allow it with --scratch, or take it out of the plan."
            )
        if not Path(self.folder).is_dir():
            raise PlanError(f"checkpoint_storage: there is no folder {self.folder!r}. Make it, or take it out of the plan.")
        return replace_attribute(live.around, "checkpoint_folder", self.folder)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """A checkpoint went through the faster folder, and its durable copy followed."""
        seen = int(trace.counters.get("checkpoints_staged", 0))
        return [Check("checkpoints staged and then made durable", seen > 0, f"{seen} in a rehearsal")]
