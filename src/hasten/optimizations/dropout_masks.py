"""Draw four elements of a dropout mask from each random number.

Relieves:  compute: on processors that are not Intel's, PyTorch draws a mask on one core, one random number per element.
Numerics:  rounding: the same mathematics with other random numbers, as with another seed. Rates are rounded to 1/65536.
Limits:    CPU training, and masks of at least 4,096 elements. It affects every `bernoulli_` of the process with a rate that
           this rounding changes by less than 0.1 %. Compiled code draws its own masks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.library import Library, get_kernel

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.seeding import kept_random_state
from hasten.core.source_edits import NothingToWriteError, SourceEdits

MIN_ELEMENTS = 4096
"""Smaller masks are drawn by PyTorch: a call of Python takes as long as it saves."""
LEVELS = 2**16
"""Number of values of a quarter of a random number."""
MIN_RATE = 500 / LEVELS
"""Rates nearer to 0 or 1 are drawn by PyTorch."""
LIKELY = 0.7
"""Prior probability that most of the measured time of drawing masks is saved."""
COUNTER = "dropout_masks"
_OPERATOR = "bernoulli_"
_SAMPLE, _SAMPLE_RATE, _DEVIATIONS = 2**20, 0.9, 6.0


@dataclass(frozen=True, kw_only=True)
class DropoutMasks(Optimization):
    """Dropout masks drawn four elements at a time."""

    card: ClassVar[Card] = Card(
        name="dropout_masks",
        summary="draw four elements of a dropout mask from each random number",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch source, aten/src/ATen/native/cpu/RandomKernel.cpp (its fast kernel is for Intel's processors)",
        prior=0.5,
        traits=frozenset({Trait.OTHER_MASKS}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies on a CPU if the model draws masks. Drawing them is the most that it can save."""
        if facts.job.device != "cpu":
            return Fit.no(f"the model runs on {facts.job.device}, where masks are drawn in parallel")
        if _OPERATOR not in facts.op_counts:
            return Fit.no("the model draws no dropout masks")
        share = facts.op_frac.get(_OPERATOR, 0.0)
        return Fit.yes(max_gain_frac=facts.compute_frac * share, settings=[cls()], prior=LIKELY)

    def apply(self, live: LiveJob) -> Undo:
        """Replace the CPU kernel of the operator that draws masks, also for the C++ of attention and LSTM."""
        library, kernel = Library("aten", "IMPL"), _kernel(live.count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it says that a kernel is replaced
            library.impl("bernoulli_.float", kernel, "CPU", with_keyset=True, allow_override=True)
        return library._destroy  # noqa: SLF001  otherwise it ends with the last reference

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that a step drew masks this way, and that as many elements are kept as should be."""
        drawn = trace.counters.get(COUNTER, 0.0)
        with kept_random_state():
            kept = torch.empty(_SAMPLE).bernoulli_(_SAMPLE_RATE).mean().item()
        most = _DEVIATIONS * (_SAMPLE_RATE * (1 - _SAMPLE_RATE) / _SAMPLE) ** 0.5
        return [
            Check("masks drawn four elements at a time", drawn > 0, f"{drawn:.0f} in one step"),
            Check("share of elements kept", abs(kept - _SAMPLE_RATE) < most, f"{kept:.4f} for a rate of {_SAMPLE_RATE}"),
        ]

    def write_patch(self, script: SourceEdits) -> str:
        """Add the kernel below the imports of the script."""
        for call in script.calls("torch.library.get_kernel"):
            raise NothingToWriteError(f"the script already replaces a kernel of PyTorch ({call.place})")
        return script.at_the_start(*_SOURCE.splitlines(), said="a kernel that draws dropout masks")


_SOURCE = f"""\
_draw_exactly = {{torch.library.get_kernel}}({{torch.ops.aten.bernoulli_.float}}, "CPU")


def _draw_mask(keys, mask, p=0.5, *, generator=None):  # four elements of a dropout mask from each random number
    total = mask.numel()
    if total < {MIN_ELEMENTS} or not {MIN_RATE:.4f} <= p <= {1 - MIN_RATE:.4f}:
        _draw_exactly.call_boxed(keys, mask, p, generator=generator)
        return mask
    numbers = {{torch.empty}}(-(-total // 4), dtype={{torch.int64}}).random_(-(2**63), None, generator=generator)
    return mask.copy_(numbers.view({{torch.int16}})[:total].view(mask.shape) < round(p * {LEVELS}) - {LEVELS // 2})


_masks = {{torch.library.Library}}("aten", "IMPL")
with {{warnings.catch_warnings}}():
    {{warnings.simplefilter}}("ignore", UserWarning)  # it says that a kernel is replaced
    _masks.impl("bernoulli_.float", _draw_mask, "CPU", with_keyset=True, allow_override=True)
"""
"""The kernel of `_kernel` as lines of a script."""


def _kernel(count: Callable[[str], None]) -> Callable[..., torch.Tensor]:
    """Return the kernel, which calls the present one for small masks and for rates that it cannot represent."""
    present = get_kernel(torch.ops.aten.bernoulli_.float, "CPU")

    def draw(keys: Any, mask: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
        total = mask.numel()
        if total < MIN_ELEMENTS or not MIN_RATE <= p <= 1.0 - MIN_RATE:
            present.call_boxed(keys, mask, p, generator=generator)
            return mask
        count(COUNTER)
        numbers = torch.empty(-(-total // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        quarters = numbers.view(torch.int16)[:total].view(mask.shape)
        return mask.copy_(quarters < round(p * LEVELS) - LEVELS // 2)

    return draw
