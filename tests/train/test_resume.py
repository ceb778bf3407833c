"""A run of `train` that is stopped or killed and resumed has the same results as an uninterrupted run."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.chaos import QUICK, SETTINGS, chaos
from benchmarks.chaos_job import ChaosJob
from hasten.core.errors import DataError
from hasten.core.plan import Plan
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.read import export_weights
from hasten.train.checkpoints.saver import Pace
from hasten.train.periodic import Report
from hasten.train.run import RunOptions, _seconds_at, train
from tests.cli.called import called


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(out / "model.pt", weights_only=True)
    return found


@pytest.mark.parametrize(
    ("reports", "seconds"),
    [([], 0.0), ([(10, 1.0)], 2.0), ([(10, 1.0), (30, 4.0)], 2.5), ([(20, 3.0), (30, 4.0)], 3.0), ([(40, 8.0)], 4.0)],
)
def test_a_resumed_run_counts_the_seconds_until_its_checkpoint(reports: list[tuple[int, float]], seconds: float) -> None:
    rows = [{"update": update, "seconds": done} for update, done in reports]
    assert _seconds_at(rows, 20) == pytest.approx(seconds)


def test_a_run_that_was_asked_to_stop_is_resumed(tmp_path: Path) -> None:
    train(ChaosJob(), Plan(), tmp_path / "whole", max_updates=25)
    out = tmp_path / "run"

    def ask(report: Report) -> None:
        if report.update >= 9:
            os.kill(os.getpid(), signal.SIGTERM)

    first = train(ChaosJob(), Plan(), out, max_updates=25, on_report=ask, options=RunOptions(pace=Pace(every=100)))
    assert first.stopped_by is signal.SIGTERM
    assert 9 <= first.updates < 25
    second = train(ChaosJob(), Plan(), out, max_updates=25, options=RunOptions(resume=True, pace=Pace(every=100)))
    assert (second.went_on_from, second.updates, second.stopped_by) == (first.updates, 25, None)
    assert (first.part_samples, second.part_samples) == (first.samples, second.samples - first.samples)
    want, have = weights(tmp_path / "whole"), weights(out)
    assert all(torch.equal(want[name], have[name]) for name in want)
    assert [line["held_out"] for line in lines(out) if line["held_out"]] == [
        line["held_out"] for line in lines(tmp_path / "whole") if line["held_out"]
    ]


def test_reports_of_repeated_updates_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(ChaosJob(), Plan(), out, max_updates=18, options=RunOptions(pace=Pace(every=5, keep=99)))
    saved = CheckpointFolder(out)
    assert {9, 18} <= {one.update for one in saved.all()}  # the ends of epochs, and others if the writer was free
    for one in saved.all():
        if one.update > 9:
            (one.path / "manifest.json").unlink()
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"update": 19')  # torn
    train(ChaosJob(), Plan(), out, max_updates=18, options=RunOptions(resume=True, pace=Pace(every=5), say=lambda _: None))
    assert [line["update"] for line in lines(out) if line["held_out"]] == [9, 18]


def test_the_best_is_marked_by_the_job_s_own_quality(tmp_path: Path) -> None:
    train(ChaosJob(), Plan(), tmp_path, max_updates=27, options=RunOptions(pace=Pace(every=100, keep=1)))
    held = {line["update"]: line["held_out"]["loss"] for line in lines(tmp_path) if line["held_out"]}
    best = CheckpointFolder(tmp_path).best()
    assert best is not None
    assert best.update == min(held, key=lambda update: held[update])


def test_another_seed_is_refused(tmp_path: Path) -> None:
    train(ChaosJob(), Plan(), tmp_path, max_updates=3, options=RunOptions(pace=Pace(every=1)))

    class Other(ChaosJob):
        seed = 99

    with pytest.raises(DataError, match="seed was 3 and is now 99"):
        train(Other(), Plan(), tmp_path, max_updates=5, options=RunOptions(resume=True))


def test_resuming_without_a_checkpoint_starts_a_run(tmp_path: Path) -> None:
    result = train(ChaosJob(), Plan(), tmp_path, max_updates=3, options=RunOptions(resume=True))
    assert (result.went_on_from, result.updates) == (None, 3)


def test_exported_weights_are_the_run_s_and_always_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(ChaosJob(), Plan(), tmp_path / name, max_updates=9, options=RunOptions(pace=Pace(every=100)))
        saved = CheckpointFolder(tmp_path / name).all()[-1]
        export_weights(saved, tmp_path / f"{name}.safetensors")
        export_weights(saved, tmp_path / f"{name}.pt")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    from safetensors.torch import load_file

    want = weights(tmp_path / "a")
    for found in (load_file(tmp_path / "a.safetensors"), torch.load(tmp_path / "a.pt", weights_only=True)):
        assert found.keys() == want.keys()
        assert all(torch.equal(found[name], want[name]) for name in want)
    with pytest.raises(DataError, match=r"must end in \.safetensors or \.pt"):
        export_weights(saved, tmp_path / "a.bin")


def test_outside_of_the_main_thread_signals_are_left_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(train(ChaosJob(), Plan(), tmp_path, max_updates=3).updates))
    thread.start()
    thread.join()
    assert found == [3]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_run_killed_a_dozen_times_ends_as_if_not_killed() -> None:
    found = chaos(QUICK, 1, SETTINGS["one process"], lambda _: None)
    assert found["kills"] >= QUICK
    assert found["wrong"] == 0
    assert max(found["newest_checkpoint_at_kill"]) > 0  # it really resumed from a checkpoint


@pytest.mark.slow
def test_the_verbs_of_checkpoints(tmp_path: Path) -> None:
    for end in (4, 9):
        train(
            ChaosJob(),
            Plan(),
            tmp_path,
            max_updates=end,
            options=RunOptions(resume=True, pace=Pace(every=100), say=lambda _: None),
        )

    def said(*words: object) -> tuple[int, str]:
        done = called("checkpoints", *map(str, words))
        return done.returncode, done.stdout + done.stderr

    code, text = said("list", tmp_path, "--json")
    assert code == 0, text
    assert [row["update"] for row in json.loads(text)] == [4, 9]
    code, text = said("inspect", tmp_path, "--update", 4)
    assert code == 0
    assert "model.0.weight" in text
    assert "update 4" in text
    assert said("verify", tmp_path)[0] == 0
    code, text = said("export", tmp_path, tmp_path / "w.safetensors")
    assert (code, "of update 9 to" in text) == (0, True)
    path = tmp_path / "checkpoints" / "00000009" / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    code, text = said("verify", tmp_path)
    assert code == 1
    assert "00000009" in text
    code, text = said("inspect", tmp_path, "--update", 5)
    assert (code, "has no checkpoint of update 5; it has 4, 9" in text) == (1, True)


class Worsens(ChaosJob):
    """A job that gets worse with training."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, maximize=True)


def test_the_best_of_an_earlier_part_stays_the_best(tmp_path: Path) -> None:
    train(Worsens(), Plan(), tmp_path, max_updates=9, options=RunOptions(pace=Pace(every=100, keep=1)))
    train(Worsens(), Plan(), tmp_path, max_updates=27, options=RunOptions(resume=True, pace=Pace(every=100, keep=1)))
    best = CheckpointFolder(tmp_path).best()
    assert best is not None
    assert best.update == 9
    assert [saved.update for saved in CheckpointFolder(tmp_path).all()] == [9, 27]
