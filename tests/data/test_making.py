"""What helpers copy is begun one group ahead, nothing else is, and an error comes where its batch would have."""

from __future__ import annotations

import weakref

import numpy as np
import pyarrow as pa
import pytest

from hasten.data.store.gather import Strings
from hasten.data.store.sharing import Arriving
from hasten.data.stream.making import Maker, Step, made, made_ahead
from hasten.data.stream.opened import is_arriving

GROUPS = [[Step(task, {"at": task + 1}) for task in range(start, start + 4)] for start in (0, 4, 8, 12)]


class Gathered:
    """What was gathered for a task; a weak reference can follow it."""

    def __init__(self, task: int) -> None:
        self.task = task


class Log:
    """A maker's, that says what happened in which order."""

    def __init__(self, *, arrives: bool, bad: int = -1) -> None:
        self.events: list[str] = []
        self.there: weakref.WeakSet[Gathered] = weakref.WeakSet()
        self.most = 0
        self.bad = bad
        self.maker = Maker(finish=self.finish, gather=self.gather, close=lambda: None, arrives=lambda _one: arrives)

    def gather(self, tasks: list[int]) -> list[Gathered]:
        self.most = max(self.most, len(self.there))
        self.events.append(f"gather {tasks[0]}")
        if self.bad in tasks:
            raise ValueError(f"task {self.bad}")
        found = [Gathered(task) for task in tasks]
        self.there.update(found)
        return found

    def finish(self, gathered: Gathered) -> int:
        self.events.append(f"finish {gathered.task}")
        return gathered.task


@pytest.mark.parametrize("arrives", [True, False])
def test_a_group_is_begun_half_a_group_ahead_only_where_it_arrives(arrives: bool) -> None:
    log = Log(arrives=arrives)
    assert [(step.after["at"], batch) for step, batch in made(log.maker, GROUPS)] == [(n + 1, n) for n in range(16)]
    for first in (4, 8, 12):
        begun = log.events.index(f"gather {first}")
        assert log.events[begun - 1] == f"finish {first - 3 if arrives else first - 1}"
    assert log.most <= (4 if arrives else 1)  # a group under way, or the last batch of it, which is held


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups_of_any_size_are_all_given_out(size: int) -> None:
    groups = [[Step(task, {}) for task in range(start, min(start + size, 7))] for start in range(0, 7, size)]
    assert [batch for _, batch in made(Log(arrives=True).maker, groups)] == list(range(7))


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("bad", [0, 6, 15])
def test_an_error_while_gathering_comes_where_its_batch_would_have(arrives: bool, bad: int) -> None:
    log, seen = Log(arrives=arrives, bad=bad), list[int]()
    with pytest.raises(ValueError, match=f"task {bad}"):
        seen.extend(batch for _, batch in made(log.maker, GROUPS))
    assert seen == list(range(bad))


def test_an_error_of_one_task_alone_is_not_tried_again() -> None:
    log = Log(arrives=True, bad=1)
    with pytest.raises(ValueError, match="task 1"):
        list(made(log.maker, [[Step(task, {})] for task in range(4)]))
    assert log.events.count("gather 1") == 1


@pytest.mark.parametrize("bad", [0, 6, 15])
def test_threads_raise_it_there_too(bad: int) -> None:
    log, seen = Log(arrives=True, bad=bad), list[int]()
    with pytest.raises(ValueError, match=f"task {bad}"):
        seen.extend(batch for _, batch in made_ahead(log.maker, GROUPS, threads=2, ahead=2))
    assert seen == list(range(bad))


def test_what_is_yet_to_be_made_is_not_held_early() -> None:
    arriving, numbers = Arriving.__new__(Arriving), np.zeros(3)
    assert is_arriving({"tokens": arriving})
    assert is_arriving({"tokens": arriving, "label": numbers})
    assert not is_arriving({"label": numbers})
    assert is_arriving({"tokens": arriving, "text": pa.array(["a"])})
    assert not is_arriving({"tokens": arriving, "text": Strings.__new__(Strings)})
    assert not is_arriving({"tokens": arriving, "image": [numbers]})
