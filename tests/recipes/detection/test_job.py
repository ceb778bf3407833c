"""The detection job: both forms compute the same, and the model learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hasten.core.errors import DataError, JobError
from hasten.core.job import Gathered
from hasten.recipes.detection.augment import Augmentation
from hasten.recipes.detection.average import Averaged
from hasten.recipes.detection.data import Batch
from hasten.recipes.detection.job import DetectionJob, held_back
from hasten.recipes.detection.labels import Item, Labelled
from hasten.recipes.detection.naive import NaiveDetectionJob
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut
from tests.recipes.detection.shapes import CLASSES, SIDE, job_on, write_pictures

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def labelled_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("images"), 8)


def batch_of(job: DetectionJob, *, held_out: bool = True) -> Batch:
    """Return the first four validation samples in the form the loop passes them to the job."""
    data: Any = job.valid_data() if held_out else job.train_data()
    samples = [job.deterministic_transform(data[index]) for index in range(4)]
    batch: Batch = job.device_transform(job.collate(samples))
    return batch


def seeded_model(job: DetectionJob) -> nn.Module:
    torch.manual_seed(0)
    return job.model()


def test_both_forms_train_one_model_on_the_same_images(labelled_images: Path) -> None:
    real, naive = job_on(labelled_images), job_on(labelled_images, NaiveDetectionJob)
    mine, other = batch_of(real), batch_of(naive)
    assert mine.images.shape == other.images.shape == (4, 3, SIDE, SIDE)
    torch.testing.assert_close(mine.targets, other.targets, atol=0.01, rtol=0)
    torch.testing.assert_close(mine.images, other.images, atol=0.01, rtol=0)  # the images already have that size
    first, second = seeded_model(real), seeded_model(naive)
    assert first.state_dict().keys() == second.state_dict().keys()
    losses = [job.loss(model.train(), mine) for job, model in ((real, first), (naive, second))]
    torch.testing.assert_close(losses[0].total, losses[1].total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses[0].weight, losses[1].weight, rtol=1e-4, atol=1e-4)
    for loss, model in zip(losses, (first, second), strict=True):
        loss.total.backward()
        assert model.get_parameter("live.backbone.stem.conv.weight").grad is not None


def test_both_forms_find_the_same_boxes(labelled_images: Path) -> None:
    real, naive = job_on(labelled_images), job_on(labelled_images, NaiveDetectionJob)
    batch = batch_of(real)
    model = seeded_model(real).eval()
    with torch.inference_mode():
        mine, other = real.metric(model, batch).result()["map"], naive.metric(model, batch)["map"]  # type: ignore[union-attr, index]
    assert isinstance(mine, Gathered)
    assert isinstance(other, Gathered)
    assert len(mine.items) == len(other.items) == 4
    for (found, there), (also, those) in zip(mine.items, other.items, strict=True):
        assert np.array_equal(found, also)
        assert np.array_equal(there, those)
        assert len(found) > 0
    assert real.whole_metric("map", [*mine.items]) == naive.whole_metric("map", [*other.items])


class Counted(nn.Module):
    """Count the calls of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, images: torch.Tensor) -> Any:
        self.calls += 1
        return self.model(images)


@pytest.mark.parametrize(("base", "calls"), [(DetectionJob, 1), (NaiveDetectionJob, 2)])
def test_a_held_out_batch_passes_the_real_form_once(labelled_images: Path, base: type[DetectionJob], calls: int) -> None:
    job = job_on(labelled_images, base)
    model, batch = Counted(seeded_model(job)).eval(), batch_of(job_on(labelled_images))
    with torch.inference_mode():
        job.loss(model, batch)
        job.metric(model, batch)
    assert model.calls == calls


