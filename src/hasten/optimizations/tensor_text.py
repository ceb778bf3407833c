"""Find the column width of printed tensors from their extreme values.

Relieves:  logging: to find the width of a column, torch formats each number of a tensor separately. The widest numbers are
           among the largest and the smallest of either sign.
Numerics:  exact: the same text, character by character. The texts of sample tensors are compared before it is enabled.
Limits:    tensors with many elements that are printed, converted to strings or logged. Unusual tensor types are formatted
           as before.
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
"""Number of elements up to which formatting all of them is as fast as finding their extremes."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, kw_only=True)
class TensorText(Optimization):
    """torch's number formatter, given only the extreme values of a tensor."""

    card: ClassVar[Card] = Card(
        name="tensor_text",
        summary="format printed tensors without formatting each number twice",
        relieves=Bottleneck.LOGGING,
        numerics=Numerics.EXACT,
        seam=Seam.PROCESS,
        source="PyTorch documentation, torch.set_printoptions: a column is as wide as its widest number",
        prior=0.6,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if tensors were converted to text. The time for finding column widths can be saved."""
        if facts.tensor_texts_s <= 0:
            return Fit.no("no tensor with several elements was converted to text in the measured steps")
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.tensor_texts_s), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace torch's number formatter."""
        plain: Any = texts._Formatter  # noqa: SLF001 - torch has no public name for it

        class ByExtremes(plain):  # type: ignore[misc]  # torch's class has no type annotations
            def __init__(self, tensor: torch.Tensor) -> None:
                values = extremes(tensor)
                if values is not tensor:
                    live.count(COUNTER)
                super().__init__(values)

        before = [str(tensor) for tensor in _samples()]
        texts._Formatter = ByExtremes  # type: ignore[misc]  # noqa: SLF001 - as above
        if [str(tensor) for tensor in _samples()] != before:
            texts._Formatter = plain  # type: ignore[misc]  # noqa: SLF001 - as above
            raise JobError(f"torch {torch.__version__} formats tensors differently: remove tensor_text from the plan.")
        live.counters.pop(COUNTER, None)

        def undo() -> None:
            if texts._Formatter is ByExtremes:  # noqa: SLF001 - as above
                texts._Formatter = plain  # type: ignore[misc]  # noqa: SLF001 - as above

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that tensors were formatted by their extreme values."""
        seen = int(trace.counters.get(COUNTER, 0))
        return [Check("tensors formatted by their extreme values", seen > 0, f"{seen} in a step")]


def extremes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the few elements that determine the format of a tensor, or the tensor itself if it is small or unusual.

    For floats, these are the largest and the smallest of either sign, and a non-integer if there is one. With a fixed number
    of digits, a larger number is never shorter, so no other number is wider. For integers, they are the largest and the
    smallest.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() <= FEW or tensor.layout is not torch.strided:
        return tensor
    if tensor.dtype in _INTEGERS:
        return torch.stack(torch.aminmax(tensor))
    if tensor.dtype not in _FLOATS:
        return tensor
    flat = tensor.detach().reshape(-1)
    finite = flat[torch.isfinite(flat) & (flat != 0)]
    values = [
        value for part in (finite[finite > 0], finite[finite < 0]) if part.numel() for value in (part.amax(), part.amin())
    ]
    if not values:
        return tensor
    fractional = (finite != finite.ceil()).nonzero()
    return torch.stack(values if not len(fractional) else [*values, finite[fractional[0, 0]]])


def _samples() -> list[torch.Tensor]:
    """Return tensors that cover all formats of torch."""
    drawn = torch.linspace(-3.0, 5.0, 40)
    return [
        drawn, drawn.reshape(5, 8) * 1e-6, drawn * 1e9, drawn.round(), drawn.round() * 1e10, (drawn * 100).long(),
        torch.cat([drawn, torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])]), drawn.double() * 1e-200,
        torch.zeros(20), drawn.bfloat16(), drawn.half(), torch.full((20,), float("nan")), -drawn.abs(), drawn.exp() * 1e3,
    ]  # fmt: skip
