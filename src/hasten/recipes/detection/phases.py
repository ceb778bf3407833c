"""Train in phases: first only the neck and the heads on a pretrained backbone, then everything.

Each phase is a separate job with its own tuning and plan, since other optimizations pay off with a frozen backbone. In a
file `coins.py`::

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

`train_phases` runs all phases in one process.
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
    """A job with a frozen backbone: no gradients, and batch normalization uses its existing statistics.

    Put it before your own class: `class Heads(FrozenBackbone, MyJob)`. It requires weights to start from.
    """

    frozen: ClassVar[tuple[str, ...]] = ("backbone",)

    def detector(self, num_classes: int) -> Detector:
        """Create the detector with a frozen backbone.

        Raises:
            JobError: `start_from` is not set.
        """
        if self.start_from is None:
            raise JobError(
                f"{type(self).__name__} freezes the backbone but start_from is not set: an untrained backbone extracts no "
                f"useful features, and a frozen one cannot learn any. Set start_from to a FILE.safetensors of an earlier "
                f"training, or skip this phase."
            )
        return super().detector(num_classes)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase.

    Attributes:
        job: The job to train.
        plan: The plan to train it with.
    """

    job: type[DetectionJob]
    plan: Plan = field(default_factory=Plan)


def train_phases(phases: Sequence[Phase], out: Path) -> list[Result]:
    """Train the phases in order, each from the weights of the previous one.

    Args:
        phases: The phases in order; the first starts from its own `start_from`.
        out: Folder for the runs: `phase-1`, `phase-2` and so on, each in the form of `hasten run`.

    Returns:
        The result of each phase; fewer if a signal stopped one.

    Raises:
        JobError: `phases` is empty.
        HastenError: Training failed; see `hasten.train.run.train`.
    """
    if not phases:
        raise JobError("train_phases received no phases: pass at least one.")
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
