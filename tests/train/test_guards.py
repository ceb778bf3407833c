"""A run that hangs reports where; a run that is short of memory collects it."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hasten.train.guards.incidents import Incidents
from hasten.train.guards.memory_growth import growth_words, tensors_alive
from hasten.train.guards.run_guards import Guards, Limits
from hasten.train.guards.watchdog import Watchdog, dump_stacks
from hasten.train.loop import Position


def test_a_run_that_hangs_is_reported_once_with_its_stacks(tmp_path: Path) -> None:
    said: list[str] = []
    with Watchdog(tmp_path, said.append, least_s=0.2) as watchdog:
        for _ in range(5):
            watchdog.beat()
            time.sleep(0.005)
        stand_still()
        assert watchdog.told == 1
        watchdog.beat()
        time.sleep(0.05)
        assert watchdog.told == 1
    assert len(said) == 1
    assert "no update has ended for" in said[0]
    stacks = (tmp_path / f"stacks-{os.getpid()}.txt").read_text()
    assert "stand_still" in stacks


def stand_still() -> None:
    time.sleep(0.6)


def test_patience_grows_with_updates_that_are_long_by_nature(tmp_path: Path) -> None:
    with Watchdog(tmp_path, lambda _: None, least_s=0.1) as watchdog:
        time.sleep(0.05)
        watchdog.beat()
        assert watchdog.patience_s == pytest.approx(1.0, rel=0.5)


def wait_for_ever(ready: multiprocessing.synchronize.Event) -> None:
    ready.set()
    time.sleep(60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_write_their_stacks(tmp_path: Path) -> None:
    with Watchdog(tmp_path, lambda _: None):
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        worker = context.Process(target=wait_for_ever, args=(ready,))
        worker.start()
        assert worker.pid is not None
        ready.wait(10)
        files = dump_stacks(tmp_path)
        assert worker.is_alive()
        worker.kill()
        worker.join()
    assert [file.name for file in files] == [f"stacks-{os.getpid()}.txt", f"stacks-{worker.pid}.txt"]
    assert "wait_for_ever" in files[1].read_text()


def test_tensors_with_symbolic_shapes_are_not_counted() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    symbolic = mode.from_tensor(torch.ones(3, 5), static_shapes=False)
    assert not all(isinstance(size, int) for size in symbolic.shape)
    assert all(isinstance(size, int) for _, shape in tensors_alive() for size in shape)


def test_the_message_says_if_the_number_of_tensors_did_not_grow() -> None:
    kinds = tensors_alive()
    assert "The number of tensors in Python did not grow" in growth_words(kinds, kinds)


def test_a_validation_has_a_patience_of_its_own(tmp_path: Path) -> None:
    said: list[str] = []
    with Watchdog(tmp_path, said.append, least_s=0.1, least_other_s=5.0) as watchdog:
        watchdog.beat()
        with watchdog.during("validation"):
            assert watchdog.patience_s == 5.0
            time.sleep(0.3)
        assert not said
        assert watchdog.patience_s < 5.0
        with watchdog.during("validation"):
            assert watchdog.patience_s > 5.0  # it took 0.3 s, and the limit is 20x that


def test_low_memory_is_collected_and_reported_once(tmp_path: Path) -> None:
    used, place = 950, Position()
    incidents = Incidents(tmp_path / "incidents.jsonl", lambda _: None)
    limits = Limits(memory_bytes=1000)
    with Guards(tmp_path / "stacks", incidents, lambda: place, limits=limits, memory=lambda: used) as guards:
        for place.update in range(350):
            guards.after_update()
    assert guards.collections == 4
    (line,) = (tmp_path / "incidents.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "memory"
    with Guards(tmp_path / "stacks", incidents, lambda: place, limits=limits, memory=lambda: 800) as guards:
        for place.update in range(350):
            guards.after_update()
    assert guards.collections == 0
