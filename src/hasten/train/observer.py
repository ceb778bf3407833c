"""What a run tells the one that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from hasten.train.guards.incidents import Incident
from hasten.train.loop import Loop


class Observer(Protocol):
    """Follows a run. All methods must be fast. They are called on the training thread, except `incident`: on any thread."""

    def after_update(self) -> None:
        """Note that an update has ended."""
        ...

    def spent(self, what: str, seconds: float) -> None:
        """Note that work between updates took some seconds.

        Args:
            what: `validation`, `checkpoint`, `last checkpoint`, `last write`, `rollback`, or after each update `saver`: a
                look at the checkpoint in progress, and sometimes a snapshot.
            seconds: How long it took.
        """
        ...

    def incident(self, incident: Incident) -> None:
        """Note an incident that a guard has reported."""
        ...


Observe: TypeAlias = Callable[[Loop], AbstractContextManager[Observer]]
"""Starts to follow a run. It ends when the context is left."""


class NoObserver:
    """Follows nothing."""

    def after_update(self) -> None:
        """Note that an update has ended."""

    def spent(self, what: str, seconds: float) -> None:
        """Note that work between updates took some seconds."""

    def incident(self, incident: Incident) -> None:
        """Note an incident that a guard has reported."""


@contextmanager
def no_one(_loop: Loop) -> Iterator[Observer]:
    """Follow nothing."""
    yield NoObserver()
