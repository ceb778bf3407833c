"""Keep the optimizer's states in 8 bits.

Relieves:  memory: the two running means of Adam take 2 bytes a parameter instead of 8.
Numerics:  training: the states are rounded to 256 values a block at every update, so held-out quality decides.
Limits:    Adam and AdamW themselves, from torchao (`pip install 'hasten[eight-bit]'`), before the first step. Tensors of
           fewer than 4096 parameters, or of a number that is no multiple of 256, keep states in 32 bits. The step is
           compiled, once for each shape of a parameter: on a CPU that needs a C++ compiler, and `compile`, which counts
           what is compiled, cannot be in the same plan.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError
from hasten.optimizations.parts.remake import remake_optimizer

LISTED: dict[str, type[Optimizer]] = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
EIGHT_BIT = {"Adam": "Adam8bit", "AdamW": "AdamW8bit"}
"""Class of torch.optim -> its like in torchao.optim."""
MIN_PARAMS, BLOCK = 4096, 256
"""A tensor with fewer parameters, or with a number that is no multiple of the block, keeps its states (torchao)."""
NOT_TAKEN = ("amsgrad", "maximize", "capturable", "differentiable")
INSTALL = "pip install 'hasten[eight-bit]'"


@dataclass(frozen=True, kw_only=True)
class EightBitStates(Optimization):
    """Adam's states in 8 bits, in blocks of 256 with a scale each."""

    card: ClassVar[Card] = Card(
        name="eight_bit_states",
        summary="the states of Adam in 8 bits instead of 32",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.TRAINING,
        seam=Seam.OPTIMIZER,
        source="Dettmers et al. 2021, 8-bit optimizers via block-wise quantization; torchao.optim",
        hoped_gain=(
            "peak memory from 12.23 to 8.33 GB when fine-tuning ViT-H, at like speed "
            "(https://github.com/pytorch/ao/tree/main/torchao/optim)"
        ),
        prior=0.5,
        setup_s=45.0,
        memory_technique=True,
        saves_memory=True,
        conflicts=("compile", "fused_optimizer", "foreach_optimizer"),
        script_advice="the script holds the optimizer it has made: make torchao.optim.AdamW8bit(...) instead",
        left_to={
            "transformers": 'TrainingArguments(optim="adamw_torch_8bit")',
        },
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit for Adam and AdamW where torchao is installed and a tensor is large enough; it saves no time by itself."""
        job = facts.job
        if job.optimizer_class not in LISTED:
            return Fit.no(f"{job.optimizer_class} has no form with 8-bit states, only Adam and AdamW have")
        if job.largest_param < MIN_PARAMS:
            return Fit.no(
                f"the largest tensor has {job.largest_param} parameters, and states of fewer than {MIN_PARAMS} keep 32 bits"
            )
        if "torchao" not in facts.packages:
            return Fit.no(f"the library torchao is not installed: {INSTALL}")
        if job.device == "cpu" and facts.machine.cxx_compiler.value is None:
            return Fit.no(f"its step is compiled, which needs a C++ compiler here: {facts.machine.cxx_compiler.reason}")
        return Fit.yes(max_gain_frac=0.0, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Make the same optimizer again, with 8-bit states."""
        old = live.optimizer
        if find_spec("torchao") is None:
            raise JobError(f"eight_bit_states needs the library torchao: {INSTALL}, or take it out of the plan.")
        asked = [name for name in NOT_TAKEN if any(group.get(name) for group in old.param_groups)]
        if asked:
            raise JobError(
                f"{type(old).__name__} with {asked[0]}=True has no form with 8-bit states: take eight_bit_states out of the "
                f"plan."
            )
        if type(old) is torch.optim.Adam and any(group.get("decoupled_weight_decay") for group in old.param_groups):
            raise JobError("Adam with decoupled_weight_decay=True is AdamW: write AdamW, or take eight_bit_states out.")
        if not any(_in_eight_bits(parameter) for group in old.param_groups for parameter in group["params"]):
            raise JobError(
                f"No tensor has {MIN_PARAMS} parameters or more, in a multiple of {BLOCK}: all states would keep 32 bits. "
                f"Take eight_bit_states out of the plan."
            )
        library = importlib.import_module("torchao.optim")
        into = {name: getattr(library, eight_bit) for name, eight_bit in EIGHT_BIT.items()}
        undo = remake_optimizer(live, self.card.name, LISTED, {}, into)
        importlib.import_module("torchao.optim.subclass_8bit").OptimState8bit.implements(torch.ops.aten.clone.default)(
            _clone
        )
        for group, was in zip(live.optimizer.param_groups, old.param_groups, strict=True):
            group["lr"] = was["lr"]
        _Steps(live).watch(live.optimizer)
        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The optimizer stepped with states in 8 bits."""
        eight, states = (int(trace.counters.get(name, 0)) for name in ("states_in_8_bits", "optimizer_states"))
        return [Check("optimizer states in 8 bits", eight > 0, f"{eight} of {states} tensors of states")]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: the optimizer's class changes, and its arguments with it."""
        raise UnwritableError(
            "the optimizer becomes one of another library",
            "from torchao.optim import AdamW8bit",
            "optimizer = AdamW8bit(model.parameters(), ...)  # or Adam8bit",
        )


def _in_eight_bits(parameter: torch.Tensor) -> bool:
    return parameter.numel() >= MIN_PARAMS and parameter.numel() % BLOCK == 0


def _clone(_func: Any, _types: Any, args: Any, _kwargs: Any) -> Any:
    """Copy a state; torchao 0.18 has no rule for it, and whoever copies an optimizer's states needs one."""
    names, rest = args[0].__tensor_flatten__()
    return type(args[0]).__tensor_unflatten__({name: getattr(args[0], name).clone() for name in names}, rest)


class _Steps:
    """Gives each step the rates as tensors, which torchao asks for, and puts the numbers back; counts the states.

    Between steps the rates stay what they were, so that schedules and whoever sets `group["lr"]` go on as before.
    """

    def __init__(self, live: LiveJob) -> None:
        self._live = live
        self._told: list[Any] = []

    def watch(self, optimizer: Optimizer) -> None:
        """Stand before and after every step of `optimizer`."""
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._told = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._told, strict=True):
            group["lr"] = rate if isinstance(rate, torch.Tensor) else torch.tensor(rate, dtype=torch.float32)

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._told, strict=True):
            group["lr"] = rate
        if "optimizer_states" not in self._live.counters:  # counted once, not at every step
            states = [state for kept in optimizer.state.values() for name, state in kept.items() if name != "step"]
            self._live.counters["optimizer_states"] = len(states)
            self._live.counters["states_in_8_bits"] = sum(hasattr(state, "codes") for state in states)
