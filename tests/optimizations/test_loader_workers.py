"""Test that loader workers give the same numbers as the training process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.card import Numerics
from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.live import LoaderSettings
from hasten.core.optimization import Fit
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.train.trace import trace_step
from tests.optimizations.contract import Prepared, facts, make_loop, run


@pytest.mark.parametrize(
    ("cores", "wait", "expected"),
    [
        (4, 0.1, [(3, 2), (3, 4), (4, 2), (1, 2)]),
        (1, 0.1, [(1, 2), (1, 4)]),
        (2, 0.9, [(8, 2), (8, 4), (2, 2), (4, 2)]),
        (1, 0.9, [(4, 2), (4, 4), (1, 2), (2, 2)]),
        (32, 0.9, [(16, 2), (16, 4), (32, 2), (8, 2)]),
    ],
)
def test_more_workers_than_cores_only_where_fetching_waits(cores: int, wait: float, expected: list[tuple[int, int]]) -> None:
    fit = LoaderWorkers.fit(facts(job={"device": "cuda"}, on={"cores": cores}, input_wait_frac=wait))
    assert [(setting.num_workers, setting.prefetch_factor) for setting in _offered(fit)] == expected


@pytest.mark.parametrize(("workers", "expected"), [(1, [8, 2]), (2, [8]), (16, [2, 1])])
def test_other_numbers_of_workers_are_offered(workers: int, expected: list[int]) -> None:
    given = facts(job={"num_workers": workers}, on={"cores": 2})
    assert [setting.num_workers for setting in _offered(LoaderWorkers.fit(given))] == expected


@pytest.mark.parametrize(("workers", "most"), [(1, 8.0), (2, 4.0), (16, 50.0)])
def test_more_workers_are_faster_by_their_number_at_most(workers: int, most: float) -> None:
    given = facts(job={"num_workers": workers}, on={"cores": 2}, ceilings={"input": 50.0})
    assert LoaderWorkers.fit(given).max_gain == pytest.approx(most)


@pytest.mark.parametrize(
    ("batches", "expected"), [(3, [(3, 1), (1, 2)]), (2, [(2, 1), (1, 2)]), (7, [(3, 2), (4, 1), (1, 2)])]
)
def test_batches_under_way_fit_in_shared_memory(batches: int, expected: list[tuple[int, int]]) -> None:
    given = facts(job={"device": "cuda"}, on={"shared_memory_bytes": 2 * 4 * 1000 * batches}, padding_frac=0.0)
    found = [(setting.num_workers, setting.prefetch_factor) for setting in _offered(LoaderWorkers.fit(given))]
    assert found == expected
    assert all(workers * prefetch <= batches for workers, prefetch in found)


def test_batches_of_unknown_size_are_not_limited() -> None:
    assert (
        len(_offered(LoaderWorkers.fit(facts(job={"device": "cuda"}, sample_bytes=None, on={"shared_memory_bytes": 1}))))
        == 4
    )


def _offered(fit: Fit) -> list[LoaderWorkers]:
    return [setting for setting in fit.settings if isinstance(setting, LoaderWorkers)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memory_is_pinned_for_a_gpu(device: str) -> None:
    fit = LoaderWorkers.fit(facts(job={"device": device}))
    assert all(setting.settings()["pin_memory"] == (device == "cuda") for setting in fit.settings)


class OneBatch(Prepared):
    """One batch per epoch in a fixed order and a deterministic model, so that only the transform differs."""

    batch_size = 14
    shuffle = False

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(6, 1)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_see_the_epoch(persistent: bool) -> None:
    plain = run(OneBatch(), 4)
    assert len(set(plain)) == 4
    assert run(OneBatch(), 4, LoaderWorkers(num_workers=2, persistent=persistent)) == plain


@pytest.mark.slow
def test_persistent_workers_see_the_epoch_in_every_batch() -> None:
    """Run two workers for three epochs of four batches, whose transform depends on the epoch."""
    losses = run(Prepared(), 12, LoaderWorkers(num_workers=2, persistent=True))
    assert losses == run(Prepared(), 12)
    assert len(set(losses)) == 12


def test_page_locked_batches_stay_page_locked() -> None:
    live = make_loop(Prepared()).live
    live.loader = LoaderSettings(pin_memory=True)
    undo = LoaderWorkers().apply(live)
    assert live.loader.pin_memory
    undo()
    assert live.loader == LoaderSettings(pin_memory=True)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_evidence_counts_living_processes(persistent: bool) -> None:
    item = LoaderWorkers(num_workers=2, persistent=persistent)
    loop = make_loop(Prepared(), item)
    assert [check.seen for check in item.evidence(loop.live, trace_step(loop))] == ["2 of 2"]
    assert loop.stream.workers_alive() == 0


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(6),)])

    kind: type[Job] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match="needs a map-style dataset"):
        make_loop(kind(), LoaderWorkers())


@pytest.mark.parametrize("settings", [{"num_workers": -1}, {"prefetch_factor": 0}, {"threads": -1}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match="num_workers must be at least 0, prefetch_factor at least 1 and threads at least 0"
    ):
        LoaderWorkers(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cores", "data", "expected"),
    [
        (2, 0.9, [(2, 1), (1, 0), (2, 0)]),
        (2, 0.5, [(1, 1), (2, 1), (1, 0), (2, 0)]),
        (16, 0.5, [(8, 8), (16, 1), (15, 0), (16, 0), (7, 0)]),
        (1, 0.9, [(1, 0)]),
    ],
)
def test_on_a_cpu_workers_and_threads_share_the_cores(cores: int, data: float, expected: list[tuple[int, int]]) -> None:
    fit = LoaderWorkers.fit(facts(on={"cores": cores}, input_wait_frac=0.1, phase_frac={"data": data}))
    assert list(dict.fromkeys((setting.num_workers, setting.threads) for setting in _offered(fit))) == expected


def test_threads_are_set_and_put_back() -> None:
    before, item = torch.get_num_threads(), LoaderWorkers(num_workers=1, threads=1)
    assert (item.numerics, LoaderWorkers().numerics) == (Numerics.ROUNDING, Numerics.EXACT)
    loop = make_loop(Prepared(), item)
    assert torch.get_num_threads() == 1
    assert all(check.passed for check in item.evidence(loop.live, trace_step(loop)))
    loop.close()
    loop.live.undo_all()
    assert torch.get_num_threads() == before
