"""Test the number of threads per operator."""

from __future__ import annotations

import pytest
import torch

from hasten.optimizations.cpu_threads import CPUThreads
from tests.optimizations.contract import Prepared, facts, make_loop


@pytest.mark.parametrize(
    ("cores", "now", "expected"), [(8, 8, [4, 1]), (8, 4, [8, 1]), (8, 3, [8, 4, 1]), (2, 2, [1]), (1, 2, [1]), (3, 3, [1])]
)
def test_the_candidates_are_all_half_and_one(cores: int, now: int, expected: list[int]) -> None:
    fit = CPUThreads.fit(facts(on={"cores": cores, "threads": now}))
    assert [setting.settings()["num_threads"] for setting in fit.settings] == expected


def test_it_is_set_and_restored() -> None:
    live = make_loop(Prepared(), CPUThreads(num_threads=3)).live
    assert torch.get_num_threads() == 3
    live.undo_all()
    assert torch.get_num_threads() == 1


def test_zero_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        CPUThreads(num_threads=0)
