"""The losses of DBNet against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hasten.recipes.ocr.losses import (
    balanced_cross_entropy,
    db_loss,
    dice,
    masked_l1,
    probability_loss,
)


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
