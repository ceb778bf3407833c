"""Treat numbers too small for a normal float as zero: many processors handle them in slow microcode.

Relieves:  compute: activations or gradients that fade out (below about 1e-38 in float32) stop costing extra.
Numerics:  rounding: such numbers become zero.
Limits:    CPU training; processors that can (x86 with SSE3, 64-bit Arm); takes effect for every operator of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import MachineError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits
from hasten.core.system import count_denormals_kept, take_denormals_for_zero

WORTH = 1.1
"""A few updates measured once differ by less on a quiet machine."""
LIKELY = 0.7
_WORK = 2**18  # elements: several times what PyTorch gives one thread at least (at::internal::GRAIN_SIZE)


@dataclass(frozen=True, kw_only=True)
class FlushDenormals(Optimization):
    """Denormal numbers become zero."""

    card: ClassVar[Card] = Card(
        name="flush_denormals",
        summary="numbers too small for a normal float count as zero",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch documentation, torch.set_flush_denormal",
        prior=0.02,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit on a CPU, where a few updates of the job were faster with it."""
        if facts.job.device != "cpu":
            return Fit.no(f"the model runs on {facts.job.device}, which has no such switch")
        gain = facts.form_gains.get("flushed")
        if gain is None:
            return Fit.no("what denormal numbers cost was not measured: the arithmetic takes less than half of the time")
        if gain < WORTH:
            return Fit.no(f"taking such numbers for zero made a few updates no faster: {gain:.2f}x")
        return Fit.yes(max_gain_frac=1.0 - 1.0 / gain, settings=[cls()], prior=LIKELY)

    def apply(self, live: LiveJob) -> Undo:
        """Set it on this thread and on its OpenMP threads."""
        before = count_denormals_kept(1) == 0
        if not take_denormals_for_zero(on=True):
            raise MachineError("This processor cannot flush denormal numbers: take flush_denormals out of the plan.")

        def undo() -> None:
            take_denormals_for_zero(on=before)

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The smallest number doubled is zero, on whichever thread that is done."""
        total = _WORK * torch.get_num_threads()
        kept = count_denormals_kept(total)
        return [Check("denormal results that became zero", kept == 0, f"{total - kept} of {total}")]

    def write_patch(self, script: SourceEdits) -> str:
        """Set the flag before other threads start, which inherit it."""
        return script.call_once("torch.set_flush_denormal", "True")
