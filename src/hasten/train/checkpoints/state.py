"""Everything that decides how a run goes on, as tensors and plain data, and back.

What is taken: the model's state and those buffers that no state_dict names, the optimizer's state and settings, the
schedule, the gradient scaler, the random numbers of Python, NumPy and torch on the host and the device, where the run
stands in its epoch, and what it divides gradients by. With the same data and plan, a run that gets it back does the same
updates, bit for bit, as one that was never stopped; on a GPU where the job itself is deterministic.

Of several ranks each takes what it alone has: its shards of sharded tensors, its random numbers, and its buffers, since
running statistics are of the samples that a rank saw. What all have alike is rank 0's to keep.
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
_BY_NUMBER = "\0by number"
_MODEL, _BUFFER, _OPTIMIZER, _RANDOM = "model.", "buffer.", "optimizer.", "random."
_SETTINGS_LEFT = ("params", "fused", "foreach", "capturable", "differentiable")
"""What a parameter group says of its implementation, which the plan decides anew."""


@dataclass(frozen=True)
class RunState:
    """What a run needs to go on.

    Attributes:
        tensors: By name. They are the run's own and not copies: take them before the next update.
        meta: Plain data.
    """

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]


@dataclass
class _Taken:
    """What one rank keeps."""

    leads: bool
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    shards: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor, *, own: bool = False) -> None:
        """Add a tensor, or this rank's part of it; `own` says that each rank has another one."""
        shard = shard_of(tensor)
        if shard is None:
            if self.leads or own:
                self.tensors[name] = tensor.detach()
        elif shard.is_first and (self.leads or shard.tensor.numel()):
            self.tensors[name] = shard.tensor
            self.shards[name] = {"shape": list(shard.shape), "start": list(shard.start)}


def capture(loop: Loop) -> RunState:
    """What this rank keeps of a run between two updates.

    Of a tensor in shards it is this rank's part; `meta["shards"]` has the shape of the whole and where the part begins.

    Args:
        loop: The run; its losses must have been read.

    Raises:
        DataError: A part of the state is no plain data.
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
    """Bring a loop that was just built to where a state says.

    Args:
        loop: The run, under the same job; the plan and the number of ranks may be others.
        tensors: By name; this rank's own random numbers and buffers among them.
        meta: The leading rank's, with `samples` and `random` as they are for this rank.

    Raises:
        DataError: The model or the optimizer is another one; says what differs.
    """
    live = loop.live
    problems = _differences(loop, tensors, meta)
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise DataError(
            f"the checkpoint is of another model: {shown}. Train the job it was made by, or start anew (another --out)."
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
    _restore_random({name: kept.whole() for name, kept in tensors.items() if name.startswith(_RANDOM)}, meta["random"])


def _named_tensors(loop: Loop) -> dict[str, torch.Tensor]:
    """Parameters and buffers under the names they are kept by: those of the state_dict, and the buffers it leaves out."""
    model = loop.live.model
    state = {f"{_MODEL}{name}": value for name, value in model.state_dict(keep_vars=True).items()}
    odd = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise DataError(
            f"{odd[0].removeprefix(_MODEL)} of the model's state_dict is no tensor (a module's get_extra_state): keep it as "
            f"a buffer."
        )
    known = {id(value) for value in state.values()}
    left = {f"{_BUFFER}{name}": value for name, value in model.named_buffers() if id(value) not in known}
    return {**state, **left}


def _add_model(loop: Loop, taken: _Taken) -> dict[str, str]:
    """Add parameters and buffers; names of the same tensor point to the first of them."""
    seen: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in _named_tensors(loop).items():
        if id(tensor) in seen:
            aliases[name] = seen[id(tensor)]
            continue
        seen[id(tensor)] = name
        taken.add(name, tensor, own=not isinstance(tensor, nn.Parameter))
    return aliases


def _add_optimizer(loop: Loop, taken: _Taken) -> dict[str, Any]:
    """Add the optimizer's tensors, and give its plain part: settings of each group, and numbers of each parameter."""
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


