"""Training in phases: first the heads alone on a backbone that can see already, then everything.

Each phase is a job of its own, so each is tuned by itself and has its own plan: with a frozen backbone other things pay than
without. In a file `coins.py`::

    from hasten.recipes.detection import DetectionJob, FrozenBackbone

    class Coins(DetectionJob):
        images, labels = "photos", "labels"
        start_from = "heads.safetensors"

    class CoinsHeads(FrozenBackbone, Coins):
        epochs = 10
        start_from = "earlier.safetensors"

and on the command line::

    hasten tune coins.py:CoinsHeads --out tuned-heads
    hasten run coins.py:CoinsHeads --plan tuned-heads/hasten.toml --out run-heads
    hasten checkpoints export run-heads heads.safetensors
    hasten tune coins.py:Coins --out tuned
    hasten run coins.py:Coins --plan tuned/hasten.toml --out run

`train_phases` does the same in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hasten.core.errors import JobError
from hasten.core.plan import Plan
from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.model import Detector
from hasten.train.run import train
from hasten.train.trainer import Result


class FrozenBackbone(DetectionJob):
    """A job whose backbone stays as it is: no gradients, and batch normalisation by the statistics it has.

    Put it before the job's own class: `class Heads(FrozenBackbone, MyJob)`. It needs weights to start from.
    """

    frozen: ClassVar[tuple[str, ...]] = ("backbone",)

    def detector(self, num_classes: int) -> Detector:
        """Make the detector, its backbone frozen.

        Raises:
            JobError: There are no weights to start from.
        """
        if self.start_from is None:
            raise JobError(
                f"{type(self).__name__} freezes the backbone and starts from no weights: a backbone that was never trained "
                f"sees nothing, and frozen it never will. Set start_from to a FILE.safetensors of an earlier training, or "
                f"leave this phase out."
            )
        return super().detector(num_classes)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase.

    Attributes:
        job: What to train.
        plan: Under which plan.
    """

    job: type[DetectionJob]
    plan: Plan = field(default_factory=Plan)


def train_phases(phases: Sequence[Phase], out: Path) -> list[Result]:
    """Train phase after phase, each from the weights of the one before.

    Args:
        phases: In their order; the first starts from its own `start_from`.
        out: Folder for the runs: `phase-1`, `phase-2` and so on, each as `hasten run` makes it.

    Returns:
        What each phase came to; fewer where a signal ended one.

    Raises:
        JobError: There are none.
        HastenError: As `hasten.train.run.train` has it.
    """
    if not phases:
        raise JobError("train_phases was given no phases: name at least one job.")
    results: list[Result] = []
    weights: Path | None = None
    for number, phase in enumerate(phases, 1):
        job = phase.job()
        if weights is not None:
            job.start_from, job.start_parts = str(weights), DetectionJob.start_parts
        folder = out / f"phase-{number}"
        results.append(train(job, phase.plan, folder))
        if results[-1].stopped_by is not None:
            break
        weights = folder / "model.pt"
    return results
