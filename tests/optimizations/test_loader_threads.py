"""Test that prefetching threads keep batches and their order, pass on errors, and end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.live import LoaderSettings
from hasten.optimizations.loader_threads import LoaderThreads
from hasten.train.stream import THREAD_NAME
from tests.optimizations.contract import Attention, Prepared, facts, make_loop, run


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


@pytest.mark.parametrize("job", [Prepared, Attention])
@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_they_change_no_bit(job: type[Job], ahead: int) -> None:
    assert run(job(), 12, LoaderThreads(num_threads=3, ahead=ahead)) == run(job(), 12)


class Held(torch.utils.data.Dataset[Any]):
    """Returns its first sample only after the last sample of the second batch was requested."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.second_batch = threading.Event()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        if index == 7:
            self.second_batch.set()
        if index == 0 and not self.second_batch.wait(30):
            raise TimeoutError
        self.asked.append(index)
        return (torch.full((6,), float(index)),)


class InOrder(Prepared):
    """A job with samples in a fixed order."""

    shuffle = False

    def train_data(self) -> Any:
        return Held()


def test_batches_are_read_ahead_no_further_than_allowed_and_come_in_order() -> None:
    loop = make_loop(InOrder(), LoaderThreads(num_threads=2, ahead=2))
    batches = loop.stream.epoch(0)
    seen = [next(batches) for _ in range(2)]
    assert [float(batch["y"][0]) / 6 for batch, _ in seen] == [0.0, 4.0]
    del batches  # ends the epoch early, after pending reads
    assert set(range(8)) <= set(loop.live.dataset.asked) <= set(range(16))
    assert threads() == []


class UnreadableError(OSError):
    """An error that a user's dataset raises."""


class Broken(Prepared):
    """Cannot read its sixth sample."""

    shuffle = False

    def train_data(self) -> Any:
        return torch.utils.data.TensorDataset(torch.arange(14.0)[:, None].expand(14, 6))

    def deterministic_transform(self, sample: Any) -> Any:
        if float(sample[0][0]) == 5:
            raise UnreadableError("sample 5 cannot be read")
        return super().deterministic_transform(sample)


class BrokenWhole(Broken):
    """The same job, where threads create whole batches."""

    def overrides(self, method: str) -> bool:
        return method != "random_transform" and super().overrides(method)

    def random_transform(self, sample: Any) -> Any:
        return sample


@pytest.mark.parametrize("job", [Broken, BrokenWhole])
def test_an_error_keeps_its_type_and_comes_at_its_batch(job: type[Job]) -> None:
    loop = make_loop(job(), LoaderThreads(num_threads=2, ahead=2))
    loop.run(1)
    with pytest.raises(UnreadableError, match="sample 5 cannot be read"):
        loop.run(1)
    assert threads() == []


@pytest.mark.parametrize("end", ["close", "rewind"])
def test_no_thread_is_left(end: str) -> None:
    loop = make_loop(Prepared(), LoaderThreads(num_threads=2, ahead=4))
    loop.run(2)
    assert threads()
    getattr(loop, end)()
    assert threads() == []
    loop.live.undo_all()
    assert loop.live.loader == LoaderSettings()
    loop.run(5)
    assert threads() == []


class Drawing(Prepared):
    """Does not declare that its reading is deterministic."""

    def train_data(self) -> Any:
        return [(torch.zeros(6),)] * 14

    def overrides(self, method: str) -> bool:
        return method != "deterministic_transform" and super().overrides(method)


def test_reading_that_may_draw_random_numbers_is_refused() -> None:
    with pytest.raises(JobError, match="threads share the random generators"):
        make_loop(Drawing(), LoaderThreads())
    loop = make_loop(Drawing())
    loop.live.loader = LoaderSettings(num_threads=2)
    with pytest.raises(JobError, match="set num_threads to 0"):
        loop.run(1)


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(6),)])

    kind: type[Job] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match="needs a map-style dataset"):
        make_loop(kind(), LoaderThreads())


@pytest.mark.parametrize(
    ("cores", "wait", "expected"), [(4, 0.1, [3, 4]), (2, 0.1, [1, 2]), (2, 0.9, [8, 2]), (1, 0.9, [4, 1])]
)
def test_more_threads_than_cores_only_where_reading_waits(cores: int, wait: float, expected: list[int]) -> None:
    fit = LoaderThreads.fit(facts(job={"load_is_random": False}, on={"cores": cores}, input_wait_frac=wait))
    assert [setting.settings()["num_threads"] for setting in fit.settings] == expected


def test_only_reading_is_promised_where_the_rest_draws_random_numbers() -> None:
    whole = LoaderThreads.fit(facts(job={"load_is_random": False}))
    partly = LoaderThreads.fit(facts(job={"load_is_random": False, "finish_is_random": True}))
    assert partly.max_gain_frac == pytest.approx(0.8 * whole.max_gain_frac)


@pytest.mark.parametrize("settings", [{"num_threads": 0}, {"ahead": 0}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="num_threads and ahead must be at least 1"):
        LoaderThreads(**settings)
