"""The text-detection job in the real training loop: both forms learn the same, and they find text."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.job import check_job
from hasten.recipes.ocr import NaiveOcrJob, OcrJob
from hasten.recipes.ocr.augment import AugmentSettings
from hasten.recipes.ocr.postprocess import Boxes
from hasten.recipes.ocr.predict import find_text, shown
from hasten.recipes.ocr.synth import write
from hasten.recipes.pictures import read_picture
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut

CPU = torch.device("cpu")
STILL = AugmentSettings(rotate_degrees=0, shear_degrees=0, scale=(1, 1), shift_frac=0, light=0, blur=0, noise=0)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with four pages of text."""
    folder = tmp_path_factory.mktemp("pages")
    write(folder, 4, seed=11, size=256)
    return folder


def job_of(kind: type[OcrJob], pages: Path, **settings: Any) -> Any:
    """Return a small job that trains and validates on the pages."""
    images, labels = str(pages / "images"), str(pages / "labels")
    told = {"images": images, "labels": labels, "valid_images": images, "valid_labels": labels}
    small = {"size": 192, "width": 16, "batch_size": 2, "epochs": 40, "min_text_size": 3.0, "shrink_ratio": 0.6}
    made = type("Mine", (kind,), {**told, **small, **settings})()
    check_job(made)
    return made


def test_both_forms_train_the_same_mathematics(pages: Path) -> None:
    losses = {}
    for kind in (NaiveOcrJob, OcrJob):
        loop = Loop(build(job_of(kind, pages, crop=128), device=CPU))
        loop.run(5)
        loop.close()
        losses[kind] = loop.losses
    assert losses[OcrJob] == pytest.approx(losses[NaiveOcrJob], rel=1e-3)
    assert losses[OcrJob][0] == pytest.approx(losses[NaiveOcrJob][0], rel=1e-5)


def test_both_forms_make_the_same_batches(pages: Path) -> None:
    plain, fast = (job_of(kind, pages) for kind in (NaiveOcrJob, OcrJob))
    held = [[job.deterministic_transform(job.valid_data()[index]) for index in range(2)] for job in (plain, fast)]
    one, other = (job.device_transform(job.collate(samples)) for job, samples in zip((plain, fast), held, strict=True))
    torch.testing.assert_close(one.images, other.images, rtol=1e-6, atol=1e-6)
    assert torch.equal(one.shrink, other.shrink)
    assert torch.equal(one.shrink_mask, other.shrink_mask)
    assert one.truth is not None
    assert other.truth is not None
    assert torch.equal(one.truth.points, other.truth.points)
    assert torch.equal(one.truth.counts, other.truth.counts)
    assert (one.truth.polygon_ms > 0).all()


def test_a_form_at_work_is_measured_by_the_job_as_it_was_written(pages: Path) -> None:
    live = build(job_of(NaiveOcrJob, pages), device=CPU)
    fast = build(job_of(OcrJob, pages), device=CPU)
    live.pipeline.collate = fast.pipeline.collate  # the batches are all that remains of a form
    plain, other = HeldOut(live).measure(plain=True), HeldOut(live).measure()
    assert other["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert other["hmean"] == plain["hmean"]


def test_the_real_form_runs_the_model_once_a_batch_and_returns_a_future(pages: Path) -> None:
    runs = {}
    for kind in (NaiveOcrJob, OcrJob):
        live = build(job_of(kind, pages), device=CPU)
        seen: list[int] = []
        live.model.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        HeldOut(live).measure()
        runs[kind] = len(seen)
        job: Any = live.job
        batch = live.to_device(job.collate([job.deterministic_transform(job.valid_data()[0])]))
        live.model.eval()
        with torch.inference_mode():
            assert isinstance(job.metric(live.model, batch), Future) == (kind is OcrJob)
    assert runs == {NaiveOcrJob: 4, OcrJob: 2}


def test_a_pass_that_finds_nothing_is_not_an_error(pages: Path) -> None:
    found = HeldOut(build(job_of(OcrJob, pages), device=CPU)).measure()
    assert found["hmean"] == found["precision"] == found["recall"] == 0
    assert found["loss"] > 0
    assert found["polygon_ms"] > 0


@pytest.mark.slow
def test_a_small_network_learns_to_find_text(pages: Path) -> None:
    job = job_of(OcrJob, pages, augment=STILL, rate=4e-3, batch_size=4, epochs=100)
    loop = Loop(build(job, device=CPU))
    before = HeldOut(loop.live).measure()
    loop.run(100)
    loop.close()
    after = HeldOut(loop.live).measure()
    assert np.mean(loop.losses[-5:]) < 0.6 * np.mean(loop.losses[:5])
    assert after["loss"] < 0.5 * before["loss"]
    assert after["hmean"] > 0.5 > before["hmean"]

    naive = build(job_of(NaiveOcrJob, pages), device=CPU)
    naive.model.load_state_dict(loop.live.model.state_dict())
    plain = HeldOut(naive).measure()
    for name in ("loss", "hmean", "precision", "recall"):
        assert after[name] == pytest.approx(plain[name], abs=0.03), name

    path = min((pages / "images").iterdir())
    image = read_picture(path)
    boxes = find_text(loop.live.model, image, job)
    assert isinstance(boxes, Boxes)
    assert len(boxes.scores) > 0
    assert boxes.corners.min() > -10
    assert boxes.corners.max() < 266
    assert not np.array_equal(shown(image, boxes), image)


def test_without_images_pages_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HASTEN_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = type("Drawn", (OcrJob,), {"num_drawn": 5, "size": 96})()
    assert (len(job.train_data()), len(job.valid_data())) == (4, 1)
    (folder,) = tmp_path.glob("hasten-drawn-*/pages-*")
    written = {path.name: path.stat().st_mtime_ns for path in (folder / "images").iterdir()}
    assert len(written) == 5
    again = type("Drawn", (OcrJob,), {"num_drawn": 5, "size": 96})()
    assert len(again.train_data()) == 4
    assert written == {path.name: path.stat().st_mtime_ns for path in (folder / "images").iterdir()}
    assert not len(job.look_through())


def test_the_naive_job_names_its_other_form_and_a_job_of_the_user_does_not() -> None:
    assert [form.__name__ for form in NaiveOcrJob.forms] == ["OcrJob"]
    assert not OcrJob.forms

    class Mine(NaiveOcrJob):
        pass

    assert not Mine.forms


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 100}, "size must be a multiple of 32"),
        ({"size": (64, 0)}, "size must be a multiple of 32"),
        ({"backbone": "vgg"}, "backbone must be 'resnet' or 'mobile'"),
        ({"width": 8}, "width must be a multiple of 16"),
        ({"shrink_ratio": 1.0}, "shrink_ratio must be between"),
        ({"crop": 33}, "crop must be a multiple of 32"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_training(pages: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        build(job_of(OcrJob, pages, **settings), device=CPU)


def test_what_is_wrong_is_reported_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 4, seed=0, size=128)
    broken, labels = sorted((tmp_path / "images").iterdir())[1], sorted((tmp_path / "labels").iterdir())[2]
    broken.write_bytes(broken.read_bytes()[:200])
    labels.write_text(labels.read_text() + "1,2,3\n")
    job = job_of(OcrJob, tmp_path, max_bad_frac=0.5)
    with caplog.at_level(logging.WARNING):
        assert len(job.train_data()) == 3
    assert broken.name in caplog.text
    findings = job.look_through()
    assert {(item.path.name, item.lost) for item in findings.items} == {(broken.name, "picture"), (labels.name, "label")}
