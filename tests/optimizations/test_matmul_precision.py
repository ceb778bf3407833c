"""Test the switches for reduced precision in float32 products, and that the evidence measures the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.machine import read_cpu_flags
from hasten.optimizations.matmul_precision import REDUCED_ERROR, MatmulPrecision, relative_error
from hasten.train.trace import trace_step
from tests.optimizations.contract import CPU, Attention, Images, facts, make_loop

BACKENDS: Any = torch.backends


def switches() -> dict[str, str]:
    named = {
        "cuda products": BACKENDS.cuda.matmul, "cudnn convolutions": BACKENDS.cudnn.conv, "cudnn rnn": BACKENDS.cudnn.rnn,
        "mkldnn products": BACKENDS.mkldnn.matmul, "mkldnn convolutions": BACKENDS.mkldnn.conv,
        "mkldnn rnn": BACKENDS.mkldnn.rnn,
    }  # fmt: skip
    return {name: switch.fp32_precision for name, switch in named.items()}


@pytest.mark.parametrize(("kind", "library"), [("tf32", "cud"), ("bf16", "mkldnn")])
def test_the_switches_of_one_library_are_set_and_put_back(kind: Any, library: str) -> None:
    before = switches()
    live = make_loop(Images(), MatmulPrecision(kind=kind)).live
    expected = {name: kind if name.startswith(library) else value for name, value in before.items()}
    assert switches() == expected != before
    live.undo_all()
    assert switches() == before


def test_a_processor_with_amx_is_offered_bf16() -> None:
    fit = MatmulPrecision.fit(facts(on={"cpu_flags": frozenset({"amx_bf16", "avx512_bf16"})}))
    assert fit.settings == (MatmulPrecision(kind="bf16"),)


def test_the_error_tells_float32_from_less() -> None:
    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.float64:
            return a @ b
        return a.bfloat16().float() @ b.bfloat16().float()

    assert relative_error(torch.matmul, (128, 128), CPU) < REDUCED_ERROR / 10
    assert relative_error(rounded, (128, 128), CPU) > REDUCED_ERROR * 10


@pytest.mark.skipif("amx_bf16" in read_cpu_flags(), reason="this processor has AMX")
def test_without_amx_the_switch_does_nothing_and_the_evidence_says_so() -> None:
    item = MatmulPrecision(kind="bf16")
    for job in (Images(), Attention()):
        loop = make_loop(job, item)
        checks = item.evidence(loop.live, trace_step(loop))
        loop.live.undo_all()
        assert checks
        assert not any(check.passed for check in checks)
        assert all("relative error" in check.seen for check in checks)


@pytest.mark.skipif("amx_bf16" not in read_cpu_flags(), reason="needs a processor with AMX")
def test_with_amx_products_are_less_exact() -> None:
    item = MatmulPrecision(kind="bf16")
    loop = make_loop(Attention(), item)
    checks = item.evidence(loop.live, trace_step(loop))
    loop.live.undo_all()
    assert all(check.passed for check in checks), checks


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="tf32 or bf16, not 'fp8'"):
        MatmulPrecision(kind="fp8")  # type: ignore[arg-type]
