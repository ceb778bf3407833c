"""Held-out measurement: correct numbers, without side effects on the training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import hasten
from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import MAX_IN_FLIGHT, HeldOut
from tests.train.jobs import CPU, Plain, Stormy, Tokens


class Measured(Plain):
    """Seven held-out samples in batches of 4 and 3."""

    def metric(self, model: nn.Module, batch: Any) -> dict[str, hasten.Mean]:
        return {"error": hasten.Mean((model(batch[0]) - batch[1]).abs().sum(), torch.tensor(len(batch[0])))}


def test_means_are_weighted() -> None:
    live = build(Measured(), device=CPU)
    data = live.job.valid_data()
    assert isinstance(data, TensorDataset)
    x, y = data.tensors
    held = HeldOut(live)
    with torch.no_grad():
        out = live.model(x)
    measured = held.measure()
    assert held.num_batches == 2
    assert measured["loss"] == pytest.approx(float((out - y).square().mean()), rel=1e-6)
    assert measured["error"] == pytest.approx(float((out - y).abs().mean()), rel=1e-6)
    with torch.no_grad():
        first = float((live.model(x[:4]) - y[:4]).abs().mean())
    assert held.measure(max_batches=1)["error"] == pytest.approx(first, rel=1e-6)


class Ranked(Measured):
    """A metric over the whole set, computed in threads if there is a pool. None ends before the maximum number is open."""

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self.pool, self.begun, self.full = pool, 0, threading.Event()
        self.ended: list[bool] = []

    def metric(self, model: nn.Module, batch: Any) -> Any:
        errors = (model(batch[0]) - batch[1]).abs().flatten()
        self.begun += 1
        if self.begun > MAX_IN_FLIGHT:
            self.full.set()
        return self.pool.submit(self.found, errors) if self.pool else self.measured(errors)

    def found(self, errors: torch.Tensor) -> dict[str, Any]:
        overlapped = self.full.wait(60)
        self.ended.append(overlapped)
        return self.measured(errors)

    def measured(self, errors: torch.Tensor) -> dict[str, Any]:
        return {"error": hasten.Mean(errors.sum(), len(errors)), "ranked": hasten.Gathered(errors.tolist())}

    def whole_metric(self, name: str, items: list[Any]) -> dict[str, float]:
        return {"worst": max(items), f"first {name}": items[0], "last": items[-1], "count": len(items)}


class RankedOneByOne(Ranked):
    batch_size = 1  # seven batches, more than may run in threads at once


@pytest.mark.parametrize("in_threads", [False, True])
def test_a_metric_over_the_whole_set_gets_all_items_in_order(in_threads: bool) -> None:
    with ThreadPoolExecutor(8) as pool:
        live = build(job := RankedOneByOne(pool if in_threads else None), device=CPU)
        data = live.job.valid_data()
        assert isinstance(data, TensorDataset)
        x, y = data.tensors
        with torch.no_grad():
            errors = (live.model(x) - y).abs().flatten()
        measured = HeldOut(live).measure()
    assert measured["error"] == pytest.approx(float(errors.mean()), rel=1e-5)
    expected = {"worst": errors.max(), "first ranked": errors[0], "last": errors[-1]}
    assert {name: measured[name] for name in expected} == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-5)
    assert measured["count"] == len(errors)
    assert job.ended == ([True] * len(errors) if in_threads else [])


def test_an_error_in_a_thread_is_raised_when_the_others_have_ended() -> None:
    class Broken(RankedOneByOne):
        def measured(self, errors: torch.Tensor) -> dict[str, Any]:
            raise ArithmeticError("no boxes")

    with ThreadPoolExecutor(8) as pool:
        live = build(job := Broken(pool), device=CPU)
        with pytest.raises(ArithmeticError, match="no boxes"):
            HeldOut(live).measure()
        assert len(job.ended) == job.begun
    assert live.model.training


def test_losses_by_item_are_weighted_by_item() -> None:
    class Text(Tokens):
        def valid_data(self) -> Dataset[Any] | None:
            return self.train_data()

    class Whole(Text):
        batch_size = 18

    parts, whole = (HeldOut(build(job, device=CPU)).measure()["loss"] for job in (Text(), Whole()))
    assert parts == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(("plain", "entered"), [(True, 0), (False, 4)])
def test_plain_omits_the_contexts(plain: bool, entered: int) -> None:
    live = build(Measured(), device=CPU)
    seen: list[str] = []

    class Context:
        def __enter__(self) -> None:
            seen.append("in")

        def __exit__(self, *_: object) -> None: ...

    live.forward_contexts.append(Context)
    contexts = live.forward_contexts
    HeldOut(live).measure(plain=plain)
    assert len(seen) == entered  # loss and metric, of two batches each
    assert live.forward_contexts is contexts


def test_modes_and_randomness_are_put_back() -> None:
    live = build(Stormy(), device=CPU)
    assert isinstance(live.model, nn.Sequential)
    live.model[1].eval()  # a user's frozen BatchNorm
    held = HeldOut(live)
    before = torch.get_rng_state()
    modes = []
    handle = live.model.register_forward_hook(lambda module, *_: modes.append(module.training))
    held.measure()
    handle.remove()
    assert modes == [False, False]
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in live.model.modules()] == [True, True, False, True, True, True]


def test_measuring_in_between_changes_no_loss() -> None:
    runs = []
    for measure in (True, False):
        live = build(Stormy(), device=CPU)
        loop, held = Loop(live), HeldOut(live)
        for _ in range(5):
            loop.run(2)
            if measure:
                held.measure()
        runs.append(loop.losses)
    assert runs[0] == runs[1]


class _Jittered(Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return torch.randn(5), torch.zeros(1)


def test_every_measurement_sees_the_same_samples() -> None:
    class Jitter(Plain):
        def valid_data(self) -> Dataset[Any] | None:
            return _Jittered()

    held = HeldOut(build(Jitter(), device=CPU))
    first = held.measure()
    torch.rand(7)
    assert held.measure() == first


def test_a_random_transform_is_for_training_only() -> None:
    class Quiet(Stormy):
        def random_transform(self, sample: Any) -> Any:
            raise AssertionError

    HeldOut(build(Quiet(), device=CPU)).measure()


class _InOrder(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(5), torch.ones(1))] * 3)


def test_iterable_data_is_read_once_and_measured_as_often_as_asked() -> None:
    class Ordered(Plain):
        def valid_data(self) -> Dataset[Any] | None:
            return _InOrder()

    held = HeldOut(build(Ordered(), device=CPU))
    assert held.measure() == held.measure()


def _job(name: str, value: Any) -> Job:
    kind: type[Job] = type("Odd", (Plain,), {name: lambda *_: value})
    return kind()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (_job("valid_data", None), r"has no held-out data: write valid_data\(self\)"),
        (_job("valid_data", TensorDataset(torch.zeros(0, 5))), r"valid_data\(\) has 0 samples"),
        (_job("metric", {"f1": 0.5}), "metric 'f1' must be hasten.Mean"),
        (_job("metric", {"f1": hasten.Mean(0.0, 0)}), "metric 'f1' has total weight 0"),
        (_job("metric", 0.5), "metric returned float; return a dict"),
        (_job("metric", {"map": hasten.Gathered([1])}), r"has no whole_metric: write `def whole_metric"),
        (_job("loss", None), "loss returned NoneType"),
    ],
)
def test_a_job_that_cannot_be_measured_is_refused(job: Job, message: str) -> None:
    live = build(job, device=CPU)
    with pytest.raises(JobError, match=message):
        HeldOut(live).measure()
    assert live.model.training
