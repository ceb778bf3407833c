"""The training batches of a script as a plan changes them; the last one is kept, as it was and as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader as torchs

from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.live import LiveJob
from hasten.script.calls import ApartError, difference, filled, slots_of, tensors_of
from hasten.script.patches import Patches


class Cutting:
    """Applies `live.pipeline.adjust` to what a training loop is given.

    Args:
        live: The script's live job.
        trains: Whether an iterator is that of the training loader, in the loop's own process and thread.
        on_failure: Told what went wrong; batches then stay as they are made.

    Attributes:
        last: The last batch as it was made and as it was given; None where nothing of it was changed.
    """

    def __init__(self, live: LiveJob, trains: Callable[[Any], bool], on_failure: Callable[[BaseException], None]) -> None:
        self._live, self._trains, self._on_failure = live, trains, on_failure
        self.last: tuple[Any, Any] | None = None

    def install(self, patches: Patches) -> None:
        """Put the seam on."""
        patches.put(torchs._BaseDataLoaderIter, "__next__", self._adjusting)  # noqa: SLF001 - the one place all batches pass

    def _adjusting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_seam(iterator: Any) -> Any:
            made, adjust = original(iterator), self._live.pipeline.adjust
            if not adjust or not torch.is_grad_enabled() or not self._trains(iterator):
                return made
            batch = made
            try:
                for change in adjust:
                    batch = change(batch, [])
            except Exception as error:  # noqa: BLE001 - the loop gets the batch as it was made
                adjust.clear()
                self._on_failure(error)
                return made
            self.last = None if batch is made else (made, batch)
            return batch

        return next_seam

    def difference(self, call: Callable[..., Any], model: torch.nn.Module, args: tuple[Any, ...], kwargs: Any) -> str:
        """In what the model's results for the last batch differ by its having been cut, in evaluation mode.

        Args:
            call: Calls the model.
            model: The model.
            args: What the loop called it with, of the batch that it was given.
            kwargs: As `args`.
        """
        if self.last is None:
            return "no batch was cut in the steps that were looked at"
        made, given = self.last
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            positional, named = filled(slots_of([list(args), kwargs], tensors_of(given)), tensors_of(made))
            with torch.no_grad():
                whole, part = call(model, *positional, **named), call(model, *args, **kwargs)
            return difference(_cut_like(whole, part), part)
        except ApartError as error:
            return str(error)
        finally:
            for module, mode in modes:
                module.training = mode

    def draws(self, call: Callable[..., Any], model: torch.nn.Module, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether the model draws random numbers in training, as dropout does: others, for batches of another shape."""
        before = torch.get_rng_state()
        with torch.no_grad():
            call(model, *args, **kwargs)
        drawn = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        return drawn


def _cut_like(whole: Any, part: Any) -> Any:
    """The results of a whole batch, cut to the positions that those of a part of it have."""
    parts = iter(list(iter_tensors(part)))

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        like = next(parts, tensor)
        if tensor.dim() != like.dim():
            return tensor
        return tensor[tuple(slice(size) for size in like.shape)]

    return map_tensors(whole, cut)
