"""Leases never exceed the machine, are freed when a process is killed, and are served in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hasten.pipeline.lease import Lease, Need, Totals, fit, take
from hasten.pipeline.predict import Overhead, Task, predict

GIB = 2**30
Asked = tuple[str, dict[str, Any]]
TWO = Totals(cores=(0, 1), memory_bytes=4 * GIB, devices={0: 10 * GIB, 1: 10 * GIB})
HOLDER = """\
import json, sys, time
from pathlib import Path
from typing import Any
from hasten.pipeline.lease import Need, Totals, take

lease = take(Need(**json.loads(sys.argv[2])), Totals.load(Path(sys.argv[3])), "holder", folder=Path(sys.argv[1]))
print(json.dumps({"cores": lease.cores, "devices": list(lease.devices)}), flush=True)
time.sleep(float(sys.argv[4]))
"""


def test_cores_memory_and_devices_are_not_given_twice(tmp_path: Path) -> None:
    first = take(Need(cores=1, memory_bytes=GIB, devices=1), TWO, "first", folder=tmp_path)
    second = take(Need(cores=1, memory_bytes=GIB, devices=1), TWO, "second", folder=tmp_path)
    assert {*first.cores, *second.cores} == {0, 1}
    assert {*first.devices, *second.devices} == {0, 1}
    found: list[Lease] = []
    told: list[str] = []
    third = threading.Thread(
        target=lambda: found.append(take(Need(cores=1, memory_bytes=0), TWO, "third", folder=tmp_path, waiting=told.append))
    )
    third.start()
    time.sleep(0.3)
    assert not found
    assert told[0] == "waits for first, second"
    os.close(first.handle)
    third.join(5)
    assert found[0].cores == first.cores
    os.close(second.handle)
    os.close(found[0].handle)


def test_a_device_is_shared_by_its_memory(tmp_path: Path) -> None:
    need = Need(cores=0, memory_bytes=0, devices=1, device_bytes=4 * GIB)
    leases = [take(need, TWO, str(number), folder=tmp_path) for number in range(4)]
    assert [list(lease.devices) for lease in leases] == [[0], [0], [1], [1]]
    others = [(path.name, json.loads(path.read_text())) for path in sorted(tmp_path.glob("*.lease"))]
    assert fit(need, TWO, others, before="9") is None
    for lease in leases:
        os.close(lease.handle)


def test_a_later_request_takes_only_what_an_earlier_one_does_not_wait_for() -> None:
    running: Asked = ("1", {"name": "a", "need": {"cores": 1, "memory_bytes": 0}, "cores": [0], "devices": {}})
    waiting: Asked = ("2", {"name": "b", "need": {"cores": 2, "memory_bytes": 0}})
    one = Need(cores=1, memory_bytes=0)
    assert fit(one, TWO, [running, waiting], before="3") is None
    assert fit(one, TWO, [running, waiting], before="1b") == ((1,), {})
    device: Asked = ("2", {"name": "b", "need": {"cores": 1, "memory_bytes": 0, "devices": 3}})
    assert fit(one, TWO, [device], before="3") == ((0,), {})


@st.composite
def needs(draw: st.DrawFn) -> Need:
    """A need that `TWO` has."""
    devices = draw(st.integers(0, 2))
    device_bytes = draw(st.sampled_from([None, 3 * GIB, 5 * GIB, 10 * GIB])) if devices else None
    return Need(
        cores=draw(st.integers(0, 2)), memory_bytes=draw(st.integers(0, 4)) * GIB, devices=devices, device_bytes=device_bytes
    )


def granted(need: Need, got: tuple[tuple[int, ...], dict[int, int]]) -> dict[str, Any]:
    """Return what the file of a lease says."""
    found: dict[str, Any] = json.loads(json.dumps({"need": asdict(need), "cores": got[0], "devices": got[1]}))
    return found


class Leases(RuleBasedStateMachine):
    """Requests that come, are served, end and are killed in any order, on a machine with two made-up devices."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, Need] = {}
        self.held: dict[str, dict[str, Any]] = {}
        self.late: dict[str, set[str]] = {}
        self.serial = 0

    @rule(need=needs())
    def ask(self, need: Need) -> None:
        self.serial += 1
        self.asked[f"{self.serial:04d}"] = need
        self.late[f"{self.serial:04d}"] = set()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """A request looks whether it can be served."""
        name = data.draw(st.sampled_from(sorted(self.asked)))
        others: list[Asked] = [(one, {"name": "x", "need": asdict(need)}) for one, need in self.asked.items() if one != name]
        got = fit(self.asked[name], TWO, [*others, *self.held.items()], before=name)
        if got is not None:
            self.held[name] = granted(self.asked.pop(name), got)
            for one in self.asked:
                self.late[one].add(name)

    @precondition(lambda self: self.held or self.asked)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A process ends or is killed, while it holds a lease or waits for one."""
        name = data.draw(st.sampled_from(sorted([*self.held, *self.asked])))
        (self.held if name in self.held else self.asked).pop(name)

    @invariant()
    def nothing_is_given_twice(self) -> None:
        cores = [core for lease in self.held.values() for core in lease["cores"]]
        assert len(cores) == len(set(cores))
        assert sum(lease["need"]["memory_bytes"] for lease in self.held.values()) <= TWO.memory_bytes
        for index, size in TWO.devices.items():
            assert sum(lease["devices"].get(str(index), 0) for lease in self.held.values()) <= size
        for lease in self.held.values():
            need = Need(**lease["need"])
            assert (len(lease["cores"]), len(lease["devices"])) == (need.cores, need.devices)
            assert set(lease["devices"].values()) <= {need.device_bytes or 10 * GIB}

    @invariant()
    def the_earliest_request_waits_for_none_that_came_later(self) -> None:
        if self.asked:
            name = min(self.asked)
            later = [(one, lease) for one, lease in self.held.items() if one in self.late[name] and one > name]
            assert fit(self.asked[name], TWO, later, before=name) is not None


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@pytest.mark.slow
def test_killed_processes_free_their_leases_and_their_children_keep_them(tmp_path: Path) -> None:
    TWO.save(tmp_path / "machine.json")
    need = json.dumps({"cores": 2, "memory_bytes": 0})
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "leases"), need, str(tmp_path / "machine.json"), "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert json.loads(first.stdout.readline())["cores"] == [0, 1]
        with subprocess.Popen([*command[:-1], "0"], stdout=subprocess.PIPE, text=True) as second:
            time.sleep(0.5)
            assert second.poll() is None
            first.send_signal(signal.SIGKILL)
            assert second.wait(10) == 0


def test_the_critical_path_is_predicted_under_the_leases() -> None:
    def task(name: str, seconds: float, *needs: str, cores: int = 1) -> Task:
        return Task(name=name, needs=needs, need=Need(cores=cores, memory_bytes=0), seconds=seconds)

    tasks = [task("a", 10), task("b", 20, "a"), task("c", 30, "a"), task("d", 5, "b", "c")]
    found = predict(tasks, TWO, Overhead())
    assert (found.seconds, found.sequential_s, found.path) == (45, 65, ("a", "c", "d"))
    added = predict(tasks, TWO, Overhead(start_s=2, stage_s=1, end_s=3, runs=1))
    assert (added.seconds, added.sequential_s) == (45 + 2 + 2 + 3, 65 + 2 + 3 + 3)
    whole = predict([task("b", 20, cores=2), task("c", 30, cores=2)], TWO, Overhead())
    assert whole.seconds == whole.sequential_s == 50
    unknown = Task(name="x", needs=("a",), need=Need(cores=1, memory_bytes=0), seconds=None)
    found = predict([task("a", 10), unknown], TWO, Overhead())
    assert (found.seconds, found.unknown, found.guess_s) == (20, ("x",), 10), "as long as the others"
