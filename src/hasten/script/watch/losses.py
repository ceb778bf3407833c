"""Notice losses that are NaN or infinite, at the backward passes that start from them."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch

from hasten.script.watch.record import WINDOW

_item = torch._C.TensorBase.item  # noqa: SLF001 - `torch.Tensor.item` may be a seam


class Losses:
    """Remembers the losses of the last backward passes.

    A loss on an accelerator is read at the end only, so that nothing waits for the device.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float | torch.Tensor]] = deque(maxlen=WINDOW)

    def note(self, tensors: Any, step: int) -> None:
        """Remember the loss of a backward pass. Anything but a single real number is ignored.

        Args:
            tensors: First argument of `torch.autograd.backward`.
            step: Number of the script's step, from 1.
        """
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors or ()), None)
        if type(loss) is torch.Tensor and loss.numel() == 1 and loss.is_floating_point():
            self._recent.append((step, _item(loss) if loss.is_cpu else loss.detach().clone()))

    @property
    def last(self) -> float | torch.Tensor | None:
        """The last loss; None before the first."""
        return self._recent[-1][1] if self._recent else None

    def not_finite(self) -> dict[str, Any] | None:
        """Return the first `step` whose loss is not finite, its `value` in words, and the `times`; None if all are finite.

        Infinite losses count only if the last loss is not finite: a gradient scaler that starts too high causes them too.
        """
        losses = [(step, loss if isinstance(loss, float) else float(_item(loss))) for step, loss in self._recent]
        if losses and math.isfinite(losses[-1][1]):
            losses = [(step, loss) for step, loss in losses if math.isnan(loss)]
        bad = [(step, loss) for step, loss in losses if not math.isfinite(loss)]
        return {"step": bad[0][0], "value": str(bad[0][1]), "times": len(bad)} if bad else None


def not_finite_words(found: dict[str, Any]) -> str:
    """Describe the result of `Losses.not_finite`."""
    return (
        f"The loss is {found['value']} at step {found['step']} of the script, and not finite in {found['times']} of the "
        "watched backward passes. Lower the learning rate, clip gradients, or check the data of that step."
    )
