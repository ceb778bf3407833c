"""Detection samples and batches: decoded once, cached as plain arrays, and the same in both forms."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hasten
from hasten.core.batch import map_tensors
from hasten.core.errors import DataError
from hasten.core.optimization import Optimization
from hasten.core.records import decode as decode_record
from hasten.core.records import encode as encode_record
from hasten.optimizations.loader_threads import LoaderThreads
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.sample_cache import SampleCache
from hasten.optimizations.sample_store import SampleStore
from hasten.recipes.detection.augment import Augmentation
from hasten.recipes.detection.data import Batch, DetectionData, augmented, collate, decode
from hasten.recipes.detection.labels import Item
from hasten.recipes.detection.naive import NaiveDetectionData, naive_collate
from tests.optimizations.contract import run

SIZE = 48


def items(folder: Path, count: int = 6, *, height: int = 60, width: int = 96) -> list[Item]:
    made = []
    for at in range(count):
        chance = np.random.default_rng(at)
        coarse = Image.fromarray(chance.integers(0, 256, (4, 6, 3), dtype=np.uint8)).resize((width, height))
        path = folder / f"{at}.png"
        coarse.save(path)
        boxes = np.array([[10, 10, 50, 40], [60, 20, 96, 60]][: 1 + at % 2], np.float32)
        made.append(Item(path, boxes, np.arange(1 + at % 2, dtype=np.int64)))
    return made


def test_a_image_is_letterboxed_with_its_boxes(tmp_path: Path) -> None:
    data = DetectionData(items(tmp_path))
    sample = decode(data[1], SIZE)
    assert sample["picture"].shape == (SIZE, SIZE, 3)
    assert sample["inside"].tolist() == [0, 9, 48, 39]
    assert sample["boxes"].tolist() == [[5, 14, 25, 29], [30, 19, 48, 39]]
    assert sample["boxes"].dtype == np.float32
    assert len(data) == 6


def test_a_decoded_sample_can_be_kept(tmp_path: Path) -> None:
    sample = decode(DetectionData(items(tmp_path))[1], SIZE)
    kept = decode_record(bytearray(encode_record(sample)))
    assert kept.keys() == sample.keys()
    assert all((kept[name] == value).all() and kept[name].dtype == value.dtype for name, value in sample.items())


def test_a_batch_has_images_and_rows_of_targets(tmp_path: Path) -> None:
    data = DetectionData(items(tmp_path))
    batch = collate([decode(data[at], SIZE) for at in range(3)])
    assert isinstance(batch, Batch)
    assert (batch.images.shape, batch.images.dtype) == ((3, 3, SIZE, SIZE), torch.uint8)
    assert batch.targets.tolist()[0] == [0, 0, 5, 14, 25, 29]
    assert batch.targets[:, 0].tolist() == [0, 1, 1, 2]
    assert batch.targets[:, 1].tolist() == [0, 0, 1, 0]
    assert batch.targets.dtype == torch.float32
    assert isinstance(map_tensors(batch, torch.Tensor.clone), Batch)


def test_a_batch_without_objects_has_no_rows(tmp_path: Path) -> None:
    (item,) = items(tmp_path, 1)
    empty = DetectionData([Item(item.path, item.boxes[:0], item.classes[:0])])
    for drawn in (False, True):
        sample = decode(empty[0], SIZE)
        assert collate([augmented(sample, Augmentation()) if drawn else sample]).targets.shape == (0, 6)
    assert naive_collate([NaiveDetectionData(empty.items, SIZE)[0]]).targets.shape == (0, 6)


def test_a_image_that_turns_out_damaged_becomes_grey_and_is_named(tmp_path: Path) -> None:
    data = DetectionData(items(tmp_path, 2))
    whole = data.items[1].path.read_bytes()
    data.items[1].path.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"1\.png: the image cannot be decoded.*grey"):
        sample = decode(data[1], SIZE)
    assert (sample["picture"] == 114).all()
    assert sample["boxes"].shape == (0, 4)
    assert sample["classes"].shape == (0,)


def test_a_image_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    data = DetectionData(items(tmp_path, 1))
    data.items[0].path.unlink()
    with pytest.raises(DataError, match=r"0\.png: it cannot be read"):
        decode(data[0], SIZE)


def test_held_out_images_are_the_same_in_both_forms(tmp_path: Path) -> None:
    labelled = items(tmp_path)
    data, naive = DetectionData(labelled), NaiveDetectionData(labelled, SIZE)
    batch = collate([decode(data[at], SIZE) for at in range(4)])
    plain = naive_collate([naive[at] for at in range(4)])
    assert plain.images.dtype == torch.float32
    assert plain.images.shape == batch.images.shape
    assert plain.targets.numpy() == pytest.approx(batch.targets.numpy(), abs=1e-4)
    assert float((plain.images - batch.images / 255).abs().mean()) < 0.01  # Pillow resizes slightly differently


def test_augmented_images_are_distributed_equally_in_both_forms(tmp_path: Path) -> None:
    labelled = items(tmp_path)
    data, naive = DetectionData(labelled), NaiveDetectionData(labelled, SIZE, Augmentation())
    decoded = [decode(data[at], SIZE) for at in range(6)]
    real: list[Any] = []
    plain: list[Any] = []
    random.seed(0)
    for _ in range(60):
        real.append(collate([augmented(sample, Augmentation()) for sample in decoded]))
        plain.append(naive_collate([naive[at] for at in range(6)]))
    assert_alike([len(batch.targets) / 6 for batch in real], [len(batch.targets) / 6 for batch in plain])
    assert_alike([widths(batch) for batch in real], [widths(batch) for batch in plain])
    assert_alike([brightness(batch) / 255 for batch in real], [brightness(batch) for batch in plain])


def widths(batch: Batch) -> float:
    return float((batch.targets[:, 4] - batch.targets[:, 2]).mean()) / SIZE


def brightness(batch: Batch) -> float:
    return float(batch.images.float().mean())


def assert_alike(seen: list[float], expected: list[float]) -> None:
    spread = np.hypot(np.std(expected), np.std(seen)) / np.sqrt(len(seen))
    assert abs(np.mean(expected) - np.mean(seen)) < 5 * spread + 0.01


class MosaicJob(hasten.Job):
    """Train a small model on mosaics, with a loss that depends on every pixel and every box."""

    batch_size = 4
    num_updates = 6
    folder = Path()

    def model(self) -> torch.nn.Module:
        return torch.nn.Conv2d(3, 4, 3)

    def train_data(self) -> Any:
        return DetectionData(items(self.folder))

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def deterministic_transform(self, sample: Any) -> Any:
        return decode(sample, SIZE)

    def random_transform(self, sample: Any) -> Any:
        return augmented(sample, Augmentation())

    def collate(self, samples: list[Any]) -> Batch:
        return collate(samples)

    def device_transform(self, batch: Batch) -> Batch:
        return Batch(batch.images.float() / 255, batch.targets)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        seen: torch.Tensor = model(batch.images)
        return seen.square().mean() + batch.targets.sum() / 100_000


@pytest.mark.parametrize(
    "optimization",
    [
        SampleCache(),
        SampleStore(),
        LoaderThreads(num_threads=2),
        pytest.param(LoaderWorkers(num_workers=2), marks=pytest.mark.slow),
    ],
    ids=lambda item: item.card.name,
)
def test_caches_threads_and_workers_change_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimization: Optimization
) -> None:
    monkeypatch.setattr(MosaicJob, "folder", tmp_path)
    plain = run(MosaicJob(), 6)
    assert len(set(plain)) == 6
    assert run(MosaicJob(), 6, optimization) == plain
