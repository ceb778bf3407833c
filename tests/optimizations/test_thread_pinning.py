"""Threads bound to cores: what is offered, what is asked of OpenMP, what it excludes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.core.machine import Reading
from hasten.core.optimization import clash
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.thread_pinning import ThreadPinning
from tests.optimizations.contract import facts


@pytest.mark.parametrize(("cores", "expected"), [(2, ["spread"]), (8, ["spread", "close"])])
def test_two_cores_leave_no_choice(cores: int, expected: list[str]) -> None:
    fit = ThreadPinning.fit(facts(on={"cores": cores}))
    assert [setting.settings()["bind"] for setting in fit.settings] == expected


def test_ranks_that_share_a_machine_are_refused() -> None:
    given = facts()
    shared = replace(given, machine=replace(given.machine, cores=Reading(4, "8 cores by affinity; shared by 2 local ranks")))
    assert "each would bind its threads to the same cores" in ThreadPinning.fit(shared).reason


def test_it_asks_openmp_in_standard_words() -> None:
    assert ThreadPinning(bind="close").environment() == {"OMP_PROC_BIND": "close", "OMP_PLACES": "threads"}


def test_it_excludes_loader_workers() -> None:
    assert "exclude each other" in clash(ThreadPinning(), LoaderWorkers(num_workers=1))


def test_another_binding_is_refused() -> None:
    with pytest.raises(ValueError, match="spread or close, not 'master'"):
        ThreadPinning(bind="master")  # type: ignore[arg-type]
