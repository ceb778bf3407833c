"""The detection job: object detection on your own images.

    class Coins(DetectionJob):
        images, labels = "photos", "labels"

    class NaiveCoins(NaiveDetectionJob, Coins):  # the baseline: `hasten tune coins.py:NaiveCoins` shows the gain
        forms = (Coins,)

Each image is read and scaled once and can be cached. Mosaics are composed from the images of a batch. Images are copied to
the device as uint8. Anchors are assigned for a whole batch at once. No boxes are computed in training. A validation batch
passes through the model once for loss and metric, and boxes are suppressed in a worker thread while the next batch runs.
Without folders of your own, the job trains on generated images of banknotes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hasten.core.doing import doing
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
from hasten.recipes.findings import Findings, many
from hasten.recipes.schedule import warmup_cosine

Found = Mapping[str, Mean | Gathered]
METRIC = "map"

_log = logging.getLogger(__name__)


class DetectionJob(Job):
    """Object detection on your own images: subclass it, set your folders, and tune it.

    Attributes:
        images: Folder of the images; None generates images of banknotes.
        labels: Folder of YOLO text or VOC XML files, or a COCO JSON file; defaults to the image folder.
        valid_images: Folder of the validation images; None holds out `valid_frac` of `images`.
        valid_labels: Labels of the validation images, in the same form as `labels`.
        valid_frac: Fraction of the images to hold out if `valid_images` is None, from 0 to 1.
        max_bad_frac: Largest allowed fraction of images with problems.
        label_rows: Kind of the rows of YOLO text: box, box-score, polygon or pose. None decides by all rows.
        label_encoding: Encoding of label files that are not UTF-8.
        num_drawn: Number of images to generate if no folder is set.
        size: Side in pixels of the square that images are fitted into; a multiple of 32.
        model_size: nano, small, medium or large.
        augmentation: Kinds and strengths of augmentation.
        rate: Peak learning rate.
        weight_decay: Weight decay of weights; norms and biases do not decay.
        rule: Optimizer: adamw, or sgd (with Nesterov momentum of 0.937).
        warmup_frac: Fraction of the run in which the rate rises, from 0 to 1.
        final_frac: Final rate as a fraction of the peak, from 0 to 1.
        decay: Decay of the model's running average; 0 is off. See `hasten.recipes.detection.average`.
        decay_ramp: Number of updates after which the decay has reached 63 % of its final value.
        light_predictions: Skip computing boxes in training.
        frozen: Parts of the model that are not trained: any of backbone, neck and head.
        start_from: Initial weights, FILE.safetensors or FILE.pt; None initializes randomly.
        start_parts: Parts of the model that `start_from` initializes.
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
    label_rows: ClassVar[str | None] = None
    label_encoding: ClassVar[str | None] = None
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
        """Clear `forms` of a subclass that does not set its own: inherited forms would train on other images."""
        super().__init_subclass__(**kwargs)
        if "forms" not in vars(cls):
            cls.forms = ()

    @cached_property
    def labelled(self) -> tuple[Labelled, Labelled]:
        """The training and the validation images with their labels, read once per process.

        Raises:
            DataError: A folder is missing, labels cannot be read, too much is bad, or too few images remain.
        """
        findings = Findings()
        if self.images is not None:
            doing(f"reading the images in {self.images} and their labels")
        parts = self._read(findings, self.max_bad_frac)
        if findings.items:
            _log.warning("%s", findings.words())
        return parts

    def look_through(self, told: Callable[[int, int], None] | None = None) -> Findings:
        """Check the headers of all images and all labels, and return the problems found and what was understood.

        Args:
            told: Called with the number of images checked so far, and the number of all.

        Raises:
            DataError: No image can be used, or no object is labelled in the images to train on or to validate with.
        """
        findings = Findings()
        parts = self._read(findings, 1.0, told)
        for part, purpose in zip(parts, ("to train on", "held out"), strict=True):
            num_objects = sum(len(item.boxes) for item in part.items)
            if not num_objects:
                raise DataError(
                    f"No object is labelled in the {len(part.items)} images {purpose}.\n{findings.words()}".rstrip()
                )
            with_objects = f"with {many(num_objects, 'object')}"
            findings.understood.append(f"{many(len(part.items), 'image')} {purpose}, {with_objects}.")
        used = {int(number) for part in parts for item in part.items for number in item.classes}
        unused = [name for number, name in enumerate(parts[0].classes) if number not in used]
        without = f"; none of {', '.join(unused[:8])}{', ...' if len(unused) > 8 else ''}" if unused else ""
        findings.understood.append(f"{many(len(parts[0].classes), 'class')}{without}.")
        return findings

    def _read(
        self, findings: Findings, max_bad_frac: float, told: Callable[[int, int], None] | None = None
    ) -> tuple[Labelled, Labelled]:
        if self.images is None:
            drawn = drawn_pictures(self.num_drawn)
            images, labels = drawn / "images", drawn / "labels"
        else:
            images, labels = Path(self.images), Path(self.labels or self.images)
        read = partial(
            read_labels,
            findings=findings,
            max_bad_frac=max_bad_frac,
            rows=self.label_rows,
            encoding=self.label_encoding,
            told=told,
        )
        labelled = read(images, labels)
        if self.valid_images is None:
            return held_back(labelled, self.valid_frac)
        images, labels = Path(self.valid_images), Path(self.valid_labels or self.valid_images)
        return labelled, read(images, labels, classes=labelled.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names in order."""
        return self.labelled[0].classes

    def train_data(self) -> Dataset[Any]:
        """Return the training images with their labels."""
        return DetectionData(self.labelled[0].items)

    def valid_data(self) -> Dataset[Any]:
        """Return the validation images with their labels."""
        return DetectionData(self.labelled[1].items)

    def deterministic_transform(self, sample: Any) -> Any:
        """Decode an image and fit it into the square."""
        return decode(sample, self.size)

    def random_transform(self, sample: Any) -> Any:
        """Draw the augmentation parameters of an image; `collate` applies them, using the other images of the batch."""
        return augmented(sample, self.augmentation)

    def collate(self, samples: list[Any]) -> Batch:
        """Compose the images, uint8 `[batch, 3, size, size]`, and concatenate their objects, `[objects, 6]`."""
        return collate(samples)

    def device_transform(self, batch: Batch) -> Batch:
        """Convert uint8 images to floats from 0 to 1."""
        return batch._replace(images=batch.images.to(torch.float32).div_(255.0))

    def detector(self, num_classes: int) -> Detector:
        """Create the detector, with its initial weights and frozen parts applied.

        Raises:
            JobError: The size is not supported, or the weights belong to another detector.
            DataError: The weights cannot be read.
        """
        shape, job_name = shape_named(self.model_size), type(self).__name__
        if self.size < STRIDES[-1] or self.size % STRIDES[-1]:
            raise JobError(f"{job_name}.size must be a multiple of {STRIDES[-1]} pixels, not {self.size!r}.")
        if self.size > shape.longest_side:
            raise JobError(
                f"{job_name}.size is {self.size}, but model_size {self.model_size!r} supports boxes of at most "
                f"{shape.longest_side} pixels: choose a larger model_size or a smaller size."
            )
        detector = Detector(num_classes, shape, light=self.light_predictions)
        if self.start_from is not None:
            load_weights(detector, Path(self.start_from), self.start_parts)
        if self.frozen:
            detector.freeze(self.frozen)
        return detector

    def export(self, weights: str, path: str) -> dict[str, float]:
        """Export a trained detector as an ONNX file; see `hasten.recipes.detection.export`.

        Args:
            weights: Weights from a run of this job: FILE.safetensors, or the run's model.pt.
            path: The ONNX file.

        Returns:
            The largest difference between the file and the model, of `boxes` (pixels) and of `scores`.

        Raises:
            HastenError: Loading or exporting failed; see `load_weights` and `export_onnx`.
        """
        detector = Detector(len(self.classes), shape_named(self.model_size))
        load_weights(detector, Path(weights))
        return export_onnx(detector, Path(path), size=self.size, classes=self.classes)

    def model(self) -> nn.Module:
        """Create the detector, wrapped in its running average if `decay` is set."""
        detector = self.detector(len(self.classes))
        return Averaged(detector, decay=self.decay, ramp_updates=self.decay_ramp) if self.decay else detector

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Create the optimizer of the trainable parameters; norms and biases do not decay.

        Raises:
            JobError: `rule` is unknown.
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
        """Increase the learning rate linearly, then decay it along a half cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=self.warmup_frac, final_frac=self.final_frac)

    def parts(self, output: Output, targets: torch.Tensor) -> Parts:
        """Compute the parts of the loss, with the anchors of the whole batch assigned at once."""
        return detection_loss(output, targets)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Compute the loss. In validation the output is kept for `metric`, which gets the same batch next."""
        output: Output = model(batch.images)
        if not model.training:
            self._output = batch.images, output
        parts = self.parts(output, batch.targets)
        return Loss(parts.total(), parts.weight)

    def metric(self, model: nn.Module, batch: Batch) -> Found | Future[Found]:
        """Select the best boxes of a validation batch and suppress overlaps in a thread, parallel to the next batch."""
        last, self._output = self._output, None
        output: Output = last[1] if last is not None and last[0] is batch.images else model(batch.images)
        best = candidates(*boxes_and_scores(output), self.suppression)
        return _pool().submit(_judged, best, objects_of(batch), self.suppression)

    def whole_metric(self, name: str, items: list[Judged]) -> dict[str, float]:
        """Compute `map50` and `map` over all validation images."""
        return mean_average_precision(items, len(self.classes))

    def after_update(self, model: nn.Module) -> None:
        """Update the running average."""
        if isinstance(model, Averaged):
            model.update()


def held_back(labelled: Labelled, share: float) -> tuple[Labelled, Labelled]:
    """Split images into training and validation sets; the split is deterministic.

    Raises:
        DataError: One set would be empty.
    """
    count = len(labelled.items)
    num_valid = round(share * count)
    if not 0 < num_valid < count:
        raise DataError(
            f"{num_valid} of {count} images would be held out (valid_frac {share:g}), but both sets need at least one. "
            f"Add images, or set valid_images."
        )
    shuffled = np.random.default_rng(0).permutation(count).tolist()

    def labelled_at(places: list[int]) -> Labelled:
        return Labelled(labelled.classes, tuple(labelled.items[place] for place in sorted(places)))

    return labelled_at(shuffled[num_valid:]), labelled_at(shuffled[:num_valid])


def objects_of(batch: Batch) -> list[Any]:
    """Return the objects of each image, float32 `[n, 5]`: class, x1, y1, x2, y2, in pixels of the square."""
    targets = batch.targets.detach().cpu().numpy()
    return [targets[targets[:, 0] == row, 1:] for row in range(len(batch.images))]


def boxes_and_scores(output: Output) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the boxes and scores of a detector in eval mode.

    Raises:
        JobError: The output has no boxes.
    """
    if output.boxes is None or output.scores is None:
        raise JobError("a light detector computes no boxes in training mode: call model.eval() before metric.")
    return output.boxes, output.scores


def _judged(best: Candidates, objects: list[Any], settings: Suppression) -> Found:
    return {METRIC: Gathered(list(zip(suppress(best, settings), objects, strict=True)))}


@cache
def _pool() -> ThreadPoolExecutor:
    """Return a pool of one thread, which suffices: suppression takes less time than the model."""
    return ThreadPoolExecutor(1, thread_name_prefix="hasten-boxes")
