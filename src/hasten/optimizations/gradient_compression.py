"""Send gradients as 16-bit numbers.

Relieves:  communication: half the bytes for float32 gradients.
Numerics:  rounding: each rank's gradient is rounded to 8 (bfloat16) or 11 (float16) significant bits before the sum.
Limits:    needs the buckets of gradient_buckets. float16 overflows above 65504 and underflows below 6e-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError
from hasten.optimizations.parts.buckets import Future, GradBucket, bucket_sync, why_no_sum


@dataclass(frozen=True, kw_only=True)
class GradientCompression(Optimization):
    """Gradients in 16 bits between the ranks. The optimizer uses them in their own dtype, as before.

    Attributes:
        dtype: `bfloat16` has the range of float32; `float16` has more digits.
    """

    dtype: Literal["bfloat16", "float16"] = "bfloat16"

    card: ClassVar[Card] = Card(
        name="gradient_compression",
        summary="send gradients between the ranks as 16-bit numbers",
        relieves=Bottleneck.COMMUNICATION,
        numerics=Numerics.ROUNDING,
        seam=Seam.BACKWARD,
        source="PyTorch documentation, DDP communication hooks, `bf16_compress_hook` and `fp16_compress_hook`",
        prior=0.4,
        claims=frozenset({"gradient compression"}),
        after=("gradient_buckets",),
        conflicts=("sharding",),
        script_advice="the script wraps its model itself: model.register_comm_hook(None, bf16_compress_hook)",
        left_to={
            "lightning": "Trainer(strategy=DDPStrategy(ddp_comm_hook=...))",
        },
    )

    def __post_init__(self) -> None:
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError(f"dtype must be bfloat16 or float16, not {self.dtype!r}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if gradients in buckets have more than 16 bits. At most half of the time of their sum can be saved."""
        if refusal := why_no_sum(facts, "buckets"):
            return Fit.no(refusal)
        if not {"float32", "float64"} & set(facts.job.param_dtypes):
            return Fit.no(f"the gradients are already {', '.join(facts.job.param_dtypes)}")
        settings = [cls(dtype="bfloat16"), cls(dtype="float16")]
        return Fit.yes(max_gain_frac=facts.phase_frac.get("sync", 0.0) / 2, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Replace the plain sum of a bucket."""
        compressor = partial(_average_rounded, getattr(torch, self.dtype))
        return replace_attribute(bucket_sync(live, self.card.name), "compressor", compressor)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that fewer bytes were sent than the gradients take."""
        sent, total = (int(trace.counters.get(name, 0)) for name in ("bucket_bytes_sent", "bucket_bytes"))
        return [Check("fewer bytes sent than the gradients take", 0 < sent < total, f"{sent} of {total} bytes")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: scripts are tuned in one process."""
        name = "bf16_compress_hook" if self.dtype == "bfloat16" else "fp16_compress_hook"
        raise UnwritableError(
            "it depends on parts of the script that Hasten does not read",
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
            f"model.register_comm_hook(None, default_hooks.{name})  # of a DistributedDataParallel",
        )


def _average_rounded(dtype: torch.dtype, bucket: GradBucket) -> tuple[Future, int]:
    """Start to average a bucket as 16-bit numbers. Returns the future and the number of bytes sent."""
    buffer = bucket.buffer()
    # torch's own hooks do the same, but the one for bfloat16 requires NCCL, although gloo can sum bfloat16.
    small = buffer.to(dtype).div_(dist.get_world_size())
    work: Any = dist.all_reduce(small, async_op=True)
    future: Future = work.get_future().then(lambda done: buffer.copy_(done.value()[0]))
    return future, small.numel() * small.element_size()
