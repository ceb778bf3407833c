"""The text-detection job: DBNet on your own images.

    class Receipts(OcrJob):
        images, labels = "scans", "labels"

    class NaiveReceipts(NaiveOcrJob, Receipts):  # the baseline: `hasten tune receipts.py:NaiveReceipts` shows the gain
        forms = (Receipts,)

Each image is decoded and fitted once and can be cached. Targets are made by compiled kernels, and those of validation images
only once. Images are copied to the device as uint8. A validation batch passes through the model once for loss and metric,
and boxes are found in worker threads while the next batch runs. The validation loss is that of the probability map alone:
boxes need no threshold map, so the model does not compute one there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hasten.core.errors import DataError, JobError
from hasten.core.job import Job, Mean, Quality
from hasten.recipes.findings import Findings, many
from hasten.recipes.ocr.augment import Augment, AugmentSettings
from hasten.recipes.ocr.batch import MEAN, STD, OcrBatch, polygons_in, truth_of
from hasten.recipes.ocr.data import HeldOutData, OcrData, Sample, polygons_of, prepared, read_items, split
from hasten.recipes.ocr.export import export_onnx
from hasten.recipes.ocr.losses import db_loss, probability_loss
from hasten.recipes.ocr.maps import Maps, MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.maps.targets import warm as warm_maps
from hasten.recipes.ocr.metrics import Counts, count_texts, measured
from hasten.recipes.ocr.model import STRIDE, Backbone, DBNet
from hasten.recipes.ocr.postprocess import BoxSettings, Floats, Texts, find_texts
from hasten.recipes.ocr.regions import Item, read_regions
from hasten.recipes.ocr.synth import drawn_folder
from hasten.recipes.schedule import warmup_cosine
from hasten.recipes.weights import load_weights

_METRIC_THREADS = 2


class OcrJob(Job):
    """Text detection on your own images: subclass it, set your folders, and tune it.

    Attributes:
        images: Folder of the images; None generates images of text.
        labels: Folder of the label files, or a COCO-Text file; None uses `images`.
        valid_images: Folder of the validation images; None holds out a fraction of `images`.
        valid_labels: Labels of the validation images; None uses `valid_images`.
        valid_frac: Fraction to hold out if `valid_images` is None.
        max_bad_frac: Largest fraction of images that may have problems.
        label_rows: Kind of the rows of ICDAR text, one of `hasten.recipes.ocr.rows.KINDS`. None decides by all rows.
        label_encoding: Encoding of label files that are not UTF-8.
        size: Side, or height and width, in pixels that images are fitted into; multiples of 32. None is 640, and 320 for
            generated images.
        crop: Side, or height and width, of the crops to train on; None trains on whole images.
        backbone: `resnet` or `mobile`.
        width: Channels of the backbone's first stage; a multiple of 16. With fewer, oneDNN writes gradients of channels-last
            convolutions out of bounds on a CPU (https://github.com/uxlfoundation/oneDNN/issues/6035).
        min_text_size: Smallest height and width of texts to train on, in pixels of the fitted image.
        shrink_ratio: Shrink ratio of texts. Values closer to 1 detect thin lines better but separate them less well.
        box_thresh: Smallest mean probability of a box.
        min_box_side: Smallest shorter side of a detected shrunk text, in pixels from centre to centre.
        curved: Return the outline of each text instead of a rectangle, for curved lines. This takes longer.
        augment: Random augmentation of training images.
        rate: Peak learning rate.
        warmup_frac: Fraction of the run in which the rate rises; then it falls along a half cosine.
        num_drawn: Number of images to generate if `images` is None.
    """

    images: ClassVar[str | None] = None
    labels: ClassVar[str | None] = None
    valid_images: ClassVar[str | None] = None
    valid_labels: ClassVar[str | None] = None
    valid_frac: ClassVar[float] = 0.2
    max_bad_frac: ClassVar[float] = 0.1
    label_rows: ClassVar[str | None] = None
    label_encoding: ClassVar[str | None] = None
    size: ClassVar[int | tuple[int, int] | None] = None
    crop: ClassVar[int | tuple[int, int] | None] = None
    backbone: ClassVar[Backbone] = "resnet"
    width: ClassVar[int] = 16
    min_text_size: ClassVar[float] = 4.0
    shrink_ratio: ClassVar[float] = 0.4
    box_thresh: ClassVar[float] = 0.5
    min_box_side: ClassVar[float] = 1.0
    curved: ClassVar[bool] = False
    augment: ClassVar[AugmentSettings] = AugmentSettings()
    rate: ClassVar[float] = 2e-3
    warmup_frac: ClassVar[float] = 0.1
    num_drawn: ClassVar[int] = 120

    batch_size = 8
    epochs = 60
    quality = Quality(metric="hmean", direction="max", margin=0.02)

    _items: tuple[tuple[Item, ...], tuple[Item, ...]] | None = None
    _change: Augment | None = None
    _output: tuple[torch.Tensor, torch.Tensor] | None = None

    def __init_subclass__(cls, **settings: Any) -> None:
        """Clear `forms` of a subclass that does not set its own: inherited forms would train on other images."""
        super().__init_subclass__(**settings)
        if "forms" not in vars(cls):
            cls.forms = ()

    def __getstate__(self) -> dict[str, Any]:
        """Exclude state that belongs to this process from the copy that a worker process gets."""
        return {name: value for name, value in vars(self).items() if name not in {"_change", "_output"}}

    def model(self) -> nn.Module:
        """Create the network.

        Raises:
            JobError: The backbone or the width is not supported.
        """
        if self.backbone not in {"resnet", "mobile"}:
            raise JobError(f"{type(self).__name__}.backbone must be 'resnet' or 'mobile', not {self.backbone!r}.")
        if self.width < 16 or self.width % 16:
            raise JobError(f"{type(self).__name__}.width must be a multiple of 16, not {self.width}.")
        return DBNet(self.backbone, self.width)

    def train_data(self) -> Dataset[Any]:
        """Return the training images as file names and polygons; nothing is decoded yet."""
        warm_maps()  # compile here, so that no worker process compiles in its first batch
        return OcrData(self.items()[0])

    def valid_data(self) -> Dataset[Any]:
        """Return the validation images, cached with their targets from the first pass on."""
        warm_maps()
        return HeldOutData(OcrData(self.items()[1]), self.canonical_size(), self.map_settings())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the fused optimizer, which updates all weights in one call."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01, fused=True)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler:
        """Increase the learning rate linearly, then decay it along a half cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=self.warmup_frac)

    def deterministic_transform(self, sample: Any) -> Any:
        """Decode an image and fit it into the canonical size; cached validation images already have it."""
        return prepared(sample, self.canonical_size()) if isinstance(sample[0], str) else sample

    def random_transform(self, sample: Sample) -> Sample:
        """Rotate, scale, crop and light the image slightly differently at each visit."""
        if self._change is None:
            crop = self._crop()
            self._change = Augment(self.augment if crop is None else replace(self.augment, crop=crop))
        return self._change(sample)

    def collate(self, samples: list[Any]) -> OcrBatch:
        """Stack the images as uint8 and make their targets with the compiled kernels, unless they are cached."""
        images = torch.from_numpy(np.stack([sample[0] for sample in samples]))
        if all(len(sample) > 4 and sample[4] is not None for sample in samples):
            targets = [sample[4] for sample in samples]
            shrink, mask = (torch.from_numpy(np.stack([target[at] for target in targets])) for at in (0, 1))
            truth = truth_of([polygons_of_sample(sample) for sample in samples], [target[2] for target in targets])
            return OcrBatch(images, shrink, mask, None, None, truth)
        start = time.perf_counter()
        maps = [make_maps(polygons_of_sample(sample), sample[0].shape[:2], self.map_settings()) for sample in samples]
        spent_ms = 1e3 * (time.perf_counter() - start) / len(samples)
        return batch_of(images, maps, samples, [spent_ms] * len(samples))

    def device_transform(self, batch: OcrBatch) -> OcrBatch:
        """Convert uint8 images to normalized floats in channels-last memory format."""
        if batch.images.dtype != torch.uint8:
            return batch
        images = batch.images.permute(0, 3, 1, 2).to(torch.float32)
        mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (MEAN, STD))
        return batch._replace(images=images.div_(255).sub_(mean).div_(std))

    def loss(self, model: nn.Module, batch: OcrBatch) -> torch.Tensor:
        """Compute the three losses of DBNet; in validation only that of the probability map.

        The output of a validation batch is kept for `metric`, which is called with the same batch next.
        """
        logits = model(batch.images)
        if not model.training:
            self._output = batch.images, logits
        if logits.shape[1] == 1 or batch.thresh is None or batch.thresh_mask is None:
            return probability_loss(logits, batch.shrink, batch.shrink_mask)
        return db_loss(logits, batch.shrink, batch.shrink_mask, batch.thresh, batch.thresh_mask)

    def metric(self, model: nn.Module, batch: OcrBatch) -> Any:
        """Compute H-mean, precision, recall and the time of each part, in a thread while the next batch runs."""
        last, self._output = self._output, None
        logits = last[1] if last is not None and last[0] is batch.images else model(batch.images)
        probability = torch.sigmoid(logits[:, 0].float()).cpu()
        pending: Future[dict[str, Mean]] = _pool(os.getpid()).submit(self.measured, probability, batch)
        return pending

    def look_through(self, told: Callable[[int, int], None] | None = None) -> Findings:
        """Check the images and labels, and return the problems found and what was understood; empty if they are generated.

        Args:
            told: Called with the number of images checked so far, and the number of all.

        Raises:
            DataError: No image can be used, or no text is labelled in the images to train on or to validate with.
        """
        findings = Findings()
        if self.images is None:
            return findings
        items = self._read_regions(self.images, self.labels, findings, told)
        if self.valid_images is None:
            parts = split(items, self.valid_frac)
        else:
            parts = items, self._read_regions(self.valid_images, self.valid_labels, findings, told)
        for part, purpose in zip(parts, ("to train on", "held out"), strict=True):
            num_legible = sum(int((~item.regions.ignored).sum()) for item in part)
            if not num_legible:
                raise DataError(f"No text is labelled in the {len(part)} images {purpose}.\n{findings.words()}".rstrip())
            num_ignored = sum(len(item.regions) for item in part) - num_legible
            ignored = f"; {num_ignored} more are illegible and ignored" if num_ignored else ""
            findings.understood.append(f"{many(len(part), 'image')} {purpose}, with {many(num_legible, 'text')}{ignored}.")
        return findings

    def _read_regions(
        self, images: str, labels: str | None, findings: Findings, told: Callable[[int, int], None] | None
    ) -> tuple[Item, ...]:
        place = Path(labels or images)
        items = read_regions(Path(images), place, findings, rows=self.label_rows, encoding=self.label_encoding, told=told)
        findings.check(1.0)
        return items

    def export(self, weights: str, path: str) -> dict[str, float]:
        """Export a trained network as an ONNX file; see `hasten.recipes.ocr.export`.

        Args:
            weights: Weights from a run of this job: FILE.safetensors, or the run's model.pt.
            path: The ONNX file.

        Returns:
            The largest difference between the file and the network, of `probability`.

        Raises:
            HastenError: Loading or exporting failed; see `load_weights` and `export_onnx`.
        """
        network = self.model()
        load_weights(network, Path(weights))
        return export_onnx(network, Path(path), size=self.canonical_size(), shrink_ratio=self.shrink_ratio)

    def canonical_size(self) -> tuple[int, int]:
        """Return the height and width that images are fitted into.

        Raises:
            JobError: They are not multiples of 32.
        """
        size = self.size if self.size is not None else (640 if self.images is not None else 320)
        return _both_sides(size, f"{type(self).__name__}.size")

    def map_settings(self) -> MapSettings:
        """Return the settings of the targets."""
        return MapSettings(shrink_ratio=self.shrink_ratio, min_text_size=self.min_text_size)

    def box_settings(self) -> BoxSettings:
        """Return the settings of the post-processing."""
        return BoxSettings(
            box_thresh=self.box_thresh,
            min_side=self.min_box_side,
            shrink_ratio=self.shrink_ratio,
            outlines=self.curved,
        )

    def items(self) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """Return the training and the validation images, read once."""
        if self._items is None:
            self._check()
            self._items = self._read()
        return self._items

    def _check(self) -> None:
        """Raise an error for invalid settings before anything is read."""
        self.canonical_size()
        self.map_settings()
        self._crop()

    def _crop(self) -> tuple[int, int] | None:
        return None if self.crop is None else _both_sides(self.crop, f"{type(self).__name__}.crop")

    def _read(self) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        if self.images is None:
            folder = drawn_folder(self.num_drawn, self.seed, self.canonical_size())
            return split(read_items(folder / "images", folder / "labels", self.max_bad_frac), self.valid_frac)
        read = partial(read_items, max_bad_frac=self.max_bad_frac, rows=self.label_rows, encoding=self.label_encoding)
        items = read(Path(self.images), Path(self.labels or self.images))
        if self.valid_images is None:
            return split(items, self.valid_frac)
        valid = read(Path(self.valid_images), Path(self.valid_labels or self.valid_images))
        return items, valid

    def measured(self, probability: torch.Tensor, batch: OcrBatch) -> dict[str, Mean]:
        """Compute the metrics of a validation batch.

        Args:
            probability: Probability of text, `[batch, height, width]`, on the CPU.
            batch: The batch.

        Raises:
            JobError: The batch has no labels.
        """
        if batch.truth is None:
            raise JobError("this batch has no labels to measure with: it is a training batch.")
        return measured(
            probability.numpy(),
            polygons_in(batch.truth),
            batch.truth.polygon_ms.tolist(),
            find=self.find_texts,
            count=self.count_texts,
        )

    def find_texts(self, probability: Floats) -> Texts:
        """Return the texts of one image from its map of probabilities `[height, width]`."""
        return find_texts(probability, self.box_settings())

    def count_texts(self, texts: Texts, truth: PolygonArray) -> Counts:
        """Count the matches between the texts and the labels of one image."""
        return count_texts(texts, truth)


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the pool of threads that find boxes, one pool per process: threads do not survive a fork."""
    return ThreadPoolExecutor(_METRIC_THREADS, thread_name_prefix=f"boxes-{process}")


def polygons_of_sample(sample: Sequence[Any]) -> PolygonArray:
    """Return the polygons of a sample."""
    return polygons_of(sample[1], sample[2], sample[3])


def batch_of(images: torch.Tensor, maps: list[Maps], samples: list[Any], polygon_ms: list[float]) -> OcrBatch:
    """Build a batch of images with all four target maps, and with labels if the samples are for validation."""
    is_validation = len(samples[0]) > 4
    return OcrBatch(
        images,
        torch.from_numpy(np.stack([one.shrink for one in maps])),
        torch.from_numpy(np.stack([one.shrink_mask for one in maps])),
        torch.from_numpy(np.stack([one.thresh for one in maps])),
        torch.from_numpy(np.stack([one.thresh_mask for one in maps])),
        truth_of([polygons_of_sample(sample) for sample in samples], polygon_ms) if is_validation else None,
    )


def _both_sides(size: int | tuple[int, int], name: str) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < STRIDE or height % STRIDE or width % STRIDE:
        raise JobError(f"{name} must be a multiple of {STRIDE} pixels (or two of them: height, width), not {size!r}.")
    return height, width
