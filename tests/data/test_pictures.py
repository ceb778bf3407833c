"""Pictures made smaller: the same pixels by whichever package does it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from hasten.data import pictures
from hasten.data.pictures import reduced, resize


@pytest.mark.parametrize("factor", [2, 3, 4, 8])
@pytest.mark.parametrize("with_opencv", [True, False])
def test_a_mean_over_squares_is_rounded_half_up_as_pillow_does(
    monkeypatch: pytest.MonkeyPatch, factor: int, with_opencv: bool
) -> None:
    if with_opencv:
        pytest.importorskip("cv2")
    else:
        monkeypatch.setattr(pictures, "_opencv", lambda: None)
    pixels = np.random.default_rng(factor).integers(0, 256, (24 * factor, 40 * factor, 3), dtype=np.uint8)
    squares = pixels.reshape(24, factor, 40, factor, 3).sum(axis=(1, 3), dtype=np.int64)
    want = (2 * squares + factor**2) // (2 * factor**2)
    if factor != 3:  # Pillow multiplies by a rounded ninth
        np.testing.assert_array_equal(want, np.asarray(Image.fromarray(pixels).reduce(factor)))
    np.testing.assert_array_equal(reduced(pixels, factor), want)
    np.testing.assert_array_equal(resize(pixels, (24, 40)), want)


def test_rows_seen_in_place_are_reduced_without_a_copy_of_their_own() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    pixels.setflags(write=False)  # as rows of a mapped store are
    np.testing.assert_array_equal(reduced(pixels[1], 2), np.asarray(Image.fromarray(pixels[1]).reduce(2)))
