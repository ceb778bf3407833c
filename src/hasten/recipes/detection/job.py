"""The detection job: object detection on your own pictures.

    class Coins(DetectionJob):
        images, labels = "photos", "labels"

    class NaiveCoins(NaiveDetectionJob, Coins):  # the baseline: `hasten tune coins.py:NaiveCoins` shows the gain
        forms = (Coins,)

A picture is read and scaled once and can be cached, mosaics are made of the pictures of a batch, bytes go to the device,
anchors are assigned for a whole batch at once, training makes no boxes, a held-out batch passes the model once for loss and
metric, and boxes are suppressed in a thread beside the next batch. Without folders of your own the job learns generated
pictures of banknotes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hasten.core.errors import DataError, JobError
from hasten.core.job import Gathered, Job, Loss, Mean, Quality
from hasten.recipes.detection.augment import Augmentation
from hasten.recipes.detection.average import DECAY, RAMP_UPDATES, Averaged
from hasten.recipes.detection.data import Batch, DetectionData, augmented, collate, decode
from hasten.recipes.detection.decode import Candidates, Suppression, candidates, suppress
from hasten.recipes.detection.evaluate import Judged, mean_average_precision
from hasten.recipes.detection.export import export_onnx
from hasten.recipes.detection.labels import Labelled, read_labels
from hasten.recipes.detection.losses import Parts, detection_loss
from hasten.recipes.detection.model import PARTS, STRIDES, Detector, Output, shape_named
from hasten.recipes.detection.synth import drawn_pictures
from hasten.recipes.detection.weights import load_weights
from hasten.recipes.findings import Findings
from hasten.recipes.schedule import warmup_cosine

Found = Mapping[str, Mean | Gathered]
METRIC = "map"

_log = logging.getLogger(__name__)


class DetectionJob(Job):
    """Object detection on pictures of your own: name your folders, and tune it.

    Attributes:
        images: Folder of the pictures; None draws pictures of banknotes.
        labels: Folder of YOLO text or VOC XML files, or a COCO JSON file; the folder of the pictures unless given.
        valid_images: Folder of the held-out pictures; None holds `valid_frac` of `images` back.
        valid_labels: Their labels, as `labels`.
        valid_frac: Share of the pictures that is held back, from 0 to 1, where no other folder is named.
        max_bad_frac: Share of the pictures that may have faults.
        num_drawn: Pictures that are drawn where no folder is named.
        size: Side of the square that pictures are fitted into, in pixels; a multiple of 32.
        model_size: nano, small, medium or large.
        augmentation: What may happen to pictures, and how often.
        rate: Learning rate at its highest.
        weight_decay: Of weights, not of norms and biases.
        rule: Of the updates: adamw or sgd (with Nesterov's momentum of 0.937).
        warmup_frac: Share of the run in which the rate rises, from 0 to 1.
        final_frac: What is left of the rate at the end, from 0 to 1.
        decay: Of the running average of the model; 0 is off. See `hasten.recipes.detection.average`.
        decay_ramp: Updates until the decay has come 63 % of its way.
        light_predictions: In training, make no boxes.
        frozen: Parts that stay as they are: of backbone, neck and head.
        start_from: Weights to start from, FILE.safetensors or FILE.pt; None starts from none.
        start_parts: Which parts of them are taken.
        suppression: Which boxes are kept for the metric.
    """

    batch_size = 16
    epochs = 100
    clip_norm = 10.0
    zero_grad_to_none = True
    read_every = 20
    quality = Quality(metric="map50", direction="max", margin=0.02)

    images: ClassVar[str | None] = None
    labels: ClassVar[str | None] = None
    valid_images: ClassVar[str | None] = None
    valid_labels: ClassVar[str | None] = None
    valid_frac: ClassVar[float] = 0.2
    max_bad_frac: ClassVar[float] = 0.1
    num_drawn: ClassVar[int] = 256
    size: ClassVar[int] = 320
    model_size: ClassVar[str] = "nano"
    augmentation: ClassVar[Augmentation] = Augmentation()
    rate: ClassVar[float] = 2e-3
    weight_decay: ClassVar[float] = 0.02
    rule: ClassVar[Literal["adamw", "sgd"]] = "adamw"
    warmup_frac: ClassVar[float] = 0.05
    final_frac: ClassVar[float] = 0.01
    decay: ClassVar[float] = DECAY
    decay_ramp: ClassVar[float] = RAMP_UPDATES
    light_predictions: ClassVar[bool] = True
    frozen: ClassVar[tuple[str, ...]] = ()
    suppression: ClassVar[Suppression] = Suppression()
    start_from: str | None = None
    start_parts: tuple[str, ...] = PARTS

    _output: tuple[torch.Tensor, Output] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A job derived from this one has other forms only where it names them: they must learn its own pictures."""
        super().__init_subclass__(**kwargs)
        if "forms" not in vars(cls):
            cls.forms = ()

    @cached_property
    def labelled(self) -> tuple[Labelled, Labelled]:
        """What is trained on, and what is held out; read once in each process.

        Raises:
            DataError: A folder is missing, labels cannot be read, too much is bad, or too few pictures are left.
        """
        findings = Findings()
        parts = self._read(findings, self.max_bad_frac)
        if findings.items:
            _log.warning("%s", findings.words())
        return parts

    def look_through(self) -> Findings:
        """Look at the headers of all pictures and at all labels, and say what is wrong with them.

        Raises:
            DataError: There is nothing that could be used.
        """
        findings = Findings()
        self._read(findings, 1.0)
        return findings

    def _read(self, findings: Findings, max_bad_frac: float) -> tuple[Labelled, Labelled]:
        if self.images is None:
            drawn = drawn_pictures(self.num_drawn)
            images, labels = drawn / "images", drawn / "labels"
        else:
            images, labels = Path(self.images), Path(self.labels or self.images)
        known = read_labels(images, labels, findings, max_bad_frac=max_bad_frac)
        if self.valid_images is None:
            return held_back(known, self.valid_frac)
        images, labels = Path(self.valid_images), Path(self.valid_labels or self.valid_images)
        return known, read_labels(images, labels, findings, classes=known.classes, max_bad_frac=max_bad_frac)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in their order."""
        return self.labelled[0].classes

    def train_data(self) -> Dataset[Any]:
        """Pictures with their labels."""
        return DetectionData(self.labelled[0].items)

    def valid_data(self) -> Dataset[Any]:
        """Held-out pictures."""
        return DetectionData(self.labelled[1].items)

    def deterministic_transform(self, sample: Any) -> Any:
        """Decode a picture and fit it into the square."""
        return decode(sample, self.size)

    def random_transform(self, sample: Any) -> Any:
        """Draw what is to be done to a picture; `collate` does it, with the other pictures of the batch."""
        return augmented(sample, self.augmentation)

    def collate(self, samples: list[Any]) -> Batch:
        """Compose the pictures, uint8 `[batch, 3, size, size]`, and lay the objects end to end, `[objects, 6]`."""
        return collate(samples)

    def device_transform(self, batch: Batch) -> Batch:
        """Make floats from 0 to 1 of bytes."""
        return batch._replace(images=batch.images.to(torch.float32).div_(255.0))

    def detector(self, num_classes: int) -> Detector:
        """Make the detector, with the weights to start from and without gradients where it is frozen.

        Raises:
            JobError: The size does not fit, or the weights are another detector's.
            DataError: The weights cannot be read.
        """
        shape, where = shape_named(self.model_size), type(self).__name__
        if self.size < STRIDES[-1] or self.size % STRIDES[-1]:
            raise JobError(f"{where}.size must be a multiple of {STRIDES[-1]} pixels, not {self.size!r}.")
        if self.size > shape.longest_side:
            raise JobError(
                f"{where}.size is {self.size}, and boxes of model_size {self.model_size!r} reach {shape.longest_side} "
                f"pixels: choose a larger model_size or a smaller size."
            )
        detector = Detector(num_classes, shape, light=self.light_predictions)
        if self.start_from is not None:
            load_weights(detector, Path(self.start_from), self.start_parts)
        if self.frozen:
            detector.freeze(self.frozen)
        return detector

    def export(self, weights: str, path: str) -> dict[str, float]:
        """Write a trained detector as an ONNX file; see `hasten.recipes.detection.export`.

        Args:
            weights: Of a run of this job: FILE.safetensors, or the run's model.pt.
            path: The ONNX file.

        Returns:
            The largest difference seen between the file and the model, of `boxes` (pixels) and of `scores`.

        Raises:
            HastenError: As `load_weights` and `export_onnx` have it.
        """
        detector = Detector(len(self.classes), shape_named(self.model_size))
        load_weights(detector, Path(weights))
        return export_onnx(detector, Path(path), size=self.size, classes=self.classes)

    def model(self) -> nn.Module:
        """Make the detector, and its running average around it."""
        detector = self.detector(len(self.classes))
        return Averaged(detector, decay=self.decay, ramp_updates=self.decay_ramp) if self.decay else detector

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the optimizer of what learns; norms and biases do not decay.

        Raises:
            JobError: `rule` names none.
        """
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [parameter for parameter in learning if parameter.dim() > 1], "weight_decay": self.weight_decay},
            {"params": [parameter for parameter in learning if parameter.dim() <= 1], "weight_decay": 0.0},
        ]
        if self.rule == "adamw":
            return AdamW(groups, lr=self.rate)
        if self.rule == "sgd":
            return SGD(groups, lr=self.rate, momentum=0.937, nesterov=True)
        raise JobError(f"{type(self).__name__}.rule must be 'adamw' or 'sgd', not {self.rule!r}.")

    def schedule(self, optimizer: Optimizer, num_updates: int) -> LRScheduler:
        """Raise the rate in a line, then let it fall as half a cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=self.warmup_frac, final_frac=self.final_frac)

    def parts(self, output: Output, targets: torch.Tensor) -> Parts:
        """The parts of the loss, the anchors of the whole batch chosen at once."""
        return detection_loss(output, targets)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss; what the model says of a held-out batch is kept for `metric`, which asks for the same batch next."""
        output: Output = model(batch.images)
        if not model.training:
            self._output = batch.images, output
        parts = self.parts(output, batch.targets)
        return Loss(parts.total(), parts.weight)

    def metric(self, model: nn.Module, batch: Batch) -> Found | Future[Found]:
        """Pick the best boxes of a held-out batch, and suppress what overlaps in a thread, beside the next batch."""
        last, self._output = self._output, None
        output: Output = last[1] if last is not None and last[0] is batch.images else model(batch.images)
        found = candidates(*boxes_and_scores(output), self.suppression)
        return _pool().submit(_judged, found, objects_of(batch), self.suppression)

    def whole_metric(self, name: str, items: list[Judged]) -> dict[str, float]:
        """`map50` and `map` of all held-out pictures."""
        return mean_average_precision(items, len(self.classes))

    def after_update(self, model: nn.Module) -> None:
        """Move the running average."""
        if isinstance(model, Averaged):
            model.update()


