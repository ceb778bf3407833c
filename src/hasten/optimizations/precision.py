"""Run the forward pass under autocast, so that matrix products and convolutions use 16-bit arithmetic.

Relieves:  compute: more products per cycle, and half the memory traffic.
Numerics:  rounding: 8 (bfloat16) or 11 (float16) significant bits. Autocast keeps reductions and losses in float32.
Limits:    bfloat16 on devices with hardware support for it; float16 on CUDA only, with a gradient scaler.

On CPUs, the C library is made to keep freed memory, see `parts/kept_memory.py`. The fused attention of PyTorch 2.13 is two
to three times slower there in bfloat16 than in float32, especially in its backward pass. This can cost more than all matrix
products gain, so attention may be kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch.nn import functional as F  # noqa: N812  the conventional name

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to, replace_attribute
from hasten.core.source_edits import NothingToWriteError, SourceCall, SourceEdits, UnwritableError
from hasten.optimizations.parts.kept_memory import keep_freed_memory, pays_on_this_machine, write_kept_memory

MIN_MATMUL_GAIN = 1.05
"""Smallest speed-up of a bfloat16 matrix product over float32 that makes a trial worthwhile."""
_FRAMEWORKS = ("accelerate.Accelerator", "lightning.Fabric", "lightning.Trainer")
"""Classes with an argument for autocast that has the same effect, on every device."""
_ATTENTION = "scaled_dot_product_attention"
_COUNTER = "attention_in_float32"
_NO_SCALER = "float16 also needs a gradient scaler around the backward pass and the optimizer step"
_UNSAFE = (
    "torch.nn.BCELoss", "torch.nn.modules.loss.BCELoss",
    "torch.nn.functional.binary_cross_entropy", "torch.binary_cross_entropy",
)  # fmt: skip
"""Losses that CUDA's autocast refuses to compute, see the documentation of torch.amp."""
_OWN_AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
"""Names of autocast for any device. The others are for one device only."""
_AUTOCASTS = (
    *_OWN_AUTOCASTS, "torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast", "torch.cpu.amp.autocast",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Precision(Optimization):
    """Autocast.

    Attributes:
        dtype: `bfloat16`, or `float16` with a gradient scaler (CUDA only).
        attention: `autocast` leaves torch.nn.functional.scaled_dot_product_attention to autocast; `float32` computes it in
            float32.
    """

    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    attention: Literal["autocast", "float32"] = "autocast"

    card: ClassVar[Card] = Card(
        name="precision",
        summary="use 16-bit arithmetic in the forward and backward pass (autocast)",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source="PyTorch documentation, torch.amp; Micikevicius et al. 2018, Mixed Precision Training",
        hoped_gain=(
            "training 1.5x to 5.5x faster than float32 on V100 GPUs, and another 1.3x to 2.5x on A100 GPUs "
            "(https://pytorch.org/blog/what-every-user-should-know-about-mixed-precision-training-in-pytorch)"
        ),
        saves_memory=True,
        prior=0.6,
        settle_s=2.0,
        claims=frozenset({"autocast"}),
        traits=frozenset({Trait.LOWER_PRECISION}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the hardware supports the type, and a measured matrix product is faster in it."""
        if all(name != "float32" for name in facts.job.param_dtypes):
            return Fit.no(f"the parameters are already {', '.join(facts.job.param_dtypes)}")
        cuda = facts.job.device == "cuda"
        attends = any("scaled_dot_product" in op for op in facts.op_counts)
        settings = [cls(dtype="bfloat16")] if facts.machine.bfloat16.value else []
        if settings and attends and not cuda:
            settings.insert(0, cls(dtype="bfloat16", attention="float32"))
        if cuda and facts.machine.float16.value:
            settings.append(cls(dtype="float16"))
        if not settings:
            return Fit.no(f"this machine has no native 16-bit arithmetic: {facts.machine.bfloat16.reason}")
        gain = facts.bf16_matmul_gain
        if gain is not None and gain < MIN_MATMUL_GAIN and facts.machine.bfloat16.value:
            return Fit.no(f"a bfloat16 matrix product runs at only {gain:.2f} times the speed of float32 on this machine")
        return Fit.yes(max_gain_frac=facts.compute_frac * (1 - 1 / max(gain or 2.0, 2.0)), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Wrap `job.loss` in autocast. For float16, also set a gradient scaler. On a CPU, glibc keeps freed memory."""
        if pays_on_this_machine():
            keep_freed_memory()
        dtype = getattr(torch, self.dtype)
        device = live.device.type
        undos = [append_to(live.forward_contexts, lambda: torch.autocast(device, dtype=dtype))]
        if self.attention == "float32":
            undos.append(replace_attribute(F, _ATTENTION, _in_float32(getattr(F, _ATTENTION), lambda: live.count(_COUNTER))))
        if self.dtype == "float16":
            undos.append(replace_attribute(live, "scaler", torch.amp.GradScaler(device)))

        def undo() -> None:
            for each in reversed(undos):
                each()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that operators returned 16-bit tensors."""
        heavy = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "mkldnn_linear")
        seen = sum(count for (op, dtype), count in trace.op_dtypes.items() if dtype == self.dtype and op.startswith(heavy))
        checks = [Check(f"matrix products or convolutions in {self.dtype}", seen > 0, f"{seen} in one step")]
        if self.attention == "float32":
            # Without a fused kernel, as under dropout on a CPU, attention has no operator of its own: its calls are counted.
            calls = int(trace.counters.get(_COUNTER, 0))
            half = sum(
                count for (op, dtype), count in trace.op_dtypes.items() if "scaled_dot_product" in op and dtype == self.dtype
            )
            seen_calls = f"{calls} calls in float32, {half} operators in {self.dtype}"
            checks.append(Check("attention in float32", calls > 0 and not half, seen_calls))
        return checks

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Return the setting of a Trainer, which includes the gradient scaler."""
        if framework == "lightning":
            mixed = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}[self.dtype]
            return "" if given.precision == mixed else f'set Trainer(precision="{mixed}").'
        switch = {"bfloat16": "bf16", "float16": "fp16"}[self.dtype]
        return "" if getattr(given, switch) else f"set TrainingArguments({switch}=True)."

    def by_hand(self) -> tuple[str, ...]:
        """Return the lines that put the forward pass and the loss under autocast, for float16 with a gradient scaler."""
        lines = [
            f"with torch.autocast(device_type, dtype=torch.{self.dtype}):",
            "    output = model(inputs)",
            "    loss = ...",
        ]
        if self.attention == "float32":
            lines += ["with torch.autocast(device_type, enabled=False):", "    # attention in float32", "    ..."]
        if self.dtype == "float16":
            scaled = ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
            lines = ["scaler = torch.amp.GradScaler(device_type)", *lines, *scaled]
        return tuple(lines)

    def write_patch(self, script: SourceEdits) -> str:
        """Wrap the forward pass and the loss in autocast, or set the argument of the framework that has its own."""
        written = [self._write_autocast(script)]
        if self.attention == "float32":
            written.append(script.at_the_start(*_SOURCE.splitlines(), said="attention in float32"))
        if pays_on_this_machine():
            written.append(write_kept_memory(script))
        return "; ".join(written)

    def _write_autocast(self, script: SourceEdits) -> str:
        if own := self._own_autocast(script):
            if self.dtype == "float16":
                raise UnwritableError(_NO_SCALER)
            return own.set({"enabled": "True", "dtype": f"{{torch.{self.dtype}}}"})
        made = [(call, self.framework_arguments()[name]) for name in _FRAMEWORKS for call in script.calls(name)]
        if len(made) == 1:
            call, argument = made[0]
            name, _, value = argument.partition("=")
            return call.set({name: value})
        if self.dtype == "float16":
            raise UnwritableError(_NO_SCALER)
        forward = script.forward()
        if forward.library:
            raise UnwritableError(f"{forward.library} runs the backward pass, and has its own setting for autocast")
        unsafe = script.calls(*_UNSAFE)
        if unsafe and forward.device_type != '"cpu"':
            raise UnwritableError(
                f"{unsafe[0].name} ({unsafe[0].place}) fails under autocast on GPUs, so it must stay outside",
                f"with torch.autocast(device_type, dtype=torch.{self.dtype}):", "    output = model(inputs)",
                "loss = ...  # of output.float()",
            )  # fmt: skip
        forward.wrap(f"with {{torch.autocast}}({forward.device_type}, dtype={{torch.{self.dtype}}}):")
        return f"the forward pass and the loss at {forward.place} under autocast in {self.dtype}"

    def _own_autocast(self, script: SourceEdits) -> SourceCall | None:
        """Return the script's own autocast around the forward pass, if a switch decides whether it is on.

        It was off when this plan was proved, or another context was in its place: otherwise nothing would have been gained.

        Raises:
            NothingToWriteError: The script's own autocast is always on.
        """
        used = [call for call in script.calls(*_AUTOCASTS) if call.given.get("enabled") != "False"]  # False: a part opts out
        if not used:
            return None
        already = NothingToWriteError(f"the script already uses autocast ({used[0].place}): set dtype=torch.{self.dtype}")
        try:
            forward = script.forward()
        except UnwritableError:
            raise already from None
        own = forward.context(_OWN_AUTOCASTS, "device_type", "dtype", "enabled", "cache_enabled")
        if own is not None and own.given.get("enabled", "True") not in ("True", "False"):
            return own
        if forward.context(_AUTOCASTS) is not None:
            raise already
        return None

    def framework_arguments(self) -> dict[str, str]:
        """Return the arguments of frameworks that run training. They include the gradient scaler."""
        short = {"bfloat16": "bf16", "float16": "fp16"}[self.dtype]
        mixed = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}[self.dtype]
        return {
            "accelerate.Accelerator": f'mixed_precision="{short}"',
            "lightning.Fabric": f'precision="{mixed}"',
            "lightning.Trainer": f'precision="{mixed}"',
            "transformers.TrainingArguments": f"{short}=True",
        }


_SOURCE = """\
_attend = {torch.nn.functional.scaled_dot_product_attention}


def _attend_in_float32(query, key, value, attn_mask=None, *args, **kwargs):  # not in autocast's type
    kind = query.device.type
    if not {torch.is_autocast_enabled}(kind) or query.dtype == {torch.float64}:
        return _attend(query, key, value, attn_mask, *args, **kwargs)
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.float()
    with {torch.autocast}(kind, enabled=False):
        output = _attend(query.float(), key.float(), value.float(), attn_mask, *args, **kwargs)
    return output.to({torch.get_autocast_dtype}(kind))


{torch.nn.functional.scaled_dot_product_attention} = _attend_in_float32
"""
"""`_in_float32` as lines of a script."""


def _in_float32(plain: Callable[..., torch.Tensor], count: Callable[[], None] = lambda: None) -> Callable[..., torch.Tensor]:
    """Return an attention function that computes in float32 under autocast, and returns autocast's dtype.

    Args:
        plain: The attention function.
        count: Called at each computation in float32, but not in compiled graphs.
    """

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = query.device.type
        if not torch.is_autocast_enabled(device) or query.dtype == torch.float64:
            return plain(query, key, value, *args, **kwargs)
        if not torch.compiler.is_compiling():
            count()
        with torch.autocast(device, enabled=False):
            exact = [_single(part) for part in (query, key, value, *args)]
            output = plain(*exact, **{name: _single(part) for name, part in kwargs.items()})
        return output.to(torch.get_autocast_dtype(device))

    return attend


def _single(value: Any) -> Any:
    """Convert a floating-point tensor to float32. Return other values, such as boolean masks, unchanged."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
