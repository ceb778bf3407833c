"""Notice steps that no optimizer of torch.optim makes: the trained tensors have changed since the last backward pass.

The trained tensors are the leaves of the graph that a backward pass starts from. So averages of weights and buffers, which
change as well, are not among them, and a pass that only adds to the gradients is not a step. A change is seen in the version
of a tensor, or, if the script bypasses versions (`p.data.add_`), in one of its values. If nothing ever changes, because each
step makes new tensors (`torch.func`), every gradient computation counts as a step. Without any backward pass (evolution
strategies), a step is a change between two calls of the model.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

BY_HAND = "ByHand"
"""Name of the class of optimizer that represents updates by hand, in facts about a script."""
NO_OPTIMIZER_WORDS = "the script updates its parameters without an optimizer of torch.optim, so there is nothing to act on"
MAX_NODES = 20_000
"""Maximum number of nodes of a graph among which leaves are searched."""
MAX_LEAVES, MAX_VALUES = 256, 4
"""Maximum number of tensors whose version is compared, and of those one of whose values is compared."""
SEARCHED_FIRST, SEARCHED_ONE_IN = 8, 64
"""Leaves are searched in this number of first backward passes, then in one of this number."""
SEARCHED_VALUES = 4096
"""Number of first gradient values among which the largest is searched: the weight that moves most."""
UNCHANGED_PASSES = 32
"""After this number of computations of returned gradients without a change, each counts as a step."""
CALLS_WITHOUT = 32
"""After this number of calls of the model without a backward pass, changes between calls count as steps."""
PASSES = "passes"

_item = torch._C.TensorBase.item  # noqa: SLF001 - `torch.Tensor.item` may be a seam


class ByHand(Optimizer):
    """Represents updates that a script makes by hand, for the facts about it. It never steps.

    Args:
        parameters: The trained tensors.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(list(parameters), {})

    def step(self, closure: Any = None) -> Any:
        """Raise an error.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(NO_OPTIMIZER_WORDS)


class HandUpdates:
    """Compares the trained tensors after a backward pass with those at later moments.

    Attributes:
        active: Whether steps are still inferred. Set it to False once an optimizer of torch.optim steps.
        backwards: Number of backward passes.
    """

    def __init__(self) -> None:
        self.active = True
        self.backwards = 0
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._versions: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._values: list[tuple[weakref.ref[torch.Tensor], int, float]] = []
        self._groups: dict[int, Hashable] = {}
        self._pending = self._versions_tell = False
        self._unchanged = self._calls = 0

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The trained tensors."""
        return [leaf for ref in self._leaves.values() if (leaf := ref()) is not None]

    def before_backward(self, tensors: Any) -> None:
        """Find the leaves of the graph before it is freed. `tensors`: where the backward pass starts."""
        if not self.active:
            return
        self.backwards += 1
        if tensors is None:
            return
        if self.backwards <= SEARCHED_FIRST or self.backwards % SEARCHED_ONE_IN == 0:
            starts = [tensors] if isinstance(tensors, torch.Tensor) else [*(tensors or ())]
            self._learn(_leaves_of(starts))

    def after_backward(self, gradients: Mapping[int, torch.Tensor] | None = None) -> None:
        """Remember the present state. `gradients`: those returned, by the id of their tensor; None if accumulated."""
        if not self.active:
            return
        self._remember(gradients or {})
        self._pending = True
        self._unchanged += gradients is not None  # accumulated ones may wait for an optimizer

    def called(self, module: torch.nn.Module) -> Hashable | None:
        """Note a call of the outermost module. Without gradients: returns what has changed since the last."""
        if not self.active or self.backwards:
            return None
        self._calls += 1
        if self._calls < CALLS_WITHOUT:
            return None
        self._learn(module.parameters())
        key, self._pending = self.changed(), True
        self._remember({})
        return key

    def changed(self) -> Hashable | None:
        """Return a key of the tensors that changed since the last backward pass; None if none did, or at a second call."""
        if not self._pending:
            return None
        known = [(leaf, version) for ref, version in self._versions if (leaf := ref()) is not None]
        moved = [leaf for leaf, version in known if leaf._version != version]  # noqa: SLF001 - torch's name for it
        self._versions_tell |= bool(moved)
        if not moved:
            moved = [leaf for ref, at, old in self._values if (leaf := ref()) is not None and _differ(_value(leaf, at), old)]
        if moved:
            self._pending, self._unchanged = False, 0
            return self._group(moved)
        if self.backwards and self._unchanged > UNCHANGED_PASSES:
            self._pending = False
            return PASSES
        return None

    def _learn(self, leaves: Iterable[torch.Tensor]) -> None:
        for leaf in leaves:
            known = self._leaves.get(id(leaf))
            if known is None or known() is not leaf:
                self._leaves[id(leaf)] = weakref.ref(leaf)

    def _remember(self, gradients: Mapping[int, torch.Tensor]) -> None:
        leaves = self.leaves
        watched = _spread(leaves, MAX_LEAVES)
        self._versions = [(weakref.ref(leaf), leaf._version) for leaf in watched]  # noqa: SLF001 - as above
        self._values = []
        if self._versions_tell:
            return
        for leaf in _spread(watched, MAX_VALUES):
            if leaf.layout is torch.strided and leaf.numel() and leaf.device.type != "meta":
                at = _moving_most(leaf, gradients.get(id(leaf), leaf.grad))
                self._values.append((weakref.ref(leaf), at, _value(leaf, at)))

    def _group(self, moved: Sequence[torch.Tensor]) -> Hashable:
        """Return the key of tensors that change together, such as those of one of two models."""
        key = next((self._groups[id(leaf)] for leaf in moved if id(leaf) in self._groups), len(self._groups) + 1)
        for leaf in moved:
            self._groups.setdefault(id(leaf), key)
        return key


