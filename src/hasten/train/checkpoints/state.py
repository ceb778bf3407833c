"""Capture the complete state of a run as tensors and plain data, and restore it.

The state contains the model's state_dict and non-persistent buffers, the optimizer's state and settings, the schedule, the
gradient scaler, the random number generators of Python, NumPy and torch on the host and the device, the position in the
epoch, and the divisor of gradients. With the same data and plan, a restored run does the same updates as one that was never
stopped, bit for bit. On a GPU, this requires a deterministic job.

Each rank saves what only it has: its shards of sharded tensors, its random number generators, and its buffers, because
running statistics depend on the samples that a rank saw. Rank 0 saves everything that is equal on all ranks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from hasten.core.errors import DataError
from hasten.train.checkpoints.shards import StoredTensor, shard_of
from hasten.train.loop import Loop, Position

STATE = 1
"""Version of the state's format."""
_BY_NUMBER = "\0by number"
_MODEL, _BUFFER, _OPTIMIZER, _RANDOM = "model.", "buffer.", "optimizer.", "random."
_SETTINGS_LEFT = ("params", "fused", "foreach", "capturable", "differentiable")
"""Keys of a parameter group that select an implementation, which the plan decides."""


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        tensors: Name -> tensor. They are the run's own tensors, not copies: copy them before the next update.
        meta: Plain data.
    """

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]


@dataclass
class _Taken:
    """The tensors that one rank saves."""

    leads: bool
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    shards: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor, *, own: bool = False) -> None:
        """Add a tensor, or this rank's part of it. `own` says that it differs between ranks."""
        shard = shard_of(tensor)
        if shard is None:
            if self.leads or own:
                self.tensors[name] = tensor.detach()
        elif shard.is_first and (self.leads or shard.tensor.numel()):
            self.tensors[name] = shard.tensor
            self.shards[name] = {"shape": list(shard.shape), "start": list(shard.start)}


def capture(loop: Loop) -> RunState:
    """Return the state that this rank saves of a run between two updates.

    For a sharded tensor, it contains this rank's part. `meta["shards"]` has the full shape and the start of the part.

    Args:
        loop: The loop of the run. Its losses must have been read.

    Raises:
        DataError: A part of the state is not plain data.
    """
    live, position = loop.live, loop.position
    taken = _Taken(leads=loop.ranks.rank == 0)
    meta: dict[str, Any] = {"state": STATE, "rank": loop.ranks.rank, "world": loop.ranks.world, "samples": position.samples}
    meta["random"] = _add_random(taken.tensors)
    aliases = _add_model(loop, taken)
    optimizer = _add_optimizer(loop, taken)
    meta["shards"] = taken.shards
    if not taken.leads:
        return RunState(taken.tensors, meta)
    meta["aliases"], meta["optimizer"] = aliases, optimizer
    meta["scheduler"] = _plain("the schedule", live.scheduler.state_dict()) if live.scheduler else None
    meta["scaler"] = _plain("the gradient scaler", live.scaler.state_dict()) if live.scaler else None
    meta["position"] = {
        "update": position.update,
        "epoch": position.epoch,
        "taken": loop.taken,
        "skipped": loop.skipped,
        "unit": loop.unit,
    }
    return RunState(taken.tensors, meta)


