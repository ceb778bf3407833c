"""How the batches of an epoch are made: several gathered at once, and an error raised where its batch would have come.

Where rows are copied by helpers, a group of batches is begun when half of those before it are given out. So helpers have
something to copy all the time: they still copy the other half while whoever trains gathers, when they could not even ask
for work, since Python is held. Whatever is there at once is gathered when it is asked for, and no earlier: it would only
take room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from hasten.data.stream.ahead import prepared

Position: TypeAlias = dict[str, Any]
"""Where an epoch stands: integers by name, or lists of them."""


class Step(NamedTuple):
    """One batch of an epoch. A tuple, since there is one for every batch.

    Attributes:
        task: What the batch is made of.
        after: The position when it is given out.
    """

    task: Any
    after: Position


def _no(_gathered: Any) -> bool:
    return False


@dataclass(frozen=True)
class Maker:
    """What makes the batches of an epoch, in any thread.

    Attributes:
        finish: Makes a batch of what was gathered for it.
        close: Lets go of everything.
        gather: Gathers what several tasks need, each in its place; hands on the tasks themselves unless given.
        arrives: Whether what was gathered for a batch is copied by others meanwhile, and takes little room but for that.
    """

    finish: Callable[[Any], Any]
    close: Callable[[], None]
    gather: Callable[[list[Any]], list[Any]] = list
    arrives: Callable[[Any], bool] = _no


@dataclass(frozen=True)
class _Failed:
    """Stands at the place of a batch that could not be made, until the loop comes there."""

    error: BaseException


class _Group(NamedTuple):
    """Some steps, and what was gathered for each; an error, where it could not be gathered for all."""

    steps: list[Step]
    gathered: list[Any] | _Failed


def made(maker: Maker, groups: Iterable[list[Step]]) -> Iterator[tuple[Step, Any]]:
    """The batches of groups of steps, each made when it is asked for. None is held when the next one is."""
    remaining = iter(groups)
    group = _next(maker, remaining)
    while group is not None:
        following: _Group | None = None
        left = len(group.steps) // 2 if _arrives(maker, group) else 0
        batches = _finished(maker, group)
        del group
        for one in batches:
            left -= 1
            if not left:
                following = _next(maker, remaining)
            yield one
            del one
        del batches
        group = following if following is not None else _next(maker, remaining)


def _next(maker: Maker, remaining: Iterator[list[Step]]) -> _Group | None:
    """The next group, gathered; None where there is none."""
    steps = next(remaining, None)
    return None if steps is None else _gathered(maker, steps)


def made_ahead(maker: Maker, groups: Iterable[list[Step]], *, threads: int, ahead: int) -> Iterator[tuple[Step, Any]]:
    """The same, made by threads, as many groups ahead at most."""

    def make(steps: list[Step]) -> list[tuple[Step, Any]]:
        found: list[tuple[Step, Any]] = []
        try:
            found.extend(_finished(maker, _gathered(maker, steps)))
        except Exception as error:  # noqa: BLE001  raised where the loop comes to it
            found.append((steps[len(found)], _Failed(error)))
        return found

    batches = prepared(make, groups, threads=threads, ahead=ahead)
    try:
        for group in batches:
            for step, batch in group:
                if isinstance(batch, _Failed):
                    raise batch.error
                yield step, batch
                del batch
            del group
    finally:
        batches.close()  # type: ignore[attr-defined]  # a generator


def _arrives(maker: Maker, group: _Group) -> bool:
    return not isinstance(group.gathered, _Failed) and maker.arrives(group.gathered[0])


def _gathered(maker: Maker, steps: list[Step]) -> _Group:
    try:
        return _Group(steps, maker.gather([step.task for step in steps]))
    except Exception as error:  # noqa: BLE001  raised where the loop comes to it
        return _Group(steps, _Failed(error))


def _finished(maker: Maker, group: _Group) -> Iterator[tuple[Step, Any]]:
    """The batches of a group."""
    steps, gathered = group
    del group
    if isinstance(gathered, _Failed):
        if len(steps) == 1:
            raise gathered.error
        # The error belongs to one of them: those before it can be made.
        each: Iterable[Any] = chain.from_iterable(maker.gather([step.task]) for step in steps)
    else:
        each = gathered
    finish = maker.finish
    for step, one in zip(steps, each, strict=False):
        yield step, finish(one)
