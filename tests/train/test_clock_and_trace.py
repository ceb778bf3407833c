"""Timing and tracing a step: what is recorded, and that it does not change the run."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.job import Job
from hasten.train.build import build
from hasten.train.clock import PHASES, CudaClock, NoClock, PhaseClock, make_clock
from hasten.train.loop import Loop
from hasten.train.trace import first_batches, op_shares, trace_step
from tests.train.jobs import CPU, Plain, Stormy, Streamed


@pytest.mark.parametrize("accumulation", [1, 3])
def test_laps_cover_only_the_run(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "accumulation", accumulation)
    clock = PhaseClock()
    loop = Loop(build(Plain(), device=CPU), clock=clock)
    start = perf_counter()
    loop.run(7)
    total = perf_counter() - start
    assert clock.updates == 7
    assert tuple(clock.seconds) == PHASES
    assert clock.seconds["sync"] == 0  # a single rank has none to wait for
    assert all(seconds > 0 for phase, seconds in clock.seconds.items() if phase != "sync")
    assert sum(clock.seconds.values()) <= total


def test_a_clock_gives_each_lap_to_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr("hasten.train.clock.perf_counter", lambda: next(times))
    clock = PhaseClock()
    clock.start()
    clock.lap("data")
    clock.lap("forward")
    clock.start()
    clock.lap("data")
    assert clock.seconds == {**dict.fromkeys(PHASES, 0.0), "data": 5.0, "forward": 2.0}
    assert isinstance(make_clock(CPU), PhaseClock)
    assert NoClock().lap("data") is None  # type: ignore[func-returns-value]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_a_gpu_is_timed_by_its_own_events() -> None:
    device = torch.device("cuda")
    clock = make_clock(device)
    assert isinstance(clock, CudaClock)
    loop = Loop(build(Plain(), device=device), clock=clock)
    loop.run(5)
    seconds = clock.seconds
    assert clock.updates == 5
    assert tuple(seconds) == PHASES
    assert seconds["forward"] > 0
    assert seconds["backward"] > 0


def test_a_clock_changes_no_loss() -> None:
    runs = []
    for clock in (None, PhaseClock()):
        loop = Loop(build(Stormy(), device=CPU), clock=clock)
        loop.run(5)
        runs.append(loop.losses)
    assert runs[0] == runs[1]


def test_a_trace_sees_operators_and_dtypes() -> None:
    live = build(Plain(), device=CPU)
    trace = trace_step(Loop(live))
    assert trace.ops["addmm"] == 2
    assert trace.ops["tanh"] == trace.ops["tanh_backward"] == 1
    assert trace.op_dtypes["addmm", "float32"] == 2
    assert trace.batch_shapes == ((4, 5), (4, 1))
    assert trace.counters["workers_alive"] == 0
    live.forward_contexts.append(lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert trace_step(Loop(live)).op_dtypes["addmm", "bfloat16"] == 2


def test_a_trace_sees_memory_layout() -> None:
    class Images(Plain):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 4, (1, 3)), nn.Flatten(), nn.LazyLinear(1))

        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            model(torch.zeros(1, 5))
            return super().optimizer(model)

    live = build(Images(), device=CPU)
    loop = Loop(live)
    assert trace_step(loop).channels_last.get("convolution", 0) == 0
    live.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert trace_step(loop).channels_last["convolution"] == 1


@pytest.mark.parametrize("kind", [Stormy, Streamed])
@pytest.mark.parametrize("accumulation", [1, 7])
def test_after_a_trace_the_loop_is_at_the_start(kind: type[Job], accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "accumulation", accumulation)
    fresh = Loop(build(kind(), device=CPU))
    fresh.run(6)
    loop = Loop(build(kind(), device=CPU))
    start = {name: value.clone() for name, value in loop.live.model.state_dict().items()}
    loop.run(2)
    trace_step(loop)
    assert loop.losses == []
    assert loop.position.update == loop.position.samples == 0
    assert all(torch.equal(start[name], value) for name, value in loop.live.model.state_dict().items())
    assert all(p.grad is None for p in loop.live.model.parameters())
    loop.run(6)
    assert loop.losses == fresh.losses


@pytest.mark.parametrize("kind", [Stormy, Streamed])
def test_the_first_batches_are_those_of_the_run(kind: type[Job]) -> None:
    live = build(kind(), device=CPU)
    loop = Loop(live)
    seen: list[Any] = []

    def note(batch: Any) -> Any:
        seen.append(batch)
        return batch

    live.batch_transforms.append(note)
    loop.run(8)  # more than an epoch
    loop.rewind()
    batches = first_batches(loop, 8)
    assert [size for _, size in batches] == [len(batch[0]) for batch in seen]
    for (one, _), other in zip(batches, seen, strict=True):
        assert torch.equal(one[0], other[0])
    assert loop.position.samples == 0


def test_shares_of_operators_add_up_and_disturb_nothing() -> None:
    live = build(Stormy(), device=CPU)
    loop = Loop(live)
    batch = first_batches(loop, 1)[0]
    shares, counts = op_shares(live, batch)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert counts["addmm"] == 2
    assert all(p.grad is None for p in live.model.parameters())
    loop.rewind()
    loop.run(4)
    fresh = Loop(build(Stormy(), device=CPU))
    fresh.run(4)
    assert loop.losses == fresh.losses
