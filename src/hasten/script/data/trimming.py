"""Trim the training batches of a script, and compare the model's results for a whole and a trimmed batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import dataloader as torchs

from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.live import LiveJob
from hasten.script.patches import Patches

TOLERANCES: Mapping[torch.dtype, float] = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference allowed between two results, as a share of the largest value. `TOLERANCE` applies to other types."""
TOLERANCE = 1e-4
_CONSTANTS = (type(None), bool, str, int, float)

Call = Callable[..., Any]


class TrimmingError(Exception):
    """The arguments of the model cannot be traced back to the batch. The message says why."""


class Trimming:
    """Applies `live.pipeline.adjust` to the batches of the training loop.

    Args:
        live: The script's live job.
        trains: Returns whether an iterator belongs to the training loader, in the loop's own process and thread.
        on_failure: Called with the error if a change fails. Batches then stay unchanged.

    Attributes:
        last: The last batch before and after the change; None if it was not changed.
    """

    def __init__(self, live: LiveJob, trains: Callable[[Any], bool], on_failure: Callable[[BaseException], None]) -> None:
        self._live, self._trains, self._on_failure = live, trains, on_failure
        self.last: tuple[Any, Any] | None = None

    def install(self, patches: Patches) -> None:
        """Wrap the method through which all batches pass."""
        patches.put(torchs._BaseDataLoaderIter, "__next__", self._adjusting)  # noqa: SLF001 - all batches pass through it

    def _adjusting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_seam(iterator: Any) -> Any:
            whole, adjust = original(iterator), self._live.pipeline.adjust
            if not adjust or not torch.is_grad_enabled() or not self._trains(iterator):
                return whole
            batch = whole
            try:
                for change in adjust:
                    batch = change(batch, [])
            except Exception as error:  # noqa: BLE001 - the loop gets the unchanged batch
                adjust.clear()
                self._on_failure(error)
                return whole
            self.last = None if batch is whole else (whole, batch)
            return batch

        return next_seam

    def difference(self, call: Call, model: nn.Module, args: tuple[Any, ...], kwargs: Any) -> str:
        """Describe how the model's results in evaluation mode differ between the last batch whole and trimmed; "" if equal.

        Args:
            call: Calls the model.
            model: The model.
            args: Its arguments for the trimmed batch.
            kwargs: As `args`.
        """
        if self.last is None:
            return "no batch was trimmed in the examined steps"
        whole, trimmed = self.last
        try:
            positional, named = _replaced([args, kwargs], list(iter_tensors(trimmed)), list(iter_tensors(whole)))
        except TrimmingError as error:
            return str(error)
        with _evaluation_mode(model), torch.no_grad():
            of_whole, of_trimmed = call(model, *positional, **named), call(model, *args, **kwargs)
        return difference(_cut_like(of_whole, of_trimmed), of_trimmed)

    def draws(self, call: Call, model: nn.Module, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Return whether the model draws random numbers in training, as dropout does: other shapes draw other numbers."""
        before = torch.get_rng_state()
        with torch.no_grad():
            call(model, *args, **kwargs)
        drawn = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        return drawn


def difference(one: Any, other: Any) -> str:
    """Describe how two results differ by more than rounding; "" if they do not."""
    a, b = list(iter_tensors(one)), list(iter_tensors(other))
    if type(one) is not type(other) or len(a) != len(b):
        return "the results are nested differently"
    for first, second in zip(a, b, strict=True):
        if first.shape != second.shape or first.dtype != second.dtype:
            return f"a result has shape {tuple(second.shape)} instead of {tuple(first.shape)}"
        if not first.is_floating_point():
            if not torch.equal(first, second):
                return "integer results differ"
            continue
        finite = first.isfinite()
        if not torch.equal(finite, second.isfinite()):
            return "other results are infinite or NaN"
        scale = float(first[finite].abs().max()) if finite.any() else 0.0
        moved = float((first[finite] - second[finite]).abs().max()) if finite.any() else 0.0
        if moved > TOLERANCES.get(first.dtype, TOLERANCE) * max(scale, 1e-12):
            return f"results differ by {moved:.2g} at a scale of {scale:.2g}"
    return ""


def _replaced(value: Any, tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Any:
    """Return a model's arguments with each tensor of one batch replaced by its counterpart in another.

    Raises:
        TrimmingError: The arguments contain something that is neither a tensor of the batch nor a constant.
    """
    if isinstance(value, torch.Tensor):
        for tensor, counterpart in zip(tensors, others, strict=True):
            if value is tensor:
                return counterpart
        raise TrimmingError("the model is called with tensors that were computed from the batch")
    if type(value) in _CONSTANTS:
        return value
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, tensors, others) for item in value)
    if type(value) is dict:
        return {name: _replaced(item, tensors, others) for name, item in value.items()}
    raise TrimmingError(f"the model is called with a {type(value).__name__}")


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _cut_like(whole: Any, part: Any) -> Any:
    """Trim the results for a whole batch to the shapes of the results for the trimmed batch."""
    parts = iter(list(iter_tensors(part)))

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        like = next(parts, tensor)
        if tensor.dim() != like.dim():
            return tensor
        return tensor[tuple(slice(size) for size in like.shape)]

    return map_tensors(whole, cut)
