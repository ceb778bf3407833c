"""Two phases: first with a frozen backbone, then everything, each from the weights of the previous one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hasten.core.errors import JobError
from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.phases import FrozenBackbone, Phase, train_phases
from tests.recipes.detection.shapes import job_on, write_pictures


class FrozenJob(FrozenBackbone, DetectionJob):
    """A job as a user writes it."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("images"), 8)


def test_a_frozen_backbone_that_never_learnt_is_refused(images: Path) -> None:
    with pytest.raises(JobError, match="Set start_from"):
        job_on(images, FrozenJob).model()


def test_only_neck_and_head_learn_in_the_first_phase(images: Path, tmp_path: Path) -> None:
    torch.save(job_on(images).model().state_dict(), tmp_path / "start.pt")
    job = job_on(images, FrozenJob, start_from=str(tmp_path / "start.pt"))
    model = job.model()
    learning = {id(parameter) for group in job.optimizer(model).param_groups for parameter in group["params"]}
    parts = {name.split(".")[1] for name, parameter in model.named_parameters() if id(parameter) in learning}
    assert parts == {"neck", "head"}


def test_no_phases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no phases"):
        train_phases([], tmp_path)


@pytest.mark.slow
def test_each_phase_starts_from_the_weights_of_the_one_before(images: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.pt"
    torch.manual_seed(3)
    torch.save(job_on(images).model().state_dict(), start)
    first = type(job_on(images, FrozenJob, start_from=str(start), num_updates=4))
    second = type(job_on(images, num_updates=3, rate=1e-9, weight_decay=0.0))
    results = train_phases([Phase(job=first), Phase(job=second)], tmp_path / "runs")
    assert [result.updates for result in results] == [4, 3]
    begun, one, two = (
        torch.load(path, weights_only=True)
        for path in (start, tmp_path / "runs" / "phase-1" / "model.pt", tmp_path / "runs" / "phase-2" / "model.pt")
    )
    frozen = [name for name in begun if name.startswith("live.backbone.")]
    assert all(torch.equal(begun[name], one[name]) for name in frozen)
    assert not torch.equal(begun["live.head.classes.0.2.weight"], one["live.head.classes.0.2.weight"])
    # At this rate the second phase hardly changes the weights: they equal the average of the first phase.
    torch.testing.assert_close(
        two["live.head.classes.0.2.weight"], one["average.head.classes.0.2.weight"], atol=1e-6, rtol=0
    )
    assert not torch.equal(one["live.backbone.stem.norm.running_mean"], two["live.backbone.stem.norm.running_mean"])
    reports = (tmp_path / "runs" / "phase-2" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert "map50" in json.loads(reports[-1])["held_out"]