def restore(loop: Loop, tensors: Mapping[str, StoredTensor], meta: Mapping[str, Any]) -> None:
    """Restore a newly built loop from a state.

    Args:
        loop: The loop of the same job. The plan and the number of ranks may differ.
        tensors: Name -> tensor, including this rank's own random number generators and buffers.
        meta: The plain data of rank 0, with this rank's `samples` and `random`.

    Raises:
        DataError: The model or the optimizer changed. Says what differs.
    """
    live = loop.live
    problems = _differences(loop, tensors, meta)
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise DataError(
            f"The checkpoint does not match the model: {shown}. Use the job that wrote it, or start a new run (another "
            f"--out)."
        )
    for name, tensor in _named_tensors(loop).items():
        tensors[meta["aliases"].get(name, name)].copy_to(tensor)
    _restore_optimizer(loop, tensors, meta["optimizer"])
    if live.scheduler is not None and meta["scheduler"] is not None:
        live.scheduler.load_state_dict(_back(meta["scheduler"]))
    if live.scaler is not None and meta["scaler"] is not None:
        live.scaler.load_state_dict(dict(meta["scaler"]))
    place = meta["position"]
    position = Position(update=place["update"], samples=meta["samples"], epoch=place["epoch"])
    loop.go_to(position, taken=place["taken"], unit=place["unit"], skipped=place["skipped"])
    _restore_random({name: saved.whole() for name, saved in tensors.items() if name.startswith(_RANDOM)}, meta["random"])


def _named_tensors(loop: Loop) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their saved names: those of the state_dict, and the non-persistent buffers."""
    model = loop.live.model
    state = {f"{_MODEL}{name}": value for name, value in model.state_dict(keep_vars=True).items()}
    others = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise DataError(
            f"{others[0].removeprefix(_MODEL)} of the model's state_dict is not a tensor (a module's get_extra_state): "
            f"store it as a buffer."
        )
    known = {id(value) for value in state.values()}
    buffers = {f"{_BUFFER}{name}": value for name, value in model.named_buffers() if id(value) not in known}
    return {**state, **buffers}


def _add_model(loop: Loop, taken: _Taken) -> dict[str, str]:
    """Add parameters and buffers, and return aliases: further names of a tensor -> its first name."""
    first_names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in _named_tensors(loop).items():
        if id(tensor) in first_names:
            aliases[name] = first_names[id(tensor)]
            continue
        first_names[id(tensor)] = name
        taken.add(name, tensor, own=not isinstance(tensor, nn.Parameter))
    return aliases


def _add_optimizer(loop: Loop, taken: _Taken) -> dict[str, Any]:
    """Add the optimizer's tensors, and return its plain data: settings of each group, and numbers of each parameter."""
    optimizer = loop.live.optimizer
    state: dict[str, dict[str, Any]] = {}
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        plain: dict[str, Any] = {}
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                taken.add(f"{_OPTIMIZER}{number}.{key}", value)
            else:
                plain[key] = _plain(f"the optimizer's {key}", value)
        if plain:
            state[str(number)] = plain
    groups = [
        {key: _plain(f"the optimizer's {key}", value) for key, value in group.items() if key not in _SETTINGS_LEFT}
        for group in optimizer.param_groups
    ]
    return {"class": type(optimizer).__name__, "groups": groups, "state": state}


def _restore_optimizer(loop: Loop, tensors: Mapping[str, StoredTensor], plain: Mapping[str, Any]) -> None:
    optimizer = loop.live.optimizer
    by_parameter: dict[int, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_OPTIMIZER):
            owner, _, key = name.removeprefix(_OPTIMIZER).partition(".")
            by_parameter.setdefault(int(owner), {})[key] = tensor
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        state: dict[str, Any] = dict(plain["state"].get(str(number), {}))
        current = optimizer.state.get(parameter, {})
        for key, tensor in by_parameter.get(number, {}).items():
            state[key] = _like(tensor, current.get(key), parameter)
        if state:
            optimizer.state[parameter] = state
        else:
            optimizer.state.pop(parameter, None)
    for group, settings in zip(optimizer.param_groups, plain["groups"], strict=True):
        group.update({key: tuple(value) if isinstance(group.get(key), tuple) else value for key, value in settings.items()})