def _restore_optimizer(loop: Loop, tensors: Mapping[str, StoredTensor], kept: Mapping[str, Any]) -> None:
    optimizer = loop.live.optimizer
    by_parameter: dict[int, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_OPTIMIZER):
            number, _, key = name.removeprefix(_OPTIMIZER).partition(".")
            by_parameter.setdefault(int(number), {})[key] = tensor
    for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        found: dict[str, Any] = dict(kept["state"].get(str(place), {}))
        had = optimizer.state.get(parameter, {})
        for key, tensor in by_parameter.get(place, {}).items():
            found[key] = _like(tensor, had.get(key), parameter)
        if found:
            optimizer.state[parameter] = found
        else:
            optimizer.state.pop(parameter, None)
    for group, settings in zip(optimizer.param_groups, kept["groups"], strict=True):
        group.update({key: tuple(value) if isinstance(group.get(key), tuple) else value for key, value in settings.items()})


def _like(kept: StoredTensor, had: Any, parameter: torch.Tensor) -> torch.Tensor:
    """A new tensor with the kept numbers, where and in the memory order that the optimizer would have chosen."""
    if isinstance(had, torch.Tensor) and tuple(had.shape) == kept.shape:
        made = torch.empty_like(had, dtype=kept.dtype)
    elif kept.shape == tuple(parameter.shape):  # in shards where the parameter is
        made = torch.empty_like(parameter, dtype=kept.dtype, requires_grad=False)
    else:  # a count of steps, which stays on the host unless the optimizer is fused
        fused = parameter.is_cuda and not kept.shape
        made = torch.empty(kept.shape, dtype=kept.dtype, device=parameter.device if fused else "cpu")
    kept.copy_to(made)
    return made


def _differences(loop: Loop, tensors: Mapping[str, StoredTensor], meta: Mapping[str, Any]) -> list[str]:
    """In words, how the state's model and optimizer differ from the run's."""
    problems = []
    have = _named_tensors(loop)
    kept = {name for name in tensors if name.startswith((_MODEL, _BUFFER))} | set(meta["aliases"])
    problems += [f"it lacks {_shown(name)}" for name in sorted(have.keys() - kept)]
    problems += [f"it has {_shown(name)}, which the model has not" for name in sorted(kept - have.keys())]
    for name in sorted(have.keys() & kept):
        there, here = tensors[meta["aliases"].get(name, name)], have[name]
        if there.shape != tuple(here.shape):
            problems.append(f"{_shown(name)} is {list(there.shape)} there and {list(here.shape)} here")
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
    """Add the states of all random generators, and give their plain part."""
    version, words, gauss = random.getstate()
    kind, keys, at, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002  user code draws from it
    tensors[f"{_RANDOM}torch"] = torch.get_rng_state()
    tensors[f"{_RANDOM}numpy"] = torch.from_numpy(np.asarray(keys, dtype=np.uint32).astype(np.int64))
    tensors[f"{_RANDOM}python"] = torch.tensor(words, dtype=torch.int64)
    if torch.cuda.is_available():
        tensors[f"{_RANDOM}cuda"] = torch.cuda.get_rng_state()
    return {"python": [version, gauss], "numpy": [str(kind), int(at), int(has_gauss), float(cached)]}


def _restore_random(tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
    version, gauss = plain["python"]
    random.setstate((version, tuple(tensors[f"{_RANDOM}python"].tolist()), gauss))
    kind, at, has_gauss, cached = plain["numpy"]
    keys = tensors[f"{_RANDOM}numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, at, has_gauss, cached))  # noqa: NPY002  as above
    torch.set_rng_state(tensors[f"{_RANDOM}torch"].clone())
    if f"{_RANDOM}cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[f"{_RANDOM}cuda"].clone())


def _back(value: Any) -> Any:
    """What `_plain` was given."""
    if isinstance(value, dict):
        if set(value) == {_BY_NUMBER}:
            return Counter({int(key): _back(item) for key, item in value[_BY_NUMBER]})
        return {key: _back(item) for key, item in value.items()}
    return [_back(item) for item in value] if isinstance(value, list) else value


def _plain(what: str, value: Any) -> Any:
    """A value as JSON can hold it and give it back.

    Raises:
        DataError: It is something else.
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
        f"{what} holds a {type(value).__qualname__}, which no checkpoint can keep: make it a number, text or a list."
    )
