"""The sample cache: bounded, honest, and distrustful of promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.optimizations.contract import Prepared, make_loop, run
from upshift.core.errors import JobError
from upshift.optimizations.sample_cache import CHECKED_HITS, SampleCache


class Counted(Prepared):
    """Counts its deterministic preparations."""

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


def test_it_keeps_no_more_than_it_may() -> None:
    job = Counted()
    loop = make_loop(job, SampleCache(max_samples=5))
    loop.run(12)
    assert loop.live.counters["sample_cache_kept"] == 5
    assert loop.live.counters["sample_cache_hits"] == 2 * 5
    assert job.prepared == 14 + 2 * 9 + CHECKED_HITS


def test_priming_makes_the_first_epoch_like_the_second() -> None:
    loop = make_loop(Counted(), SampleCache())
    for fill in loop.live.prime:
        fill(range(14))
    loop.run(2)
    assert loop.live.counters["sample_cache_hits"] == 8


class InPlace(Prepared):
    """Breaks the promise: changes what was kept."""

    def random_transform(self, sample: Any) -> Any:
        sample["x"] += torch.rand(6)
        return sample


class Random(Prepared):
    """Breaks the promise: another result each time."""

    def deterministic_transform(self, sample: Any) -> Any:
        kept = super().deterministic_transform(sample)
        return {**kept, "x": kept["x"] + torch.rand(6)}


class InPlaceArray(Prepared):
    """As `InPlace`, with numpy."""

    def deterministic_transform(self, sample: Any) -> Any:
        return {"x": sample[0].numpy().copy(), "y": sample[0].sum()}

    def random_transform(self, sample: Any) -> Any:
        sample["x"] += 1.0
        return sample


@pytest.mark.parametrize("kind", [InPlace, Random, InPlaceArray])
def test_a_broken_promise_is_found(kind: type[Prepared]) -> None:
    with pytest.raises(JobError, match="differs from its kept copy: either deterministic_transform"):
        run(kind(), 12, SampleCache())


def test_the_check_reads_a_view_and_not_the_storage_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from upshift.optimizations import sample_cache

    sizes: list[int] = []
    content = sample_cache._content

    def spy(sample: Any) -> Any:
        found = content(sample)
        sizes.append(len(found[1]) + sum(len(data) for _, _, data in found[0]))
        return found

    class View(Prepared):
        def train_data(self) -> Any:
            return torch.utils.data.TensorDataset(torch.rand(14, 6), torch.rand(100_000)[:14])

        def deterministic_transform(self, sample: Any) -> Any:
            return {"x": sample[0], "y": sample[1]}

    monkeypatch.setattr(sample_cache, "_content", spy)
    run(View(), 8, SampleCache())
    assert sizes
    assert max(sizes) < 2000


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="or more, not -1"):
        SampleCache(max_samples=-1)
