"""Compile the model with torch.compile for validation only.

Relieves:  validation: element-wise operators are fused, so the forward pass without gradients has fewer kernels.
Numerics:  rounding: training does not change. The held-out metric comes from fused kernels that sum in a different order.
Limits:    needs a C++ compiler on a CPU. Compilation takes seconds to minutes once, which a few short validation passes do
           not save. `compile` compiles the model for validation too, so the two exclude each other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.packing import keep_out_of_graphs
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.source_edits import SourceEdits, UnwritableError

COUNTER = "validation_compiled_graphs"


@dataclass(frozen=True, kw_only=True)
class ValidationCompile(Optimization):
    """torch.compile of the root module's call, in validation passes only."""

    card: ClassVar[Card] = Card(
        name="validation_compile",
        summary="compile the model with torch.compile for validation passes only",
        relieves=Bottleneck.VALIDATION,
        numerics=Numerics.ROUNDING,
        seam=Seam.AROUND,
        source="PyTorch documentation, torch.compile; Ansel et al. 2024, PyTorch 2",
        prior=0.2,
        setup_s=25.0,
        event="validation",
        conflicts=("compile",),
        script_advice="the script has its own validation: call torch.compile(model) in it",
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if validation takes time and a compiler is available. Only a trial can show whether it pays."""
        if facts.job.device == "cpu" and facts.machine.cxx_compiler.value is None:
            return Fit.no(f"torch.compile needs a C++ compiler here: {facts.machine.cxx_compiler.reason}")
        if facts.epoch_s > 0 and facts.validation_s <= 0:
            return Fit.no("no validation was measured: there is no held-out data")
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.validation_s), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the model's call by the compiled one during validation passes."""
        keep_out_of_graphs()
        forget = append_to(live.around.validation_contexts, _CompiledCalls(live))

        def undo() -> None:
            forget()
            torch.compiler.reset()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that compiled graphs ran in validation and that training is not compiled."""
        graphs = int(trace.counters.get(COUNTER, 0))
        outside = live.model._compiled_call_impl is None  # noqa: SLF001
        return [
            Check("compiled graphs run in validation", graphs > 0, f"{graphs} runs in a rehearsal"),
            Check("training is not compiled", outside, "not compiled" if outside else "compiled"),
        ]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: Hasten does not read where the script validates."""
        raise UnwritableError(
            "Hasten does not read where the script validates",
            "compiled = torch.compile(model)  # call this one in validation",
        )


class _CompiledCalls:
    """Creates contexts in which the model's call is compiled. The graphs are kept between validation passes."""

    def __init__(self, live: LiveJob) -> None:
        self._live = live
        plain: Any = live.model._call_impl  # noqa: SLF001

        def call(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)

        # torch skips the frames of its own modules (nn.Sequential), but not the frame of the function `call`.
        self._call = torch.compile(call, backend=self._compiled)

    def __call__(self) -> Any:
        return self._swapped()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        model = self._live.model
        before = model._compiled_call_impl  # noqa: SLF001
        model._compiled_call_impl = self._call  # noqa: SLF001
        try:
            yield
        finally:
            model._compiled_call_impl = before  # noqa: SLF001

    def _compiled(self, graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        """Compile a graph with TorchInductor, and count how often it runs."""
        run: Callable[..., Any] = importlib.import_module("torch._inductor").compile(graph, examples)

        def counted(*inputs: Any) -> Any:
            self._live.count(COUNTER)
            return run(*inputs)

        return counted
