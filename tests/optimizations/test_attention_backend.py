"""Test which attention kernels are offered and which kernels ran."""

from __future__ import annotations

import pytest

from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from hasten.optimizations.attention_backend import AttentionBackend
from hasten.train.trace import op_shares, trace_step
from tests.optimizations.contract import Attention, Prepared, facts, make_loop, run


@pytest.mark.parametrize(
    ("device", "running", "expected"),
    [
        ("cpu", "_scaled_dot_product_flash_attention_for_cpu", ["math"]),
        ("cpu", "_scaled_dot_product_attention_math", ["flash"]),
        ("cuda", "_scaled_dot_product_efficient_attention", ["flash", "cudnn", "math"]),
        ("cuda", "_scaled_dot_product_cudnn_attention", ["flash", "efficient", "math"]),
    ],
)
def test_the_candidates_are_the_other_kernels(device: str, running: str, expected: list[str]) -> None:
    fit = AttentionBackend.fit(facts(job={"device": device}, op_counts={running: 2}))
    assert [setting.settings()["backend"] for setting in fit.settings] == expected


def test_the_profiler_reports_the_operators_that_fit_expects() -> None:
    live = make_loop(Attention()).live
    shares, counts = op_shares(live, (live.pipeline.fetch(0, [0, 1]), 2))
    fit = AttentionBackend.fit(facts(op_counts=counts, op_frac=shares))
    assert [setting.settings()["backend"] for setting in fit.settings] == ["math"]
    assert 1.0 < fit.max_gain < 2.0


def test_the_plain_formula_is_bounded_by_the_operators_it_is_made_of() -> None:
    live = make_loop(Attention(), AttentionBackend(backend="math")).live
    shares, counts = op_shares(live, (live.pipeline.fetch(0, [0, 1]), 2))
    fit = AttentionBackend.fit(facts(op_counts=counts, op_frac=shares))
    assert [setting.settings()["backend"] for setting in fit.settings] == ["flash"]
    none = {**shares, "bmm": 0.0, "baddbmm": 0.0, "_softmax": 0.0, "_softmax_backward_data": 0.0}
    assert AttentionBackend.fit(facts(op_counts=counts, op_frac=none)).max_gain < fit.max_gain
    heavy = AttentionBackend.fit(facts(op_counts=counts, op_frac={"bmm": 0.4, "_softmax": 0.2}, phase_frac={"forward": 1.0}))
    assert heavy.max_gain == pytest.approx(2.5)


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_the_kernel_that_was_asked_for_ran(backend: str) -> None:
    item = AttentionBackend(backend=backend)  # type: ignore[arg-type]
    loop = make_loop(Attention(), item)
    trace = trace_step(loop)
    assert (trace.ops.get("_scaled_dot_product_flash_attention_for_cpu", 0) == 3) == (backend == "flash")
    assert item.evidence(loop.live, trace)[0].passed
    other = AttentionBackend(backend="math" if backend == "flash" else "flash")
    assert not other.evidence(loop.live, trace)[0].passed


def test_a_recomputed_block_uses_the_same_kernel() -> None:
    item = AttentionBackend(backend="math")
    assert run(Attention(), 4, item, ActivationCheckpointing()) == run(Attention(), 4, item)


def test_without_attention_math_proves_nothing() -> None:
    item = AttentionBackend(backend="math")
    loop = make_loop(Prepared(), item)
    assert not item.evidence(loop.live, trace_step(loop))[0].passed