def held_back(known: Labelled, share: float) -> tuple[Labelled, Labelled]:
    """Split pictures into those to train on and those to hold out, the same split at each call.

    Raises:
        DataError: One part would have no picture.
    """
    count = len(known.items)
    held = round(share * count)
    if not 0 < held < count:
        raise DataError(
            f"of {count} pictures {held} would be held out (valid_frac {share:g}): both parts need at least one. Add "
            f"pictures, or name valid_images."
        )
    order = np.random.default_rng(0).permutation(count).tolist()

    def of(places: list[int]) -> Labelled:
        return Labelled(known.classes, tuple(known.items[place] for place in sorted(places)))

    return of(order[held:]), of(order[:held])


def objects_of(batch: Batch) -> list[Any]:
    """The objects of each picture, float32 `[n, 5]`: class, x1, y1, x2, y2, in pixels of the square."""
    targets = batch.targets.detach().cpu().numpy()
    return [targets[targets[:, 0] == row, 1:] for row in range(len(batch.images))]


def boxes_and_scores(output: Output) -> tuple[torch.Tensor, torch.Tensor]:
    """The boxes and scores of a detector in eval mode.

    Raises:
        JobError: The output has none.
    """
    if output.boxes is None or output.scores is None:
        raise JobError("a light detector makes no boxes while it trains: call model.eval() before metric.")
    return output.boxes, output.scores


def _judged(found: Candidates, objects: list[Any], settings: Suppression) -> Found:
    return {METRIC: Gathered(list(zip(suppress(found, settings), objects, strict=True)))}


@cache
def _pool() -> ThreadPoolExecutor:
    """One thread is enough: the kernel takes less time than the model does."""
    return ThreadPoolExecutor(1, thread_name_prefix="hasten-boxes")
