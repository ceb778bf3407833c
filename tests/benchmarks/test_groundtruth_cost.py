"""The overhead of watching is measured in turns, and a suspended script is not timed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import pytest

from benchmarks.groundtruth import cost
from benchmarks.groundtruth.cost import (
    AGAIN,
    OURS,
    UNWATCHED,
    Arm,
    Between,
    Inside,
    cost_of,
    in_turn,
    measure_inside,
    measure_round,
    own_cost,
)
from benchmarks.groundtruth.processes import state, tree
from hasten.core.errors import TrialError

SMALL = {"width": 8, "depth": 1, "batch": 4}
ARMS = (UNWATCHED, OURS, AGAIN)


def test_every_arm_comes_once_a_turn_and_in_every_place() -> None:
    turns = [in_turn(ARMS, turn) for turn in range(12)]
    assert all(sorted(turn) == sorted(ARMS) for turn in turns)
    places = Counter((arm, turn.index(arm)) for turn in turns for arm in ARMS)
    assert set(places.values()) == {4}
    assert turns[0] == turns[1][::-1]


def rounds(*ratios: float) -> list[dict[str, dict[str, list[float]]]]:
    return [{"seconds": {UNWATCHED: [1.0, 2.0], OURS: [ratio, 2 * ratio], AGAIN: [1.0, 2.0]}} for ratio in ratios]


def test_a_cost_is_what_an_arm_takes_more_than_the_first() -> None:
    found = cost_of(ARMS, rounds(1.02, 1.04))["arms"]
    assert found[OURS]["cost_frac"] == pytest.approx((1.02 * 1.04) ** 0.5 - 1.0)
    assert found[OURS]["low"] < 0.02  # two rounds say little
    assert found[OURS]["high"] > 0.04
    assert found[AGAIN] == dict.fromkeys(("cost_frac", "cost_s", "low", "high"), pytest.approx(0.0))


def test_a_watched_turn_is_held_against_all_that_are_not() -> None:
    one = [{"seconds": {UNWATCHED: [1.0], OURS: [1.2], AGAIN: [1.44]}}]
    found = cost_of(ARMS, one)["arms"]
    assert found[OURS]["cost_frac"] == pytest.approx(0.0)
    assert found[AGAIN]["cost_frac"] == pytest.approx(0.44)
    assert cost_of(ARMS[:2], one)["arms"][OURS]["cost_frac"] == pytest.approx(0.2)


def test_one_round_has_no_interval() -> None:
    assert cost_of(ARMS, rounds(1.02))["arms"][OURS]["low"] is None


def test_the_figures_of_the_score_are_those_of_ours() -> None:
    part = {"arms": list(ARMS), "rounds": rounds(1.02, 1.02)}  # of steps of 1.4 s
    rival = {"arms": [UNWATCHED, cost.TRACEML], "rounds": [{"seconds": {UNWATCHED: [1.0], cost.TRACEML: [1.5]}}]}
    found = own_cost({"own_cost_hasten_2ms": part, "own_cost_traceml_2ms": rival})
    assert found["own_cost_frac_2ms"] == pytest.approx(0.02 * 2**0.5 / 0.002)
    assert found["own_cost_frac_100ms"] is None
    assert found["own_cost"]["traceml"]["2ms"]["arms"][cost.TRACEML]["cost_frac"] == pytest.approx(0.5)
    assert own_cost({}) == {"own_cost_frac_2ms": None, "own_cost_frac_100ms": None, "own_cost": {}}


PACED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from benchmarks.groundtruth.steps import Notes
notes = Notes(Path(sys.argv[sys.argv.index("--notes") + 1]))
while True:
    time.sleep(0.01)
    notes.mark()
"""


@pytest.mark.slow
def test_what_happens_between_turns_is_in_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "WARM_S", 0.0)
    program = PACED.format(root=str(Path(cost.__file__).parents[2]))
    with Arm([sys.executable, "-c", program], tmp_path) as arm:
        arm.get_ready()
        pids = tree(arm._process.pid)
        assert all(state(pid) == "T" for pid in pids)
        before = arm._count()
        sleep(0.6)
        assert arm._count() == before
        seconds = arm.turn(0.4)
        assert arm._count() > before
        assert seconds < 0.3  # the pause is no step
    assert all(state(pid) in "XZ" for pid in pids)


HELD = """
import subprocess, sys, threading
sys.path.insert(0, {root!r})
from benchmarks.groundtruth.processes import unwinding_when_told_to_end, wait
with unwinding_when_told_to_end():
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    threading.Timer(0.5, lambda: print(child.pid, flush=True)).start()  # after it has started waiting
    wait(child, 60)
"""


@pytest.mark.slow
def test_a_terminated_process_ends_its_children() -> None:
    program = HELD.format(root=str(Path(cost.__file__).parents[2]))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert state(pid) not in "XZ"
        parent.terminate()
        assert parent.wait(20) == 128 + signal.SIGTERM
    until = monotonic() + 10
    while state(pid) not in "XZ" and monotonic() < until:
        sleep(0.02)  # killed processes take a moment to exit
    assert state(pid) in "XZ"


@pytest.mark.slow
def test_a_script_that_takes_no_steps_is_an_error_with_its_words(tmp_path: Path) -> None:
    with (
        Arm([sys.executable, "-c", "raise SystemExit('no data')"], tmp_path) as arm,
        pytest.raises(TrialError, match="no data"),
    ):
        arm.get_ready()


@pytest.mark.long
def test_a_round_times_watched_and_unwatched_scripts_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cost, "WARM_S", 0.0)
    monkeypatch.setattr(cost, "SIZES", {"tiny": SMALL})
    session = Between(arms=(UNWATCHED, OURS), turn_s={"tiny": 0.1}, turns={"tiny": 2}, rounds=1)
    found = measure_round(session, "tiny", 0)
    assert {arm: len(seconds) for arm, seconds in found["seconds"].items()} == {UNWATCHED: 2, OURS: 2}
    assert all(0.0 < second < 0.1 for seconds in found["seconds"].values() for second in seconds)
    assert list(tmp_path.iterdir()) == []


DEAR = """
class Seams:
    def __init__(self, recorder, fetch):
        self.recorder, self._forward = recorder, torch.nn.Module.__call__

    def install(self):
        def slow(*args, **kwargs):
            time.sleep(0.01)
            return self._forward(*args, **kwargs)
        torch.nn.Module.__call__ = slow

    def remove(self):
        torch.nn.Module.__call__ = self._forward
"""


@pytest.mark.long
def test_a_round_in_one_process_finds_what_a_watch_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cost, "SIZES", {"tiny": SMALL})
    session = Inside(arms=ARMS, steps={"tiny": 40}, turns={"tiny": 4}, rounds=1)
    found = measure_inside(session, "tiny", 0)["seconds"]
    assert {arm: len(seconds) for arm, seconds in found.items()} == dict.fromkeys(ARMS, 4)
    assert all(0.0 < second < 0.1 for seconds in found.values() for second in seconds)
    assert list(tmp_path.iterdir()) == []
    shutil.copy(cost.STEPS, tmp_path)
    told, ours = cost.TOGGLED.read_text(), "from hasten.script.watch.seams import Seams\n"
    dear = tmp_path / cost.TOGGLED.name
    dear.write_text(told.replace(ours, f"import time, torch\n{DEAR}"))
    assert told != dear.read_text()
    monkeypatch.setattr(cost, "TOGGLED", dear)
    seconds = measure_inside(session, "tiny", 0)["seconds"]
    assert min(seconds[OURS]) > 0.01 > median(seconds[UNWATCHED] + seconds[AGAIN])
