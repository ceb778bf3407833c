"""Parameters, gradients and optimizer states in shards over the ranks, by torch's `fully_shard` (FSDP2; Zhao et al. 2023).

Before a block runs, its parameters are gathered from all ranks; after it they are let go; in the backward pass its gradients
are averaged, and each rank keeps its shard. The model stays the same object and its parameters keep their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hasten.core.errors import JobError
from hasten.core.job import Loss
from hasten.core.live import LiveJob
from hasten.core.modules import repeated_blocks
from hasten.core.seams import Undo
from hasten.core.sync import GradientSync, shard, whole


class ShardSync(GradientSync):
    """Gradients that each backward pass averages into shards."""

    kind = "shards"
    each_pass = True

    def __init__(self, live: LiveJob) -> None:
        self.live = live

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        """The loss; the blocks gather their parameters as they run."""
        return self.live.compute_loss(batch)

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        """Run the backward pass; the averages are made block by block as it goes.

        Raises:
            JobError: There is a gradient scaler: each rank sees its own shard, and they would skip different updates.
        """
        if self.live.scaler is not None:
            raise JobError("sharding cannot stand beside a gradient scaler: take bfloat16 in place of float16.")
        objective.backward()
        self.live.count("passes_in_shards")

    def state_dict(self) -> dict[str, Any]:
        """The model's state with whole tensors; all ranks must ask together."""
        state = self.live.model.state_dict()
        return {name: whole(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def shard_model(live: LiveJob, *, param_dtype: torch.dtype | None) -> Undo:
    """Put a live job's model into shards, each of its repeated blocks by itself; the undo makes it whole again.

    Args:
        live: The live job, before its optimizer is made.
        param_dtype: The blocks compute in this dtype, and the shards keep their own; None computes as before.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415  slow to import

    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32 if param_dtype else None)
    model: nn.Module = live.model
    blocks = [*dict.fromkeys(repeated_blocks(model)), model]
    plain = {module: type(module) for module in blocks}
    before = {module: (set(vars(module)), _hooks(module)) for module in model.modules()}
    for module in blocks:
        # The root too is let go after its forward pass, so that parameters are shards whenever somebody looks.
        fully_shard(module, mp_policy=policy, reshard_after_forward=True)
    marks = {module: set(vars(module)) - names for module, (names, _) in before.items()}
    live.sync = ShardSync(live)

    def undo() -> None:
        live.sync = None
        made = {id(p): nn.Parameter(whole(p.detach()).clone(), p.requires_grad) for p in model.parameters()}
        _exchange_in_optimizer(live, made)
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):  # noqa: SLF001  tied ones too, each by its name
                if parameter is not None:
                    setattr(module, name, made[id(parameter)])
            for name in marks[module]:
                delattr(module, name)
            for name, hooks in before[module][1].items():
                kept = getattr(module, name)
                kept.clear()
                kept.update(hooks)
        for module, kind in plain.items():
            module.__class__ = kind

    return undo


def _hooks(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Copies of all tables of hooks of a module: those for its passes, and those for its state."""
    return {name: dict(table) for name, table in vars(module).items() if "hooks" in name and isinstance(table, dict)}


def local_bytes(model: nn.Module) -> tuple[int, int]:
    """Bytes of the parameters: those that this rank holds, and all."""
    parameters = list(model.parameters())
    held = sum(shard(p).numel() * p.element_size() for p in parameters)
    return held, sum(p.numel() * p.element_size() for p in parameters)


def _exchange_in_optimizer(live: LiveJob, made: dict[int, nn.Parameter]) -> None:
    """Let the optimizer, where there is one by now, hold the whole parameters and states."""
    if not hasattr(live, "optimizer"):
        return
    optimizer = live.optimizer
    for group in optimizer.param_groups:
        group["params"] = [made.get(id(p), p) for p in group["params"]]
    kept = {
        made.get(id(p), p): {
            name: whole(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()
        }
        for p, state in optimizer.state.items()
    }
    optimizer.state.clear()
    optimizer.state.update(kept)
