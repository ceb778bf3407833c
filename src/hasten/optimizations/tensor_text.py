"""Write tensors as text by their extreme values.

Relieves:  logging: to find how wide the numbers of a tensor are, torch writes each of them as a tensor of its own; the
           widest are among the largest and the smallest of either sign.
Numerics:  exact: the same text, to the letter; texts of some tensors are compared before it begins.
Limits:    tensors of several numbers that are printed, turned into strings or logged; those of unusual types are written
           as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import _tensor_str as texts

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo

COUNTER = "tensor_texts"
FEW = 8
"""As many numbers are written as fast as their extremes are found."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, kw_only=True)
class TensorText(Optimization):
    """torch's formatter of numbers, shown the extremes of a tensor in place of all of it."""

    card: ClassVar[Card] = Card(
        name="tensor_text",
        summary="the text of printed tensors made without writing each number twice",
        relieves=Bottleneck.LOGGING,
        numerics=Numerics.EXACT,
        seam=Seam.PROCESS,
        source="PyTorch documentation, torch.set_printoptions; the width of a column is that of its widest number",
        prior=0.6,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where tensors were seen to be written as text: what finding the widths of their numbers took can be saved."""
        if facts.tensor_texts_s <= 0:
            return Fit.no("no tensor of several numbers was written as text in the steps that were watched")
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.tensor_texts_s), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Put the formatter in the place of torch's."""
        plain: Any = texts._Formatter  # noqa: SLF001 - torch has no other name for it

        class ByExtremes(plain):  # type: ignore[misc]  # of torch's, which has no types
            def __init__(self, tensor: torch.Tensor) -> None:
                found = extremes(tensor)
                if found is not tensor:
                    live.count(COUNTER)
                super().__init__(found)

        before = [str(tensor) for tensor in _samples()]
        texts._Formatter = ByExtremes  # type: ignore[misc]  # noqa: SLF001 - as above
        if [str(tensor) for tensor in _samples()] != before:
            texts._Formatter = plain  # type: ignore[misc]  # noqa: SLF001 - as above
            raise JobError(f"torch {torch.__version__} writes tensors in another way: take tensor_text out of the plan.")
        live.counters.pop(COUNTER, None)

        def undo() -> None:
            if texts._Formatter is ByExtremes:  # noqa: SLF001 - as above
                texts._Formatter = plain  # type: ignore[misc]  # noqa: SLF001 - as above

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Tensors were written by it."""
        seen = int(trace.counters.get(COUNTER, 0))
        return [Check("tensors written by their extremes", seen > 0, f"{seen} in a step")]


def extremes(tensor: torch.Tensor) -> torch.Tensor:
    """A few numbers of a tensor that decide how all of them are written; the tensor itself where it is small or unusual.

    Of floats: the largest and the smallest of either sign, and one that is no whole number, where there is one. With a fixed
    number of digits a larger number is never shorter, so no other one is wider. Of integers: the largest and the smallest.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() <= FEW or tensor.layout is not torch.strided:
        return tensor
    if tensor.dtype in _INTEGERS:
        return torch.stack(torch.aminmax(tensor))
    if tensor.dtype not in _FLOATS:
        return tensor
    flat = tensor.detach().reshape(-1)
    finite = flat[torch.isfinite(flat) & (flat != 0)]
    found = [
        value for part in (finite[finite > 0], finite[finite < 0]) if part.numel() for value in (part.amax(), part.amin())
    ]
    if not found:
        return tensor
    broken = (finite != finite.ceil()).nonzero()
    return torch.stack(found if not len(broken) else [*found, finite[broken[0, 0]]])


def _samples() -> list[torch.Tensor]:
    """Tensors that are written in every way there is."""
    drawn = torch.linspace(-3.0, 5.0, 40)
    return [
        drawn, drawn.reshape(5, 8) * 1e-6, drawn * 1e9, drawn.round(), drawn.round() * 1e10, (drawn * 100).long(),
        torch.cat([drawn, torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])]), drawn.double() * 1e-200,
        torch.zeros(20), drawn.bfloat16(), drawn.half(), torch.full((20,), float("nan")), -drawn.abs(), drawn.exp() * 1e3,
    ]  # fmt: skip
