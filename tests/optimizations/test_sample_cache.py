"""Test that the sample cache respects its limit and detects preparations that are not deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from hasten.core.batch import content
from hasten.core.errors import JobError
from hasten.core.optimization import Optimization
from hasten.optimizations.batched_reading import BatchedReading
from hasten.optimizations.parts.sample_caching import CHECKED_HITS
from hasten.optimizations.sample_cache import SampleCache
from hasten.optimizations.sample_store import SampleStore
from hasten.train.trace import trace_step
from tests.optimizations.contract import Prepared, PreparedRows, facts, make_loop, run


class Counted(Prepared):
    """Counts calls of its deterministic transform."""

    def __init__(self) -> None:
        self.prepared = 0

    def deterministic_transform(self, sample: Any) -> Any:
        self.prepared += 1
        kept = super().deterministic_transform(sample)
        return {**kept, "array": np.arange(3), "tag": "x", "nan": torch.tensor([float("nan")])}

    def random_transform(self, sample: Any) -> Any:
        return super().random_transform({"x": sample["x"], "y": sample["y"]})


def test_each_sample_is_prepared_once() -> None:
    job = Counted()
    run(job, 12, SampleCache())  # three epochs of 14 samples
    assert job.prepared == 14 + CHECKED_HITS


def test_it_keeps_at_most_the_limit() -> None:
    job = Counted()
    loop = make_loop(job, SampleCache(max_samples=5))
    loop.run(12)
    assert loop.live.counters["sample_cache_kept"] == 5
    assert loop.live.counters["sample_cache_hits"] == 2 * 5
    assert job.prepared == 14 + 2 * 9 + CHECKED_HITS


@pytest.mark.parametrize("max_samples", [0, 5])
def test_the_lines_to_write_by_hand_keep_samples(max_samples: int) -> None:
    *lines, _ = SampleCache(max_samples=max_samples).by_hand()
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join(lines), names)  # noqa: S102  the lines that a user copies
    rows = names["_KeptSamples"]([1.5, float("nan"), {"a": torch.ones(3)}] * 10)
    assert [content(rows[index]) for index in range(30)] == [content(row) for row in rows.dataset]
    assert len(rows.kept) == (max_samples or 30)
    assert rows[-2] is rows.dataset[-2]
    assert rows[:2] == [1.5, rows.dataset[1]]


@dataclass
class Pair:
    """A sample whose `==` raises an error, because its tensors have several values."""

    x: torch.Tensor


def test_samples_that_cannot_be_compared_are_not_kept_for_long() -> None:
    *lines, _ = SampleCache().by_hand()
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join(lines), names)  # noqa: S102  the lines that a user copies
    rows = names["_KeptSamples"](_Pairs())
    with pytest.warns(UserWarning, match="cannot be compared"):
        assert [len(rows[index % 4].x) for index in range(40)] == [3] * 40
    assert rows.kept is None


class _Pairs:
    def __getitem__(self, index: int) -> Pair:
        return Pair(torch.ones(3))


def test_priming_makes_the_first_epoch_like_the_second() -> None:
    loop = make_loop(Counted(), SampleCache())
    for fill in loop.live.prime:
        fill(range(14))
    loop.run(2)
    assert loop.live.counters["sample_cache_hits"] == 8


def test_the_hit_rate_is_shown() -> None:
    item = SampleCache(max_samples=3)
    loop = make_loop(Counted(), item)
    for fill in loop.live.prime:
        fill(loop.upcoming(1)[0])
    checks = item.evidence(loop.live, trace_step(loop))
    # The first batch has 4 samples, 3 of them cached. It is fetched twice for the examination and once for training.
    assert [check.seen for check in checks] == ["9 hits in 12 reads (75%), 3 samples cached"]


def test_it_reads_the_rest_of_a_batch_in_one_call() -> None:
    loop = make_loop(PreparedRows(), BatchedReading(), SampleCache(max_samples=3))
    loop.run(9)
    assert loop.live.counters["sample_cache_hits"] > 0
    assert loop.live.counters["batched_reading_samples"] > loop.live.counters["batched_reading_calls"] > 4
    assert loop.losses == run(PreparedRows(), 9)


class InPlace(Prepared):
    """Modifies cached samples, against its declaration."""

    def random_transform(self, sample: Any) -> Any:
        sample["x"] += torch.rand(6)
        return sample


class Random(Prepared):
    """Returns another result each time, against its declaration."""

    def deterministic_transform(self, sample: Any) -> Any:
        kept = super().deterministic_transform(sample)
        return {**kept, "x": kept["x"] + torch.rand(6)}


class InPlaceArray(Prepared):
    """The same with numpy."""

    def deterministic_transform(self, sample: Any) -> Any:
        return {"x": sample[0].numpy().copy(), "y": sample[0].sum()}

    def random_transform(self, sample: Any) -> Any:
        sample["x"] += 1.0
        return sample


@pytest.mark.parametrize("kind", [InPlace, Random, InPlaceArray])
def test_a_wrong_declaration_is_detected(kind: type[Prepared]) -> None:
    with pytest.raises(JobError, match="differs from its cached copy: either deterministic_transform"):
        run(kind(), 12, SampleCache())


def test_the_check_reads_a_view_and_not_the_storage_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def spy(sample: Any) -> Any:
        found = content(sample)
        sizes.append(len(found[1]) + sum(len(data) for _, _, data in found[0]))
        return found

    class View(Prepared):
        def train_data(self) -> Any:
            return torch.utils.data.TensorDataset(torch.rand(14, 6), torch.rand(100_000)[:14])

        def deterministic_transform(self, sample: Any) -> Any:
            return {"x": sample[0], "y": sample[1]}

    monkeypatch.setattr("hasten.optimizations.parts.sample_caching.content", spy)
    run(View(), 8, SampleCache())
    assert sizes
    assert max(sizes) < 2000


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="or more, not -1"):
        SampleCache(max_samples=-1)


@pytest.mark.parametrize("item", [SampleCache(), SampleStore()])
def test_an_iterable_dataset_is_refused(item: Optimization) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(6),)])

    kind: type[Prepared] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match=f"{item.card.name} needs a map-style dataset"):
        make_loop(kind(), item)


def test_few_samples_of_a_script_are_all_compared_and_many_leave_something_to_gain() -> None:
    few, many = (facts(job={"num_samples": 1000, "kept_compared_frac": share}) for share in (1.0, 0.25))
    assert "would read as many of the 1000 samples as it saves" in SampleCache.fit(few).reason
    assert "would read as many of the 1000 samples as it saves" in SampleStore.fit(few).reason
    promised = SampleCache.fit(facts(job={"num_samples": 1000})).max_gain_frac
    assert SampleCache.fit(many).max_gain_frac == pytest.approx(0.75 * promised)


def test_rows_in_the_memory_of_a_script_are_not_kept_again() -> None:
    for technique in (SampleCache, SampleStore):
        assert "in memory already" in technique.fit(facts(job={"in_script": True, "is_table": True})).reason
        assert technique.fit(facts(job={"in_script": True, "is_table": False})).fits
