"""Test that the text of tensors is unchanged, for all contents and print options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import _tensor_str as texts

from hasten.core.errors import JobError
from hasten.optimizations import tensor_text
from hasten.optimizations.tensor_text import COUNTER, FEW, TensorText, extremes
from tests.optimizations.contract import Attention, make_loop

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5])


@contextmanager
def printed(**options: Any) -> Iterator[None]:
    torch.set_printoptions(**options)
    try:
        yield
    finally:
        torch.set_printoptions(profile="default")


def drawn(seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of one to three dimensions with numbers of any size and sign, integers and special values."""
    torch.manual_seed(seed)
    size = int(torch.randint(1, 60, ()))
    low, high = sorted(torch.randint(-12, 12, (2,)).tolist())
    exponents = torch.rand(size, dtype=torch.float64) * (high - low) + low
    found = 10.0**exponents * (1 - 2 * (torch.rand(size) < torch.rand(())).double())
    if seed % 3 == 0:
        found = found.round()
    if seed % 4 == 0:
        at = torch.rand(size) < 0.2
        found[at] = SPECIAL[torch.randint(len(SPECIAL), (int(at.sum()),))].double()
    if not dtype.is_floating_point:
        found = torch.nan_to_num(found, 0, 0, 0).clamp(-(10.0**12), 10.0**12)
    kept: torch.Tensor = found.to(dtype)
    return kept.reshape(-1, 2, 1) if size % 2 == 0 and seed % 5 == 0 else kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("options", [{}, {"sci_mode": True}, {"sci_mode": False}, {"precision": 8}, {"threshold": 10}])
def test_the_text_is_the_same(dtype: torch.dtype, options: dict[str, Any]) -> None:
    tensors = [drawn(seed, dtype) for seed in range(60)]
    with printed(**options):
        plain = [str(tensor) for tensor in tensors]
        loop = make_loop(Attention(), TensorText())
        ours = [str(tensor) for tensor in tensors]
        count = loop.live.counters.get(COUNTER, 0)
        loop.live.undo_all()
    assert ours == plain
    assert count > 20 or "threshold" in options


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(FEW),
        torch.ones(20, dtype=torch.bool),
        torch.ones(20, dtype=torch.complex64),
        torch.zeros(20),
        torch.eye(4).to_sparse(),
    ],
)
def test_small_and_unusual_tensors_are_left_alone(tensor: torch.Tensor) -> None:
    assert extremes(tensor) is tensor


def test_a_few_numbers_decide() -> None:
    assert sorted(extremes(torch.arange(-50.0, 60.0)).tolist()) == [-50.0, -1.0, 1.0, 59.0]
    assert extremes(torch.arange(100)).tolist() == [0, 99]
    assert 0.5 in extremes(torch.cat([torch.arange(20.0), torch.tensor([0.5])])).tolist()


def test_a_parameter_and_a_graph_are_written_too() -> None:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 30))
    plain = [str(weight), str(weight * 2)]
    loop = make_loop(Attention(), TensorText())
    assert [str(weight), str(weight * 2)] == plain
    loop.live.undo_all()


def test_a_torch_that_writes_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = texts._Formatter
    monkeypatch.setattr(tensor_text, "extremes", lambda tensor: tensor.reshape(-1)[:1])
    with pytest.raises(JobError, match="formats tensors differently"):
        make_loop(Attention(), TensorText())
    assert texts._Formatter is before