def test_what_was_said_of_another_batch_is_not_taken(labelled_images: Path) -> None:
    job = job_on(labelled_images)
    model = Counted(seeded_model(job)).eval()
    batch = batch_of(job)
    other = batch._replace(images=batch.images.flip(0))
    with torch.inference_mode():
        job.loss(model, batch)
        found = job.metric(model, other).result()["map"]  # type: ignore[union-attr]
        expected = job.metric(model, other).result()["map"]  # type: ignore[union-attr]
    assert model.calls == 3
    assert isinstance(found, Gathered)
    assert isinstance(expected, Gathered)
    assert np.array_equal(found.items[0][0], expected.items[0][0])


def test_training_batches_hold_bytes_until_they_are_on_the_device(labelled_images: Path) -> None:
    job = job_on(labelled_images)
    data: Any = job.train_data()
    batch = job.collate([job.random_transform(job.deterministic_transform(data[index])) for index in range(4)])
    assert batch.images.dtype == torch.uint8
    moved: Batch = job.device_transform(batch)
    assert moved.images.dtype == torch.float32
    assert torch.equal((moved.images * 255).round().to(torch.uint8), batch.images)


def test_what_is_held_back_is_the_same_at_each_call_and_nothing_is_lost() -> None:
    items = tuple(Item(Path(f"{n}.png"), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)) for n in range(20))
    train, held = held_back(Labelled(("a",), items), 0.25)
    again = held_back(Labelled(("a",), items), 0.25)
    assert [len(train.items), len(held.items)] == [15, 5]
    assert [one.path for one in held.items] == [one.path for one in again[1].items]
    assert {one.path for one in (*train.items, *held.items)} == {one.path for one in items}


@pytest.mark.parametrize("share", [0.0, 0.001, 1.0])
def test_a_split_that_leaves_one_part_empty_is_refused(share: float) -> None:
    items = tuple(Item(Path(f"{n}.png"), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)) for n in range(3))
    with pytest.raises(DataError, match="both sets need at least one"):
        held_back(Labelled(("a",), items), share)


def test_weights_decay_norms_and_biases_do_not_and_the_average_has_no_part(labelled_images: Path) -> None:
    job = job_on(labelled_images)
    model = job.model()
    assert isinstance(model, Averaged)
    decaying, others = job.optimizer(model).param_groups
    assert decaying["weight_decay"] == job.weight_decay
    assert others["weight_decay"] == 0
    assert all(parameter.dim() > 1 for parameter in decaying["params"])
    given = {id(parameter) for group in (decaying, others) for parameter in group["params"]}
    assert given == {id(parameter) for parameter in model.live.parameters()}


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine(labelled_images: Path) -> None:
    job = job_on(labelled_images, rate=0.1, warmup_frac=0.1, final_frac=0.01)
    optimizer = job.optimizer(job.model())
    schedule = job.schedule(optimizer, 100)
    rates = []
    for _ in range(101):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.01)
    assert rates[9] == rates[10] == pytest.approx(0.1)
    assert rates[55] == pytest.approx(0.0505)
    assert rates[100] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"size": 100}, "multiple of 32"),
        ({"size": 0}, "multiple of 32"),
        ({"size": 640}, "at most 448 pixels"),
        ({"model_size": "vast"}, "nano, small, medium, large"),
        ({"rule": "rprop"}, "'adamw' or 'sgd'"),
        ({"frozen": ("nose",)}, "backbone, neck, head"),
    ],
)
def test_settings_that_cannot_be_are_refused(labelled_images: Path, attributes: dict[str, Any], words: str) -> None:
    job = job_on(labelled_images, **attributes)
    with pytest.raises(JobError, match=words):
        job.optimizer(job.model())


def test_looking_through_says_what_is_wrong_and_training_goes_on_without_it(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "images", 12)
    (folder / "003.png").write_bytes(b"not an image")
    job = job_on(folder)
    findings = job.look_through()
    assert {item.path.name for item in findings.items} == {"003.png"}
    assert len(job.labelled[0].items) == 11
    assert job.classes == CLASSES


