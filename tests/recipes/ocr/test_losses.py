"""The losses of DBNet against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hasten.recipes.ocr import fused
from hasten.recipes.ocr.fused import fused_db_loss, fused_probability_loss
from hasten.recipes.ocr.kernels_select import kth_largest
from hasten.recipes.ocr.losses import (
    balanced_cross_entropy,
    db_loss,
    dice,
    masked_l1,
    probability_loss,
)
from hasten.recipes.ocr.threads import shares_threads


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def test_three_negatives_are_kept_for_each_positive_and_they_are_the_hardest() -> None:
    said = [0.5, 0.9, 0.8, 0.7, 0.6, 0.1]
    truth = torch.tensor([[[1.0, 0, 0, 0, 0, 0]]])
    logits = torch.tensor([[[logit(p) for p in said]]])
    wanted = -(math.log(0.5) + math.log(0.1) + math.log(0.2) + math.log(0.3)) / 4
    assert float(balanced_cross_entropy(logits, truth, torch.ones_like(truth))) == pytest.approx(wanted, rel=1e-5)


def test_pixels_that_are_masked_count_for_nothing() -> None:
    truth = torch.tensor([[[1.0, 1, 0, 0]]])
    mask = torch.tensor([[[1.0, 0, 1, 0]]])
    logits = torch.tensor([[[logit(0.5), logit(0.01), logit(0.2), logit(0.99)]]])
    wanted = -(math.log(0.5) + math.log(0.8)) / 2
    assert float(balanced_cross_entropy(logits, truth, mask)) == pytest.approx(wanted, rel=1e-5)


def test_a_batch_without_text_has_the_loss_0_and_a_gradient() -> None:
    logits = torch.zeros(1, 4, 4, requires_grad=True)
    loss = balanced_cross_entropy(logits, torch.zeros(1, 4, 4), torch.ones(1, 4, 4))
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None


def test_the_threshold_counts_in_its_mask_alone() -> None:
    found, truth = torch.tensor([0.3, 0.9, 0.5]), torch.tensor([0.5, 0.0, 0.4])
    assert float(masked_l1(found, truth, torch.tensor([1.0, 0, 1]))) == pytest.approx(0.15)
    assert float(masked_l1(found, truth, torch.zeros(3))) == 0


def test_dice_is_0_where_all_is_found_and_1_where_nothing_is() -> None:
    truth, mask = torch.tensor([1.0, 1, 0, 0]), torch.ones(4)
    assert float(dice(truth, truth, mask)) == pytest.approx(0, abs=1e-6)
    assert float(dice(1 - truth, truth, mask)) == pytest.approx(1)
    assert float(dice(torch.tensor([1.0, 0, 1, 0]), truth, mask)) == pytest.approx(0.5, abs=1e-6)
    assert float(dice(torch.tensor([1.0, 0, 1, 0]), truth, torch.tensor([1.0, 1, 0, 1]))) == pytest.approx(1 / 3, abs=1e-6)


def test_the_whole_loss_is_five_ten_and_one_of_its_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 8, 8, generator=generator)
    shrink = (torch.rand(2, 8, 8, generator=generator) < 0.2).to(torch.uint8)
    mask = (torch.rand(2, 8, 8, generator=generator) < 0.9).to(torch.uint8)
    thresh = torch.rand(2, 8, 8, generator=generator)
    probability, threshold = torch.sigmoid(logits[:, 0]), torch.sigmoid(logits[:, 1])
    binary = 1 / (1 + torch.exp(-50 * (probability - threshold)))
    parts = (
        balanced_cross_entropy(logits[:, 0], shrink.float(), mask.float()),
        masked_l1(threshold, thresh, mask.float()),
        dice(binary, shrink.float(), mask.float()),
    )
    whole = db_loss(logits, shrink, mask, thresh, mask)
    assert float(whole) == pytest.approx(5 * float(parts[0]) + 10 * float(parts[1]) + float(parts[2]), rel=1e-5)
    assert float(probability_loss(logits[:, :1], shrink, mask)) == pytest.approx(5 * float(parts[0]), rel=1e-6)


def test_half_precision_is_computed_in_whole() -> None:
    logits = torch.full((1, 2, 8, 8), 3.0, dtype=torch.bfloat16)
    loss = db_loss(logits, torch.ones(1, 8, 8), torch.ones(1, 8, 8), torch.full((1, 8, 8), 0.3), torch.ones(1, 8, 8))
    assert loss.dtype == torch.float32


def maps(num_text: float, seed: int) -> tuple[torch.Tensor, ...]:
    """Logits, and targets of which a share is text."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 2, 24, 20, generator=generator)
    shrink = (torch.rand(2, 24, 20, generator=generator) < num_text).to(torch.uint8)
    mask = (torch.rand(2, 24, 20, generator=generator) < 0.9).to(torch.uint8)
    thresh = 0.3 + 0.4 * torch.rand(2, 24, 20, generator=generator)
    border = (torch.rand(2, 24, 20, generator=generator) < 0.3).to(torch.uint8)
    return logits, shrink, mask, thresh, border


