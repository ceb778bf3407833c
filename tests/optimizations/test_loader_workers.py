"""Loader workers: the same numbers, whoever fetches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.optimizations.contract import Prepared, facts, make_loop, run
from upshift.core.errors import JobError
from upshift.core.job import Job
from upshift.optimizations.loader_workers import LoaderWorkers
from upshift.train.trace import trace_step


@pytest.mark.parametrize(
    ("cores", "wait", "expected"), [(4, 0.1, [3, 4]), (1, 0.1, [1]), (2, 0.9, [8, 2]), (1, 0.9, [4, 1]), (32, 0.9, [16, 32])]
)
def test_more_workers_than_cores_only_where_fetching_waits(cores: int, wait: float, expected: list[int]) -> None:
    fit = LoaderWorkers.fit(facts(on={"cores": cores}, input_wait_frac=wait))
    assert [setting.settings()["num_workers"] for setting in fit.settings] == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memory_is_pinned_for_a_gpu(device: str) -> None:
    fit = LoaderWorkers.fit(facts(job={"device": device}))
    assert all(setting.settings()["pin_memory"] == (device == "cuda") for setting in fit.settings)


class OneBatch(Prepared):
    """One batch an epoch, in one order, a model that does nothing random: what differs is the transform."""

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


@pytest.mark.parametrize("settings", [{"num_workers": -1}, {"prefetch_factor": 0}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="num_workers must be at least 0 and prefetch_factor at least 1"):
        LoaderWorkers(**settings)  # type: ignore[arg-type]
