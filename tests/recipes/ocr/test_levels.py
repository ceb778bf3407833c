"""Levels of a pyramid, added up and laid side by side, against PyTorch's own operations: the same numbers, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.ocr.levels import add_coarse, can_lay, side_by_side
from hasten.recipes.ocr.threads import shares_threads

Shape = tuple[int, int, int, int]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def levels_of(shape: Shape, count: int) -> list[torch.Tensor]:
    batch, channels, height, width = shape
    draws = torch.Generator().manual_seed(height)
    sizes = [(batch, channels, height >> at, width >> at) for at in range(count)]
    return [torch.randn(size, generator=draws).bfloat16().to(memory_format=torch.channels_last) for size in sizes]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (2, 5, 6, 10), (3, 64, 16, 8)])
def test_coarse_pixels_are_added_where_they_belong(shape: Shape) -> None:
    fine, coarse = levels_of(shape, 2)
    wanted = fine + F.interpolate(coarse, scale_factor=2.0, mode="nearest")
    add_coarse(fine, coarse)
    assert torch.equal(fine, wanted)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (2, 5, 24, 16), (3, 16, 8, 32)])
def test_all_levels_lie_side_by_side(shape: Shape) -> None:
    levels = levels_of(shape, 4)
    enlarged = [F.interpolate(level, scale_factor=float(2**at), mode="nearest") for at, level in enumerate(levels)]
    found = side_by_side(levels)
    assert torch.equal(found, torch.cat(enlarged, dim=1))
    assert found.is_contiguous(memory_format=torch.channels_last)
    in_another_order = [level.contiguous() for level in levels]
    assert torch.equal(side_by_side(in_another_order), found)


def test_only_levels_that_fit_are_taken_and_only_without_a_gradient() -> None:
    levels = levels_of((2, 4, 16, 16), 4)
    assert not can_lay(levels)
    with torch.inference_mode():
        assert can_lay(levels) == shares_threads()
        assert not can_lay([level.float() for level in levels])
        assert not can_lay([levels[0], levels[2]])
        assert not can_lay([level.contiguous() for level in levels])
