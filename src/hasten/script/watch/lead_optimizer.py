"""Decide which of a script's optimizers ends its steps: the one that steps most, until another one succeeds it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Literal

STEPS_ALONE = 8
"""An optimizer that makes this number of steps while the leading one makes none succeeds it, as in another fold or stage."""

MAX_KNOWN = 4096
"""Limit of known optimizers, for scripts that create new ones at every step."""

Place = Literal["leads", "takes over", "extra"]


class Serials:
    """Assigns a unique number to each object. An address is not unique: a new object may reuse that of a freed one."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._latest: Callable[[], Any] = lambda: None
        self._number = 0

    def of(self, item: object) -> int:
        """Return the number of an object, 1 or more."""
        if self._latest() is item:
            return self._number
        known = self._known.get(id(item))
        if known is None or known[0]() is not item:
            if len(self._known) >= MAX_KNOWN:
                self._known = {key: (ref, number) for key, (ref, number) in self._known.items() if ref() is not None}
            known = self._known[id(item)] = (weakref.ref(item), next(self._numbers))
        self._latest, self._number = known
        return self._number


class Leader:
    """Counts the steps of all optimizers, and knows the leading one."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._alone: dict[Hashable, int] = {}
        self._leader: Hashable = None

    def may_be(self, optimizer: Hashable) -> bool:
        """Return whether this optimizer leads or no optimizer leads yet."""
        return self._leader is None or optimizer == self._leader

    def steps_again(self, optimizer: Hashable) -> bool:
        """Count a step of the leading optimizer and return True, if no other one has stepped since its last step."""
        if optimizer != self._leader or self._alone:
            return False
        self._counts[optimizer] += 1
        return True

    def stepped(self, optimizer: Hashable) -> Place:
        """Count a step and return the optimizer's role: it leads, takes over, or steps in addition to the leading one."""
        if len(self._counts) >= MAX_KNOWN:
            self._counts = {key: count for key, count in self._counts.items() if key in {self._leader, optimizer}}
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if self._leader is None or count > self._counts[self._leader]:
            self._leader = optimizer
        if optimizer == self._leader:
            self._alone.clear()
            return "leads"
        steps = self._alone[optimizer] = self._alone.get(optimizer, 0) + 1
        if steps < STEPS_ALONE:
            return "extra"
        self._leader, self._counts = optimizer, {optimizer: steps}
        self._alone.clear()
        return "takes over"