def _like(saved: StoredTensor, current: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return a new tensor with the saved values, on the device and in the memory order that the optimizer would use."""
    if isinstance(current, torch.Tensor) and tuple(current.shape) == saved.shape:
        result = torch.empty_like(current, dtype=saved.dtype)
    elif saved.shape == tuple(parameter.shape):  # sharded if the parameter is
        result = torch.empty_like(parameter, dtype=saved.dtype, requires_grad=False)
    else:  # a count of steps, which stays on the host unless the optimizer is fused
        fused = parameter.is_cuda and not saved.shape
        result = torch.empty(saved.shape, dtype=saved.dtype, device=parameter.device if fused else "cpu")
    saved.copy_to(result)
    return result


def _differences(loop: Loop, tensors: Mapping[str, StoredTensor], meta: Mapping[str, Any]) -> list[str]:
    """Describe how the state's model and optimizer differ from the run's."""
    problems = []
    current = _named_tensors(loop)
    saved = {name for name in tensors if name.startswith((_MODEL, _BUFFER))} | set(meta["aliases"])
    problems += [f"it lacks {_shown(name)}" for name in sorted(current.keys() - saved)]
    problems += [f"it has {_shown(name)}, which the model does not have" for name in sorted(saved - current.keys())]
    for name in sorted(current.keys() & saved):
        there, here = tensors[meta["aliases"].get(name, name)], current[name]
        if there.shape != tuple(here.shape):
            problems.append(f"{_shown(name)} has shape {list(there.shape)} there and {list(here.shape)} here")
    optimizer = loop.live.optimizer
    if meta["optimizer"]["class"] != type(optimizer).__name__:
        problems.append(f"the optimizer is {meta['optimizer']['class']} there and {type(optimizer).__name__} here")
    elif len(meta["optimizer"]["groups"]) != len(optimizer.param_groups):
        problems.append(
            f"the optimizer has {len(meta['optimizer']['groups'])} parameter groups there and {len(optimizer.param_groups)} "
            f"here"
        )
    return problems


def _shown(name: str) -> str:
    return name.removeprefix(_MODEL).removeprefix(_BUFFER)


def _add_random(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Add the states of all random number generators, and return their plain data."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002  user code draws from it
    tensors[f"{_RANDOM}torch"] = torch.get_rng_state()
    tensors[f"{_RANDOM}numpy"] = torch.from_numpy(np.asarray(keys, dtype=np.uint32).astype(np.int64))
    tensors[f"{_RANDOM}python"] = torch.tensor(words, dtype=torch.int64)
    if torch.cuda.is_available():
        tensors[f"{_RANDOM}cuda"] = torch.cuda.get_rng_state()
    return {"python": [version, gauss], "numpy": [str(kind), int(place), int(has_gauss), float(cached)]}


def _restore_random(tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
    version, gauss = plain["python"]
    random.setstate((version, tuple(tensors[f"{_RANDOM}python"].tolist()), gauss))
    kind, place, has_gauss, cached = plain["numpy"]
    keys = tensors[f"{_RANDOM}numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, place, has_gauss, cached))  # noqa: NPY002  as above
    torch.set_rng_state(tensors[f"{_RANDOM}torch"].clone())
    if f"{_RANDOM}cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[f"{_RANDOM}cuda"].clone())


def _back(value: Any) -> Any:
    """Return the value that was passed to `_plain`."""
    if isinstance(value, dict):
        if set(value) == {_BY_NUMBER}:
            return Counter({int(key): _back(item) for key, item in value[_BY_NUMBER]})
        return {key: _back(item) for key, item in value.items()}
    return [_back(item) for item in value] if isinstance(value, list) else value


def _plain(what: str, value: Any) -> Any:
    """Return a value in a form that JSON can store without loss.

    Raises:
        DataError: The value is not plain data.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(what, item) for item in value]
    if isinstance(value, dict) and value and all(type(key) is int for key in value):  # milestones of a schedule
        return {_BY_NUMBER: [[key, _plain(what, item)] for key, item in value.items()]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(f"{what}.{key}", item) for key, item in value.items() if not callable(item)}
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, np.generic):
        return value.item()
    raise DataError(
        f"{what} contains a {type(value).__qualname__}, which cannot be saved: use a number, a string or a list."
    )
