"""The periodic work around the updates, as in `hasten run`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import MachineError
from hasten.core.live import AroundSettings
from hasten.core.plan import Plan
from hasten.optimizations.async_logging import AsyncLogging
from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from hasten.optimizations.validation_batch import ValidationBatch
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.periodic import PeriodicWork, Report, rehearse
from hasten.train.records.reports import speed
from hasten.train.run import train
from tests.train.jobs import CPU, Plain, Stormy

PLANS = [
    Plan(),
    Plan(optimizations=(AsyncLogging(),)),
    Plan(optimizations=(BackgroundCheckpoint(),)),
    Plan(optimizations=(AsyncLogging(), BackgroundCheckpoint())),
]


@pytest.fixture
def loop() -> Loop:
    found = Loop(build(Stormy(), device=CPU))
    found.run(2)
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_a_run_leaves_the_same_weights_and_lines_under_every_plan(tmp_path: Path, plan: Plan) -> None:
    told: list[Report] = []
    result = train(Stormy(), plan, tmp_path / "run", on_report=told.append)
    train(Stormy(), Plan(), tmp_path / "plain")
    weights, plain = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("run", "plain"))
    assert all(torch.equal(value, plain[name]) for name, value in weights.items())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [vars(report) for report in told]
    ends = [line for line in lines if line["held_out"]]
    assert [line["update"] for line in ends] == [5, 10]
    assert ends[-1]["held_out"] == result.held_out
    assert {line["planned"] for line in lines} == {10}
    assert result.updates == 10


def test_reports_come_at_most_so_often(tmp_path: Path, loop: Loop) -> None:
    told: list[Report] = []
    with PeriodicWork(loop, tmp_path, on_report=told.append) as around:
        for _ in range(5):
            around.after_update()
        assert told == []
    loop.live.around.report_every_s = 0.0
    with PeriodicWork(loop, tmp_path, on_report=told.append) as around:
        for _ in range(5):
            around.after_update()
    assert len(told) == 5


def test_slow_reports_are_written_less_often(tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    told: list[float] = []

    def report(_: Report) -> None:
        nonlocal now
        told.append(now)
        now += 1.0

    monkeypatch.setattr("hasten.train.periodic.perf_counter", lambda: now)
    loop.live.around.report_every_s = 10.0
    with PeriodicWork(loop, tmp_path, on_report=report) as around:
        for _ in range(9000):
            now += 0.1
            around.after_update()
    assert told[0] == pytest.approx(10, rel=0.02)
    assert [after - before for before, after in itertools.pairwise(told)] == [pytest.approx(400, rel=0.01)] * 2


@pytest.mark.parametrize("background", [True, False])
def test_a_lost_folder_ends_the_run_with_a_machine_error(tmp_path: Path, loop: Loop, background: bool) -> None:
    loop.live.around.checkpoint_background = background
    out = tmp_path / "run"
    out.mkdir()
    around = PeriodicWork(loop, out)
    around.checkpoint.path = Path("/proc/no/such/model.pt")
    with pytest.raises(MachineError, match=r"Cannot write /proc/no/such/model\.pt"):
        _save_and_wait(around)
    around.close()


def _save_and_wait(around: PeriodicWork) -> None:
    around.save()
    around.wait()


def test_a_background_error_is_raised_after_the_next_update(tmp_path: Path, loop: Loop) -> None:
    loop.live.around.checkpoint_background = True
    around = PeriodicWork(loop, tmp_path)
    around.checkpoint.path = Path("/proc/no/such/model.pt")
    around.save()
    pending = around.checkpoint._pending
    assert pending is not None
    assert pending.exception(timeout=10) is not None
    with pytest.raises(MachineError, match="Cannot write"):
        loop.run(1, on_update=around.after_update)
    around.close()


def test_a_rehearsal_does_the_changed_work_and_does_not_change_the_loop(loop: Loop) -> None:
    rehearse(loop)
    assert loop.live.counters == {}
    loop.live.around.report_async = loop.live.around.checkpoint_background = True
    loop.live.around.validation_batches = 2
    before = {name: value.clone() for name, value in loop.live.model.state_dict().items()}
    rehearse(loop)
    assert loop.live.counters == {
        "reports_in_background": 1, "checkpoints_in_background": 1, "validation_large_batches": 1,
    }  # fmt: skip
    assert loop.position.update == 2
    assert all(torch.equal(value, before[name]) for name, value in loop.live.model.state_dict().items())


def test_larger_validation_batches_measure_the_same_samples(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watched(Plain):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            seen.append(len(batch[0]))
            return super().loss(model, batch)

    live = build(Watched(), Plan(optimizations=(ValidationBatch(times=2),)), device=CPU)
    work = PeriodicWork(Loop(live), tmp_path)
    large = work.validate()
    assert seen == [7]
    held = work.held_out
    assert held is not None
    assert held.num_batches == 2
    assert held.measure(plain=True)["loss"] == pytest.approx(large["loss"], rel=1e-6)
    assert seen == [7, 4, 3]
    assert held.measure(max_batches=1)["loss"] == held.measure(max_batches=1, plain=True)["loss"]
    assert seen[3:] == [4, 4]
    work.close()


def test_the_default_settings_are_plain() -> None:
    assert build(Plain(), device=CPU).around == AroundSettings()


def test_a_speed_is_that_of_a_span_that_was_measured(tmp_path: Path, loop: Loop) -> None:
    told: list[Report] = []
    loop.run(2)
    loop.position.samples += 10**9  # of an earlier part of the run, whose reports are gone
    with PeriodicWork(loop, tmp_path, on_report=told.append, append=True) as around:
        around.report()
        loop.run(2)
        around.report()
        around.report({"loss": 1.0})
    first, second, third = told
    assert first.samples_per_s == 0.0
    assert 0.0 < second.samples_per_s < 10**7
    assert third.samples_per_s == second.samples_per_s
    assert second.samples < 100
    assert (speed(vars(third)) or 0.0) < 10**7
