"""Masks have the rate that was asked for, in every layer, and depend on torch's generator alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name

from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.optimizations.dropout_masks import COUNTER, MIN_ELEMENTS, MIN_RATE, DropoutMasks
from hasten.train.build import build
from tests.optimizations.cases.dropout_masks import Wide

BIG = (64, 4096)


@pytest.fixture
def live() -> Iterator[LiveJob]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        live = build(Wide(), Plan(optimizations=(DropoutMasks(),)))
    yield live
    live.undo_all()


def drawn(live: LiveJob) -> float:
    return live.counters.get(COUNTER, 0.0)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_each_element_is_kept_with_the_rate(live: LiveJob, p: float, dtype: torch.dtype) -> None:
    mask = torch.empty(BIG, dtype=dtype).bernoulli_(p).float()
    deviation = (p * (1 - p)) ** 0.5
    assert drawn(live) == 1
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert mask.mean().item() == pytest.approx(p, abs=5 * deviation / mask.numel() ** 0.5)
    for column in mask.view(-1, 4).mean(dim=0).tolist():  # the four elements of a random number
        assert column == pytest.approx(p, abs=5 * deviation / (mask.numel() / 4) ** 0.5)


def test_elements_of_one_number_are_independent(live: LiveJob) -> None:
    quarters = torch.empty(BIG).bernoulli_(0.5).view(-1, 4)
    for first, second in pairwise([*range(4), 0]):
        assert torch.corrcoef(quarters[:, [first, second]].T)[0, 1].abs().item() < 5 / len(quarters) ** 0.5
    assert drawn(live) == 1


def test_the_generator_decides(live: LiveJob) -> None:
    torch.manual_seed(3)
    first, second = torch.empty(BIG).bernoulli_(0.9), torch.empty(BIG).bernoulli_(0.9)
    torch.manual_seed(3)
    assert torch.equal(first, torch.empty(BIG).bernoulli_(0.9))
    assert not torch.equal(first, second)
    own = [torch.empty(BIG).bernoulli_(0.9, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*own)
    assert torch.equal(second, torch.empty(BIG).bernoulli_(0.9))  # a generator of one's own left the other alone


@pytest.mark.parametrize("p", [0.0, MIN_RATE / 2, 1.0 - MIN_RATE / 2, 1.0])
def test_extreme_rates_are_drawn_by_torch(live: LiveJob, p: float) -> None:
    torch.manual_seed(1)
    ours = torch.empty(BIG).bernoulli_(p)
    assert drawn(live) == 0
    live.undo_all()
    torch.manual_seed(1)
    assert torch.equal(ours, torch.empty(BIG).bernoulli_(p))


def test_small_masks_are_those_of_torch(live: LiveJob) -> None:
    torch.manual_seed(1)
    ours = torch.empty(MIN_ELEMENTS - 1).bernoulli_(0.9)
    assert drawn(live) == 0
    live.undo_all()
    torch.manual_seed(1)
    assert torch.equal(ours, torch.empty(MIN_ELEMENTS - 1).bernoulli_(0.9))


def test_masks_have_any_size_and_layout(live: LiveJob) -> None:
    for total in range(MIN_ELEMENTS, MIN_ELEMENTS + 5):
        assert torch.empty(total).bernoulli_(0.5).unique().tolist() == [0.0, 1.0]
    mask = torch.full((128, 256), 7.0)
    mask.T[::2].bernoulli_(0.5)
    assert mask[:, 1::2].unique().tolist() == [7.0]
    assert mask[:, ::2].unique().tolist() == [0.0, 1.0]
    assert drawn(live) == 6


def test_every_layer_draws_this_way(live: LiveJob) -> None:
    x, q = torch.randn(64, 8, 64), torch.randn(4, 2, 64, 8)
    layers: dict[str, object] = {
        "dropout": F.dropout(x, 0.2),
        "in place": F.dropout(x.clone(), 0.2, inplace=True),
        "channels": nn.Dropout2d(0.2)(torch.randn(64, 128, 4, 4)),
        "attention": F.scaled_dot_product_attention(q, q, q, dropout_p=0.2),
        "lstm": nn.LSTM(64, 64, 2, dropout=0.2)(x),
    }
    assert drawn(live) == len(layers)


def test_gradients_use_the_mask_of_the_forward_pass(live: LiveJob) -> None:
    x = torch.randn(BIG, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    assert x.grad is not None
    kept = y != 0
    assert torch.equal(x.grad, kept / 0.75)
    assert torch.allclose(y[kept], x[kept] / 0.75)
    assert drawn(live) == 1