@pytest.mark.parametrize("num_text", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threads", [False, True])
def test_the_compiled_losses_and_their_gradient_are_the_same(
    num_text: float, seed: int, *, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "shares_threads", lambda: threads and shares_threads())
    logits, *targets = maps(num_text, seed)
    ways = []
    for way in (db_loss, fused_db_loss):
        mine = logits.clone().requires_grad_()
        loss = way(mine, *targets)
        (3 * loss).backward()
        ways.append((loss.detach(), mine.grad))
    torch.testing.assert_close(ways[0][0], ways[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ways[0][1], ways[1][1], rtol=1e-4, atol=1e-7)
    for said in (logits[:, :1], logits[:, :1].bfloat16()):
        held = [way(said, *targets[:2]) for way in (probability_loss, fused_probability_loss)]
        torch.testing.assert_close(held[0], held[1], rtol=1e-5, atol=1e-6)


def test_the_compiled_losses_hold_where_logits_are_large_and_masks_are_empty() -> None:
    logits, shrink, mask, thresh, border = maps(0.2, 0)
    large = (60 * logits).requires_grad_()
    loss = fused_db_loss(large, shrink, mask, thresh, border)
    loss.backward()
    torch.testing.assert_close(loss.detach(), db_loss(large.detach(), shrink, mask, thresh, border), rtol=1e-5, atol=1e-6)
    assert large.grad is not None
    assert torch.isfinite(large.grad).all()
    nothing = torch.zeros_like(mask)
    empty = fused_db_loss(logits, shrink, nothing, thresh, nothing)
    torch.testing.assert_close(empty, db_loss(logits, shrink, nothing, thresh, nothing))


def test_the_compiled_losses_take_half_precision_in_any_memory_order() -> None:
    logits, *targets = maps(0.2, 1)
    half = logits.bfloat16()
    strided = half.contiguous(memory_format=torch.channels_last).requires_grad_()
    loss = fused_db_loss(strided, *targets)
    loss.backward()
    torch.testing.assert_close(loss.detach(), db_loss(half, *targets), rtol=1e-5, atol=1e-6)
    assert strided.grad is not None
    assert strided.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_negatives_that_are_alike_as_many_count_as_are_wanted(dtype: torch.dtype) -> None:
    logits, *targets = maps(0.1, 2)
    level = logits.round().clamp(-1, 1).to(dtype)  # nearly every negative is as hard as a great many others
    loss = fused_probability_loss(level[:, :1], *targets[:2])
    torch.testing.assert_close(loss, probability_loss(level[:, :1], *targets[:2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["spread", "rounded", "one", "endless", "zeros"])
@pytest.mark.parametrize("size", [1, 7, 3000])
def test_the_kth_largest_is_the_one_that_sorting_finds(kind: str, size: int) -> None:
    draw = np.random.default_rng(size)
    values = (draw.normal(size=size) * 10.0 ** draw.integers(-44, 30, size=size)).astype(np.float32)
    values = np.round(values) if kind == "rounded" else values
    values[:] = values[0] if kind == "one" else values
    values[draw.random(size) < 0.3] *= np.float32({"endless": np.inf, "zeros": 0}.get(kind, 1))
    ordered = np.sort(values)
    for k in {1, size // 3 + 1, size}:
        assert kth_largest(values, k) == ordered[size - k]


def test_what_is_no_number_is_the_largest() -> None:
    values = np.array([1.0, -np.nan, np.inf, np.nan], dtype=np.float32)
    assert np.isnan(kth_largest(values, 1))
    assert np.isnan(kth_largest(values, 2))
    assert kth_largest(values, 3) == np.inf


def test_the_counted_loss_takes_the_hardest_wherever_they_lie() -> None:
    shrink, mask = torch.zeros(1, 8, 8, dtype=torch.uint8), torch.ones(1, 8, 8, dtype=torch.uint8)
    shrink[0, 0, :4] = 1  # twelve others count, of sixty
    for level in (-70.0, -1.0, 0.0, 1.0, 70.0):
        logits = (level + torch.arange(64.0).view(1, 1, 8, 8) - 32).bfloat16()
        for said in (logits, -logits, logits * 0, logits.clamp(min=level), logits.clamp(max=level)):
            wanted = probability_loss(said, shrink, mask)
            torch.testing.assert_close(fused_probability_loss(said, shrink, mask), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("pixel", ["text", "none"])
def test_a_logit_that_is_no_number_makes_the_compiled_losses_none(channel: int, pixel: str) -> None:
    logits, shrink, mask, thresh, border = maps(0.2, 0)
    counts = (mask == 1) & (border == 1) & (shrink == (pixel == "text"))
    row, y, x = (int(at) for at in counts.nonzero()[0])
    logits[row, channel, y, x] = math.nan
    assert torch.isnan(fused_db_loss(logits, shrink, mask, thresh, border))
    if channel == 0:
        for said in (logits, logits.bfloat16(), -logits.bfloat16()):
            assert torch.isnan(fused_probability_loss(said[:, :1], shrink, mask))


@pytest.mark.parametrize("side", [1, 22, 23, 91])
def test_the_compiled_losses_are_the_same_whatever_the_number_of_pixels(side: int) -> None:
    generator = torch.Generator().manual_seed(side)
    logits = torch.randn(3, 2, side, side, generator=generator).requires_grad_()
    targets = [(torch.rand(3, side, side, generator=generator) < 0.3).to(torch.uint8) for _ in range(3)]
    shrink, mask, border = targets
    thresh = torch.rand(3, side, side, generator=generator)
    found = fused_db_loss(logits, shrink, mask, thresh, border)
    torch.testing.assert_close(found, db_loss(logits, shrink, mask, thresh, border), rtol=1e-5, atol=1e-6)
    held = [way(logits[:, :1].detach(), shrink, mask) for way in (probability_loss, fused_probability_loss)]
    torch.testing.assert_close(held[0], held[1], rtol=1e-5, atol=1e-6)
