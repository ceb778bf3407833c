"""Merge the weights of branches that were trained side by side: average them, or combine their adapters.

A merge is another method than training the branches one after another, so its gates decide whether it is kept.

Source: Wortsman et al. 2022, "Model soups"; adapters: Hu et al. 2021, "LoRA". Low-rank adapters add up exactly: the sum of
`B1 @ A1` and `B2 @ A2` is `[B1 B2] @ [A1; A2]`, of the rank of both together.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.core.errors import CorruptError
from hasten.core.files import replaced
from hasten.pipeline.description import PipelineError, Stage

if TYPE_CHECKING:
    import torch

DOWN, UP = ("lora_A", "lora_down", ".down"), ("lora_B", "lora_up", ".up")
"""Parts of the names of an adapter's first matrix, [rank, in], and of its second, [out, rank]."""


def merge_files(branches: Sequence[Path], target: Path, weights: Sequence[float], *, how: str) -> None:
    """Merge the weights of branches, by their shares, into a file of the same kind: safetensors, or a state_dict of torch.

    Raises:
        CorruptError: A file cannot be read.
        PipelineError: The branches differ in names or shapes, or have no adapters.
    """
    states = [_read(path) for path in branches]
    for path, state in zip(branches[1:], states[1:], strict=True):
        if odd := sorted(states[0].keys() ^ state.keys()):
            raise PipelineError(f"{path} and {branches[0]} differ in weights, such as {odd[0]}: train one model in both.")
    _write(target, average(states, weights) if how == "average" else combine_adapters(states, weights))


def average(states: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float]) -> dict[str, torch.Tensor]:
    """Return the weighted average of tensors, computed in float64. Integers are those of the first branch.

    Raises:
        PipelineError: Shapes differ.
    """
    import torch  # noqa: PLC0415 - the process of a stage loads it for a merge alone

    merged = {}
    for name, first in states[0].items():
        tensors = [state[name] for state in states]
        if len({tensor.shape for tensor in tensors}) > 1:
            raise PipelineError(f"{name} has other shapes in the branches: {[tuple(tensor.shape) for tensor in tensors]}.")
        if not first.is_floating_point():
            merged[name] = first.clone()
            continue
        total = sum(
            (share * tensor.to(torch.float64) for share, tensor in zip(weights, tensors, strict=True)), torch.zeros(())
        )
        merged[name] = total.to(first.dtype)
    return merged


def combine_adapters(states: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float]) -> dict[str, torch.Tensor]:
    """Return adapters whose product is the weighted sum of those of the branches. Other tensors are averaged.

    Raises:
        PipelineError: There are no adapters.
    """
    import torch  # noqa: PLC0415 - as above

    downs = [name for name in states[0] if any(part in name for part in DOWN)]
    ups = [name for name in states[0] if any(part in name for part in UP)]
    if not downs or len(downs) != len(ups):
        raise PipelineError(f"there are no pairs of adapters, such as lora_A and lora_B, among {len(states[0])} tensors.")
    merged = average([{name: state[name] for name in state if name not in {*downs, *ups}} for state in states], weights)
    merged |= {name: torch.cat([state[name] for state in states], dim=0) for name in downs}
    scaled = {name: [share * state[name] for share, state in zip(weights, states, strict=True)] for name in ups}
    return merged | {name: torch.cat(tensors, dim=1) for name, tensors in scaled.items()}


def chained(branch: Stage, before: str) -> Stage:
    """Return a branch that starts from another branch instead of from what both started from."""
    needs = tuple(before if name == branch.after else name for name in branch.needs)
    return branch.model_copy(update={"name": f"{branch.name}_after_{before}", "after": before, "needs": needs, "gates": {}})


def replace_by(source: Path, target: Path) -> None:
    """Replace a file by a copy of another, at once."""
    with source.open("rb") as old, replaced(target) as new:
        shutil.copyfileobj(old, new)


def _read(path: Path) -> dict[str, torch.Tensor]:
    import torch  # noqa: PLC0415 - as above

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415 - of an extra

            return dict(load_file(path))
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CorruptError(f"{path} cannot be read as weights: {error}. Run the stage that gives it again.") from error
    if not isinstance(state, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise CorruptError(f"{path} is not a state_dict: tensors by name.")
    return dict(state)


def _write(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    import torch  # noqa: PLC0415 - as above

    with replaced(path) as file:
        if path.suffix == ".safetensors":
            from safetensors.torch import save  # noqa: PLC0415 - of an extra

            file.write(save({name: tensor.contiguous() for name, tensor in state.items()}))
        else:
            torch.save(dict(state), file)
