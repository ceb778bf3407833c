"""Shard parameters, gradients and optimizer state over the ranks with torch's `fully_shard` (FSDP2; Zhao et al. 2023).

The parameters of a block are gathered from all ranks before it runs, and freed after it. In the backward pass its gradients
are averaged, and each rank keeps its shard. The model stays the same object, and its parameters keep their names.
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
    """Averages gradients into shards in each backward pass."""

    kind = "shards"
    each_pass = True

    def __init__(self, live: LiveJob) -> None:
        self.live = live

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        """Compute the loss. The blocks gather their parameters when they run."""
        return self.live.compute_loss(batch)

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        """Run the backward pass, which averages the gradients block by block.

        Raises:
            JobError: There is a gradient scaler. Each rank sees only its own shard, so ranks would skip different updates.
        """
        if self.live.scaler is not None:
            raise JobError("sharding cannot be combined with a gradient scaler: use bfloat16 instead of float16.")
        objective.backward()
        self.live.count("passes_in_shards")

    def state_dict(self) -> dict[str, Any]:
        """Return the model's state with full tensors. All ranks must call it together."""
        state = self.live.model.state_dict()
        return {name: whole(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def shard_model(live: LiveJob, *, param_dtype: torch.dtype | None) -> Undo:
    """Shard a live job's model, each of its repeated blocks separately. The undo restores the full parameters.

    Args:
        live: The live job, before its optimizer is created.
        param_dtype: Dtype in which the blocks compute, while the shards keep theirs; None computes as before.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415  slow to import

    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32 if param_dtype else None)
    model: nn.Module = live.model
    blocks = [*dict.fromkeys(repeated_blocks(model)), model]
    plain = {module: type(module) for module in blocks}
    before = {module: (set(vars(module)), _hooks(module)) for module in model.modules()}
    for module in blocks:
        # The root is also freed after its forward pass, so that outside of passes all parameters are shards.
        fully_shard(module, mp_policy=policy, reshard_after_forward=True)
    marks = {module: set(vars(module)) - names for module, (names, _) in before.items()}
    live.sync = ShardSync(live)

    def undo() -> None:
        live.sync = None
        made = {id(p): nn.Parameter(whole(p.detach()).clone(), p.requires_grad) for p in model.parameters()}
        _exchange_in_optimizer(live, made)
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):  # noqa: SLF001  includes tied parameters
                if parameter is not None:
                    setattr(module, name, made[id(parameter)])
            for name in marks[module]:
                delattr(module, name)
            for name, hooks in before[module][1].items():
                table = getattr(module, name)
                table.clear()
                table.update(hooks)
        for module, kind in plain.items():
            module.__class__ = kind

    return undo


def _hooks(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Return copies of all hook tables of a module, by attribute name."""
    return {name: dict(table) for name, table in vars(module).items() if "hooks" in name and isinstance(table, dict)}


def local_bytes(model: nn.Module) -> tuple[int, int]:
    """Return the bytes of the parameters that this rank stores, and those of all parameters."""
    parameters = list(model.parameters())
    local = sum(shard(p).numel() * p.element_size() for p in parameters)
    return local, sum(p.numel() * p.element_size() for p in parameters)


def _exchange_in_optimizer(live: LiveJob, made: dict[int, nn.Parameter]) -> None:
    """Replace the shards in the optimizer, if it exists, by full parameters and state."""
    if not hasattr(live, "optimizer"):
        return
    optimizer = live.optimizer
    for group in optimizer.param_groups:
        group["params"] = [made.get(id(p), p) for p in group["params"]]
    full = {
        made.get(id(p), p): {
            name: whole(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()
        }
        for p, state in optimizer.state.items()
    }
    optimizer.state.clear()
    optimizer.state.update(full)
