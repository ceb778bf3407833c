"""Compute selected layers in bfloat16, and everything between them in float32.

Relieves:  compute: matrix products and convolutions. Other operators are not changed.
Numerics:  rounding: 8 significant bits inside the selected layers. Their outputs are float32, so normalisation, softmax,
           sums and the loss are computed in float32.
Limits:    hardware with native bfloat16; linear layers and convolutions. Each selected layer converts its input and output.
           `precision` converts less often, so it is faster for models that tolerate 16 bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to

MIN_MATMUL_GAIN = 1.05
"""Smallest speed-up of a bfloat16 matrix product over float32 that makes a trial worthwhile."""
LARGE_ELEMENTS = 2**16
"""Smallest weight of the second candidate, in elements: a small product may cost less than its conversions."""

_LAYERS: dict[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear,),
    "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}
_PRODUCTS = {
    "linear": ("mm", "addmm", "linear", "linear_backward", "mkldnn_linear", "mkldnn_linear_backward"),
    "conv": ("convolution", "convolution_backward", "mkldnn_convolution", "cudnn_convolution", "_slow_conv2d_forward"),
}
_KEPT = (
    "native_batch_norm", "_native_batch_norm", "cudnn_batch_norm", "native_layer_norm", "native_group_norm",
    "_fused_rms_norm", "_softmax", "_log_softmax", "nll_loss", "mse_loss", "binary_cross_entropy",
)  # fmt: skip
"""Name prefixes of the operators that must stay in float32."""


@dataclass(frozen=True, kw_only=True)
class ModulePrecision(Optimization):
    """bfloat16 inside selected layers only.

    Attributes:
        kinds: The layers to select: `linear`, `conv` or `linear+conv`.
        min_elements: Smallest number of elements in the weight of a selected layer; 0 selects all.
    """

    kinds: Literal["linear", "conv", "linear+conv"] = "linear+conv"
    min_elements: int = 0

    card: ClassVar[Card] = Card(
        name="module_precision",
        summary="use 16-bit arithmetic in linear layers and convolutions only",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.MODEL,
        source="Micikevicius et al. 2018, Mixed Precision Training (https://arxiv.org/abs/1710.03740)",
        prior=0.4,
        settle_s=2.0,
        claims=frozenset({"autocast"}),
        script_advice="which modules may run in bfloat16 depends on the model: put torch.autocast around those",
    )

    def __post_init__(self) -> None:
        if self.kinds not in ("linear", "conv", "linear+conv"):
            raise ValueError(f"kinds must be linear, conv or linear+conv, not {self.kinds!r}")
        if self.min_elements < 0:
            raise ValueError(f"min_elements must be at least 0, not {self.min_elements}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if such layers exist and the hardware multiplies bfloat16 faster. Only their time can be saved."""
        job, gain = facts.job, facts.bf16_matmul_gain
        if "float32" not in job.param_dtypes:
            return Fit.no(f"the parameters are {', '.join(job.param_dtypes)}, not float32")
        present = [kind for kind, layers in _LAYERS.items() if any(job.module_counts.get(one.__name__) for one in layers)]
        if not present:
            return Fit.no("the model has no linear layer and no convolution")
        if not facts.machine.bfloat16.value:
            return Fit.no(f"this machine has no native bfloat16: {facts.machine.bfloat16.reason}")
        if gain is not None and gain < MIN_MATMUL_GAIN:
            return Fit.no(f"a bfloat16 matrix product runs at only {gain:.2f} times the speed of float32 on this machine")
        share = sum(facts.op_frac.get(op, 0.0) for kind in present for op in _PRODUCTS[kind])
        choices: list[Any] = ["linear+conv", *present] if len(present) > 1 else present
        settings = [cls(kinds=kinds) for kinds in choices]
        if job.num_params >= LARGE_ELEMENTS:
            settings.insert(1, cls(kinds=choices[0], min_elements=LARGE_ELEMENTS))
        return Fit.yes(max_gain_frac=facts.compute_frac * share * (1 - 1 / max(gain or 2.0, 2.0)), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Replace the forward of each selected layer. It has an effect only inside the plan's forward contexts."""
        classes = tuple(layer for kind in self.kinds.split("+") for layer in _LAYERS[kind])
        chosen = [module for module in live.model.modules() if isinstance(module, classes) and self._large(module)]
        if not chosen:
            raise JobError(
                f"module_precision found no float32 layer of kind {self.kinds} whose weight has at least "
                f"{self.min_elements} elements: lower min_elements, or remove module_precision from the plan."
            )
        switch = _Switch()
        undo_context = append_to(live.forward_contexts, switch.turned_on)
        own = [vars(module).get("forward") for module in chosen]
        for module in chosen:
            module.forward = _in_bfloat16(module.forward, live.device.type, switch)

        def undo() -> None:
            for module, forward in zip(chosen, own, strict=True):
                del module.forward
                if forward is not None:
                    module.forward = forward
            undo_context()

        return undo

    def _large(self, module: nn.Module) -> bool:
        weight: Any = module.weight
        return bool(weight.dtype == torch.float32 and weight.numel() >= self.min_elements)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that products returned bfloat16, and that normalisation, softmax and losses did not."""
        products = {op for ops in _PRODUCTS.values() for op in ops}
        half = sum(count for (op, dtype), count in trace.op_dtypes.items() if dtype == "bfloat16" and op in products)
        kept = {"bfloat16": 0, "float32": 0}
        for (op, dtype), count in trace.op_dtypes.items():
            if op.startswith(_KEPT) and dtype in kept:
                kept[dtype] += count
        seen = f"{kept['float32']} in float32, {kept['bfloat16']} in bfloat16"
        return [
            Check("matrix products and convolutions in bfloat16", half > 0, f"{half} in one step"),
            Check("normalisation, softmax and losses kept in float32", kept["bfloat16"] == 0, seen),
        ]


class _Switch:
    """On inside `job.loss` and `job.metric` under the plan, and off elsewhere."""

    def __init__(self) -> None:
        self.on = False

    @contextmanager
    def turned_on(self) -> Iterator[None]:
        """Turn the switch on, as a forward context of the plan."""
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before


def _in_bfloat16(plain: Callable[..., Any], device: str, switch: _Switch) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        dtype = (args[0] if args else kwargs["input"]).dtype
        if not switch.on or dtype != torch.float32:
            return plain(*args, **kwargs)
        # Without autocast's cache: a weight is used only once here, and cached casts break CUDA graphs and recomputation.
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            return plain(*args, **kwargs).to(dtype)

    return forward
