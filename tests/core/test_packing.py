"""Packed rows: the positions of samples, attention equal to that of each sample, and none across borders."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  the usual name

import hasten
from hasten.core.batch import map_tensors

LENGTHS = (5, 1, 9, 3)


Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def row(total: int, *, device: str = "cpu", dtype: torch.dtype = torch.float64) -> Row:
    """Query, key and value `[1, 2, total, 8]`."""
    generator = torch.Generator().manual_seed(0)
    three = torch.randn(3, 1, 2, total, 8, generator=generator, dtype=torch.float64).to(device, dtype)
    query, key, value = (part.clone().requires_grad_() for part in three)
    return query, key, value


def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    """Compute the definition: one attention over the whole row with a block mask."""
    document = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    allowed = document[:, None] == document[None, :]
    if is_causal:
        allowed = allowed.tril()
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed.to(query.device))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_a_packing_gives_the_index_of_each_position(lengths: list[int]) -> None:
    packing = hasten.Packing.of(lengths)
    assert packing.positions.tolist() == [place for length in lengths for place in range(length)]
    assert packing.offsets.tolist() == [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    assert packing.lengths == tuple(lengths)


def test_a_packing_goes_with_the_batch_to_the_device() -> None:
    batch = map_tensors((torch.ones(2), hasten.Packing.of(LENGTHS)), lambda tensor: tensor.to("meta"))
    assert batch[1].positions.device.type == batch[1].offsets.device.type == "meta"
    assert batch[1].lengths == LENGTHS


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_equals_the_masked_definition_forward_and_backward(*, is_causal: bool) -> None:
    ours, theirs = row(sum(LENGTHS)), row(sum(LENGTHS))
    weight = torch.randn(1, 2, sum(LENGTHS), 8, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    packed = hasten.packed_attention(*ours, hasten.Packing.of(LENGTHS), is_causal=is_causal)
    wanted = masked(*theirs, is_causal=is_causal)
    torch.testing.assert_close(packed, wanted, rtol=1e-10, atol=1e-12)
    (packed * weight).sum().backward()
    (wanted * weight).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_no_gradient_crosses_the_border_of_a_sample() -> None:
    inputs = row(sum(LENGTHS))
    begin = 0
    for length in LENGTHS:
        attended = hasten.packed_attention(*inputs, hasten.Packing.of(LENGTHS))
        grads = torch.autograd.grad(attended[:, :, begin : begin + length].sum(), inputs, allow_unused=False)
        for grad in grads:
            inside = torch.zeros(sum(LENGTHS), dtype=torch.bool)
            inside[begin : begin + length] = True
            assert (grad[:, :, ~inside] == 0).all()
        assert (grads[2][:, :, begin : begin + length] != 0).all()
        begin += length


def test_without_a_packing_it_is_plain_attention() -> None:
    query, key, value = (torch.randn(3, 2, 7, 8) for _ in range(3))
    plain = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(hasten.packed_attention(query, key, value, None, is_causal=True), plain)


@pytest.mark.parametrize("lengths", [[], [3, 0, 2]])
def test_an_empty_sample_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"samples of length 1 or more, not the lengths {lengths}")):
        hasten.Packing.of(lengths)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"18 positions in one row, but the query has shape \[1, 2, 17, 8\]"):
        hasten.packed_attention(*row(17), hasten.Packing.of(LENGTHS))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_one_kernel_on_a_gpu_agrees(*, is_causal: bool) -> None:
    inputs = row(sum(LENGTHS), device="cuda", dtype=torch.bfloat16)
    packing = map_tensors(hasten.Packing.of(LENGTHS), lambda tensor: tensor.to("cuda"))
    packed = hasten.packed_attention(*inputs, packing, is_causal=is_causal)
    torch.testing.assert_close(packed, masked(*inputs, is_causal=is_causal), rtol=2e-2, atol=2e-2)
