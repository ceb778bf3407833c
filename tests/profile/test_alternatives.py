"""Other implementations of a part are measured on copies, and leave the job unchanged."""

from __future__ import annotations

import gc
import mmap
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hasten.core.openmp import count_denormals_kept
from hasten.profile import alternatives
from hasten.profile.alternatives import Overhead, denormals_as_zero, optimizer_gains, typical_s


def live_with(kind: Any, **settings: Any) -> Any:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(60)])
    return SimpleNamespace(optimizer=kind(model.parameters(), **settings), device=torch.device("cpu"), model=model)


def test_many_small_tensors_gain_from_one_kernel_and_the_job_is_untouched() -> None:
    live = live_with(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
    before = [param.detach().clone() for param in live.model.parameters()]
    seen: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: seen.append(optimizer))
    try:
        gains = optimizer_gains(live, 1.0)
    finally:
        handle.remove()
    assert gains["fused"] > 2 * gains["foreach"] > 2  # 120 tensors of at most 8 by 8 numbers, relative to one second
    assert not seen
    assert not live.optimizer.state
    assert all(torch.equal(old, new) for old, new in zip(before, live.model.parameters(), strict=True))
    assert all(param.grad is None for param in live.model.parameters())


def test_an_optimizer_without_other_forms_has_no_gains() -> None:
    class Own(torch.optim.SGD):
        pass

    assert optimizer_gains(live_with(torch.optim.LBFGS), 1.0) == {}
    assert optimizer_gains(live_with(Own, lr=0.1), 1.0) == {}


def test_a_large_parameter_is_copied_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "MAX_COPIED_BYTES", 4 * 1000)
    model = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 20))
    made = alternatives._copy(torch.optim.Adam(model.parameters()), {"fused": True, "foreach": False})
    assert made is not None
    assert [param.numel() for group in made.param_groups for param in group["params"]] == [1000]
    assert made.param_groups[0]["fused"] is True


def test_other_process_states_are_tried_if_they_differ() -> None:
    threads = torch.get_num_threads()
    assert set(alternatives.process_forms("cpu", threads, {})) == {"flushed"}
    math = {"_scaled_dot_product_attention_math": 3}
    assert set(alternatives.process_forms("cpu", threads + 1, math)) == {"flushed", "threads", "attention"}
    assert set(alternatives.process_forms("cuda", threads + 1, {})) == set()
    assert alternatives.FORM_WORDS.keys() == {"flushed", "threads", "attention"}
    with alternatives.threads_for(threads + 1):
        assert torch.get_num_threads() == threads + 1
    assert torch.get_num_threads() == threads
    with alternatives.fused_attention() as can:
        assert can


def test_the_garbage_collector_is_timed_and_released() -> None:
    callbacks = list(gc.callbacks)
    with Overhead() as overhead:
        gc.collect()
        first = overhead.collecting_s
        gc.collect()
    assert 0 < first < overhead.collecting_s
    assert gc.callbacks == callbacks


def test_the_kernels_share_is_measured_only_within() -> None:
    overhead = Overhead()
    assert overhead.kernel_frac == 0.0
    with overhead, mmap.mmap(-1, 1 << 28) as pages:
        for start in range(0, len(pages), mmap.PAGESIZE):
            pages[start] = 1  # the kernel clears each page
    inside = overhead.kernel_s
    assert inside > 0
    with mmap.mmap(-1, 1 << 28) as pages:
        for start in range(0, len(pages), mmap.PAGESIZE):
            pages[start] = 1
    with overhead:
        sum(range(10_000_000))
    assert overhead.kernel_s < 1.5 * inside
    assert 0 < overhead.kernel_frac < 1


def test_denormal_numbers_are_zero_meanwhile() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush denormal numbers")
    assert count_denormals_kept(4) == 4
    with denormals_as_zero() as can:
        assert can
        assert count_denormals_kept(4) == 0
    assert count_denormals_kept(4) == 4


def test_a_typical_run_counts() -> None:
    pauses = iter([0.15, 0.01, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, *[0.0] * 20])
    assert 0.01 <= typical_s(lambda: time.sleep(next(pauses)), torch.device("cpu")) < 0.1


def test_a_part_is_scaled_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = optimizer_gains(live_with(torch.optim.AdamW, lr=0.01), 1.0)["fused"]
    monkeypatch.setattr(alternatives, "MAX_COPIED_BYTES", 4 * 64)
    part = optimizer_gains(live_with(torch.optim.AdamW, lr=0.01), 1.0)["fused"]
    assert part < whole  # a sixtieth was stepped, and each call costs the same
