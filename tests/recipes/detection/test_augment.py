"""Augmentation moves boxes together with pixels, keeps them inside, and depends only on the drawn parameters."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.recipes.detection.augment import (
    MIN_AREA_FRAC,
    MIN_SIDE,
    Augmentation,
    Draw,
    compose,
    cut,
    draw,
    mirrored,
    partners,
    recolour,
    tiles,
)
from hasten.recipes.detection.data import augmented, collate
from hasten.recipes.pictures import PADDING, opencv

SIDE = 32
STILL = Draw(
    mosaic=False,
    partners=(0.0, 0.0, 0.0),
    middle=(0.5, 0.5),
    scale=1.0,
    shift=(0.0, 0.0),
    mirror=False,
    upside_down=False,
    gains=(1.0, 1.0, 1.0),
)


def sample(seed: int, drawn: Draw | None = None) -> dict[str, Any]:
    """Return a letterboxed image of noise with boxes around blocks of it."""
    chance = np.random.default_rng(seed)
    image = np.full((SIDE, SIDE, 3), PADDING, np.uint8)
    high = int(chance.integers(10, SIDE + 1))
    top = (SIDE - high) // 2
    image[top : top + high] = chance.integers(0, 256, (high, SIDE, 3), dtype=np.uint8)
    corners = chance.uniform(0, 1, (5, 2, 2))
    corners.sort(axis=1)
    boxes = corners.reshape(5, 4) * [SIDE, high, SIDE, high] + [0, top, 0, top]
    made: dict[str, Any] = {
        "picture": image,
        "boxes": boxes.astype(np.float32),
        "classes": chance.integers(0, 4, 5),
        "inside": np.array([0, top, SIDE, top + high], np.int32),
    }
    return made | ({} if drawn is None else {"draw": drawn})


def drawn_for(seed: int, **changes: Any) -> Draw:
    random.seed(seed)
    return draw(Augmentation())._replace(**changes)


def slow_pixels(samples: list[dict[str, Any]], at: int) -> npt.NDArray[np.uint8]:
    """Compute the expected result of `compose` before colour changes, pixel by pixel."""
    cv2 = opencv()
    drawn: Draw = samples[at]["draw"]
    chosen = [samples[other] for other in partners(drawn, at, len(samples))]
    scaled = []
    for one in chosen:
        left, top, right, bottom = one["inside"].tolist()
        inner = np.ascontiguousarray(one["picture"][top:bottom, left:right])
        size = (max(1, round((right - left) * drawn.scale)), max(1, round((bottom - top) * drawn.scale)))
        same = size == (right - left, bottom - top)
        scaled.append(inner if same else cv2.resize(inner, size, interpolation=cv2.INTER_LINEAR))
    out = np.full((SIDE, SIDE, 3), PADDING, np.uint8)
    middle_x, middle_y = round(drawn.middle[0] * SIDE), round(drawn.middle[1] * SIDE)
    for y in range(SIDE):
        for x in range(SIDE):
            if drawn.mosaic:
                which = 2 * (y >= middle_y) + (x >= middle_x)
                part = scaled[which]
                column = x - middle_x if x >= middle_x else part.shape[1] - (middle_x - x)
                row = y - middle_y if y >= middle_y else part.shape[0] - (middle_y - y)
            else:
                part = scaled[0]
                column = x - (SIDE - part.shape[1]) // 2 - round(drawn.shift[0] * SIDE)
                row = y - (SIDE - part.shape[0]) // 2 - round(drawn.shift[1] * SIDE)
            if 0 <= row < part.shape[0] and 0 <= column < part.shape[1]:
                to_x = SIDE - 1 - x if drawn.mirror else x
                to_y = SIDE - 1 - y if drawn.upside_down else y
                out[to_y, to_x] = part[row, column]
    return out


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("mosaic", [True, False])
def test_pixels_equal_those_of_a_slow_reference(mosaic: bool, count: int) -> None:
    for seed in range(12):
        drawn = [drawn_for(100 * seed + at, mosaic=mosaic, gains=(1.0, 1.0, 1.0)) for at in range(count)]
        drawn = [one._replace(upside_down=at % 3 == 0) for at, one in enumerate(drawn)]
        samples = [sample(7 * seed + at, one) for at, one in enumerate(drawn)]
        batch = collate(samples)
        for at in range(count):
            assert (batch.images[at].permute(1, 2, 0).numpy() == slow_pixels(samples, at)).all()


@given(seed=st.integers(0, 10_000), count=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_boxes_stay_inside_and_keep_enough_of_themselves(seed: int, count: int) -> None:
    samples = [sample(seed + at, drawn_for(seed + at)) for at in range(count)]
    targets = collate(samples).targets.numpy()
    boxes = targets[:, 2:]
    assert (boxes >= 0).all()
    assert (boxes <= SIDE).all()
    assert (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE - 1e-4).all()
    assert (np.diff(targets[:, 0]) >= 0).all()
    assert set(targets[:, 1].astype(int)) <= set(range(4))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_block_stays_where_its_box_goes(seed: int) -> None:
    drawn = drawn_for(seed, gains=(1.0, 1.0, 1.0))
    samples = [sample(at, drawn) for at in range(4)]
    for one in samples:
        top = int(one["inside"][1])
        one["picture"][one["picture"] != PADDING] = 0
        one["picture"][top + 2 : top + 8, 6:20] = 255
        one["boxes"], one["classes"] = np.array([[6, top + 2, 20, top + 8]], np.float32), np.array([1])
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    boxes, _ = compose(samples, 0, out)
    outside = np.ones((SIDE, SIDE), bool)
    for left, top, right, bottom in boxes:
        inner = out[int(np.ceil(top + 1)) : int(bottom - 1), int(np.ceil(left + 1)) : int(right - 1)]
        assert (inner == 255).all()
        outside[max(int(top) - 2, 0) : int(bottom) + 3, max(int(left) - 2, 0) : int(right) + 3] = False
    hidden = (out[outside].max(axis=1, initial=0) == 255).sum()
    assert hidden <= 4 * MIN_SIDE * 22  # blocks too small to keep their boxes


def test_what_is_hardly_seen_any_more_is_left_out() -> None:
    boxes = np.array([[0, 0, 10, 10], [-90, 0, 10, 10], [-91, 0, 9, 10], [0, 0, 1.5, 10], [40, 40, 50, 50]], np.float32)
    left, kept = cut(boxes, (0, 0, 32, 32))
    assert kept.tolist() == [True, True, False, False, False]
    assert left.tolist() == [[0, 0, 10, 10], [0, 0, 10, 10]]
    assert pytest.approx(0.1) == MIN_AREA_FRAC
    empty, none = cut(boxes, (5, 5, 5, 9))
    assert len(empty) == 0
    assert not none.any()


@pytest.mark.parametrize(("left_right", "top_bottom"), [(True, False), (False, True), (True, True)])
def test_mirroring_twice_changes_nothing(left_right: bool, top_bottom: bool) -> None:
    one = sample(3)
    once, boxes = mirrored(one["picture"], one["boxes"], left_right=left_right, top_bottom=top_bottom)
    assert (once != one["picture"]).any()
    twice, again = mirrored(once, boxes, left_right=left_right, top_bottom=top_bottom)
    assert (twice == one["picture"]).all()
    assert again == pytest.approx(one["boxes"], abs=1e-4)
    assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_a_batch_of_one_makes_mosaics_of_itself() -> None:
    drawn = drawn_for(1, mosaic=True)
    assert partners(drawn, 0, 1) == [0, 0, 0, 0]
    assert all(0 <= other < 5 for at in range(5) for other in partners(drawn, at, 5))


def test_partners_are_other_samples_where_there_are_any() -> None:
    for seed in range(50):
        assert 2 not in partners(drawn_for(seed, mosaic=True), 2, 6)[1:]


def test_the_same_seed_draws_the_same_and_another_draws_another() -> None:
    assert drawn_for(5) == drawn_for(5)
    assert drawn_for(5) != drawn_for(6)


def test_shares_are_kept() -> None:
    random.seed(0)
    many = [draw(Augmentation(mosaic_frac=0.25, mirror_frac=0.75)) for _ in range(4000)]
    assert np.mean([one.mosaic for one in many]) == pytest.approx(0.25, abs=0.03)
    assert np.mean([one.mirror for one in many]) == pytest.approx(0.75, abs=0.03)
    assert not any(one.upside_down for one in many)


def test_everything_off_gives_the_image_back() -> None:
    off = Augmentation(mosaic_frac=0, scale_frac=0, shift_frac=0, mirror_frac=0, hue_frac=0, saturation_frac=0, value_frac=0)
    one = sample(1)
    large = one["boxes"][:, 2:] - one["boxes"][:, :2]
    batch = collate([augmented(one, off)])
    assert (batch.images[0].permute(1, 2, 0).numpy() == one["picture"]).all()
    assert batch.targets[:, 2:].numpy() == pytest.approx(one["boxes"][(large >= MIN_SIDE).all(axis=1)])


def test_samples_stay_as_they_are() -> None:
    samples = [sample(at, drawn_for(at)) for at in range(4)]
    before = [{name: np.copy(value) for name, value in one.items() if name != "draw"} for one in samples]
    collate(samples)
    for one, kept in zip(samples, before, strict=True):
        assert all((one[name] == value).all() for name, value in kept.items())


def test_colours_follow_their_gains() -> None:
    grey = np.full((4, 4, 3), 100, np.uint8)
    out = np.empty_like(grey)
    recolour(grey, (1.0, 1.5, 1.2), out)
    assert (out == 120).all()  # grey has no saturation to raise
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 200
    recolour(red, (1.0, 0.5, 1.0), out)
    assert np.abs(out[0, 0].astype(int) - [200, 100, 100]).max() <= 2
    assert (red[..., 1] == 0).all()


def test_tiles_of_a_mosaic_meet_in_one_point() -> None:
    drawn = STILL._replace(mosaic=True, middle=(0.25, 0.5), scale=0.5)
    placed = tiles(drawn, [(32, 16)] * 4, SIDE)
    assert [
        (tile.left + tile.width * (at % 2 == 0), tile.top + tile.height * (at < 2)) for at, tile in enumerate(placed)
    ] == [(8, 16)] * 4
    assert sum((tile.region[2] - tile.region[0]) * (tile.region[3] - tile.region[1]) for tile in placed) == SIDE * SIDE


@pytest.mark.parametrize("wrong", [{"mosaic_frac": 1.5}, {"scale_frac": 1.0}, {"hue_frac": -0.1}])
def test_amounts_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Augmentation(**wrong)
