"""Channels laid out as pixels, against PyTorch's own operation: the same numbers, bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.ocr.layout import laid_out, moved_out


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", [1, 2, 4])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 5, 7), (2, 1, 1, 9)])
def test_it_is_pixel_shuffle(shape: tuple[int, int, int, int], side: int, threads: int) -> None:
    batch, maps, height, width = shape
    draws, before = torch.Generator().manual_seed(side), torch.get_num_threads()
    x = torch.randn(batch, maps * side**2, height, width, generator=draws).bfloat16()
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    torch.set_num_threads(threads)
    try:
        mine, theirs = laid_out(x, side), F.pixel_shuffle(x, side).float()
        assert torch.equal(mine, theirs)
        moved = moved_out(x.detach(), side)
        assert moved.dtype is torch.bfloat16
        assert torch.equal(moved.float(), theirs)
        outer = torch.randn(mine.shape, generator=draws).transpose(2, 3).contiguous().transpose(2, 3)  # in an odd order
        (back,) = torch.autograd.grad(mine, x, outer)
        (wanted,) = torch.autograd.grad(theirs, x, outer)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(back, wanted)
