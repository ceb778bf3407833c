"""The work around the updates: counted per epoch, and no files left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.profile.ceilings import CeilingRun
from hasten.profile.measure import phase_shares
from hasten.profile.periodic import Around, measure_around
from hasten.train.build import build
from hasten.train.loop import Loop
from tests.train.jobs import CPU, Plain, Streamed


def test_an_epoch_is_its_updates_and_the_work_around_them() -> None:
    around = Around(validation_s=3.0, checkpoint_s=1.0, report_s=0.01, report_every_s=0.5, epoch_updates=40)
    assert around.reports_per_epoch(0.1) == pytest.approx(1 + 4.0 / 0.5)
    assert around.reports_per_epoch(10.0) == 41  # at most one per update
    assert around.epoch_s(0.1) == pytest.approx(4.0 + 0.09 + 1.0 + 3.0)
    facts = around.facts(0.1)
    assert facts["epoch_s"] == around.epoch_s(0.1)
    assert (facts["checkpoint_s"], facts["validation_s"], facts["report_s"]) == (1.0, 3.0, 0.01)
    assert Around().epoch_s(0.1) == 0.0


def test_reports_are_part_of_the_logging_share() -> None:
    run = CeilingRun(updates=10, real_s=1.0, phase_s={"forward": 0.5, "logging": 0.1})
    around = Around(report_s=0.05, report_every_s=0.2, epoch_updates=38, checkpoint_s=5.2)  # 3.8 s, 20 reports: 1 s
    shares = phase_shares(run, around)
    assert shares["logging"] == pytest.approx((0.38 + 1.0) / 10)
    assert shares["checkpoint"] == pytest.approx(0.52)


def test_a_job_is_measured_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    loop = Loop(build(Plain(), device=CPU))
    loop.run(2)
    said: list[str] = []
    around = measure_around(loop, said.append, folder=tmp_path / "run")
    assert said == ["validation", "checkpoint"]
    assert min(around.validation_s, around.checkpoint_s, around.report_s) > 0.0
    assert around.validation_batches == 2
    assert around.epoch_updates == 6
    assert 500 < around.checkpoint_bytes < 20_000
    assert loop.position.update == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_stream_without_epochs_is_one_epoch_and_one_without_length_is_not_measured() -> None:
    loop = Loop(build(Streamed(), device=CPU))
    assert measure_around(loop).epoch_updates == 8
    endless: Any = type("Endless", (Streamed,), {"num_updates": None})
    assert measure_around(Loop(build(endless(), device=CPU))).facts(0.1)["epoch_s"] == 0.0
