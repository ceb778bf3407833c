"""Profiling a script takes turns with its steps: what is measured between which of them."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasten.tune.scripts.profiling import ScriptEnded, _operators


def is_profiling() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # PyTorch has no public name for it


def measured() -> Generator[None, None, tuple[dict[str, float], dict[str, int]]]:
    host: Any = SimpleNamespace(live=SimpleNamespace(device=torch.device("cpu")))
    return _operators(host)


def test_one_step_passes_before_the_second_profiler_starts() -> None:
    steps = measured()
    next(steps)
    assert not is_profiling(), "the step that follows another profiler is left alone"
    next(steps)
    assert is_profiling()
    torch.ones(3).add(1)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert not is_profiling()
    shares, counts = ended.value.value
    assert counts["add"] == 1
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("steps_before", [1, 2])
def test_a_script_that_ends_meanwhile_leaves_no_profiler_behind(steps_before: int) -> None:
    steps = measured()
    for _ in range(steps_before):
        next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.throw(ScriptEnded())
    assert ended.value.value == ({}, {})
    assert not is_profiling()