def test_a_job_of_the_user_has_no_form_that_learns_other_images(labelled_images: Path) -> None:
    assert NaiveDetectionJob.forms == (DetectionJob,)
    assert DetectionJob.forms == ()
    assert job_on(labelled_images, NaiveDetectionJob).forms == ()


def test_weights_go_on_from_a_file(labelled_images: Path, tmp_path: Path) -> None:
    model = job_on(labelled_images).model()
    with torch.no_grad():
        for tensor in model.get_submodule("average").state_dict().values():
            tensor.fill_(7)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    started = job_on(labelled_images, start_from=str(tmp_path / "weights.pt")).model()
    for part in ("live", "average"):
        assert all(bool((tensor == 7).all()) for tensor in started.get_submodule(part).state_dict().values())
    partly = job_on(labelled_images, start_from=str(tmp_path / "weights.pt"), start_parts=("backbone",)).model()
    sevens = {name.split(".")[1] for name, tensor in partly.state_dict().items() if bool((tensor == 7).all())}
    assert "backbone" in sevens
    assert not sevens & {"neck", "head"}


def test_weights_of_another_detector_are_refused_with_what_differs(labelled_images: Path, tmp_path: Path) -> None:
    torch.save(job_on(labelled_images, model_size="small").model().state_dict(), tmp_path / "small.pt")
    with pytest.raises(JobError, match=r"different shape: backbone\.stem\.conv\.weight \(32, 3, 3, 3\) instead of"):
        job_on(labelled_images, start_from=str(tmp_path / "small.pt")).model()
    three = job_on(labelled_images).detector(3)
    torch.save(three.state_dict(), tmp_path / "three.pt")
    with pytest.raises(JobError, match=r"start_parts = \('backbone', 'neck'\)"):
        job_on(labelled_images, start_from=str(tmp_path / "three.pt")).model()
    job_on(labelled_images, start_from=str(tmp_path / "three.pt"), start_parts=("backbone", "neck")).model()


def test_a_file_that_holds_no_weights_is_refused(labelled_images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        job_on(labelled_images, start_from=str(tmp_path / "nothing.pt")).model()
    for name in ("cut.pt", "cut.safetensors"):
        (tmp_path / name).write_bytes(b"\x01\x02\x03")
        with pytest.raises(DataError, match=name):
            job_on(labelled_images, start_from=str(tmp_path / name)).model()
    (tmp_path / "weights.bin").touch()
    with pytest.raises(DataError, match="must end in"):
        job_on(labelled_images, start_from=str(tmp_path / "weights.bin")).model()
    with pytest.raises(JobError, match="start_parts"):
        job_on(labelled_images, start_from=str(tmp_path / "cut.pt"), start_parts=("nose",)).model()


@pytest.mark.long
@pytest.mark.parametrize("base", [DetectionJob, NaiveDetectionJob])
def test_four_images_are_learnt_by_memorizing_them(tmp_path: Path, base: type[DetectionJob]) -> None:
    job = job_on(write_pictures(tmp_path / "four", 4), base, num_updates=110)
    live = build(job, device=CPU)
    loop = Loop(live, rewinds=False)
    held = HeldOut(live)
    before = held.measure()
    loop.run(110)
    loop.close()
    after = held.measure()
    assert before["map50"] < 0.1
    assert after["map50"] > 0.9
    assert after["loss"] < before["loss"]


@pytest.mark.long
def test_a_job_learns_through_the_loop_what_it_never_saw(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "train", 48)
    held = write_pictures(tmp_path / "held", 12, seed=1)
    job = job_on(
        folder, valid_images=str(held), num_updates=110, batch_size=8,
        augmentation=Augmentation(mosaic_frac=0.3, scale_frac=0.2),
    )  # fmt: skip
    live = build(job, device=CPU)
    loop = Loop(live, rewinds=False)
    loop.run(110)
    loop.close()
    measured = HeldOut(live).measure()
    assert measured["map50"] > 0.8
    assert 0 < measured["map"] <= measured["map50"]
