"""What must not change between a call ahead and its use, and what forbids a call ahead altogether."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules_of_torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data._utils.collate import default_collate

from hasten.core.batch import iter_tensors
from hasten.script.data.aside import AsideError, run_aside
from hasten.script.data.purity import measure_purity

SAMPLED = 8
LIMIT_S = 5.0
_TORCHS = frozenset({"_parameters", "_buffers", "_modules"})
_CONTAINERS = (list, dict, set, deque)
_TRAINING = attrgetter("training")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


@dataclass(frozen=True)
class Held:
    """What a module held under a name: the object, a copy of a container, the version of a tensor."""

    value: Any
    content: Any
    version: int | None

    @classmethod
    def of(cls, value: Any) -> Held:
        """As it is now."""
        tracked = isinstance(value, torch.Tensor) and not value.is_inference()
        return cls(value, value.copy() if type(value) in _CONTAINERS else None, value._version if tracked else None)  # noqa: SLF001 - as below

    def still(self, value: Any) -> bool:
        """Whether it is the same, and as it was."""
        if value is not self.value or (self.version is not None and value._version != self.version):  # noqa: SLF001 - as below
            return False
        return self.content is None or _same_items(self.content, value)

    def put_back(self) -> Any:
        """The object as it was; a tensor that was changed in place stays changed."""
        if type(self.value) in (list, deque):
            self.value.clear()
            self.value.extend(self.content)
        elif type(self.value) in (dict, set):
            self.value.clear()
            self.value.update(self.content)
        return self.value


class Weights:
    """Knows a model's modules and tensors, and tells whether any was changed; a module that is added later is not seen.

    Args:
        model: The model.

    Attributes:
        objection: Why changes could not be seen; empty where they can.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._modules = list(model.modules())
        self._tensors = list(chain(model.parameters(), model.buffers()))
        blind = any(tensor.is_inference() for tensor in self._tensors)
        self.objection = "its weights were made in inference mode, where changes leave no mark" if blind else ""

    def held(self) -> list[dict[str, Held]]:
        """What else the modules hold: a model may keep something from call to call."""
        return [
            {name: Held.of(value) for name, value in vars(module).items() if name not in _TORCHS} for module in self._modules
        ]

    def put_back(self, before: list[dict[str, Held]]) -> bool:
        """Have the modules hold what they held before; returns whether anything had changed."""
        changed = False
        for module, held in zip(self._modules, before, strict=True):
            now = vars(module)
            for name in [name for name in now if name not in _TORCHS and name not in held]:
                del now[name]
                changed = True
            for name, item in held.items():
                if name not in now or not item.still(now[name]):
                    now[name] = item.put_back()
                    changed = True
        return changed

    def state(self) -> tuple[Any, ...]:
        """Equal as long as a call with the same numbers gives the same result."""
        tensors = self._tensors
        return (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_inference_mode_enabled(),
            [tensor._version for tensor in tensors],  # noqa: SLF001 - torch's own mark of changes in place
            [tensor.data_ptr() for tensor in tensors],
        )

    def evaluates(self) -> bool:
        """Whether every module is in evaluation mode: nothing is dropped, nothing counted, no statistics of a batch."""
        return True not in map(_TRAINING, self._modules)

    def watched(self) -> bool:
        """Whether somebody looks on, and would see fewer and larger calls."""
        hooks = any(getattr(module, name) for module in self._modules for name in _HOOKS)
        return hooks or any(getattr(modules_of_torch, name, None) for name in _GLOBAL_HOOKS)


def _same_items(one: Any, other: Any) -> bool:
    """Whether two containers of one kind hold the same objects."""
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(name in other and other[name] is value for name, value in one.items())
    if isinstance(one, set):
        return bool(one == other)
    return all(a is b for a, b in zip(one, other, strict=True))


def objection_to(loader: DataLoader[Any]) -> str:
    """Why batches of a loader cannot be fetched before the loop asks for them; empty where they can.

    Its order must be that of the data, its samples the same whenever they are read, and a batch must not be made in the
    memory of the one before. Worker processes read ahead by themselves, and so theirs can be.
    """
    if type(loader)._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001 - a subclass may make iterators of its own
        return "the loader makes iterators of its own"
    if type(loader.batch_sampler) is not BatchSampler or type(loader.sampler) is not SequentialSampler:
        return "the order of the evaluation is not that of the data"
    if loader.num_workers:
        return ""
    size = len(loader.sampler)
    indices = list(range(0, size, max(size // SAMPLED, 1)))[:SAMPLED]
    found = measure_purity(loader.dataset, loader.collate_fn, indices)
    if not found.pure:
        return f"samples of the evaluation may differ from visit to visit: {found.reason}"
    if loader.collate_fn is default_collate:
        return ""
    try:
        shared, _ = run_aside(lambda: _shares_memory(loader.dataset, loader.collate_fn), limit_s=LIMIT_S)
    except (AsideError, OSError) as error:
        return f"its batches could not be made aside: {error}"
    return "its collate function makes a batch in the memory of the one before" if shared else ""


def _shares_memory(dataset: Any, collate: Callable[[Any], Any]) -> bool:
    """Whether two batches lie in the same memory, or the first one changes while the second one is made."""
    first = list(iter_tensors(collate([dataset[0]])))
    before = [tensor.clone() for tensor in first]
    second = list(iter_tensors(collate([dataset[len(dataset) - 1]])))
    places = [{tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()} for tensors in (first, second)]
    return bool(places[0] & places[1]) or not all(map(torch.equal, before, first))
