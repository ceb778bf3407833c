"""Test that all threads treat denormal numbers as zero, and that the undo restores all threads."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hasten.core.card import StepTrace
from hasten.core.openmp import count_denormals_kept, read_openmp
from hasten.optimizations.flush_denormals import FlushDenormals
from tests.optimizations.contract import Prepared, make_loop

MANY = 2**20


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_flushes_and_every_thread_stops(threads: int) -> None:
    if threads > 1 and not read_openmp()[0]:
        pytest.skip(read_openmp()[1])
    torch.set_num_threads(threads)
    assert count_denormals_kept(MANY) == MANY  # the threads exist now, and keep the state they were created with
    live = make_loop(Prepared(), FlushDenormals()).live
    assert count_denormals_kept(MANY) == 0
    assert all(check.passed for check in FlushDenormals().evidence(live, StepTrace()))
    live.undo_all()
    assert count_denormals_kept(MANY) == MANY


OTHER_LIBRARY = """
import sklearn.ensemble  # loads its own OpenMP library
import torch
from tests.optimizations.contract import Prepared, make_loop
from hasten.core.openmp import count_denormals_kept
from hasten.optimizations.flush_denormals import FlushDenormals
torch.set_num_threads(2)
count_denormals_kept(2**20)
live = make_loop(Prepared(), FlushDenormals()).live
kept = count_denormals_kept(2**20)
live.undo_all()
print(sum("libgomp" in line for line in {line.split()[-1] for line in open("/proc/self/maps")}), kept)
"""


@pytest.mark.slow
def test_the_threads_of_another_package_are_not_mistaken_for_torchs() -> None:
    if not read_openmp()[0]:
        pytest.skip(read_openmp()[1])
    done = subprocess.run([sys.executable, "-c", OTHER_LIBRARY], capture_output=True, text=True, timeout=60, check=True)
    libraries, kept = map(int, done.stdout.split())
    assert libraries > 1, "there is only one OpenMP library"
    assert kept == 0


def test_one_thread_that_does_not_flush_is_found() -> None:
    if not read_openmp()[0]:
        pytest.skip(read_openmp()[1])
    torch.set_num_threads(2)
    live = make_loop(Prepared()).live
    count_denormals_kept(MANY)
    torch.set_flush_denormal(True)
    try:
        (check,) = FlushDenormals().evidence(live, StepTrace())
    finally:
        torch.set_flush_denormal(False)
    assert not check.passed
    assert 0 < int(check.seen.split()[0]) < int(check.seen.split()[2])


def test_the_undo_keeps_a_switch_that_was_on() -> None:
    torch.set_flush_denormal(True)
    try:
        live = make_loop(Prepared(), FlushDenormals()).live
        live.undo_all()
        assert count_denormals_kept(10) == 0
    finally:
        torch.set_flush_denormal(False)
    assert count_denormals_kept(10) == 10


def test_ordinary_numbers_are_left_alone() -> None:
    live = make_loop(Prepared(), FlushDenormals()).live
    smallest_normal = torch.full((4,), torch.finfo(torch.float32).tiny)
    assert torch.count_nonzero(smallest_normal * 2.0) == 4
    live.undo_all()
