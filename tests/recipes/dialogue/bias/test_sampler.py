"""Mentions are counted while a run trains, once for each batch, however often it is killed."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from hasten.core.errors import MachineError
from hasten.monitor import catalogue
from hasten.monitor.of_loop import batches_since, follow_loop
from hasten.monitor.sampler import Host
from hasten.recipes.dialogue import DialogueJob
from hasten.recipes.dialogue.bias.monitor import read_journal
from hasten.recipes.dialogue.bias.patterns import load_patterns
from hasten.recipes.dialogue.bias.sampler import BiasSampler
from hasten.recipes.dialogue.bias.scan import Scanner
from hasten.train.build import build
from hasten.train.loop import Loop

TEXTS = [
    "She is a Buddhist.",
    "My Muslim neighbour is old.",
    "nothing at all",
    "A young woman, and a gay man.",
    "Two immigrants.",
]


class Told:
    """A job whose samples are texts."""

    bias_counts = True

    def texts(self, samples: list[int]) -> list[str]:
        return [TEXTS[row % len(TEXTS)] for row in samples]


def host(folder: Path, batches: list[list[int]]) -> Host:
    return Host(folder=folder, job=Told(), batches=lambda first: batches[first:])


def counted(folder: Path) -> Any:
    return read_journal(folder / "bias.json")


def test_each_batch_is_counted_once_though_the_run_is_killed(tmp_path: Path) -> None:
    batches = [[number, number + 1, number + 2] for number in range(12)]
    seen = batches[:7]
    killed = BiasSampler(host(tmp_path, seen))
    killed.sample()
    until = monotonic() + 30
    while killed.sample()["bias.counted"] < 7 and monotonic() < until:
        sleep(0.02)
    killed._monitor._worker._process.kill()  # as if all processes were killed: nothing is drained
    resumed = BiasSampler(host(tmp_path, batches))
    resumed.close()
    ranges, counts = counted(tmp_path)
    assert ranges == [[0, 12]]
    want = Scanner(load_patterns()).count([text for batch in batches for text in Told().texts(batch)])
    assert counts.to_json() == want.to_json()
    assert want.to_json() != Scanner(load_patterns()).count(TEXTS).to_json()


def test_what_cannot_be_counted_is_told(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="does not count mentions"):
        BiasSampler(Host(folder=tmp_path))
    with pytest.raises(MachineError, match="does not count mentions"):
        BiasSampler(Host(folder=tmp_path, job=Told(), rank=1))
    broken = BiasSampler(Host(folder=tmp_path, job=Broken(), batches=lambda first: [[0]][first:]))
    broken.sample()
    broken._thread.join(10)
    with pytest.raises(ValueError, match="no such row"):
        broken.sample()
    broken._monitor.close()


class Broken(Told):
    """A job whose texts cannot be read."""

    def texts(self, samples: list[int]) -> list[str]:
        raise ValueError("no such row")


def test_a_run_counts_the_conversations_that_it_trained_on(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("dialogue_bias", "hasten.recipes.dialogue.bias.sampler:BiasSampler", catalogue.SAMPLERS)
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [point] if group == catalogue.SAMPLERS else [])
    catalogue.samplers.cache_clear()
    settings = {"prepared": str(prepared), "width": 16, "depth": 1, "heads": 2, "row_tokens": 256, "batch_size": 3}
    job: Any = type("Mine", (DialogueJob,), {**settings, "accumulation": 2, "bias_counts": True})()
    loop = Loop(build(job, device=torch.device("cpu")))
    with follow_loop(tmp_path, say=print)(loop) as observer:
        for _ in range(4):
            loop.run(1)
            observer.after_update()
    loop.close()
    catalogue.samplers.cache_clear()
    rows = [row for batch in batches_since(loop, 0) for row in batch]
    assert rows == list(range(4 * 2 * 3))
    ranges, counts = counted(tmp_path)
    assert ranges == [[0, 8]]
    assert counts.to_json() == Scanner(load_patterns()).count(job.texts(rows)).to_json()


def test_batches_are_numbered_over_the_epochs(prepared: Path) -> None:
    settings = {"prepared": str(prepared), "width": 16, "depth": 1, "heads": 2, "row_tokens": 256, "batch_size": 8}
    job: Any = type("Mine", (DialogueJob,), {**settings, "epochs": 3, "accumulation": 2})()
    loop = Loop(build(job, device=torch.device("cpu")))
    per_epoch = loop.live.batches(0)
    updates = -(-len(per_epoch) // 2)
    assert batches_since(loop, 0) == []
    loop.run(updates + 1)
    loop.close()
    assert batches_since(loop, 0) == per_epoch + loop.live.batches(1)[:2]
    assert batches_since(loop, 2) == batches_since(loop, 0)[2:]
    assert batches_since(loop, len(per_epoch)) == loop.live.batches(1)[:2]
