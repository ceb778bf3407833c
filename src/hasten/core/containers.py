"""Apply a function to each tensor in any nesting of containers, and get the same containers back.

Containers are dicts, lists, tuples, sets and queues of all classes, user-defined mappings and sequences, dataclasses, attrs
classes, and objects that move their tensors with `.to()`, such as a batch of graphs. Modules are not containers.

A container keeps its type and its attributes. Two references to one object stay two references to one object. A container in
which nothing changes is not copied, and one that cannot be rebuilt is left as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

TensorFn = Callable[[torch.Tensor], torch.Tensor]

_OPAQUE = (str, bytes, bytearray, memoryview, range, type, nn.Module, int, float, complex, type(None))


def map_tensors(batch: Any, fn: TensorFn) -> Any:
    """Return `batch` with `fn` applied once to each tensor. Containers keep their types. Errors of `fn` are raised."""
    if isinstance(batch, torch.Tensor):
        return fn(batch)
    return _Mapping(fn).of(batch)


class _Mapping:
    """One walk through a batch.

    Args:
        fn: Applied to each tensor.
    """

    def __init__(self, fn: TensorFn) -> None:
        self._fn = fn
        self._done: dict[int, tuple[Any, Any]] = {}  # the originals too: the identity of a freed object may be used again

    def of(self, item: Any) -> Any:
        """Return what takes the place of an item."""
        if isinstance(item, _OPAQUE):
            return item
        known = self._done.get(id(item))
        if known is not None:
            return known[1]
        self._done[id(item)] = (item, item)  # a container that holds itself keeps the original there
        mapped = self._fn(item) if isinstance(item, torch.Tensor) else self._container(item)
        self._done[id(item)] = (item, mapped)
        return mapped

    def _container(self, item: Any) -> Any:
        kind = type(item)
        if kind is dict:
            items = {key: self.of(value) for key, value in item.items()}
            return items if any(items[key] is not value for key, value in item.items()) else item
        if kind is list:
            values = [self.of(value) for value in item]
            return values if _differ(item, values) else item
        if isinstance(item, tuple):
            return self._tuple(item)
        if isinstance(item, dict | list | deque):
            return self._builtin(item)
        if isinstance(item, set | frozenset):
            members = list(item)
            parts = [self.of(part) for part in members]
            return _made(item, lambda: kind(parts)) if _differ(members, parts) else item
        if not _is_container(item):
            return item
        if not _is_record(item) and _has(item, "to") and _has(item, "apply"):
            return self._applied(item)
        return self._object(item)

    def _tuple(self, item: tuple[Any, ...]) -> Any:
        """Return a tuple of the same class. The sizes in a packed sequence must stay as they are, on the CPU."""
        kept = (1,) if isinstance(item, PackedSequence) else ()
        values = [part if place in kept else self.of(part) for place, part in enumerate(item)]
        if not _differ(item, values):
            return item
        kind: Any = type(item)
        if kind is tuple:
            return tuple(values)
        ways = (lambda: tuple.__new__(kind, values), lambda: kind(values), lambda: kind(*values))
        made = next((one for one in (_made(item, way) for way in ways) if one is not item), item)
        attributes = self._attributes(item)
        return item if made is item else _made(item, lambda: _with(made, attributes))

    def _builtin(self, item: Any) -> Any:
        """Return a copy of a subclass of a builtin container with its items replaced, past any method of the subclass."""
        base: Any = next(one for one in (OrderedDict, dict, list, deque) if isinstance(item, one))
        pairs = list(base.items(item)) if isinstance(item, dict) else list(enumerate(base.__iter__(item)))
        items = [(key, self.of(value)) for key, value in pairs]
        attributes = self._attributes(item)
        if not attributes and not _differ([value for _, value in pairs], [value for _, value in items]):
            return item

        def rebuilt() -> Any:
            made = copy.copy(item)
            for key, value in items:
                base.__setitem__(made, key, value)
            return _with(made, attributes)

        return _made(item, rebuilt)

    def _object(self, item: Any) -> Any:
        """Return a copy of an object with the tensors in its attributes replaced."""
        if attributes := self._attributes(item):
            return _made(item, lambda: _with(_bare_copy(item), attributes))
        if not isinstance(item, Mapping) or next(_attributes(item), None):
            return item
        items = _made(None, lambda: dict(item)) or {}  # a mapping that shows no attributes, such as a mappingproxy
        mapped = self.of(items)
        return item if mapped is items else _made(item, lambda: type(item)(mapped))  # type: ignore[call-arg]

    def _applied(self, item: Any) -> Any:
        """Let an object with `.to()` and `.apply()` map its own tensors, as graphs and dicts of tensors do."""
        raised: list[BaseException] = []
        tensors: list[tuple[Any, Any]] = []

        def noted(tensor: Any) -> Any:
            try:
                tensors.append((tensor, self.of(tensor)))
            except BaseException as error:
                raised.append(error)
                raise
            return tensors[-1][1]

        def applied() -> Any:
            mine = copy.copy(item)
            made = mine.apply(noted)
            return mine if made is None else made

        made = _made(item, applied)
        if raised:
            raise raised[0]
        return made if any(old is not new for old, new in tensors) else item

    def _attributes(self, item: Any) -> dict[str, Any]:
        """Return the attributes of an object in which tensors were replaced."""
        return {name: new for name, old in _attributes(item) if (new := self.of(old)) is not old}


def _with(made: Any, attributes: Mapping[str, Any]) -> Any:
    """Set attributes of an object, even of a frozen one."""
    own = getattr(made, "__dict__", {})
    for name, value in attributes.items():
        if name in own:
            own[name] = value
        else:
            object.__setattr__(made, name, value)
    return made


def _is_record(item: Any) -> bool:
    return dataclasses.is_dataclass(item) or hasattr(type(item), "__attrs_attrs__")


def _is_container(item: Any) -> bool:
    return isinstance(item, Mapping | Sequence | AbstractSet) or _is_record(item) or _has(item, "to")


def _has(item: Any, method: str) -> bool:
    return callable(getattr(type(item), method, None))


def _differ(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return any(one is not other for one, other in zip(old, new, strict=True))


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, from its dict and its slots."""
    own = getattr(item, "__dict__", None)
    if isinstance(own, dict):
        yield from list(own.items())
    for kind in type(item).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):  # a slot may be empty
                    yield mangled, object.__getattribute__(item, mangled)


def _bare_copy(item: Any) -> Any:
    """Return an object of the same class with the same attributes, without calling a method of its class."""
    made = object.__new__(type(item))
    own = getattr(made, "__dict__", None)
    if own is not None:
        own.update(vars(item))
    for name, value in _attributes(item):
        if own is None or name not in own:
            object.__setattr__(made, name, value)
    return made


def _made(item: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` returns if its type is that of the item, or the item."""
    try:
        made = make()
    except Exception:  # noqa: BLE001 - a class of the user may raise anything when it is made
        return item
    return made if item is None or type(made) is type(item) else item
