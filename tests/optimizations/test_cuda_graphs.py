"""Test which calls replay a CUDA graph. Captures need a GPU; the decision to replay is also tested on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import JobError, MachineError
from hasten.core.live import LiveJob
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations.cuda_graphs import CudaGraphs, graph_forward, shapes_of
from hasten.optimizations.precision import Precision
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from hasten.train.validate import HeldOut
from tests.optimizations.contract import CPU, Attention, Images, ImagesZeroed, make_loop, run


class Recorder:
    """Replaces the capture: records its arguments, and returns the plain forward."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, live: LiveJob, plain: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
        self.asked.append([tuple(arg.shape) for arg in args])
        return plain


def graphed(job: Any) -> tuple[Loop, Recorder]:
    loop, recorder = make_loop(job), Recorder()
    graph_forward(loop.live, recorder)
    return loop, recorder


def counts(live: LiveJob) -> tuple[int, int]:
    return int(live.counters.get("graph_replays", 0)), int(live.counters.get("graph_other_calls", 0))


def test_one_graph_is_made_and_the_short_batch_runs_plainly() -> None:
    loop, recorder = graphed(Images())
    loop.run(8)  # two epochs of 4, 4, 4 and 2 images
    assert recorder.asked == [[(4, 3, 12, 12)]]
    assert counts(loop.live) == (6, 2)
    assert loop.losses == run(Images(), 8)


def test_evaluation_and_calls_without_gradients_are_left_alone() -> None:
    loop, recorder = graphed(Images())
    live = loop.live
    HeldOut(live, data=live.dataset).measure()
    live.model.train()
    with torch.no_grad():
        live.compute_loss(live.pipeline.fetch(0, [0, 1, 2, 3]))
    assert recorder.asked == []
    assert counts(live) == (0, 0)


def test_a_tracer_sees_the_operators() -> None:
    loop, _ = graphed(Images())
    trace = trace_step(loop)
    assert trace.ops["convolution"] == 2
    checks = CudaGraphs().evidence(loop.live, trace)
    assert [(check.passed, check.seen) for check in checks] == [(True, "1, and 0 without a graph")]


def test_a_step_of_other_calls_is_no_evidence() -> None:
    class Named(Images):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            return nn.functional.cross_entropy(model(input=batch[0]), batch[1])

    loop, recorder = graphed(Named())
    assert [check.passed for check in CudaGraphs().evidence(loop.live, trace_step(loop))] == [False]
    assert recorder.asked == []


@pytest.mark.parametrize(
    ("args", "fits"),
    [
        ((torch.ones(2, 3),), True),
        ((torch.ones(2), torch.ones(3, dtype=torch.int64)), True),
        ((torch.ones(2), None), False),
        (([torch.ones(2)],), False),
        ((torch.ones(2, requires_grad=True),), False),
        ((torch.ones(2, device="meta"),), False),
    ],
)
def test_only_plain_tensors_of_the_device_have_shapes(args: Any, fits: bool) -> None:
    found = shapes_of(args, CPU)
    assert (found is not None) == fits
    assert found is None or found == tuple((arg.shape, arg.dtype) for arg in args)


def test_another_dtype_is_another_shape() -> None:
    assert shapes_of((torch.ones(2),), CPU) != shapes_of((torch.ones(2, dtype=torch.float64),), CPU)


class Twice(Images):
    """Calls the model again before the backward pass."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return (model(batch[0]) - model(batch[0].flip(3))).square().mean() + super().loss(model, batch)


def test_a_second_call_before_the_backward_pass_is_refused() -> None:
    loop, _ = graphed(Twice())
    with pytest.raises(JobError, match="called again before the backward pass of its last call"):
        loop.run(1)


def test_outputs_survive_the_next_replay() -> None:
    live = make_loop(Images()).live
    place = torch.zeros(4, 5)

    def static(_: LiveJob, plain: Callable[..., Any], __: tuple[Any, ...]) -> Callable[..., Any]:
        return lambda x: place.copy_(plain(x).detach())

    plain = live.model.forward
    graph_forward(live, static)
    live.model.train()
    first, second = (live.pipeline.fetch(0, indices)[0] for indices in ([0, 1, 2, 3], [4, 5, 6, 7]))
    found = live.model(first), live.model(second)
    assert torch.equal(found[0], plain(first))
    assert torch.equal(found[1], plain(second))
    assert not torch.equal(*found)


class Accumulating(Images):
    accumulation = 2


@pytest.mark.parametrize("job", [Accumulating, ImagesZeroed])
def test_gradients_that_must_stay_are_refused(job: Any) -> None:
    loop, recorder = graphed(job())
    with pytest.raises(JobError, match="cannot accumulate gradients"):
        loop.run(1)
    assert recorder.asked == []


def test_a_forward_that_the_user_replaced_comes_back() -> None:
    live = make_loop(Images()).live
    undo = graph_forward(live, Recorder())
    assert "forward" in vars(live.model)
    undo()
    assert "forward" not in vars(live.model)
    own = live.model.forward = live.model.forward
    graph_forward(live, Recorder())()
    assert vars(live.model)["forward"] is own


def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(MachineError, match="runs on cpu: remove it from the plan"):
        make_loop(Images(), CudaGraphs())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("job", [Images, Attention])
@pytest.mark.parametrize("others", [(), (Precision(),), (Precision(dtype="float16"),)])
def test_it_trains_on_a_gpu(job: Any, others: tuple[Optimization, ...]) -> None:
    item, device = CudaGraphs(), torch.device("cuda")
    loops = [Loop(build(job(), Plan(optimizations=items), device=device)) for items in (others, (*others, item))]
    for loop in loops:
        loop.run(8)
    plain, changed = loops
    assert changed.losses == pytest.approx(plain.losses, rel=2e-2)
    assert counts(changed.live) == (6, 2)
    buffers = zip(plain.live.model.buffers(), changed.live.model.buffers(), strict=True)
    assert all(torch.allclose(old.float(), new.float(), rtol=2e-2, atol=1e-3) for old, new in buffers)
    assert all(check.passed for check in item.evidence(changed.live, trace_step(changed)))
    changed.live.undo_all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_a_model_that_waits_for_the_gpu_is_refused() -> None:
    class Waiting(Images):
        def model(self) -> nn.Module:
            model: Any = super().model()
            model[2].register_forward_hook(lambda _, __, out: out * (1 if out.sum().item() else 0))
            return model  # type: ignore[no-any-return]

    loop = Loop(build(Waiting(), Plan(optimizations=(CudaGraphs(),)), device=torch.device("cuda")))
    with pytest.raises(JobError, match="cannot be captured as a CUDA graph"):
        loop.run(1)
