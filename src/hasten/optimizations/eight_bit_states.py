"""Store the optimizer state in 8 bits.

Relieves:  memory: the two moving averages of Adam take 2 bytes per parameter instead of 8.
Numerics:  training: at every update the state is rounded to 256 values per block, so held-out quality decides.
Limits:    torch's Adam and AdamW, not subclasses of them, before the first step. It needs torchao
           (`pip install 'hasten[eight-bit]'`). Tensors with fewer than 4096 parameters, or a number of parameters that is
           not a multiple of 256, keep 32-bit state. The step is compiled once per parameter shape, which needs a C++
           compiler on a CPU. It excludes `compile`, which counts compilations.
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
"""Class in torch.optim -> its counterpart in torchao.optim."""
MIN_PARAMS, BLOCK = 4096, 256
"""torchao keeps 32-bit state for tensors with fewer parameters, or with a number that is not a multiple of the block."""
NOT_TAKEN = ("amsgrad", "maximize", "capturable", "differentiable")
INSTALL = "pip install 'hasten[eight-bit]'"


@dataclass(frozen=True, kw_only=True)
class EightBitStates(Optimization):
    """Adam's state in 8 bits, in blocks of 256 values with one scale per block."""

    card: ClassVar[Card] = Card(
        name="eight_bit_states",
        summary="store the optimizer state of Adam in 8 bits instead of 32",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.TRAINING,
        seam=Seam.OPTIMIZER,
        source="Dettmers et al. 2021, 8-bit optimizers via block-wise quantization; torchao.optim",
        hoped_gain=(
            "peak memory reduced from 12.23 to 8.33 GB when fine-tuning ViT-H, at similar speed "
            "(https://github.com/pytorch/ao/tree/main/torchao/optim)"
        ),
        prior=0.5,
        setup_s=45.0,
        memory_technique=True,
        saves_memory=True,
        conflicts=("compile", "fused_optimizer", "foreach_optimizer"),
        script_advice="the script creates its optimizer itself: use torchao.optim.AdamW8bit(...) instead",
        left_to={
            "transformers": 'TrainingArguments(optim="adamw_torch_8bit")',
        },
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to Adam and AdamW if torchao is installed and a tensor is large enough. On its own it saves no time."""
        job = facts.job
        if job.optimizer_class not in LISTED:
            return Fit.no(f"{job.optimizer_class} has no 8-bit version; only Adam and AdamW have one")
        if job.largest_param < MIN_PARAMS:
            return Fit.no(
                f"the largest tensor has {job.largest_param} parameters, and tensors with fewer than {MIN_PARAMS} keep "
                f"32-bit state"
            )
        if "torchao" not in facts.packages:
            return Fit.no(f"the library torchao is not installed: {INSTALL}")
        if job.device == "cpu" and facts.machine.cxx_compiler.value is None:
            return Fit.no(f"its step is compiled, which needs a C++ compiler: {facts.machine.cxx_compiler.reason}")
        return Fit.yes(max_gain_frac=0.0, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Recreate the optimizer with 8-bit state."""
        old = live.optimizer
        if find_spec("torchao") is None:
            raise JobError(
                f"eight_bit_states needs the library torchao: install it ({INSTALL}), or remove eight_bit_states from the "
                f"plan."
            )
        unsupported = [name for name in NOT_TAKEN if any(group.get(name) for group in old.param_groups)]
        if unsupported:
            raise JobError(
                f"{type(old).__name__} with {unsupported[0]}=True has no 8-bit version: remove eight_bit_states from the "
                f"plan."
            )
        if type(old) is torch.optim.Adam and any(group.get("decoupled_weight_decay") for group in old.param_groups):
            raise JobError(
                "Adam with decoupled_weight_decay=True is AdamW: use AdamW, or remove eight_bit_states from the plan."
            )
        if not any(_in_eight_bits(parameter) for group in old.param_groups for parameter in group["params"]):
            raise JobError(
                f"No tensor has at least {MIN_PARAMS} parameters and a multiple of {BLOCK}, so all state would keep 32 "
                f"bits. Remove eight_bit_states from the plan."
            )
        library = importlib.import_module("torchao.optim")
        into = {name: getattr(library, eight_bit) for name, eight_bit in EIGHT_BIT.items()}
        undo = remake_optimizer(live, self.card.name, LISTED, {}, into)
        importlib.import_module("torchao.optim.subclass_8bit").OptimState8bit.implements(torch.ops.aten.clone.default)(
            _clone
        )
        for group, before in zip(live.optimizer.param_groups, old.param_groups, strict=True):
            group["lr"] = before["lr"]
        _Steps(live).watch(live.optimizer)
        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the optimizer stepped with 8-bit state."""
        eight, states = (int(trace.counters.get(name, 0)) for name in ("states_in_8_bits", "optimizer_states"))
        return [Check("optimizer state in 8 bits", eight > 0, f"{eight} of {states} state tensors")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the optimizer class changes, and its arguments with it."""
        raise UnwritableError(
            "the optimizer must come from another library",
            "from torchao.optim import AdamW8bit",
            "optimizer = AdamW8bit(model.parameters(), ...)  # or Adam8bit",
        )


def _in_eight_bits(parameter: torch.Tensor) -> bool:
    return parameter.numel() >= MIN_PARAMS and parameter.numel() % BLOCK == 0


def _clone(_func: Any, _types: Any, args: Any, _kwargs: Any) -> Any:
    """Copy optimizer state. torchao 0.18 does not implement this."""
    names, rest = args[0].__tensor_flatten__()
    return type(args[0]).__tensor_unflatten__({name: getattr(args[0], name).clone() for name in names}, rest)


class _Steps:
    """Passes learning rates to each step as tensors, which torchao requires, and counts the state tensors.

    After each step the rates are restored, so that schedules and assignments to `group["lr"]` work as before.
    """

    def __init__(self, live: LiveJob) -> None:
        self._live = live
        self._rates: list[Any] = []

    def watch(self, optimizer: Optimizer) -> None:
        """Register hooks that run before and after every step of `optimizer`."""
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate if isinstance(rate, torch.Tensor) else torch.tensor(rate, dtype=torch.float32)

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        if "optimizer_states" not in self._live.counters:  # counted once, not at every step
            states = [state for kept in optimizer.state.values() for name, state in kept.items() if name != "step"]
            self._live.counters["optimizer_states"] = len(states)
            self._live.counters["states_in_8_bits"] = sum(hasattr(state, "codes") for state in states)
