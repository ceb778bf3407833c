"""Allow reduced-precision arithmetic in matrix products and convolutions of float32 tensors.

Relieves:  compute: products of float32 tensors, if autocast (`precision`) is not used or keeps them in float32.
Numerics:  rounding: inputs of products are rounded to 11 (tf32) or 8 (bf16) significant bits. Sums stay in float32.
Limits:    tf32 on NVIDIA GPUs with compute capability 8.0 or later; bf16 on x86 processors with AMX. It is set with
           `fp32_precision`, which PyTorch does not allow together with `allow_tf32` or `set_float32_matmul_precision`.

Processors with AVX512_BF16 but no AMX are not supported. They accept the setting but still compute in float32, because
oneDNN in PyTorch 2.13 has no such kernels for them. Autocast does use their instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Literal

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import NothingToWriteError, SourceEdits, UnwritableError

REDUCED_ERROR = 1e-5
"""Relative error above which a product is not float32. One rounding is 2**-24 in float32, 2**-11 in tf32, 2**-8 in bf16."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "mkldnn_linear")
_SWITCHES = {
    "tf32": ("cuda.matmul", "cudnn.conv", "cudnn.rnn"),
    "bf16": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
}
"""Modules below torch.backends that have the switch `fp32_precision`, by kind of arithmetic."""
_OLDER = ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")
_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class MatmulPrecision(Optimization):
    """Reduced precision within products of float32 tensors.

    Attributes:
        kind: `tf32` (CUDA) or `bf16` (CPU).
    """

    kind: Literal["tf32", "bf16"] = "tf32"

    card: ClassVar[Card] = Card(
        name="matmul_precision",
        summary="use faster, less exact arithmetic in products of float32 tensors",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch documentation, torch.backends, fp32_precision; CUDA semantics, TensorFloat-32",
        prior=0.4,
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.kind not in ("tf32", "bf16"):
            raise ValueError(f"kind must be tf32 or bf16, not {self.kind!r}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to float32 models on a device that supports reduced-precision products of float32 tensors."""
        machine, device = facts.machine, facts.job.device
        if "float32" not in facts.job.param_dtypes:
            return Fit.no(f"the parameters are {', '.join(facts.job.param_dtypes)}, not float32")
        gain = facts.compute_frac * 0.75
        if device == "cuda":
            if not machine.torch_build.value.startswith("cuda"):
                return Fit.no(f"tf32 needs an NVIDIA GPU; this PyTorch build is {machine.torch_build.value}")
            if not machine.bfloat16.value:  # both were introduced with compute capability 8.0
                return Fit.no(f"this GPU does not support tf32: {machine.bfloat16.reason}")
            return Fit.yes(max_gain_frac=gain, settings=[cls(kind="tf32")])
        if device == "cpu":
            if "amx_bf16" not in machine.cpu_flags:
                return Fit.no("the processor has no AMX, so PyTorch always computes products of float32 tensors in float32")
            return Fit.yes(max_gain_frac=gain, settings=[cls(kind="bf16")])
        return Fit.no(f"there is no such switch for {device}")

    def apply(self, live: LiveJob) -> Undo:
        """Set the switches of the device's library. The undo restores their values."""
        undos = [replace_attribute(switch, "fp32_precision", self.kind) for switch in _switches(self.kind)]

        def undo() -> None:
            for restore in undos:
                restore()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the step has products of float32 tensors, and that such products are now less exact than float32."""
        checks = []
        kinds: list[tuple[str, tuple[str, ...], Callable[[Any, Any], torch.Tensor], tuple[int, ...]]] = [
            ("matrix products", PRODUCTS, torch.matmul, (_SIZE, _SIZE)),
            ("convolutions", ("convolution",), torch.nn.functional.conv2d, (32, 32, 16, 16)),
        ]
        for words, ops, compute, shape in kinds:
            seen = sum(count for (op, dtype), count in trace.op_dtypes.items() if dtype == "float32" and op in ops)
            if seen:
                error = relative_error(compute, shape, live.device)
                checks.append(Check(f"{words} in {self.kind}", error > REDUCED_ERROR, f"{seen}, relative error {error:.1e}"))
        return checks or [Check("products of float32 tensors", passed=False, seen="0 in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the assignments of the switches."""
        return tuple(f'{name} = "{self.kind}"' for name in _names(self.kind))

    def write_patch(self, script: SourceEdits) -> str:
        """Set the switches once."""
        older = [call.place for call in script.calls("torch.set_float32_matmul_precision")]
        older += [place for name in _OLDER for place, _ in script.assignments(name)]
        if older:
            raise UnwritableError(f"PyTorch does not allow these switches together with the older ones set at {older[0]}")
        for name in _names(self.kind):
            for place, _ in script.assignments(name):
                raise NothingToWriteError(f"the script already sets fp32_precision ({place})")
        return script.assign_once(dict.fromkeys(_names(self.kind), f'"{self.kind}"'))


def relative_error(compute: Callable[[Any, Any], torch.Tensor], shape: tuple[int, ...], device: torch.device) -> float:
    """Return the relative error of `compute(a, b)` in float32 against float64, for random tensors of a shape."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    exact = compute(a.double(), b.double())
    return float((compute(a, b).double() - exact).norm() / exact.norm())


def _switches(kind: str) -> list[Any]:
    return [attrgetter(name)(torch.backends) for name in _SWITCHES[kind]]


def _names(kind: str) -> list[str]:
    return [f"torch.backends.{name}.fp32_precision" for name in _SWITCHES[kind]]
