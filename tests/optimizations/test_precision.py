"""Autocast: where it fits, and which arithmetic really ran."""

from __future__ import annotations

import pytest
import torch

from tests.optimizations.contract import Attention, Pictures, facts, make_loop, run
from upshift.core.optimization import Optimization
from upshift.core.plan import Plan
from upshift.optimizations.precision import Precision
from upshift.train.build import build
from upshift.train.loop import Loop
from upshift.train.trace import trace_step

GPU = {"device": "cuda"}


@pytest.mark.parametrize(
    ("device", "bfloat16", "float16", "expected"),
    [
        ("cpu", True, True, ["bfloat16"]),  # float16 wants a scaler, and pays on CUDA only
        ("cuda", True, True, ["bfloat16", "float16"]),
        ("cuda", False, True, ["float16"]),
    ],
)
def test_the_type_must_be_native(device: str, bfloat16: bool, float16: bool, expected: list[str]) -> None:
    fit = Precision.fit(facts(job={"device": device}, on={"bfloat16": bfloat16, "float16": float16}))
    assert [setting.settings()["dtype"] for setting in fit.settings] == expected


def test_a_measured_product_decides() -> None:
    assert not Precision.fit(facts(bf16_matmul_gain=1.0)).fits
    assert Precision.fit(facts(bf16_matmul_gain=1.5)).fits
    slow, fast = (Precision.fit(facts(bf16_matmul_gain=gain)).max_gain for gain in (1.5, 8.0))
    assert fast > slow


def test_slow_emulated_bfloat16_does_not_speak_against_float16() -> None:
    fit = Precision.fit(facts(job=GPU, on={"bfloat16": False, "float16": True}, bf16_matmul_gain=0.3))
    assert fit.fits


def test_products_are_16_bit_and_the_loss_is_not() -> None:
    loop = make_loop(Pictures(), Precision())
    trace = trace_step(loop)
    assert trace.op_dtypes["convolution", "bfloat16"] == 2
    assert ("convolution", "float32") not in trace.op_dtypes
    loss = loop.live.compute_loss(loop.live.pipeline.fetch(0, [0, 1]))
    assert isinstance(loss, torch.Tensor)
    assert loss.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in loop.live.model.parameters())


def test_it_goes_with_checkpointing() -> None:
    from upshift.optimizations.activation_checkpointing import ActivationCheckpointing

    assert run(Attention(), 5, Precision(), ActivationCheckpointing()) == run(Attention(), 5, Precision())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_it_trains_on_a_gpu(dtype: str) -> None:
    item: Optimization = Precision(dtype=dtype)  # type: ignore[arg-type]
    device = torch.device("cuda")
    plain, live = Loop(build(Pictures(), device=device)), build(Pictures(), Plan(optimizations=(item,)), device=device)
    loop = Loop(live)
    assert (live.scaler is not None) == (dtype == "float16")
    assert all(check.passed for check in item.evidence(live, trace_step(loop)))
    loop.run(6)
    plain.run(6)
    assert loop.losses == pytest.approx(plain.losses, rel=2e-2)
    live.undo_all()
    assert live.scaler is None