def inside_transform() -> bool:
    """Return whether a function of torch.func is being computed, such as `torch.func.grad`."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001 - torch has no public name for it


def plain_loss(loss: Any) -> Any:
    """Return the loss inside a transform as an ordinary number: of a batch of losses, their mean."""
    functorch = torch._C._functorch  # noqa: SLF001 - as above
    while isinstance(loss, torch.Tensor) and functorch.is_functorch_wrapped_tensor(loss):
        loss = functorch.get_unwrapped(loss)
    return loss.detach().mean() if isinstance(loss, torch.Tensor) and loss.is_floating_point() else loss


def by_tensor(inputs: Any, gradients: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the results of `torch.autograd.grad` by the id of their tensor."""
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else [*inputs]
    return {id(tensor): gradient for tensor, gradient in zip(tensors, gradients, strict=False)}


def _leaves_of(starts: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves that a backward pass from `starts` accumulates gradients in."""
    nodes = [start.grad_fn for start in starts if isinstance(start, torch.Tensor) and start.grad_fn is not None]
    known = set(nodes)
    while nodes and len(known) < MAX_NODES:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield leaf
        for after, _ in node.next_functions:
            if after is not None and after not in known:
                known.add(after)
                nodes.append(after)


def _spread(items: list[torch.Tensor], most: int) -> list[torch.Tensor]:
    """Return at most this number of items, evenly spaced, with the last: the output's bias always has a gradient."""
    if len(items) <= most:
        return items
    return [items[-1 - number * len(items) // most] for number in range(most)]


def _moving_most(leaf: torch.Tensor, gradient: torch.Tensor | None) -> int:
    """Return the index, within the contiguous tensor, of the value with the largest gradient; 0 if that is unknown."""
    usable = gradient is not None and type(gradient) in (torch.Tensor, torch.nn.Parameter) and gradient.shape == leaf.shape
    if gradient is None or not usable or gradient.layout is not torch.strided or not (
        leaf.is_contiguous() and gradient.is_contiguous()
    ):  # fmt: skip
        return 0
    return int(_item(gradient.detach().view(-1)[:SEARCHED_VALUES].abs().argmax()))


def _value(leaf: torch.Tensor, at: int) -> float:
    value = _item(torch.as_strided(leaf.detach(), (), (), leaf.storage_offset() + at))
    return float(abs(value) if isinstance(value, complex) else value)


def _differ(now: float, old: float) -> bool:
    return now != old and not (math.isnan(now) and math.isnan(old))
