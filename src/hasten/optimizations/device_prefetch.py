"""Copy the next batch to the GPU while the current batch is trained on.

Relieves:  transfer: the copy runs on its own CUDA stream, in parallel with the kernels.
Numerics:  exact: the same bytes. The training stream waits for the copy of its batch.
Limits:    CUDA devices. It needs GPU memory for one more batch, and page-locked batches, because other copies block the
           host.
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
    """Prefetch of one batch to the GPU."""

    card: ClassVar[Card] = Card(
        name="device_prefetch",
        summary="copy the next batch to the GPU while the current batch is trained on",
        relieves=Bottleneck.TRANSFER,
        numerics=Numerics.EXACT,
        seam=Seam.LOADER,
        source="NVIDIA Apex, examples/imagenet, data_prefetcher; PyTorch documentation, torch.Tensor.record_stream",
        prior=0.6,
        script_advice="the script copies its batches itself: copy the next batch on a separate torch.cuda.Stream",
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies on a CUDA device."""
        if facts.job.device != "cuda":
            return Fit.no(f"the job runs on {facts.job.device}: only a CUDA device can copy while its kernels run")
        if facts.job.device_prefetch:
            return Fit.no("batches are already prefetched to the GPU")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("transfer"), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Enable the prefetch in the loader."""
        if live.device.type != "cuda":
            raise JobError(f"device_prefetch needs a CUDA device, not {live.device}: remove it from the plan.")
        old = live.loader
        live.loader = replace(old, device_prefetch=True, pin_memory=True)

        def undo() -> None:
            live.loader = old

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the batches of the step were copied on a separate stream."""
        count = int(trace.counters.get("batches_copied_ahead", 0))
        return [Check("batches prefetched to the GPU", count > 0, f"{count} batches")]
