"""Copy the next batch to the GPU while the present one is trained on.

Relieves:  transfer: the copy runs on a CUDA stream of its own, beside the kernels.
Numerics:  exact: the same bytes; the stream that trains waits for the copy of its batch.
Limits:    CUDA devices; one more batch in the GPU's memory; batches are page-locked, else a copy makes the host wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo


@dataclass(frozen=True, kw_only=True)
class DevicePrefetch(Optimization):
    """One batch copied ahead."""

    card: ClassVar[Card] = Card(
        name="device_prefetch",
        summary="the next batch is copied to the GPU while the present one is trained on",
        relieves=Bottleneck.TRANSFER,
        numerics=Numerics.EXACT,
        seam=Seam.LOADER,
        source="NVIDIA Apex, examples/imagenet, data_prefetcher; PyTorch documentation, torch.Tensor.record_stream",
        prior=0.6,
        script_advice="the script moves its batches itself: move the next one on a torch.cuda.Stream meanwhile",
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit on a CUDA device."""
        if facts.job.device != "cuda":
            return Fit.no(f"the job runs on {facts.job.device}: only a CUDA device copies beside its kernels")
        if facts.job.device_prefetch:
            return Fit.no("batches are copied ahead already")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("transfer"), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Set the loader."""
        if live.device.type != "cuda":
            raise JobError(f"device_prefetch needs a CUDA device, not {live.device}: take it out of the plan.")
        old = live.loader
        live.loader = replace(old, device_prefetch=True, pin_memory=True)

        def undo() -> None:
            live.loader = old

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The step's batches were copied on a stream of their own."""
        count = int(trace.counters.get("batches_copied_ahead", 0))
        return [Check("batches copied ahead", count > 0, f"{count} batches")]
