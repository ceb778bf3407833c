"""Test which layers compute in bfloat16, where this takes effect, and what stays in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import JobError
from hasten.core.optimization import Optimization, clash
from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from hasten.optimizations.channels_last import ChannelsLast
from hasten.optimizations.compile import Compile
from hasten.optimizations.module_precision import LARGE_ELEMENTS, ModulePrecision
from hasten.optimizations.precision import Precision
from hasten.train.trace import trace_step
from hasten.train.validate import HeldOut
from tests.optimizations.contract import Attention, AttentionDropout, Images, Prepared, Ragged, facts, make_loop, run


def replaced(item: Optimization, job: Any) -> list[str]:
    live = make_loop(job, item).live
    return [name for name, module in live.model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize(("kinds", "expected"), [("linear", ["7"]), ("conv", ["0", "3"]), ("linear+conv", ["0", "3", "7"])])
def test_the_layers_of_the_kinds_are_taken(kinds: Any, expected: list[str]) -> None:
    assert replaced(ModulePrecision(kinds=kinds), Images()) == expected


@pytest.mark.parametrize(("elements", "expected"), [(160, ["0", "3", "7"]), (161, ["0", "3"]), (217, ["3"]), (576, ["3"])])
def test_small_weights_are_left_alone(elements: int, expected: list[str]) -> None:
    assert replaced(ModulePrecision(min_elements=elements), Images()) == expected


def test_no_layer_at_all_is_refused() -> None:
    with pytest.raises(JobError, match="whose weight has at least 577 elements"):
        make_loop(Images(), ModulePrecision(min_elements=577))
    with pytest.raises(JobError, match="of kind conv "):
        make_loop(Prepared(), ModulePrecision(kinds="conv"))


@pytest.mark.parametrize(("kinds", "half"), [("linear", {"addmm"}), ("conv", {"convolution"})])
def test_one_kind_is_in_bfloat16_and_the_rest_is_not(kinds: Any, half: set[str]) -> None:
    trace = trace_step(make_loop(Images(), ModulePrecision(kinds=kinds)))
    for op in ("addmm", "convolution"):
        assert ((op, "bfloat16") in trace.op_dtypes) == (op in half)
        assert ((op, "float32") in trace.op_dtypes) == (op not in half)
    assert trace.op_dtypes["native_batch_norm", "float32"] == 1
    assert ("native_batch_norm", "bfloat16") not in trace.op_dtypes


def test_a_norm_in_bfloat16_is_found_out() -> None:
    class Careless(Images):
        def model(self) -> nn.Module:
            model: Any = super().model()
            model[1].register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
            model[1].register_forward_hook(lambda _, __, out: out.float())
            return model  # type: ignore[no-any-return]

    item = ModulePrecision()
    loop = make_loop(Careless(), item)
    checks = item.evidence(loop.live, trace_step(loop))
    assert [check.passed for check in checks] == [True, False], checks


def test_parameters_gradients_and_losses_stay_float32() -> None:
    loop = make_loop(Images(), ModulePrecision())
    loop.live.model.train()
    loss: Any = loop.live.compute_loss(loop.live.pipeline.fetch(0, [0, 1]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert {p.dtype for p in loop.live.model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in loop.live.model.parameters() if p.grad is not None} == {torch.float32}


def test_a_plain_measurement_is_in_float32() -> None:
    plain = HeldOut(make_loop(Ragged()).live).measure(plain=True)
    held_out = HeldOut(make_loop(Ragged(), ModulePrecision()).live)
    assert held_out.measure(plain=True) == plain
    assert held_out.measure() != plain
    assert held_out.measure() == pytest.approx(plain, rel=1e-2)


@pytest.mark.parametrize("checkpointing", [ActivationCheckpointing(), ActivationCheckpointing(save_frac=0.5)])
def test_checkpointed_blocks_are_computed_again_in_bfloat16(checkpointing: Optimization) -> None:
    plain = run(AttentionDropout(), 5, ModulePrecision())
    assert run(AttentionDropout(), 5, ModulePrecision(), checkpointing) == plain
    assert run(AttentionDropout(), 5) != plain


def test_it_works_with_channels_last() -> None:
    items = (ModulePrecision(), ChannelsLast())
    loop = make_loop(Images(), *items)
    trace = trace_step(loop)
    for item in items:
        assert all(check.passed for check in item.evidence(loop.live, trace))
    assert run(Images(), 6, *items) == pytest.approx(run(Images(), 6), rel=2e-2)


@pytest.mark.long
def test_it_works_with_compile() -> None:
    items = (ModulePrecision(), Compile())
    loop = make_loop(Attention(), *items)
    loop.run(5)
    assert loop.losses == pytest.approx(run(Attention(), 5, ModulePrecision()), abs=5e-3)
    assert loop.losses != run(Attention(), 5)
    trace = trace_step(loop)
    for item in items:
        assert all(check.passed for check in item.evidence(loop.live, trace))
    loop.live.undo_all()


def test_it_excludes_precision() -> None:
    assert "both claim autocast" in clash(ModulePrecision(), Precision())


def test_a_forward_that_the_user_replaced_comes_back() -> None:
    class Patched(Images):
        def model(self) -> nn.Module:
            model: Any = super().model()
            model[0].forward = type(model[0]).forward.__get__(model[0])
            return model  # type: ignore[no-any-return]

    loop = make_loop(Patched(), ModulePrecision())
    loop.live.undo_all()
    assert [name for name, module in loop.live.model.named_modules() if "forward" in vars(module)] == ["0"]


@pytest.mark.parametrize(
    ("counts", "num_params", "expected"),
    [
        ({"Linear": 1}, 10, [("linear", 0)]),
        ({"Conv1d": 1}, LARGE_ELEMENTS, [("conv", 0), ("conv", LARGE_ELEMENTS)]),
        ({"Linear": 1, "ConvTranspose2d": 1}, 10, [("linear+conv", 0), ("linear", 0), ("conv", 0)]),
    ],
)
def test_the_candidates_follow_the_model(counts: Any, num_params: int, expected: list[Any]) -> None:
    fit = ModulePrecision.fit(facts(job={"module_counts": counts, "num_params": num_params}))
    assert [tuple(setting.settings().values()) for setting in fit.settings] == expected


def test_only_the_share_of_such_products_can_be_gained() -> None:
    shares = {"addmm": 0.1, "mm": 0.2, "convolution": 0.3, "bmm": 0.2, "native_layer_norm": 0.2}
    both = ModulePrecision.fit(facts(op_frac=shares, bf16_matmul_gain=4.0))
    linear = ModulePrecision.fit(facts(op_frac=shares, bf16_matmul_gain=4.0, job={"module_counts": {"Linear": 2}}))
    assert both.max_gain_frac == pytest.approx(0.5 * 0.6 * 0.75)
    assert linear.max_gain_frac == pytest.approx(0.5 * 0.3 * 0.75)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kinds must be linear, conv or .*, not 'all'"):
        ModulePrecision(kinds="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 0, not -1"):
        ModulePrecision(min_elements=-1)
