"""Test that gradients are freed after an update."""

from __future__ import annotations

import pytest

from hasten.core.card import StepTrace
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone
from tests.optimizations.contract import ImagesZeroed, make_loop, run


@pytest.mark.parametrize(("items", "held"), [((), True), ((ZeroGradToNone(),), False)])
def test_gradients_are_gone_after_an_update(items: tuple[ZeroGradToNone, ...], held: bool) -> None:
    loop = make_loop(ImagesZeroed(), *items)
    loop.run(1)
    assert all((p.grad is not None) == held for p in loop.live.model.parameters())


@pytest.mark.parametrize("accumulation", [2, 3])
def test_it_is_exact_under_accumulation(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImagesZeroed, "accumulation", accumulation)
    assert run(ImagesZeroed(), 6, ZeroGradToNone()) == run(ImagesZeroed(), 6)


def test_without_a_trace_the_check_fails() -> None:
    loop = make_loop(ImagesZeroed(), ZeroGradToNone())
    assert not ZeroGradToNone().evidence(loop.live, StepTrace())[0].passed
