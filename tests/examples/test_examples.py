"""Every example is a job that trains, and what it promises about its samples holds."""

from __future__ import annotations

import copy
import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import hasten
from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.job import check_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = {
    "TextJob": "text.py",
    "DigitsJob": "image.py",
    "CancellationJob": "diagnosis/cancellation.py",
    "SlowReaderJob": "diagnosis/slow_reader.py",
    "TightJob": "diagnosis/tight.py",
    "TinyJob": "diagnosis/tiny.py",
    "TonesJob": "gallery/tones_job.py",
}
NEEDS = {"DigitsJob": ("sklearn", "scipy")}
NUM_SAMPLES = 3
every_job = pytest.mark.parametrize("name", JOBS)


def load_module(name: str) -> ModuleType:
    """Import the file of a job by its path, once."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    module_name = f"hasten_example_{Path(JOBS[name]).stem}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, EXAMPLES / JOBS[name])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str((EXAMPLES / JOBS[name]).parent))  # a job may import its neighbours
            spec.loader.exec_module(module)
        sys.modules[module_name] = module
    return sys.modules[module_name]


def make_job(name: str) -> hasten.Job:
    """Make a job by the name of its class."""
    job: hasten.Job = getattr(load_module(name), name)()
    return job


def seed(value: int = 0) -> None:
    """Seed what user code draws from."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002  the generator that `random_transform` may draw from
    torch.manual_seed(value)


def prepared(job: hasten.Job) -> list[Any]:
    """A few training samples, as far as the deterministic transform."""
    data: Any = job.train_data()
    return [job.deterministic_transform(data[index]) for index in range(NUM_SAMPLES)]


def some_batch(job: hasten.Job) -> Any:
    """A small training batch."""
    return job.collate([job.random_transform(sample) for sample in prepared(job)])


def total_and_weight(job: hasten.Job, model: torch.nn.Module, batch: Any) -> tuple[float, float]:
    """The loss as a sum and a weight."""
    loss = job.loss(model, batch)
    return (float(loss.total), float(loss.weight)) if isinstance(loss, hasten.Loss) else (float(loss), 1.0)


def same(left: Any, right: Any) -> bool:
    """Whether two nestings of tensors, arrays and numbers are bit-equal."""
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, torch.Tensor | np.ndarray):
        return bool((left == right).all())
    return bool(left == right)


@every_job
def test_one_update_moves_the_model_by_a_finite_gradient(name: str) -> None:
    job = make_job(name)
    check_job(job)
    seed()
    model = job.model()
    optimizer = job.optimizer(model)
    job.schedule(optimizer, 100)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = job.loss(model, some_batch(job))
    mean = loss.total / loss.weight if isinstance(loss, hasten.Loss) else loss
    mean.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert torch.isfinite(mean)
    assert all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients)
    optimizer.step()
    assert any(not same(old, new.detach()) for old, new in zip(before, model.parameters(), strict=True))


@every_job
def test_quality_names_a_metric_that_held_out_data_gives(name: str) -> None:
    job = make_job(name)
    data: Any = job.valid_data()
    batch = job.collate([job.deterministic_transform(data[index]) for index in range(NUM_SAMPLES)])
    model = job.model().eval()
    with torch.no_grad():
        metrics: Any = job.metric(model, batch)
    assert job.quality is not None
    assert job.quality.metric in {"loss", *metrics}
    assert all(float(mean.weight) > 0 for mean in metrics.values())


@every_job
def test_transforms_leave_their_sample_alone(name: str) -> None:
    job = make_job(name)
    data: Any = job.train_data()
    sample = data[0]
    kept = copy.deepcopy(sample)
    made = job.deterministic_transform(sample)
    assert same(sample, kept)
    kept_made = copy.deepcopy(made)
    job.random_transform(made)
    assert same(made, kept_made)


@every_job
def test_the_same_seed_gives_the_same_data(name: str) -> None:
    batches = []
    for _ in range(2):
        seed(7)
        batches.append(some_batch(make_job(name)))
    assert same(*batches)


@every_job
def test_the_deterministic_transform_is_deterministic(name: str) -> None:
    seed(1)
    first = prepared(make_job(name))
    seed(2)
    assert same(first, prepared(make_job(name)))


def test_augmentation_really_differs_between_visits() -> None:
    job = make_job("DigitsJob")
    sample = prepared(job)[0]
    seed(1)
    first = job.random_transform(sample)
    seed(2)
    assert not same(first, job.random_transform(sample))


def test_text_past_the_longest_is_constant_padding_without_weight() -> None:
    job = make_job("TextJob")
    seed()
    model = job.model().eval()
    samples = prepared(job)
    batch = job.collate(samples)
    longest = max(job.length(sample) for sample in samples)
    trimmed = map_tensors(batch, lambda tensor: tensor[:, :longest])
    assert longest < batch[0].shape[1]
    for tensor in iter_tensors(batch):
        assert tensor[:, longest:].unique().numel() == 1
    with torch.no_grad():
        total, weight = total_and_weight(job, model, batch)
        trimmed_total, trimmed_weight = total_and_weight(job, model, trimmed)
    assert trimmed_weight == weight == sum(job.length(sample) for sample in samples)
    assert trimmed_total == pytest.approx(total, rel=1e-5)


def test_packed_text_gives_the_loss_and_the_gradients_of_padded_text() -> None:
    job = make_job("TextJob")
    seed()
    model = job.model()
    samples = prepared(job)
    found = {}
    packing: Any = job
    lengthened = packing.collate_packed(samples, 128)
    assert lengthened[0].shape[1] % 128 == 0
    batches = {"padded": job.collate(samples), "packed": job.collate_packed(samples), "lengthened": lengthened}
    for name, batch in batches.items():
        model.zero_grad()
        loss = job.loss(model, batch)
        assert isinstance(loss, hasten.Loss)
        loss.total.backward()
        grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
        found[name] = (loss.total.item(), float(loss.weight), grads)
    for name in ("packed", "lengthened"):
        assert found[name][0] == pytest.approx(found["padded"][0], rel=1e-5)
        assert found[name][1] == found["padded"][1] == sum(job.length(sample) for sample in samples)
        torch.testing.assert_close(found[name][2], found["padded"][2], rtol=1e-3, atol=1e-2)


def test_text_is_held_out_by_content() -> None:
    job = make_job("TextJob")
    train: Any = job.train_data()
    valid: Any = job.valid_data()
    assert not set(train) & set(valid)
    assert len(set(train)) == len(train)


def test_bfloat16_makes_the_cancellation_job_blind() -> None:
    job = make_job("CancellationJob")
    batch = some_batch(job)
    seed()
    model = job.model()

    def gradient(*, autocast: bool) -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = job.loss(model, batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    full, again, rounded = gradient(autocast=False), gradient(autocast=False), gradient(autocast=True)
    assert torch.cosine_similarity(full, again, dim=0) > 0.999
    assert torch.cosine_similarity(full, rounded, dim=0) < 0.5
