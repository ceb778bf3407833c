"""Compile the model with torch.compile.

Relieves:  compute: element-wise operators are fused, so there are fewer kernels and less Python between them.
Numerics:  rounding: fused kernels sum in a different order.
Limits:    needs a C++ compiler on a CPU. Compilation takes tens of seconds once, and new shapes cause recompilation.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.packing import keep_out_of_graphs
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import NothingToWriteError, SourceEdits, UnwritableError

RECOMPILE_ALLOWANCE = 6
"""Most compilations of one function: two for varying shapes, twice that with validation. At 8, torch silently stops."""


@dataclass(frozen=True, kw_only=True)
class Compile(Optimization):
    """torch.compile of the root module's call.

    Attributes:
        mode: The mode of torch.compile. `reduce-overhead` (CUDA graphs) needs CUDA.
        dynamic: `auto` recompiles once for any size when a shape changes; `yes` compiles for any size from the start; `no`
            compiles for each size.
    """

    mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] = "default"
    dynamic: Literal["auto", "yes", "no"] = "auto"

    card: ClassVar[Card] = Card(
        name="compile",
        summary="compile the model with torch.compile",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source="PyTorch documentation, torch.compile; Ansel et al. 2024, PyTorch 2",
        hoped_gain=(
            "43 % faster training on an A100 over 163 open-source models: 21 % in float32, 51 % with autocast "
            "(https://pytorch.org/get-started/pytorch-2.0/)"
        ),
        prior=0.15,
        setup_s=45.0,
        after=("activation_checkpointing", "precision", "attention_backend"),
        traits=frozenset({Trait.COMPILES}),
        in_scripts=True,
        left_to={
            "transformers": "TrainingArguments(torch_compile=True)",
        },
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if a compiler is available. Only a trial can show whether it pays."""
        if facts.job.device == "cpu" and facts.machine.cxx_compiler.value is None:
            return Fit.no(f"torch.compile needs a C++ compiler here: {facts.machine.cxx_compiler.reason}")
        settings = [cls()]
        if facts.job.device == "cuda":
            settings.append(cls(mode="reduce-overhead"))
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.75, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Compile the module's call in place. Its type, attributes and state do not change.

        `Module.compile` would do the same, but compiles nothing if the root module is one of torch's own classes
        (nn.Sequential), because torch skips their frames. It does not skip the frame of the function `call` below.
        """
        _forget()
        keep_out_of_graphs()
        dynamic = {"auto": None, "yes": True, "no": False}[self.dynamic]
        plain: Any = live.model._call_impl  # noqa: SLF001

        def call(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)

        live.model._compiled_call_impl = torch.compile(call, mode=self.mode, dynamic=dynamic)  # noqa: SLF001

        def undo() -> None:
            live.model._compiled_call_impl = None  # noqa: SLF001
            _forget()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that graphs were compiled, without repeated recompilation."""
        compiled = live.model._compiled_call_impl is not None  # noqa: SLF001
        graphs = int(_dynamo_counters()["stats"].get("unique_graphs", 0)) if compiled else 0
        breaks = sum(_dynamo_counters()["graph_break"].values())
        metrics = _dynamo_utils().get_compilation_metrics()
        compilations = Counter((item.co_filename, item.co_firstlineno, item.co_name) for item in metrics)
        most = max(compilations.values(), default=0)
        return [
            Check("graphs compiled", graphs > 0, f"{graphs} graphs, {breaks} graph breaks"),
            Check(
                "compiled once, not at every shape",
                most <= RECOMPILE_ALLOWANCE,
                f"the same function at most {most} times, allowed {RECOMPILE_ALLOWANCE}",
            ),
        ]

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Return an empty string if the arguments already enable it."""
        return "" if getattr(given, "torch_compile", False) else super().framework_setting(framework, given)

    def by_hand(self) -> tuple[str, ...]:
        """Return the call that compiles the model in place."""
        return (f"model.compile({self._arguments()})",)

    def write_patch(self, script: SourceEdits) -> str:
        """Call `model.compile()`, which keeps the model's class, or `torch.compile(model)` for torch's own classes.

        `Module.compile` skips the frames of torch's own modules and of DistributedDataParallel, and compiles the module
        that the latter wraps. torch.compile puts a frame around torch's own modules, but not if DistributedDataParallel
        wraps them.
        """
        model, given = script.model(), self._arguments()
        for place in (*(call.place for call in script.calls("torch.compile")), *model.calls("compile")):
            raise NothingToWriteError(f"the script already compiles the model ({place})")
        if not model.is_torchs_own:
            return f"{model.name}.compile({given}) {model.add(f'{model.name}.compile({given})', wrapped=True)}"
        call = f"torch.compile({', '.join(filter(None, (model.name, given)))})"
        for place in model.calls("state_dict", "load_state_dict"):
            raise UnwritableError(
                f"compiling a module of torch's own class renames the keys of its state_dict ({place}): assign the compiled "
                f"module to another variable, and call that in the loop",
                f"compiled = {call}",
                "output = compiled(inputs)",
            )
        line = f"{model.name} = {call.replace('torch.compile', '{torch.compile}', 1)}"
        return f"{model.name} = {call} {model.add(line, wrapped=not model.is_parallel)}"

    def _arguments(self) -> str:
        mode = [f'mode="{self.mode}"'] if self.mode != "default" else []
        return ", ".join([*mode, *{"yes": ["dynamic=True"], "no": ["dynamic=False"], "auto": []}[self.dynamic]])


def _forget() -> None:
    """Discard all graphs and their counters, which belong to the process and not to the model."""
    torch.compiler.reset()
    _dynamo_counters().clear()
    _dynamo_utils().clear_compilation_metrics()


def _dynamo_utils() -> Any:
    __import__("torch._dynamo.utils")
    return sys.modules["torch._dynamo.utils"]


def _dynamo_counters() -> Any:
    return _dynamo_utils().counters
