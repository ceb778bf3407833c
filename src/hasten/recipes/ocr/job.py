"""The text-detection job: DBNet on your own pictures.

    class Receipts(OcrJob):
        images, labels = "scans", "labels"

    class NaiveReceipts(NaiveOcrJob, Receipts):  # the baseline: `hasten tune receipts.py:NaiveReceipts` shows the gain
        forms = (Receipts,)

A picture is decoded and fitted once and can be cached; targets are made by compiled kernels, and those of held-out pictures
once; bytes go to the device; a held-out batch passes the model once for loss and metric; and boxes are found in threads
beside the next batch. The loss of held-out pictures is that of the probability map alone: boxes need no threshold map, so
the model makes none there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hasten.core.errors import JobError
from hasten.core.job import Job, Mean, Quality
from hasten.recipes.findings import Findings
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
    """Text detection on pictures of your own: name your folders, and tune it.

    Attributes:
        images: The folder of the pictures; None draws pictures of text to learn from.
        labels: The folder of the label files, or a COCO-Text file; None looks in `images`.
        valid_images: The folder of the held-out pictures; None holds a share of `images` out.
        valid_labels: Their labels; None looks in `valid_images`.
        valid_frac: The share that is held out, where no `valid_images` are given.
        max_bad_frac: The largest share of pictures that may have faults.
        size: Side, or height and width, that pictures are fitted into, in pixels, multiples of 32; None is 640, and 320 for
            drawn pictures.
        crop: Side, or height and width, of the parts that are trained on; None trains on whole pictures.
        backbone: `resnet` or `mobile`.
        width: Channels of the backbone's first stage; a multiple of 16. With fewer, oneDNN writes gradients of channels-last
            convolutions out of bounds on a CPU (https://github.com/uxlfoundation/oneDNN/issues/6035).
        min_text_size: Texts that are less high or wide, in pixels of the fitted picture, are not learned.
        shrink_ratio: What texts are shrunk by. Nearer to 1 keeps thin lines apart less well and finds them better.
        box_thresh: The least mean probability of a box.
        min_box_side: The shorter side that a shrunk text must have to be found, in pixels from centre to centre.
        curved: Find the outline of each text, not a rectangle around it: for lines that are bent. It takes longer.
        augment: How far training pictures are changed at random.
        rate: The highest learning rate.
        warmup_frac: The share of the run in which the rate rises to it; it falls as a cosine then.
        num_drawn: How many pictures are drawn where no `images` are given.
    """

    images: ClassVar[str | None] = None
    labels: ClassVar[str | None] = None
    valid_images: ClassVar[str | None] = None
    valid_labels: ClassVar[str | None] = None
    valid_frac: ClassVar[float] = 0.2
    max_bad_frac: ClassVar[float] = 0.1
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
        """A job of one's own has no other form than those it names: ours are of other pictures."""
        super().__init_subclass__(**settings)
        if "forms" not in vars(cls):
            cls.forms = ()

    def __getstate__(self) -> dict[str, Any]:
        """A worker process gets the job without what belongs to this one."""
        return {name: value for name, value in vars(self).items() if name not in {"_change", "_output"}}

    def model(self) -> nn.Module:
        """Make the network.

        Raises:
            JobError: The backbone or the width cannot be.
        """
        if self.backbone not in {"resnet", "mobile"}:
            raise JobError(f"{type(self).__name__}.backbone must be 'resnet' or 'mobile', not {self.backbone!r}.")
        if self.width < 16 or self.width % 16:
            raise JobError(f"{type(self).__name__}.width must be a multiple of 16, not {self.width}.")
        return DBNet(self.backbone, self.width)

    def train_data(self) -> Dataset[Any]:
        """Make the pictures to learn from: file names and polygons; nothing is decoded yet."""
        warm_maps()  # here, so that no worker process compiles in its first batch
        return OcrData(self.items()[0])

    def valid_data(self) -> Dataset[Any]:
        """Make the held-out pictures, cached with their targets from the first pass on."""
        warm_maps()
        return HeldOutData(OcrData(self.items()[1]), self.canonical_size(), self.map_settings())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer; it updates all weights in one call."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01, fused=True)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler:
        """Raise the rate in a line, then let it fall as half a cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=self.warmup_frac)

    def deterministic_transform(self, sample: Any) -> Any:
        """Decode a picture and fit it into the canonical size; what is kept of held-out pictures is so already."""
        return prepared(sample, self.canonical_size()) if isinstance(sample[0], str) else sample

    def random_transform(self, sample: Sample) -> Sample:
        """Turn, scale, crop and light the picture a little otherwise at each visit."""
        if self._change is None:
            crop = self._crop()
            self._change = Augment(self.augment if crop is None else replace(self.augment, crop=crop))
        return self._change(sample)

    def collate(self, samples: list[Any]) -> OcrBatch:
        """Stack the pictures as bytes, and make their targets by the compiled kernels; those of held-out ones are kept."""
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
        """Make normalised floats of bytes, channels last in memory."""
        if batch.images.dtype != torch.uint8:
            return batch
        images = batch.images.permute(0, 3, 1, 2).to(torch.float32)
        mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (MEAN, STD))
        return batch._replace(images=images.div_(255).sub_(mean).div_(std))

    def loss(self, model: nn.Module, batch: OcrBatch) -> torch.Tensor:
        """The three losses of DBNet; of held-out pictures that of the probability map alone.

        The output of a held-out batch is kept for `metric`, which is called with the same batch next.
        """
        logits = model(batch.images)
        if not model.training:
            self._output = batch.images, logits
        if logits.shape[1] == 1 or batch.thresh is None or batch.thresh_mask is None:
            return probability_loss(logits, batch.shrink, batch.shrink_mask)
        return db_loss(logits, batch.shrink, batch.shrink_mask, batch.thresh, batch.thresh_mask)

    def metric(self, model: nn.Module, batch: OcrBatch) -> Any:
        """H-mean, precision and recall, measured in a thread beside the next batch; and what each part of it took."""
        last, self._output = self._output, None
        logits = last[1] if last is not None and last[0] is batch.images else model(batch.images)
        probability = torch.sigmoid(logits[:, 0].float()).cpu()
        pending: Future[dict[str, Mean]] = _pool(os.getpid()).submit(self.measured, probability, batch)
        return pending

    def look_through(self) -> Findings:
        """What is wrong with the pictures and labels, each with its file and line; nothing where they are drawn.

        Raises:
            DataError: A folder cannot be used at all.
        """
        findings = Findings()
        for images, labels in ((self.images, self.labels), (self.valid_images, self.valid_labels)):
            if images is not None:
                read_regions(Path(images), Path(labels or images), findings)
        return findings

    def export(self, weights: str, path: str) -> dict[str, float]:
        """Write a trained network as an ONNX file; see `hasten.recipes.ocr.export`.

        Args:
            weights: Of a run of this job: FILE.safetensors, or the run's model.pt.
            path: The ONNX file.

        Returns:
            The largest difference seen between the file and the network, of `probability`.

        Raises:
            HastenError: As `load_weights` and `export_onnx` have it.
        """
        network = self.model()
        load_weights(network, Path(weights))
        return export_onnx(network, Path(path), size=self.canonical_size(), shrink_ratio=self.shrink_ratio)

    def canonical_size(self) -> tuple[int, int]:
        """Height and width that pictures are fitted into.

        Raises:
            JobError: They are no multiples of 32.
        """
        size = self.size if self.size is not None else (640 if self.images is not None else 320)
        return _both_sides(size, f"{type(self).__name__}.size")

    def map_settings(self) -> MapSettings:
        """How targets are made."""
        return MapSettings(shrink_ratio=self.shrink_ratio, min_text_size=self.min_text_size)

    def box_settings(self) -> BoxSettings:
        """What counts as a text."""
        return BoxSettings(
            box_thresh=self.box_thresh,
            min_side=self.min_box_side,
            shrink_ratio=self.shrink_ratio,
            outlines=self.curved,
        )

    def items(self) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """The pictures to learn from and those held out, read once."""
        if self._items is None:
            self._check()
            self._items = self._read()
        return self._items

    def _check(self) -> None:
        """Refuse settings that cannot be, before anything is read."""
        self.canonical_size()
        self.map_settings()
        self._crop()

    def _crop(self) -> tuple[int, int] | None:
        return None if self.crop is None else _both_sides(self.crop, f"{type(self).__name__}.crop")

    def _read(self) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        if self.images is None:
            folder = drawn_folder(self.num_drawn, self.seed, self.canonical_size())
            return split(read_items(folder / "images", folder / "labels", self.max_bad_frac), self.valid_frac)
        items = read_items(Path(self.images), Path(self.labels or self.images), self.max_bad_frac)
        if self.valid_images is None:
            return split(items, self.valid_frac)
        valid = read_items(Path(self.valid_images), Path(self.valid_labels or self.valid_images), self.max_bad_frac)
        return items, valid

    def measured(self, probability: torch.Tensor, batch: OcrBatch) -> dict[str, Mean]:
        """The metrics of a held-out batch.

        Args:
            probability: Of text, `[batch, height, width]`, on the CPU.
            batch: The batch.

        Raises:
            JobError: The batch has no labels.
        """
        if batch.truth is None:
            raise JobError("this batch has no labels to measure by: it is one of training.")
        return measured(
            probability.numpy(),
            polygons_in(batch.truth),
            batch.truth.polygon_ms.tolist(),
            find=self.find_texts,
            count=self.count_texts,
        )

    def find_texts(self, probability: Floats) -> Texts:
        """The texts of one picture, from the map of probabilities `[height, width]`."""
        return find_texts(probability, self.box_settings())

    def count_texts(self, texts: Texts, truth: PolygonArray) -> Counts:
        """The matches of the texts and labels of one picture."""
        return count_texts(texts, truth)


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads that look for boxes, one set for each process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(_METRIC_THREADS, thread_name_prefix=f"boxes-{process}")


def polygons_of_sample(sample: Sequence[Any]) -> PolygonArray:
    """The polygons of a sample."""
    return polygons_of(sample[1], sample[2], sample[3])


def batch_of(images: torch.Tensor, maps: list[Maps], samples: list[Any], polygon_ms: list[float]) -> OcrBatch:
    """A batch of pictures with all four target maps, and with labels where the samples are held out."""
    held_out = len(samples[0]) > 4
    return OcrBatch(
        images,
        torch.from_numpy(np.stack([one.shrink for one in maps])),
        torch.from_numpy(np.stack([one.shrink_mask for one in maps])),
        torch.from_numpy(np.stack([one.thresh for one in maps])),
        torch.from_numpy(np.stack([one.thresh_mask for one in maps])),
        truth_of([polygons_of_sample(sample) for sample in samples], polygon_ms) if held_out else None,
    )


def _both_sides(size: int | tuple[int, int], name: str) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < STRIDE or height % STRIDE or width % STRIDE:
        raise JobError(f"{name} must be a multiple of {STRIDE} pixels (or two of them: height, width), not {size!r}.")
    return height, width
