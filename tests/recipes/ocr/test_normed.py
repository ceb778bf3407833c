"""BatchNorm and ReLU as one operation, against PyTorch's and against float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.ocr.normed import can_norm, norm_relu

LAST = torch.channels_last


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def made(shape: tuple[int, ...], seed: int, mean: float = 0.0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + mean
    return values.bfloat16().to(memory_format=LAST)


def norm_of(channels: int, seed: int = 0) -> nn.BatchNorm2d:
    draws, norm = torch.Generator().manual_seed(seed), nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, -1.0, 2.0, generator=draws)
    nn.init.normal_(norm.bias, generator=draws)
    return norm


def present(values: torch.Tensor | None) -> torch.Tensor:
    assert values is not None
    return values


def told_apart(mine: torch.Tensor | None, truth: torch.Tensor | None) -> float:
    """The distance of two tensors, as a share of the length of the second."""
    one, two = present(mine).detach().double(), present(truth).detach().double()
    return float((one - two).norm() / two.norm())


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("mean", [0.0, 30.0])
@pytest.mark.parametrize("shape", [(2, 16, 24, 32), (3, 5, 7, 11), (1, 1, 2, 3), (2, 2048, 2, 1), (4, 32, 1, 1)])
def test_it_is_nearer_to_float64_than_pytorchs_operations(shape: tuple[int, ...], mean: float, beside: bool) -> None:
    x, outer = made(shape, 1, mean), made(shape, 2)
    other = made(shape, 3) if beside else None
    norms = [norm_of(shape[1]) for _ in range(3)]
    exact, theirs, mine = (copy.deepcopy(norm) for norm in norms)
    exact = exact.double()
    results = []
    for norm in (exact, theirs, mine):
        kind = torch.float64 if norm is exact else torch.bfloat16
        one = x.detach().to(kind).requires_grad_()
        two = other.detach().to(kind).requires_grad_() if other is not None else None
        said = norm_relu([norm], one, two) if norm is mine else F.relu(norm(one) if two is None else norm(one) + two)
        said.backward(outer.to(kind))
        results.append((said, one.grad, norm.weight.grad, norm.bias.grad, *([] if two is None else [two.grad])))
    truth, old, new = results
    out = present(new[0])
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous(memory_format=LAST)
    assert told_apart(new[0], truth[0]) <= told_apart(old[0], truth[0]) + 1e-6
    for at in range(1, len(truth)):
        assert told_apart(new[at], truth[at]) <= 1.1 * told_apart(old[at], truth[at]) + 5e-3, at
    assert new[1] is not None
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(mine, name).double(), getattr(exact, name), rtol=1e-4, atol=1e-5)
    assert mine.num_batches_tracked == 1


def test_norms_side_by_side_are_those_one_by_one() -> None:
    norms, x, outer = [norm_of(8, seed) for seed in range(2)], made((2, 16, 6, 10), 1), made((2, 16, 6, 10), 2)
    one_by_one = copy.deepcopy(norms)
    both = [x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2)]
    together = norm_relu(norms, both[0])
    parts = [part.contiguous(memory_format=LAST) for part in both[1].chunk(2, dim=1)]
    apart = torch.cat([norm_relu([norm], part) for norm, part in zip(one_by_one, parts, strict=True)], dim=1)
    assert torch.equal(together, apart)
    together.backward(outer)
    apart.backward(outer)
    assert torch.equal(present(both[0].grad), present(both[1].grad))
    for mine, theirs in zip(norms, one_by_one, strict=True):
        assert mine.weight.grad is not None
        torch.testing.assert_close(mine.weight.grad, theirs.weight.grad, rtol=1e-6, atol=1e-6)
        for old, new in zip(mine.buffers(), theirs.buffers(), strict=True):
            assert torch.equal(old, new)


def test_what_is_not_a_number_stays_so() -> None:
    x = made((1, 4, 4, 4), 0)
    x[0, 2, 1, 1] = float("nan")
    x.requires_grad_()
    out = norm_relu([norm_of(4)], x)
    assert out[0, 2].isnan().all()
    assert not out[0, [0, 1, 3]].isnan().any()
    out.sum().backward()
    assert x.grad is not None
    assert x.grad[0, 2].isnan().all()


def test_what_is_beside_is_taken_in_any_layout() -> None:
    x, other = made((2, 8, 6, 4), 0), made((2, 8, 6, 4), 1)
    first, second = (norm_relu([norm_of(8)], x, form) for form in (other, other.contiguous()))
    assert torch.equal(first, second)


def test_the_gradient_may_come_in_any_layout() -> None:
    outer, grads = made((2, 8, 6, 4), 1), []
    for form in (outer, outer.contiguous()):
        x = made((2, 8, 6, 4), 0).requires_grad_()
        norm_relu([norm_of(8)], x).backward(form)
        grads.append(present(x.grad))
    assert torch.equal(grads[0], grads[1])


def test_what_it_takes() -> None:
    x = made((2, 8, 4, 4), 0)
    assert can_norm(x)
    assert not can_norm(x.float())
    assert not can_norm(x.contiguous())
    assert not can_norm(x[:1, :, :1, :1])
