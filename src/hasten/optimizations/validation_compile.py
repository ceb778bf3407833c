"""Compile the model with torch.compile for validation alone.

Relieves:  validation: fused element-wise work and fewer kernels in a forward pass without gradients.
Numerics:  rounding: the training is untouched; the held-out metric comes of fused kernels that sum in another order.
Limits:    needs a C++ compiler on CPU; costs seconds to minutes once, which few and short passes never earn back; with
           `compile` the model is compiled for validation as well.
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
    """torch.compile of the root module's call, during validation passes."""

    card: ClassVar[Card] = Card(
        name="validation_compile",
        summary="the model compiled by torch.compile for validation passes",
        relieves=Bottleneck.VALIDATION,
        numerics=Numerics.ROUNDING,
        seam=Seam.AROUND,
        source="PyTorch documentation, torch.compile; Ansel et al. 2024, PyTorch 2",
        prior=0.2,
        setup_s=25.0,
        event="validation",
        conflicts=("compile",),
        script_advice="the script writes its own validation: call torch.compile(model) in it",
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where validation takes time and a compiler can be found; whether it pays is for the trial to say."""
        if facts.job.device == "cpu" and facts.machine.cxx_compiler.value is None:
            return Fit.no(f"torch.compile needs a C++ compiler here: {facts.machine.cxx_compiler.reason}")
        if facts.epoch_s > 0 and facts.validation_s <= 0:
            return Fit.no("no validation was measured: there is no held-out data")
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.validation_s), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Put the compiled call in the place of the plain one for as long as a validation pass lasts."""
        keep_out_of_graphs()
        forget = append_to(live.around.validation_contexts, _CompiledCalls(live))

        def undo() -> None:
            forget()
            torch.compiler.reset()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Graphs were compiled and run, in validation and not in training."""
        graphs = int(trace.counters.get(COUNTER, 0))
        outside = live.model._compiled_call_impl is None  # noqa: SLF001
        return [
            Check("compiled graphs run in validation", graphs > 0, f"{graphs} runs in a rehearsal"),
            Check("training runs the plain call", outside, "plain" if outside else "compiled"),
        ]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: where the script evaluates is not read."""
        raise UnwritableError(
            "where the script evaluates is not read here",
            "compiled = torch.compile(model)  # call this one where the model is evaluated",
        )


class _CompiledCalls:
    """Makes contexts in which the model's call is the compiled one; the graphs are kept from one pass to the next."""

    def __init__(self, live: LiveJob) -> None:
        self._live = live
        plain: Any = live.model._call_impl  # noqa: SLF001

        def call(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)

        # A function of ours around the call, as torch skips the frames of its own modules (nn.Sequential).
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
        """TorchInductor, with a count of how often its graphs run."""
        run: Callable[..., Any] = importlib.import_module("torch._inductor").compile(graph, examples)

        def counted(*inputs: Any) -> Any:
            self._live.count(COUNTER)
            return run(*inputs)

        return counted
