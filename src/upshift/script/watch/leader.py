"""Which of a script's optimizers tells its steps: the one that steps most, until another has followed it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

STEPS_ALONE = 8
"""An optimizer that steps so often while the leading one does not has followed it: another fold, another stage."""

Place = Literal["leads", "takes over", "beside"]


class Leader:
    """Counts the steps of all optimizers."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._alone: dict[Hashable, int] = {}
        self._leader: Hashable = None

    def may_be(self, optimizer: Hashable) -> bool:
        """Whether this one leads, or nobody does yet."""
        return self._leader is None or optimizer == self._leader

    def steps_again(self, optimizer: Hashable) -> bool:
        """Count a step of the leading optimizer where no other has stepped since its last; else nothing."""
        if optimizer != self._leader or self._alone:
            return False
        self._counts[optimizer] += 1
        return True

    def stepped(self, optimizer: Hashable) -> Place:
        """An optimizer has stepped: the leading one, one that takes its place, or another one beside it."""
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if self._leader is None or count > self._counts[self._leader]:
            self._leader = optimizer
        if optimizer == self._leader:
            self._alone.clear()
            return "leads"
        steps = self._alone[optimizer] = self._alone.get(optimizer, 0) + 1
        if steps < STEPS_ALONE:
            return "beside"
        self._leader, self._counts = optimizer, {optimizer: steps}
        self._alone.clear()
        return "takes over"
