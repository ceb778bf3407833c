"""Choose the kernel that computes scaled dot-product attention.

Relieves:  compute: fused kernels never store the attention matrix. The plain formula can be faster for short sequences.
Numerics:  rounding: softmax is computed in blocks, and sums are taken in a different order.
Limits:    models that call torch.nn.functional.scaled_dot_product_attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.attention import SDPBackend, sdpa_kernel

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.source_edits import NothingToWriteError, SourceEdits

Backend = Literal["flash", "efficient", "math", "cudnn"]

_KERNELS: dict[str, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
LIKELY = 0.5
"""Prior probability of a gain if the plain formula runs now and a few updates were faster without it."""
_PLAIN_OPS = ("bmm", "baddbmm", "_safe_softmax", "_softmax", "_softmax_backward_data")


@dataclass(frozen=True, kw_only=True)
class AttentionBackend(Optimization):
    """The attention kernel.

    Attributes:
        backend: `flash`, `efficient` (CUDA), `cudnn` (CUDA) or `math` (the plain formula).
    """

    backend: Backend = "flash"

    card: ClassVar[Card] = Card(
        name="attention_backend",
        summary="use another kernel for scaled dot-product attention",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source="PyTorch documentation, torch.nn.attention.sdpa_kernel; Dao et al. 2022, FlashAttention",
        hoped_gain=(
            "15 % faster on BERT-large at length 512, 3x on GPT-2 at length 1K, end to end on a GPU "
            "(https://huggingface.co/papers/2205.14135)"
        ),
        saves_memory=True,
        prior=0.1,
        claims=frozenset({"attention"}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the model calls the attention function. The candidates are the kernels that it does not use now."""
        attention = [op for op in facts.op_counts if "scaled_dot_product" in op]
        if not attention:
            return Fit.no("the model never calls torch.nn.functional.scaled_dot_product_attention")
        now = {name for name in _KERNELS if any(name in op for op in attention)}
        on_cuda = facts.job.device == "cuda"
        available: tuple[Backend, ...] = ("flash", "efficient", "cudnn", "math") if on_cuda else ("flash", "math")
        settings = [cls(backend=name) for name in available if name not in now]
        if not settings:
            return Fit.no(f"{', '.join(sorted(now))} is the only attention kernel on {facts.job.device}")
        if "math" in now and "attention" in facts.form_gains:
            return Fit.yes(max_gain_frac=facts.form_frac("attention", 1.0), settings=settings, prior=LIKELY)
        # The plain formula is composed of other operators, and has no time of its own. Their times give the upper bound.
        ops = [*attention, *(_PLAIN_OPS if "math" in now else ())]
        share = sum(facts.op_frac.get(op, 0.0) for op in ops)
        return Fit.yes(max_gain_frac=facts.compute_frac * share, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Select the kernel, with the plain formula as the fallback for inputs that it does not support."""
        allowed = list(dict.fromkeys([_KERNELS[self.backend], SDPBackend.MATH]))
        return append_to(live.forward_contexts, lambda: sdpa_kernel(allowed, set_priority=True))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the kernel ran: by its own operator, or for the plain formula by the absence of fused operators."""
        fused = {op: count for op, count in trace.ops.items() if "scaled_dot_product" in op and "math" not in op}
        if self.backend == "math":
            plain = sum(count for op, count in trace.ops.items() if "softmax" in op and "backward" not in op)
            seen_plain = f"{plain} softmax, {sum(fused.values())} fused calls in one step"
            return [Check("softmax from the plain formula, no fused kernel", plain > 0 and not fused, seen_plain)]
        seen = sum(count for op, count in fused.items() if self.backend in op)
        return [Check(f"{self.backend} attention kernels", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the context to put around the forward pass."""
        allowed = ", ".join(f"SDPBackend.{name}" for name in self._allowed())
        return (
            "from torch.nn.attention import SDPBackend, sdpa_kernel",
            f"with sdpa_kernel([{allowed}], set_priority=True):",
            "    output = model(inputs)",
        )

    def write_patch(self, script: SourceEdits) -> str:
        """Wrap the forward pass in `sdpa_kernel`."""
        for call in script.calls("torch.nn.attention.sdpa_kernel"):
            raise NothingToWriteError(f"the script already uses sdpa_kernel ({call.place})")
        forward, allowed = script.forward(), self._allowed()
        backends = ", ".join(f"{{torch.nn.attention.SDPBackend}}.{name}" for name in allowed)
        forward.wrap(f"with {{torch.nn.attention.sdpa_kernel}}([{backends}], set_priority=True):")
        return f"the forward pass at {forward.place} under sdpa_kernel, {' before '.join(allowed)}"

    def _allowed(self) -> list[str]:
        return list(dict.fromkeys([_KERNELS[self.backend].name, SDPBackend.MATH.name]))
