"""Augmentation: polygons move with the image, and the loop's seeds determine everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.core.seeding import seed_sample
from hasten.recipes.ocr.augment import Augment, AugmentSettings
from hasten.recipes.ocr.data import Sample
from hasten.recipes.ocr.maps import PolygonArray

GEOMETRY = AugmentSettings(light=0, blur=0, noise=0)
EVERYTHING = AugmentSettings(crop=(96, 96), flip=0.5, light=1, blur=1, noise=1)


def sample() -> Sample:
    """Return a white image with one black box, and its polygon."""
    image = np.full((160, 160, 3), 255, dtype=np.uint8)
    image[60:90, 40:120] = 0
    corners = np.asarray([(40, 60), (120, 60), (120, 90), (40, 90)], dtype=np.float32)
    polygons = PolygonArray.from_list([corners], [False])
    return image, polygons.points, polygons.offsets, polygons.ignored


@pytest.mark.parametrize("settings", [GEOMETRY, AugmentSettings(crop=(128, 128), flip=0.5, light=0, blur=0, noise=0)])
def test_polygons_move_with_the_image(settings: AugmentSettings) -> None:
    change = Augment(settings)
    seen = 0
    for index in range(12):
        seed_sample(0, 0, index)
        image, points, _, ignored = change(sample())
        if len(ignored) != 1 or ignored[0]:
            continue
        rows, columns = np.nonzero(image[:, :, 0] < 60)
        np.testing.assert_allclose(points.min(axis=0), (columns.min(), rows.min()), atol=2)
        np.testing.assert_allclose(points.max(axis=0), (columns.max() + 1, rows.max() + 1), atol=2)
        seen += 1
    assert seen >= 8


def test_the_same_seed_changes_equally_and_another_otherwise() -> None:
    change = Augment(EVERYTHING)

    def changed(epoch: int, with_: Augment = change) -> Sample:
        seed_sample(7, epoch, 3)
        return with_(sample())

    first, other, again = changed(0), changed(1), changed(0, Augment(EVERYTHING))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


class Changed(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples augmented in the same way as by the loop."""

    def __init__(self) -> None:
        self.change = Augment(EVERYTHING)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        seed_sample(0, 0, index)
        image, points, *_ = self.change(sample())
        return torch.from_numpy(image), torch.from_numpy(points[:3])


def first_of(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return samples[0]


@pytest.mark.slow
def test_worker_processes_change_nothing() -> None:
    here = [Changed()[index] for index in range(4)]
    there = list(DataLoader(Changed(), batch_size=1, num_workers=1, collate_fn=first_of))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_what_is_given_is_not_changed() -> None:
    given = sample()
    before = [part.copy() for part in given]
    seed_sample(0, 0, 0)
    Augment(EVERYTHING)(given)
    for part, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(part, kept)


def test_a_image_without_text_is_changed_too() -> None:
    image, *_ = sample()
    empty = PolygonArray.from_list([], [])
    seed_sample(0, 0, 0)
    changed, points, _offsets, ignored = Augment(EVERYTHING)((image, empty.points, empty.offsets, empty.ignored))
    assert changed.shape == (96, 96, 3)
    assert len(points) == len(ignored) == 0
