"""Compile the model with torch.compile.

Relieves:  compute: fused element-wise work, fewer kernels and less Python between them.
Numerics:  rounding: fused kernels sum in another order.
Limits:    needs a C++ compiler on CPU; costs tens of seconds once; changing shapes compile again.
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
"""Graphs of one function: two for changing shapes, twice that with validation; at 8 torch silently runs it plain."""


@dataclass(frozen=True, kw_only=True)
class Compile(Optimization):
    """torch.compile of the root module's call.

    Attributes:
        mode: As torch.compile takes it; `reduce-overhead` (CUDA graphs) on CUDA only.
        dynamic: `auto` compiles again once when a shape changes and then for any size; `yes` starts so; `no` never does.
    """

    mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] = "default"
    dynamic: Literal["auto", "yes", "no"] = "auto"

    card: ClassVar[Card] = Card(
        name="compile",
        summary="the model compiled by torch.compile",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.FORWARD,
        source="PyTorch documentation, torch.compile; Ansel et al. 2024, PyTorch 2",
        hoped_gain=(
            "43 % faster in training on an A100 over 163 open-source models, 21 % at float32, 51 % with autocast "
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
        """Fit where compute takes time and a compiler can be found; whether it pays is for the trial to say."""
        if facts.job.device == "cpu" and facts.machine.cxx_compiler.value is None:
            return Fit.no(f"torch.compile needs a C++ compiler here: {facts.machine.cxx_compiler.reason}")
        settings = [cls()]
        if facts.job.device == "cuda":
            settings.append(cls(mode="reduce-overhead"))
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.75, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Compile the module's call in place: its type, attributes and state stay as they are.

        `Module.compile` would do the same, but compiles nothing when the root module is torch's own (nn.Sequential): its
        frames are skipped. A function of ours around the call is not.
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
        """Graphs were compiled, and not again and again."""
        compiled = live.model._compiled_call_impl is not None  # noqa: SLF001
        graphs = int(_dynamo_counters()["stats"].get("unique_graphs", 0)) if compiled else 0
        breaks = sum(_dynamo_counters()["graph_break"].values())
        metrics = _dynamo_utils().get_compilation_metrics()
        often = Counter((item.co_filename, item.co_firstlineno, item.co_name) for item in metrics)
        most = max(often.values(), default=0)
        return [
            Check("graphs compiled", graphs > 0, f"{graphs} graphs, {breaks} graph breaks"),
            Check(
                "compiled once, not at every shape",
                most <= RECOMPILE_ALLOWANCE,
                f"{most} times the same function, allowance {RECOMPILE_ALLOWANCE}",
            ),
        ]

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Nothing is left to do where the arguments have it."""
        return "" if getattr(given, "torch_compile", False) else super().framework_setting(framework, given)

    def by_hand(self) -> tuple[str, ...]:
        """The call that compiles the model in place."""
        return (f"model.compile({self._arguments()})",)

    def write_patch(self, script: SourceEdits) -> str:
        """Call `model.compile()`, which leaves the model as it is; `torch.compile(model)` for torch's own classes.

        `Module.compile` passes over frames of torch's own modules, and over those of DistributedDataParallel, where it
        compiles what that wraps. torch.compile gives torch's own modules a frame around, but not where
        DistributedDataParallel stands between.
        """
        model, given = script.model(), self._arguments()
        for place in (*(call.place for call in script.calls("torch.compile")), *model.calls("compile")):
            raise NothingToWriteError(f"torch.compile is at work already ({place})")
        if not model.is_torchs_own:
            return f"{model.name}.compile({given}) {model.add(f'{model.name}.compile({given})', wrapped=True)}"
        call = f"torch.compile({', '.join(filter(None, (model.name, given)))})"
        for place in model.calls("state_dict", "load_state_dict"):
            raise UnwritableError(
                f"a compiled module of torch's own class has other names in its state_dict ({place}): compile it under "
                f"another name, and call that in the loop",
                f"compiled = {call}",
                "output = compiled(inputs)",
            )
        line = f"{model.name} = {call.replace('torch.compile', '{torch.compile}', 1)}"
        return f"{model.name} = {call} {model.add(line, wrapped=not model.is_parallel)}"

    def _arguments(self) -> str:
        mode = [f'mode="{self.mode}"'] if self.mode != "default" else []
        return ", ".join([*mode, *{"yes": ["dynamic=True"], "no": ["dynamic=False"], "auto": []}[self.dynamic]])


def _forget() -> None:
    """Forget all graphs and what was counted of them: the counts are the process's, not the model's."""
    torch.compiler.reset()
    _dynamo_counters().clear()
    _dynamo_utils().clear_compilation_metrics()


def _dynamo_utils() -> Any:
    __import__("torch._dynamo.utils")
    return sys.modules["torch._dynamo.utils"]


def _dynamo_counters() -> Any:
    return _dynamo_utils().counters
