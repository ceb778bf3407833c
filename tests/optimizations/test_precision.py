"""Test where autocast applies, and which arithmetic ran."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  the conventional name

from hasten.core.card import StepTrace
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations.parts.kept_memory import pays_on_this_machine
from hasten.optimizations.precision import Precision, _in_float32
from hasten.script.plan.host import Host
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.trace import Lens, trace_step
from tests.optimizations.contract import Attention, Images, facts, make_loop, run

GPU = {"device": "cuda"}
ATTEND = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("device", "bfloat16", "float16", "expected"),
    [
        ("cpu", True, True, ["bfloat16"]),  # float16 needs a scaler, and pays on CUDA only
        ("cuda", True, True, ["bfloat16", "float16"]),
        ("cuda", False, True, ["float16"]),
    ],
)
def test_the_type_must_be_native(device: str, bfloat16: bool, float16: bool, expected: list[str]) -> None:
    fit = Precision.fit(facts(job={"device": device}, on={"bfloat16": bfloat16, "float16": float16}, op_counts={}))
    assert [setting.settings()["dtype"] for setting in fit.settings] == expected


def test_a_measured_product_decides() -> None:
    assert not Precision.fit(facts(bf16_matmul_gain=1.0)).fits
    assert Precision.fit(facts(bf16_matmul_gain=1.5)).fits
    slow, fast = (Precision.fit(facts(bf16_matmul_gain=gain)).max_gain for gain in (1.5, 8.0))
    assert fast > slow


def test_slow_emulated_bfloat16_does_not_speak_against_float16() -> None:
    fit = Precision.fit(facts(job=GPU, on={"bfloat16": False, "float16": True}, bf16_matmul_gain=0.3))
    assert fit.fits


KEPT = """
from hasten.optimizations.allocator import Allocator
from hasten.optimizations.precision import Precision
from tests.optimizations.contract import Images, make_loop

before = [check.passed for check in Allocator().evidence(None, None)]
make_loop(Images(), Precision())
print(before, [check.passed for check in Allocator().evidence(None, None)])
"""


@pytest.mark.skipif(not pays_on_this_machine(), reason="memory is not glibc's on this machine")
def test_freed_memory_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[False, False] [True, True]", done.stderr


def test_products_are_16_bit_and_the_loss_is_not() -> None:
    loop = make_loop(Images(), Precision())
    trace = trace_step(loop)
    assert trace.op_dtypes["convolution", "bfloat16"] == 2
    assert ("convolution", "float32") not in trace.op_dtypes
    loss = loop.live.compute_loss(loop.live.pipeline.fetch(0, [0, 1]))
    assert isinstance(loss, torch.Tensor)
    assert loss.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in loop.live.model.parameters())


def test_attention_may_stay_exact() -> None:
    plain, exact = Precision(), Precision(attention="float32")
    loop = make_loop(Attention(), exact)
    trace = trace_step(loop)
    assert all(check.passed for check in exact.evidence(loop.live, trace))
    loop.live.undo_all()
    assert F.scaled_dot_product_attention is ATTEND
    assert not exact.evidence(loop.live, trace_step(make_loop(Attention(), plain)))[1].passed  # the negative control
    off, on = run(Attention(), 5, plain), run(Attention(), 5, exact)
    assert on == pytest.approx(off, rel=0.1)
    assert on != off


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_of_a_bert_is_seen_in_float32(attention: str) -> None:
    """With dropout, PyTorch has no fused kernel on CPUs, and attention no operator of its own."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, attn_implementation=attention,
    )  # fmt: skip
    exact, host = Precision(attention="float32"), Host()
    live, model = host.live, transformers.BertForSequenceClassification(config)
    live.model, live.device = model, torch.device("cpu")
    undo, lens = exact.apply(live), Lens()
    ids, mask = torch.randint(20, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, 5:] = 0
    with lens, live.contexts():
        model(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss.backward()
    undo()
    trace = StepTrace(ops=dict(lens.ops), op_dtypes=dict(lens.op_dtypes), counters=dict(live.counters))
    checks = exact.evidence(live, trace)
    assert checks[0].passed
    assert checks[1].passed == (attention == "sdpa"), checks[1].seen  # eager attention is not the function


@pytest.mark.parametrize("mask", ["none", "boolean", "numbers"])
def test_exact_attention_takes_what_the_plain_one_takes(mask: str) -> None:
    query, key, value = torch.randn(3, 2, 4, 8, 16, dtype=torch.bfloat16).unbind()
    given = {"none": None, "boolean": torch.ones(8, 8, dtype=torch.bool).tril(), "numbers": torch.randn(8, 8).bfloat16()}[
        mask
    ]
    attend = _in_float32(F.scaled_dot_product_attention)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(query, key, value, given, 0.0)
        named = attend(query, key, value, attn_mask=given, dropout_p=0.0)
    exact: list[Any] = [
        None if part is None else part if part.dtype == torch.bool else part.float() for part in (query, key, value, given)
    ]
    assert torch.equal(found, F.scaled_dot_product_attention(*exact).bfloat16())
    assert torch.equal(found, named)
    assert (
        attend(query.float(), key.float(), value.float()).dtype == torch.float32
    )  # without autocast it is the plain function


@pytest.mark.parametrize(
    ("device", "ops", "expected"),
    [
        ("cpu", {"aten::_scaled_dot_product_flash_attention_for_cpu": 2}, ["float32", "autocast"]),
        ("cuda", {"aten::_scaled_dot_product_flash_attention": 2}, ["autocast"]),
        ("cpu", {"aten::mm": 2}, ["autocast"]),
    ],
)
def test_exact_attention_is_tried_where_the_fused_kernel_is_slow(
    device: str, ops: dict[str, int], expected: list[str]
) -> None:
    fit = Precision.fit(facts(job={"device": device}, on={"bfloat16": True, "float16": False}, op_counts=ops))
    assert [setting.settings()["attention"] for setting in fit.settings] == expected


def test_it_works_with_checkpointing() -> None:
    from hasten.optimizations.activation_checkpointing import ActivationCheckpointing

    assert run(Attention(), 5, Precision(), ActivationCheckpointing()) == run(Attention(), 5, Precision())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_it_trains_on_a_gpu(dtype: str) -> None:
    item: Optimization = Precision(dtype=dtype)  # type: ignore[arg-type]
    device = torch.device("cuda")
    plain, live = Loop(build(Images(), device=device)), build(Images(), Plan(optimizations=(item,)), device=device)
    loop = Loop(live)
    assert (live.scaler is not None) == (dtype == "float16")
    assert all(check.passed for check in item.evidence(live, trace_step(loop)))
    loop.run(6)
    plain.run(6)
    assert loop.losses == pytest.approx(plain.losses, rel=2e-2)
    live.undo_all()
    assert live.scaler is None
