"""Treat denormal numbers as zero, because many processors handle them in slow microcode.

Relieves:  compute: activations or gradients that vanish (below about 1e-38 in float32) no longer slow down operators.
Numerics:  rounding: denormal numbers become zero.
Limits:    CPU training, on processors with this switch (x86 with SSE3, 64-bit Arm). It affects all operators of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import MachineError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.openmp import count_denormals_kept, take_denormals_for_zero
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits

WORTH = 1.1
"""Smallest speed-up that counts. On a quiet machine, single measurements of a few updates differ by less."""
LIKELY = 0.7
"""Prior probability of a gain if a few updates were faster."""
_WORK = 2**18  # elements per thread: several times PyTorch's smallest share (at::internal::GRAIN_SIZE)


@dataclass(frozen=True, kw_only=True)
class FlushDenormals(Optimization):
    """Denormal numbers treated as zero."""

    card: ClassVar[Card] = Card(
        name="flush_denormals",
        summary="treat denormal numbers (too small for a normal float) as zero",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch documentation, torch.set_flush_denormal",
        prior=0.02,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies on a CPU if a few updates of the job were faster with it."""
        if facts.job.device != "cpu":
            return Fit.no(f"the model runs on {facts.job.device}, which has no such switch")
        gain = facts.form_gains.get("flushed")
        if gain is None:
            return Fit.no("the cost of denormal numbers was not measured: arithmetic takes less than half of the time")
        if gain < WORTH:
            return Fit.no(f"treating denormal numbers as zero did not make a few updates faster: {gain:.2f}x")
        return Fit.yes(max_gain_frac=1.0 - 1.0 / gain, settings=[cls()], prior=LIKELY)

    def apply(self, live: LiveJob) -> Undo:
        """Set the switch on this thread and on its OpenMP threads."""
        before = count_denormals_kept(1) == 0
        if not take_denormals_for_zero(on=True):
            raise MachineError("This processor cannot flush denormal numbers: remove flush_denormals from the plan.")

        def undo() -> None:
            take_denormals_for_zero(on=before)

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that denormal results are zero on every thread."""
        total = _WORK * torch.get_num_threads()
        kept = count_denormals_kept(total)
        return [Check("denormal results that became zero", kept == 0, f"{total - kept} of {total}")]

    def write_patch(self, script: SourceEdits) -> str:
        """Set the flag before other threads start, because they inherit it."""
        return script.call_once("torch.set_flush_denormal", "True")
