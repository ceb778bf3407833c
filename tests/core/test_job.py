"""A mistake in a job raises an error that says how to fix it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hasten.core.errors import HastenError, JobError
from hasten.core.job import Job, Loss, Mean, Quality, check_job, is_iterable, planned_updates


class Good(Job):
    def model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def train_data(self) -> Dataset[Any]:
        return TensorDataset(torch.zeros(4, 2))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | Loss:
        result: torch.Tensor = model(batch[0]).mean()
        return result


class WithValidation(Good):
    def valid_data(self) -> Dataset[Any] | None:
        return self.train_data()


def changed(**attributes: object) -> Job:
    job: Job = type("Changed", (WithValidation,), attributes)()
    return job


def test_a_good_job_is_accepted() -> None:
    check_job(Good())
    check_job(changed(batch_size=8, epochs=2, num_updates=5, clip_norm=1.0, quality=Quality(margin=0.1)))


def test_the_defaults_change_nothing() -> None:
    job = Good()
    assert (job.epochs, job.num_updates, job.accumulation, job.clip_norm, job.quality) == (None, None, 1, None, None)
    assert (job.valid_data(), job.metric(nn.Identity(), None)) == (None, {})
    assert job.schedule(job.optimizer(job.model()), 3) is None
    sample = object()
    assert job.deterministic_transform(sample) is sample
    assert job.random_transform(sample) is sample
    assert torch.equal(job.collate([torch.zeros(2), torch.ones(2)]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    with pytest.raises(NotImplementedError):
        job.length(sample)


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("model", "def model(self)"),
        ("train_data", "def train_data(self)"),
        ("optimizer", "def optimizer(self, model)"),
        ("loss", "def loss(self, model, batch)"),
    ],
)
def test_a_missing_method_is_shown_as_it_must_be_written(name: str, signature: str) -> None:
    class Incomplete(Good):
        pass

    setattr(Incomplete, name, getattr(Job, name))
    with pytest.raises(JobError) as caught:
        check_job(Incomplete())
    assert f"Incomplete has no {name}" in str(caught.value)
    assert signature in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("batch_size", 0, "Changed.batch_size must be a whole number of at least 1, not 0"),
        ("batch_size", 2.5, "not 2.5"),
        ("accumulation", -1, "Changed.accumulation must be"),
        ("accumulation", None, "not None"),
        ("read_every", "1", "Changed.read_every must be"),
        ("epochs", 0, "Changed.epochs must be None or a whole number"),
        ("num_updates", 1.0, "Changed.num_updates must be None or a whole number"),
        ("clip_norm", 0.0, "Changed.clip_norm must be None or greater than 0, not 0.0"),
        ("clip_norm", float("nan"), "not nan"),
        ("flops_per_sample", -1e9, "Changed.flops_per_sample must be None or greater than 0"),
        ("quality", 0.1, "Changed.quality must be a hasten.Quality, not float"),
    ],
)
def test_a_wrong_attribute_is_named_with_its_value(attribute: str, value: object, words: str) -> None:
    with pytest.raises(JobError) as caught:
        check_job(changed(**{attribute: value}))
    assert words in str(caught.value)


def test_quality_needs_held_out_data() -> None:
    job = changed(quality=Quality(metric="accuracy", direction="max", margin=0.01), valid_data=Job.valid_data)
    with pytest.raises(JobError, match=r"'accuracy'.*valid_data\(self\)"):
        check_job(job)


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_quality_needs_a_margin(margin: float) -> None:
    with pytest.raises(JobError, match="margin must be greater than 0"):
        Quality(margin=margin)


def test_a_quality_needs_a_direction() -> None:
    with pytest.raises(JobError, match="'min' or 'max', not 'up'"):
        Quality(margin=0.1, direction="up")  # type: ignore[arg-type]


def test_a_job_error_is_an_hasten_error() -> None:
    with pytest.raises(HastenError):
        Job().model()


def test_overrides_shows_the_methods_of_the_user() -> None:
    assert Good().overrides("loss")
    assert WithValidation().overrides("loss")
    assert not Good().overrides("valid_data")
    assert not Good().overrides("length")


@pytest.mark.parametrize(
    ("num_updates", "epochs", "per_epoch", "expected"),
    [(7, 3, 10, 7), (None, 3, 10, 30), (None, None, 10, 10), (None, 3, None, None), (7, None, None, 7)],
)
def test_planned_updates(num_updates: int | None, epochs: int | None, per_epoch: int | None, expected: int | None) -> None:
    assert planned_updates(changed(num_updates=num_updates, epochs=epochs), per_epoch) == expected


def test_datasets_that_can_only_be_read_in_order_are_iterable() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    class Bare:
        def __iter__(self) -> Iterator[int]:
            return iter(())

    assert is_iterable(Stream())
    assert is_iterable(Bare())
    assert not is_iterable(TensorDataset(torch.zeros(1)))
    assert not is_iterable([1, 2])


def test_sums_and_weights_keep_their_places() -> None:
    loss, mean = Loss(torch.tensor(6.0), 3), Mean(5, 2)
    assert (float(loss.total), loss.weight, mean.total, mean.weight) == (6.0, 3, 5, 2)
