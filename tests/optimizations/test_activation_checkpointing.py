"""Test that activation checkpointing saves memory and changes no loss and no statistic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.batch import iter_tensors
from hasten.core.errors import JobError
from hasten.core.modules import repeated_blocks
from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from hasten.optimizations.parts.activations import Activations, BlockRun, OpRun, choose, measure_activations
from hasten.optimizations.precision import Precision
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from tests.optimizations.contract import Attention, AttentionDropout, Block, Prepared, facts, make_loop, run


def kept_bytes(loop: Loop) -> int:
    """Return the bytes of the storages that autograd saves in a forward pass, except parameters, buffers and the batch."""
    batch = loop.live.pipeline.fetch(0, range(8))
    model = loop.live.model
    there = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), *iter_tensors(batch))}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss: Any = loop.live.compute_loss(batch)
    assert loss.requires_grad
    return sum(kept.values())


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
def test_one_block_in_n_runs_twice(every: int) -> None:
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


def test_a_model_without_repeated_blocks_is_refused() -> None:
    with pytest.raises(JobError, match="no list of repeated blocks"):
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


# A memory budget.


class Careless(Block):
    """Changes results in place after they were computed, and after they were returned."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, 16] to the same shape."""
        return super().forward(x).mul(2).add_(0.1).relu_()


class InPlace(AttentionDropout):
    """Blocks that change results in place, with dropout."""

    def model(self) -> nn.Module:
        torch.manual_seed(3)
        blocks: Any = nn.Sequential(*(Careless(0.3) for _ in range(3)))
        return nn.Sequential(nn.Linear(4, 16), blocks, nn.Linear(16, 1))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.mse_loss(model(batch[0]).mean(dim=1), batch[1])


class Repeating(InPlace):
    """One block runs twice per step."""

    def model(self) -> nn.Module:
        first, second = Careless(0.0), Careless(0.0)
        return nn.Sequential(nn.Linear(4, 16), nn.Sequential(first, second, first), nn.Linear(16, 1))


@pytest.mark.parametrize("job", [Attention, AttentionDropout, InPlace])
@pytest.mark.parametrize("save_frac", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("precision", [(), (Precision(),)])
def test_a_budget_moves_no_bit(job: Any, save_frac: float, precision: Any) -> None:
    results = []
    for items in (precision, (*precision, ActivationCheckpointing(save_frac=save_frac))):
        loop = make_loop(job(), *items)
        loop.run(5)
        results.append((loop.losses, [value.clone() for value in loop.live.model.buffers()]))
    (losses, buffers), (same_losses, same_buffers) = results
    assert same_losses == losses
    assert all(torch.equal(value, same) for value, same in zip(buffers, same_buffers, strict=True))


def test_measuring_changes_nothing_and_agrees_with_autograd() -> None:
    loop = make_loop(AttentionDropout())
    live = loop.live
    live.model.eval()
    batch = live.pipeline.fetch(0, range(8))
    before = [value.clone() for value in (*live.model.parameters(), *live.model.buffers())]
    state = torch.get_rng_state()
    found = measure_activations(live, repeated_blocks(live.model), batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert not live.model.training
    assert all(
        torch.equal(old, new) for old, new in zip(before, (*live.model.parameters(), *live.model.buffers()), strict=True)
    )
    live.model.train()
    assert found.total_bytes == pytest.approx(kept_bytes(loop), rel=0.02)
    assert all(0 < block.kept_bytes < found.total_bytes for block in found.blocks)


class Chain(nn.Module):
    """Computes tensors of one size that autograd frees at once, so that the allocator reuses their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, 16] to the same shape."""
        for layer in self.layers:
            x = layer(x).sigmoid()
        return x


class Chains(InPlace):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.Sequential(Chain(), Chain()), nn.Linear(16, 1))


def test_memory_that_is_given_out_again_counts_again() -> None:
    live = make_loop(Chains()).live
    blocks = [module for module in live.model.modules() if isinstance(module, Chain)]
    found = measure_activations(live, blocks, live.pipeline.fetch(0, range(8)))
    size = 8 * 9 * 16 * 4  # bytes of one result; a block stores all but the last, which is its own result
    assert [block.kept_bytes for block in found.blocks] == [5 * size, 5 * size]


def test_random_and_changed_results_are_never_kept() -> None:
    live = make_loop(InPlace()).live
    live.model.train()
    found = measure_activations(live, repeated_blocks(live.model), live.pipeline.fetch(0, range(4)))
    ops = {op.call[0]: op for op in found.blocks[0].ops}
    drawing = [op for name, op in ops.items() if "dropout" in name or "bernoulli" in name]
    assert drawing
    assert not any(op.keepable for op in drawing)
    assert not ops["aten.mul.Tensor"].keepable  # add_ changed it
    assert ops["aten.addmm.default"].keepable


def block(*ops: tuple[float, int]) -> BlockRun:
    """Return a block of operators (seconds, bytes) that stores all their results."""
    runs = [OpRun(("op", number), seconds, size) for number, (seconds, size) in enumerate(ops)]
    return BlockRun(runs, sum(size for _, size in ops), len(runs), 1)


def test_the_cheapest_bytes_go_first() -> None:
    found = Activations(1000, (block((1.0, 100), (0.1, 300), (5.0, 100)),))
    choice = choose(found, 0.3)
    assert choice.keep == (frozenset({("op", 0), ("op", 2)}),)
    assert choice.saved_frac == pytest.approx(0.3)
    assert choice.again_s == pytest.approx(0.1)
    assert choose(found, 0.4).keep == (frozenset({("op", 2)}),)
    assert choose(found, 0.45).keep == (frozenset(),)
    assert choose(found, 0.9).keep == (frozenset(),)  # cannot be met, so nothing is stored


def test_a_block_that_is_not_needed_stays_as_it_is() -> None:
    found = Activations(1000, (block((1.0, 100)), block((1.0, 400)), block((1.0, 100))))
    assert choose(found, 0.4).keep == (None, frozenset(), None)
    assert choose(found, 0.6).keep == (frozenset(),) * 3


def test_the_budget_is_evidence() -> None:
    item = ActivationCheckpointing(save_frac=0.3)
    loop = make_loop(Attention(), item)
    checks = item.evidence(loop.live, trace_step(loop))
    assert [check.passed for check in checks] == [True, True], checks
    too_much = ActivationCheckpointing(every=3, save_frac=0.5)  # one block of three is less than half
    loop = make_loop(Attention(), too_much)
    checks = too_much.evidence(loop.live, trace_step(loop))
    assert [check.passed for check in checks] == [True, False], checks


def test_a_block_that_runs_twice_is_refused() -> None:
    with pytest.raises(JobError, match="runs more often"):
        make_loop(Repeating(), ActivationCheckpointing(save_frac=0.5))
    assert run(Repeating(), 3, ActivationCheckpointing()) == run(Repeating(), 3)


def test_a_budget_is_offered_where_it_can_be_measured() -> None:
    offered = [item.settings()["save_frac"] for item in ActivationCheckpointing.fit(facts()).settings]
    assert offered == [0.5, 0.0]
    streamed = ActivationCheckpointing.fit(facts(job={"num_samples": None}))
    assert [item.settings()["save_frac"] for item in streamed.settings] == [0.0]


@pytest.mark.parametrize("save_frac", [-0.1, 1.0, float("nan")])
def test_a_budget_that_cannot_be_is_refused(save_frac: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        ActivationCheckpointing(save_frac=save_frac)
