"""Samples, the machine load, the budget and break-even: pure arithmetic and fake /proc trees."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from hasten.optimizations.cpu_threads import CPUThreads
from hasten.report.evidence import Candidate
from hasten.tune.budget import (
    ENOUGH_S,
    MARGIN,
    MAX_FINAL_UPDATES,
    MIN_FINAL_S,
    MIN_FINAL_UPDATES,
    PAIRS,
    REPORT_S,
    Budget,
    Costs,
)
from hasten.tune.search.candidate import break_even_updates, is_about, put
from hasten.tune.trials import machine_load
from hasten.tune.trials.machine_load import SPOILT_FRAC, Account, Meter, begin_on
from hasten.tune.trials.samples import MIN_BLOCK_UPDATES, NUM_BLOCKS, make_sample

TICKS = os.sysconf("SC_CLK_TCK")


def answer(times: list[float], items: list[int]) -> dict[str, Any]:
    account = {"cpu_seconds": 1.0, "foreign_cpu_frac": 0.0, "major_faults": 0, "minor_faults": 2, "spoilt": False}
    return {"times": times, "items": items, **account}


# Samples.


def test_a_spike_does_not_move_the_median_of_blocks() -> None:
    count = NUM_BLOCKS * MIN_BLOCK_UPDATES
    times = [0.01] * count
    times[3] = 10.0
    assert make_sample("A", 0, answer(times, [2] * count), uneven=False).seconds_per_item == pytest.approx(0.005)
    assert make_sample("A", 0, answer(times, [2] * count), uneven=True).seconds_per_item > 0.1


def test_bursts_and_periodic_costs_count() -> None:
    """Every fourth update waits for the workers; the median of single updates would miss it."""
    count = NUM_BLOCKS * MIN_BLOCK_UPDATES
    times = [0.04 if at % 4 == 0 else 0.0 for at in range(count)]
    assert make_sample("B", 1, answer(times, [1] * count), uneven=False).seconds_per_item == pytest.approx(0.01)


def test_uneven_updates_use_total_time_per_item() -> None:
    sample = make_sample("B", 2, answer([1.0, 3.0], [1, 7]), uneven=True, peak_bytes=5)
    assert sample.seconds_per_item == pytest.approx(0.5)
    assert (sample.arm, sample.pair, sample.items, sample.updates, sample.seconds) == ("B", 2, 8, 2, 4.0)
    assert sample.to_evidence().peak_bytes == 5


def test_too_few_updates_for_blocks_are_totalled() -> None:
    count = NUM_BLOCKS * MIN_BLOCK_UPDATES - 1
    assert make_sample("A", 0, answer([0.0] * (count - 1) + [1.0], [1] * count), uneven=False).seconds_per_item == (
        pytest.approx(1 / count)
    )


# The machine load.


BUSY_GRANDCHILD = """
import subprocess, sys, time
busy = "import time\\nwhile time.process_time() < 0.8: pass"
subprocess.run([sys.executable, "-c", busy])
print("done", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what a child's ended children took")
def test_time_of_ended_grandchildren_is_counted() -> None:
    """This is the case of loader workers that a trial restarts in every epoch."""
    before = machine_load.own_cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", BUSY_GRANDCHILD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        taken = machine_load.own_cpu_seconds() - before
        child.kill()
    assert taken > 0.5


class FakeMachine:
    """A /proc/stat with four cores, of which this process may use 0 and 1, and clocks that advance on command."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.own = folder, 100.0, 50.0
        self.ticks = {core: [1000, 10, 500, 90000, 70, 5, 5, 0, 300, 0] for core in range(4)}
        monkeypatch.setattr(machine_load, "allowed_cores", lambda: frozenset({0, 1}))
        monkeypatch.setattr(machine_load, "own_cpu_seconds", lambda: self.own)
        monkeypatch.setattr(machine_load, "perf_counter", lambda: self.now)
        self.write()

    def write(self) -> None:
        total = [sum(column) for column in zip(*self.ticks.values(), strict=True)]
        rows = [("cpu", total), *((f"cpu{core}", values) for core, values in self.ticks.items())]
        lines = [" ".join([name, *map(str, values)]) for name, values in rows]
        (self.folder / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 77", "cpufreq 1"]) + "\n")

    def passes(self, seconds: float, *, own: float, busy: dict[tuple[int, str], float]) -> None:
        """Let time pass; `busy` maps (core, column) to seconds."""
        columns = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        for (core, column), spent in busy.items():
            self.ticks[core][columns.index(column)] += round(spent * TICKS)
        self.now, self.own = self.now + seconds, self.own + own
        self.write()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("busy", "foreign"),
    [
        ({(0, "user"): 10.0}, 0.0),
        ({(0, "user"): 10.0, (1, "user"): 4.0}, 0.2),
        ({(0, "user"): 10.0, (1, "steal"): 2.0}, 0.1),
        ({(0, "user"): 10.0, (1, "nice"): 1.0, (1, "system"): 1.0, (1, "irq"): 1.0, (1, "softirq"): 1.0}, 0.2),
        ({(0, "user"): 10.0, (1, "idle"): 9.0, (1, "iowait"): 1.0}, 0.0),
        ({(0, "user"): 10.0, (2, "user"): 10.0, (3, "steal"): 10.0}, 0.0),
        ({(0, "user"): 9.0}, 0.0),
    ],
    ids=["alone", "neighbour", "steal", "all kinds", "idle", "other cores", "never negative"],
)
def test_the_foreign_share_counts_the_allowed_cores_only(machine: FakeMachine, busy: Any, foreign: float) -> None:
    watch = Meter(machine.folder)
    machine.passes(10.0, own=10.0, busy=busy)
    account = watch.read()
    assert account.foreign_cpu_frac == pytest.approx(foreign)
    assert account.spoilt is (foreign > SPOILT_FRAC)
    assert (account.seconds, account.cpu_seconds) == (10.0, 10.0)


def test_the_foreign_share_is_unknown_without_proc(machine: FakeMachine) -> None:
    watch = Meter(machine.folder / "nowhere")
    machine.passes(1.0, own=0.0, busy={(0, "user"): 1.0})
    account = watch.read()
    assert account.foreign_cpu_frac is None
    assert not account.spoilt


@pytest.mark.parametrize(("seconds", "known"), [(0.02, False), (0.1, False), (0.5, True)])
def test_a_stretch_too_short_for_kernel_ticks_is_not_called_disturbed(
    machine: FakeMachine, seconds: Any, known: Any
) -> None:
    """One tick is 10 ms: a quarter of a turn of 20 ms on two cores."""
    watch = Meter(machine.folder)
    machine.passes(seconds, own=seconds, busy={(0, "user"): seconds, (1, "user"): 1 / TICKS})
    account = watch.read()
    assert (account.foreign_cpu_frac is not None) is known
    assert not account.spoilt


@pytest.mark.parametrize(("share", "spoilt"), [(None, False), (SPOILT_FRAC, False), (SPOILT_FRAC + 1e-6, True)])
def test_a_sample_is_disturbed_only_above_the_limit(share: Any, spoilt: Any) -> None:
    account = Account(seconds=1, cpu_seconds=1, foreign_cpu_frac=share, major_faults=0, minor_faults=0)
    assert account.spoilt is spoilt


def test_the_real_meter_counts_own_work() -> None:
    watch = Meter()
    until = monotonic() + 0.2
    blocks = []
    while monotonic() < until:
        blocks.append(bytearray(1 << 16))
        blocks = blocks[-100:]
    account = watch.read()
    assert account.cpu_seconds > 0.0
    assert account.minor_faults >= 0


# The budget.

COSTS = Costs(start_s=3.0, base_update_s=0.1, validation_s=2.0)


def test_a_pair_costs_two_starts_warm_ups_updates_and_validations() -> None:
    assert COSTS.pair_s(10, 0.05) == pytest.approx(2 * 3 + 4 * 0.15 + 10 * 0.15 + 2 * 2)


def test_a_proof_of_whole_runs_takes_five_pairs_of_them() -> None:
    one = COSTS.pair_s(300, 0.05)
    assert COSTS.whole_proof_s(300, 0.05) == pytest.approx(5 * one * MARGIN)
    assert COSTS.whole_proof_s(600, 0.05) > COSTS.whole_proof_s(300, 0.05) + 5 * 300 * 0.05


def test_final_updates_fill_the_reserved_time_within_bounds() -> None:
    updates = COSTS.final_updates(200.0, 0.05)
    assert MIN_FINAL_UPDATES < updates < MAX_FINAL_UPDATES
    assert COSTS.final_s(200.0, 0.05) <= 200.0 < PAIRS * COSTS.pair_s(updates + 1, 0.05) * 1.15
    assert COSTS.final_updates(1.0, 0.05) == MIN_FINAL_UPDATES
    assert COSTS.final_updates(1e6, 0.05) == MAX_FINAL_UPDATES
    short = Costs(start_s=3.0, base_update_s=0.002, validation_s=0.0)
    assert short.final_updates(1.0, 0.002) * 0.004 >= MIN_FINAL_S - 0.01  # twelve updates of 2 ms would prove nothing
    assert replace(short, start_s=10.0).final_updates(1.0, 0.002) > 2 * short.final_updates(1.0, 0.002)  # they cost little


def test_the_proof_of_a_script_counts_as_long_as_it_becomes_more_certain() -> None:
    for update_s in (0.001, 0.1):
        script = Costs(start_s=5.0, base_update_s=update_s, validation_s=0.0, of_script=True)
        assert script.final_updates(1e6, update_s) * 2 * update_s == pytest.approx(ENOUGH_S, rel=0.01)
    slow = Costs(start_s=5.0, base_update_s=2.0, validation_s=0.0, of_script=True)
    assert slow.final_updates(1e6, 2.0) == MIN_FINAL_UPDATES


def test_screening_costs_more_with_more_turns_and_slower_updates() -> None:
    assert COSTS.screening_s(5, 10, 0.1) < COSTS.screening_s(8, 10, 0.1)
    assert COSTS.screening_s(5, 10, 0.1) < COSTS.screening_s(5, 10, 0.2)


def test_a_budget_counts_from_its_start_and_keeps_time_for_the_report() -> None:
    budget = Budget(60.0, monotonic() - 50.0)
    assert 9.0 < budget.left < 10.1
    assert budget.spent + budget.left == pytest.approx(60.0, abs=0.1)
    assert budget.deadline == pytest.approx(budget.started + 60.0 - REPORT_S)
    assert Budget(1.0, monotonic() - 5.0).left < 0.0


# Candidates.


@pytest.mark.parametrize(
    ("setup", "base", "candidate", "updates"),
    [(10.0, 0.5, 0.25, 40), (10.1, 0.5, 0.25, 41), (0.0, 0.5, 0.25, 0), (5.0, 0.25, 0.25, None), (5.0, 0.25, 0.5, None)],
)
def test_break_even_is_when_the_setup_is_earned_back(setup: Any, base: Any, candidate: Any, updates: Any) -> None:
    assert break_even_updates(setup, base, candidate) == updates


def test_a_candidate_is_one_technique_with_its_settings() -> None:
    candidate = Candidate(name="cpu_threads", settings={"num_threads": 3}, outcome="refused", reason="slower")
    assert is_about(candidate, CPUThreads(num_threads=3))
    assert not is_about(candidate, CPUThreads(num_threads=2))
    known = [candidate]
    put(known, replace(candidate, outcome="applied"))
    put(known, replace(candidate, settings={"num_threads": 2}))
    assert [(item.settings["num_threads"], item.outcome) for item in known] == [(3, "applied"), (2, "refused")]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux says where a thread runs")
def test_a_thread_starts_on_the_given_core_and_is_not_pinned() -> None:
    allowed = os.sched_getaffinity(0)
    for core in sorted(allowed):
        begin_on(core)
        assert ctypes.CDLL(None).sched_getcpu() == core
        assert os.sched_getaffinity(0) == allowed
    begin_on(max(allowed) + 1)
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux binds a thread")
def test_a_bound_thread_is_left_where_it_is() -> None:
    allowed = os.sched_getaffinity(0)
    bound = {min(allowed)}
    os.sched_setaffinity(0, bound)
    try:
        begin_on(max(allowed))
        assert os.sched_getaffinity(0) == bound
    finally:
        os.sched_setaffinity(0, allowed)
