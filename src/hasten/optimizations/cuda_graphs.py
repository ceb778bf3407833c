"""Launch the forward pass and the backward pass of the model as one CUDA graph each.

Relieves:  compute: many short kernels that take the host longer to launch than the GPU to run.
Numerics:  rounding: the same operators on the same numbers. During capture, a library may choose another kernel.
Limits:    CUDA. The model must be called once per update, with tensors of one shape and without keyword arguments, and must
           not synchronise with the GPU. Batches of another shape run without a graph. Gradients must be freed between
           updates and not accumulated, because the graph writes them to fixed memory
           (https://github.com/pytorch/pytorch/issues/181723). It excludes `compile`, which has CUDA graphs of its own
           (mode = "reduce-overhead").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.errors import JobError, MachineError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo

Forward: TypeAlias = Callable[..., Any]
Shapes: TypeAlias = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True, kw_only=True)
class CudaGraphs(Optimization):
    """CUDA graphs for the call of the root module."""

    card: ClassVar[Card] = Card(
        name="cuda_graphs",
        summary="launch the forward pass and the backward pass as one CUDA graph each",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source="PyTorch documentation, torch.cuda.make_graphed_callables; CUDA semantics, CUDA Graphs",
        hoped_gain=(
            "1.70x for Mask R-CNN on 272 GPUs, 1.12x for BERT on 4096 GPUs "
            "(https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/)"
        ),
        prior=0.2,
        conflicts=("activation_checkpointing", "compile", "microbatch", "sequence_packing"),
        after=("precision", "attention_backend"),
        traits=frozenset({Trait.COMPILES}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies on an NVIDIA GPU if each update is one batch. Only a trial can show whether launching takes time."""
        job = facts.job
        if job.device != "cuda":
            return Fit.no(f"CUDA graphs need an NVIDIA GPU; the model runs on {job.device}")
        if not facts.machine.torch_build.value.startswith("cuda"):
            return Fit.no(f"CUDA graphs need CUDA; this PyTorch build is {facts.machine.torch_build.value}")
        if job.accumulation > 1:
            return Fit.no(f"an update accumulates the gradients of {job.accumulation} batches; a graph would overwrite them")
        if not job.zero_grad_to_none:
            return Fit.no(
                "gradients are kept between updates, and a graph would overwrite them: use zero_grad_to_none first"
            )
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.75, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the root module's forward. The graph is captured at the first call in training."""
        if live.device.type != "cuda":
            raise MachineError(f"cuda_graphs needs CUDA, but the job runs on {live.device.type}: remove it from the plan.")
        return graph_forward(live, capture)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that most calls of the model replayed a graph."""
        replays, others = (int(trace.counters.get(name, 0)) for name in ("graph_replays", "graph_other_calls"))
        return [Check("calls that replayed a graph", replays > others, f"{replays}, and {others} without a graph")]


def graph_forward(live: LiveJob, make: Callable[[LiveJob, Forward, tuple[Any, ...]], Forward]) -> Undo:
    """Replace the live model's forward with one that replays a graph if possible.

    Args:
        live: The live job. It counts replays as `graph_replays`, and other training calls as `graph_other_calls`.
        make: Captures the model's forward for arguments like those given, and returns a function that replays it.
    """
    own = vars(live.model).get("forward")
    live.model.forward = _Graphed(live, live.model.forward, make)

    def undo() -> None:
        del live.model.forward
        if own is not None:
            live.model.forward = own

    return undo


class _Graphed:
    """A forward pass that replays a graph for arguments with the shapes of its first call, and runs normally for others."""

    def __init__(self, live: LiveJob, plain: Forward, make: Callable[[LiveJob, Forward, tuple[Any, ...]], Forward]) -> None:
        self._live, self._plain, self._make = live, plain, make
        self._shapes: Shapes | None = None
        self._replay: Forward = plain
        self.replays = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        live = self._live
        # A dispatch mode must see the operators, and a replay would hide them.
        if not (live.model.training and torch.is_grad_enabled()) or is_in_torch_dispatch_mode():
            return self._plain(*args, **kwargs)
        shapes = None if kwargs else shapes_of(args, live.device)
        if self._shapes is None and shapes is not None:
            self._check(live)
            self._replay = self._make(live, self._plain, args)
            self._shapes = shapes
        if shapes is None or shapes != self._shapes:
            live.count("graph_other_calls")
            return self._plain(*args, **kwargs)
        live.count("graph_replays")
        self.replays += 1
        return map_tensors(self._replay(*args), self._copied)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        copied: torch.Tensor = _Copied.apply(tensor, self, self.replays)  # type: ignore[no-untyped-call]
        return copied

    def _check(self, live: LiveJob) -> None:
        if live.batches_per_update > 1 or live.micro_parts > 1 or not live.zero_grad_to_none:
            raise JobError(
                "cuda_graphs cannot accumulate gradients, because its graph writes them to fixed memory. Compute each "
                "update in one batch and free gradients (zero_grad_to_none), or remove cuda_graphs from the plan."
            )


class _Copied(torch.autograd.Function):
    """Copies the output of a graph, which the next replay overwrites. Its backward pass fails after another replay."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, graph: _Graphed, number: int) -> torch.Tensor:
        """Copy the output of a replay."""
        ctx.graph, ctx.number = graph, number
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Pass the gradient on. Raises JobError if another replay has overwritten what the backward pass needs."""
        if ctx.graph.replays != ctx.number:
            raise JobError(
                "The model was called again before the backward pass of its last call, which overwrites the activations in "
                "the CUDA graph: remove cuda_graphs from the plan."
            )
        return gradients[0], None, None


def shapes_of(args: tuple[Any, ...], device: torch.device) -> Shapes | None:
    """Return the shape and dtype of each argument, or None if one is not a tensor, is elsewhere, or requires a gradient."""
    tensors = list(iter_tensors(args))
    if len(tensors) != len(args) or any(tensor is not arg for tensor, arg in zip(tensors, args, strict=True)):
        return None
    if any(tensor.device.type != device.type or tensor.requires_grad for tensor in tensors):
        return None
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


class _Root(nn.Module):
    """Wraps the live model, because a capture replaces the forward of the module that it is given."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._plain = forward

    def forward(self, *args: Any) -> Any:
        """Run the model's original forward."""
        return self._plain(*args)


def capture(live: LiveJob, plain: Forward, args: tuple[Any, ...]) -> Forward:
    """Capture the forward and the backward pass on CUDA. Random states and statistics are restored.

    Raises:
        JobError: The forward pass cannot be captured: it synchronises with the GPU, or returns something other than tensors.
    """
    root = _Root(live.model, plain)
    samples = tuple(arg.detach().clone() for arg in args)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a replay would not repeat the cast of a cached weight
    try:
        with kept_buffers(live.model), torch.random.fork_rng(devices=[live.device]):
            graphed: Any = torch.cuda.make_graphed_callables(root, samples, allow_unused_input=True)
    except (RuntimeError, AssertionError, AttributeError) as error:
        raise JobError(
            f"The model's forward pass cannot be captured as a CUDA graph ({error}): remove cuda_graphs from the plan."
        ) from error
    finally:
        torch.set_autocast_cache_enabled(cached)
    replay: Forward = graphed.forward
    return replay
