"""Compute the output layer only at the positions that the loss uses.

Relieves:  compute: the projection to the vocabulary, forward and backward, if batches contain much padding or many ignored
           labels.
Numerics:  rounding: the same rows of the same product, multiplied and summed in other sizes.
Limits:    the job must say which positions the loss uses (`counted`). The output layer must be the last layer of the forward
           pass, or be named (`output_layer`). Training only: held-out batches get the full output.

The other positions of the output are zeros. The output keeps its shape, and the loss, which ignores these positions,
computes its softmax over them as before. The numerics check compares gradients, so it detects a mask that omits a position
that the loss uses.

It cannot be combined with torch.compile or CUDA graphs. The number of positions depends on the mask, so the graph would
break at this layer or be recompiled for each number, and a CUDA graph capture must not wait for the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.job import counted_mask
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.seeding import kept_random_state

PRODUCTS = ("addmm", "mm")
"""Operators of a linear layer, forward and backward."""
TRACED_SAMPLES = 2
"""Number of samples in the batch that is traced to find the output layer."""


@dataclass(frozen=True, kw_only=True)
class CountedPositions(Optimization):
    """The output layer without the rows that the loss ignores."""

    card: ClassVar[Card] = Card(
        name="counted_positions",
        summary="compute the output layer only at the positions that the loss uses",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source=(
            "Izsak et al. 2021, How to train BERT with an academic budget (sparse output prediction); "
            "fairseq, RoBERTa, `masked_tokens`"
        ),
        prior=0.5,
        conflicts=("compile", "cuda_graphs"),
        script_advice=(
            "it is unknown which positions the script's loss uses: index the hidden states with the "
            "mask before the output layer"
        ),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the job says which positions its loss uses, and the loss does not use all of them.

        The time of the output layer is not measured on its own, so the upper bound is the unused share of the matrix
        products of all linear layers.
        """
        if not facts.job.has_counted:
            return Fit.no("the job does not say which positions its loss uses: implement counted(self, batch)")
        if facts.counted_frac >= 1.0:
            return Fit.no("the loss uses every position of the measured batches")
        share = sum(facts.op_frac.get(op, 0.0) for op in PRODUCTS) * (1.0 - facts.counted_frac)
        return Fit.yes(max_gain_frac=facts.compute_frac * share, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Wrap the output layer, and pass it the mask of each batch."""
        if not live.job.overrides("counted"):
            raise JobError(
                "counted_positions needs the method counted(self, batch) in the job: implement it, or remove "
                "counted_positions from the plan."
            )
        rows = _Rows(live, _output_layer(live))
        forget = append_to(live.batch_contexts, rows.of)

        def undo() -> None:
            forget()
            rows.unwrap()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the output layer skipped positions."""
        skipped, computed = (int(trace.counters.get(name, 0)) for name in ("positions_left_out", "positions_projected"))
        return [
            Check("positions skipped in the output layer", skipped > 0, f"{skipped} of {skipped + computed} in one step")
        ]


class _Rows:
    """Wraps a layer so that it computes only the rows of the current mask."""

    def __init__(self, live: LiveJob, layer: nn.Module) -> None:
        self._live, self._layer = live, layer
        self._mask: torch.Tensor | None = None
        self._own = vars(layer).get("forward")
        self._plain: Callable[..., Any] = layer.forward
        layer.forward = self._forward

    def unwrap(self) -> None:
        """Restore the layer's own forward."""
        del self._layer.forward
        if self._own is not None:
            self._layer.forward = self._own

    @contextmanager
    def of(self, batch: Any) -> Iterator[None]:
        """Set the mask of a batch while its loss is computed, in training only."""
        self._mask = counted_mask(self._live.job, batch) if self._live.model.training else None
        try:
            yield
        finally:
            self._mask = None

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        mask = self._mask
        if mask is None or kwargs or len(args) != 1 or not self._layer.training or args[0].shape[:-1] != mask.shape:
            return self._plain(*args, **kwargs)
        index = mask.flatten().nonzero().flatten()
        self._live.count("positions_projected", len(index))
        self._live.count("positions_left_out", mask.numel() - len(index))
        if len(index) == mask.numel():
            return self._plain(*args)
        rows = self._plain(args[0].flatten(0, -2).index_select(0, index))
        full = rows.new_zeros(mask.numel(), *rows.shape[1:]).index_copy_(0, index, rows)
        return full.view(*mask.shape, *rows.shape[1:])


def _output_layer(live: LiveJob) -> nn.Module:
    """Return the layer that the job names, or the last layer of a traced forward pass.

    Only the last layer is certain to process each position independently. An earlier layer may be just as wide, and
    attention after it would read the zeros.
    """
    name = live.job.output_layer
    if name is None:
        return _last_layer(live)
    try:
        return live.model.get_submodule(name)
    except AttributeError as error:
        known = ", ".join(child for child, _ in live.model.named_children())
        raise JobError(
            f"{type(live.job).__name__}.output_layer is {name!r}, but the model has no such module. Its modules: {known}."
        ) from error


def _last_layer(live: LiveJob) -> nn.Module:
    if live.order is None:
        raise JobError(
            "counted_positions cannot trace a batch of an iterable dataset: name the output layer (output_layer = ...)."
        )
    batch = live.to_device(live.pipeline.fetch(0, live.order(0)[0][:TRACED_SAMPLES]))
    mask, calls = counted_mask(live.job, batch), _calls(live, batch)
    names = {module: name or "the model itself" for name, module in live.model.named_modules()}
    candidates: list[nn.Linear] = []
    for module, shape in reversed(calls):
        if not (isinstance(module, nn.Linear) and shape[:-1] == mask.shape):
            break
        candidates.append(module)
    if not candidates:
        last = f"{names[calls[-1][0]]} ({type(calls[-1][0]).__name__}, input {list(calls[-1][1])})" if calls else "none"
        raise JobError(
            f"counted_positions expects the last layer of the forward pass to be an nn.Linear with input shape "
            f"{[*mask.shape, 'features']}, to match counted(batch), but it is {last}. Name the output layer "
            f"(output_layer = ...), or remove counted_positions from the plan."
        )
    layer = candidates[0]
    wider = [other for other in candidates if other.out_features > layer.out_features]
    times = sum(module is layer for module, _ in calls)
    if wider or times > 1:
        why = f"{names[wider[0]]} before it is wider" if wider else f"it runs {times} times in one pass"
        raise JobError(
            f"counted_positions cannot identify the output layer: the last layer of the forward pass is {names[layer]}, but "
            f"{why}. Name the output layer (output_layer = ...), or remove counted_positions from the plan."
        )
    return layer


def _calls(live: LiveJob, batch: Any) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Return the modules that have parameters of their own, in the order they run in `job.loss`, with their input shapes."""
    calls: list[tuple[nn.Module, tuple[int, ...]]] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        given = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        calls.append((module, () if given is None else tuple(given.shape)))

    devices = [live.device] if live.device.type == "cuda" else []
    modes = [(module, module.training) for module in live.model.modules()]
    with ExitStack() as stack:
        stack.enter_context(kept_random_state())
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(kept_buffers(live.model))
        for module in live.model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                stack.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        live.model.train()
        try:
            live.compute_loss(batch)
        finally:
            for module, training in modes:
                module.training = training
    return calls
