"""Let cuDNN time its convolution kernels for each new shape, and use the fastest.

Relieves:  compute: the kernel that cuDNN chooses by heuristics is not always the fastest.
Numerics:  rounding: other kernels, which sum in a different order. The choice may differ between runs.
Limits:    CUDA with cuDNN. Each new shape costs a search, so shapes that keep changing make training slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError

CONVOLUTIONS = tuple(f"Conv{'Transpose' * transposed}{dims}d" for dims in (1, 2, 3) for transposed in (False, True))
_SWITCH = "torch.backends.cudnn.benchmark"


@dataclass(frozen=True, kw_only=True)
class CudnnBenchmark(Optimization):
    """Convolution kernels chosen by timing."""

    card: ClassVar[Card] = Card(
        name="cudnn_benchmark",
        summary="choose convolution kernels by timing them for each shape",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch documentation, torch.backends.cudnn.benchmark; PyTorch performance tuning guide",
        prior=0.2,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to convolutions on an NVIDIA GPU."""
        if facts.job.device != "cuda":
            return Fit.no(f"cuDNN needs an NVIDIA GPU; the model runs on {facts.job.device}")
        if not facts.machine.torch_build.value.startswith("cuda"):
            return Fit.no(f"this PyTorch build is {facts.machine.torch_build.value}, which has no cuDNN")
        if not any(facts.job.module_counts.get(name) for name in CONVOLUTIONS):
            return Fit.no("the model has no convolution")
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Enable the search."""
        return replace_attribute(torch.backends.cudnn, "benchmark", value=True)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the step has convolutions, and that a new shape runs more kernels the first time than the second."""
        seen = sum(count for op, count in trace.ops.items() if op.startswith("convolution"))
        checks = [Check("convolutions", seen > 0, f"{seen} in one step")]
        if live.device.type != "cuda":
            return [*checks, Check("a search over kernels", passed=False, seen=f"the model runs on {live.device.type}")]
        first, second = _kernels_of_a_new_shape(live)
        return [*checks, Check("a search over kernels", first > second, f"{first} kernels at first, then {second}")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the assignment that enables the search."""
        return (f"{_SWITCH} = True",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set the switch once, unless the script requests deterministic kernels."""
        assigned = script.assignments("torch.backends.cudnn.deterministic")
        places = [place for place, value in assigned if value != "False"]
        places += [call.place for call in script.calls("torch.use_deterministic_algorithms")]
        if places:
            raise UnwritableError(f"the script requests deterministic kernels ({places[0]})")
        return script.assign_once({_SWITCH: "True"})

    def framework_arguments(self) -> dict[str, str]:
        """Return Lightning's argument for the same switch."""
        return {"lightning.Trainer": "benchmark=True"}


def _kernels_of_a_new_shape(live: LiveJob) -> tuple[int, int]:
    """Return the numbers of kernels that the first and the second convolution of a new shape run."""
    width = 32 + perf_counter_ns() % 4096  # search results are cached per shape, so use a shape that is probably new
    inputs = torch.ones(1, 3, 32, width, device=live.device)
    weights = torch.ones(4, 3, 3, 3, device=live.device)

    def count() -> int:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            torch.nn.functional.conv2d(inputs, weights)
            torch.cuda.synchronize(live.device)
        events: Any = profiler.events()
        return len([event for event in events if event.device_type.name == "CUDA"])

    return count(), count()
