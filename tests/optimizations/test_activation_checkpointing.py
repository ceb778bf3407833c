"""Checkpointing: less is kept, and not a bit or a statistic is other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.optimizations.contract import AttentionDropout, Prepared, make_loop
from upshift.core.batch import batch_bytes
from upshift.core.errors import JobError
from upshift.optimizations.activation_checkpointing import ActivationCheckpointing
from upshift.optimizations.precision import Precision
from upshift.train.loop import Loop
from upshift.train.trace import trace_step


def kept_bytes(loop: Loop) -> int:
    """Bytes of the distinct tensors that autograd keeps after a forward pass, parameters left out."""
    parameters = {p.data_ptr() for p in loop.live.model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    batch = loop.live.pipeline.fetch(0, range(8))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss: Any = loop.live.compute_loss(batch)
    assert loss.requires_grad
    return sum(kept.values()) - batch_bytes(batch)


def test_memory_is_really_saved() -> None:
    plain, some, all_blocks = (
        kept_bytes(make_loop(AttentionDropout(), *items))
        for items in ((), (ActivationCheckpointing(every=2),), (ActivationCheckpointing(),))
    )
    assert all_blocks < 0.3 * plain
    assert all_blocks < some < plain


def test_losses_and_running_statistics_are_bit_equal_with_dropout() -> None:
    results = []
    for items in ((), (ActivationCheckpointing(),)):
        loop = make_loop(AttentionDropout(), *items)
        loop.run(8)
        results.append((loop.losses, {name: value.clone() for name, value in loop.live.model.named_buffers()}))
    (losses, buffers), (same_losses, same_buffers) = results
    assert same_losses == losses
    assert buffers.keys() == same_buffers.keys()
    assert all(torch.equal(value, same_buffers[name]) for name, value in buffers.items())


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_so_manieth_block_runs_twice(every: int) -> None:
    item = ActivationCheckpointing(every=every)
    loop = make_loop(AttentionDropout(), item, Precision())
    trace = trace_step(loop)
    assert trace.counters["blocks_run"] == 2 * trace.counters["blocks_checkpointed"] > 0
    assert item.evidence(loop.live, trace)[0].passed


def test_measuring_runs_each_block_once() -> None:
    loop = make_loop(AttentionDropout(), ActivationCheckpointing())
    loop.live.model.eval()
    with torch.inference_mode():
        loop.live.compute_loss(loop.live.pipeline.fetch(0, [0, 1]))
    assert "blocks_run" not in loop.live.counters


def test_a_model_without_like_blocks_is_refused() -> None:
    with pytest.raises(JobError, match="no list of like blocks"):
        make_loop(Prepared(), ActivationCheckpointing())


def test_a_forward_that_the_user_replaced_comes_back() -> None:
    class Patched(AttentionDropout):
        def model(self) -> nn.Module:
            model: Any = super().model()
            block = model.blocks[0]
            block.forward = type(block).forward.__get__(block)
            return model  # type: ignore[no-any-return]

    loop = make_loop(Patched(), ActivationCheckpointing())
    loop.live.undo_all()
    blocks: Any = loop.live.model.blocks
    assert ["forward" in vars(block) for block in blocks] == [True, False, False]


def test_a_fraction_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ActivationCheckpointing(every=0)
