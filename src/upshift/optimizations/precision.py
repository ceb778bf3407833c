"""Run the forward pass under autocast, so that matrix products and convolutions use 16-bit arithmetic.

Relieves:  compute: more products per cycle and half the bytes moved.
Numerics:  rounding: 8 (bfloat16) or 11 (float16) significant bits; autocast keeps reductions and losses in float32.
Limits:    bfloat16 where the device has it in hardware; float16 on CUDA only, with a gradient scaler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from upshift.core.facts import Facts
from upshift.core.live import LiveJob, Seam, Undo, append_to
from upshift.core.optimization import Bottleneck, Card, Check, Fit, Numerics, Optimization, StepTrace

MIN_MATMUL_GAIN = 1.05


@dataclass(frozen=True, kw_only=True)
class Precision(Optimization):
    """Autocast.

    Attributes:
        dtype: `bfloat16`, or `float16` with a gradient scaler (CUDA only).
    """

    dtype: Literal["bfloat16", "float16"] = "bfloat16"

    card: ClassVar[Card] = Card(
        name="precision",
        summary="16-bit arithmetic in the forward and backward pass (autocast)",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source="PyTorch documentation, torch.amp; Micikevicius et al. 2018, Mixed Precision Training",
        hoped_gain=(
            "training 1.5x to 5.5x faster over float32 on V100 GPUs, an additional 1.3x to 2.5x on A100 GPUs "
            "(https://pytorch.org/blog/what-every-user-should-know-about-mixed-precision-training-in-pytorch)"
        ),
        saves_memory=True,
        prior=0.6,
        claims=frozenset({"autocast"}),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the hardware has the type and a measured matrix product is really faster in it."""
        if all(name != "float32" for name in facts.job.param_dtypes):
            return Fit.no(f"the parameters are {', '.join(facts.job.param_dtypes)} already")
        cuda = facts.job.device == "cuda"
        settings = [cls(dtype="bfloat16")] if facts.machine.bfloat16.value else []
        if cuda and facts.machine.float16.value:
            settings.append(cls(dtype="float16"))
        if not settings:
            return Fit.no(f"no native 16-bit arithmetic here: {facts.machine.bfloat16.reason}")
        gain = facts.bf16_matmul_gain
        if gain is not None and gain < MIN_MATMUL_GAIN and facts.machine.bfloat16.value:
            return Fit.no(f"a bfloat16 matrix product runs at {gain:.2f} times the speed of float32 here: nothing to gain")
        return Fit.yes(max_gain_frac=facts.compute_frac * (1 - 1 / max(gain or 2.0, 2.0)), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Wrap `job.loss` in autocast; float16 gets a gradient scaler."""
        dtype = getattr(torch, self.dtype)
        device = live.device.type
        undo_context = append_to(live.forward_contexts, lambda: torch.autocast(device, dtype=dtype))
        if self.dtype == "bfloat16":
            return undo_context
        live.scaler = torch.amp.GradScaler(device)

        def undo() -> None:
            live.scaler = None
            undo_context()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Operators really gave 16-bit results."""
        heavy = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "mkldnn_linear")
        seen = sum(count for (op, dtype), count in trace.op_dtypes.items() if dtype == self.dtype and op.startswith(heavy))
        return [Check(f"matrix products or convolutions in {self.dtype}", seen > 0, f"{seen} in one step")]
