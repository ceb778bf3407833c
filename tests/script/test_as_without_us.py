"""Changes that a script makes reach its batches as without Hasten, under every technique that acts on its data.

Each way in which a Python program can change a batch is tested under each such technique, with 0 to 2 workers of the script.
Batches and final weights must be bitwise equal to those of the unchanged script.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seeding import get_random_state, seed_everything
from hasten.optimizations.batched_reading import BatchedReading
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.sample_cache import SampleCache
from hasten.optimizations.sample_store import SampleStore
from hasten.script.data.equality import difference
from hasten.script.data.guard import MOST_COMPARED, PureLoad
from hasten.script.data.loading import Loading
from hasten.script.patches import Patches
from hasten.script.plan.live import script_live

NUM, BATCH, EPOCHS, CHANGED_AT = 48, 8, 4, 2
SCALE = 1.0
"""Changed by the route `global`."""
VARIABLE = "AS_WITHOUT_US"


class Scale:
    def __init__(self) -> None:
        self.by, self.deep = 1.0, {"list": [{"by": 1.0}]}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by * self.deep["list"][0]["by"]


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functools.reduce(lambda value, transform: transform(value), self.transforms, x)


class Padded:
    """A collate function with a setting, as used for progressive resizing."""

    width, noise = 4, 0.0

    def __call__(self, samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return nn.functional.pad(x, (0, self.width - x.shape[1])) + (self.noise and torch.randn(self.width)), y


class Rows(Dataset[Any]):
    """Samples that depend on everything a program can change."""

    def __init__(self, path: Path, num: int = NUM) -> None:
        made = np.random.default_rng(0)
        self.x = made.standard_normal((num, 4)).astype(np.float32)
        self.labels = made.integers(2, size=num)
        self.weights = [1.0] * num
        self.t = torch.zeros(num)
        self.path, self.scale, self.epoch = path, Scale(), 0
        self.transform: Callable[[torch.Tensor], torch.Tensor] = Compose(nn.Identity(), self.scale)
        by = 1.0

        def change(value: float) -> None:
            nonlocal by
            by = value

        self.change_closure = change
        self.closed_over: Callable[[torch.Tensor], torch.Tensor] = lambda x: x * by
        self.random = False

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x = self.transform(torch.from_numpy(self.x[index].copy()))
        x = self.closed_over(x) * SCALE * self.weights[index] + self.t[index] + self.epoch
        x = x * float(self.path.read_text(encoding="utf-8")) * float(os.environ.get(VARIABLE, "1"))
        return x + torch.rand(4) if self.random else x, int(self.labels[index])


class Script:
    """The parts of a script that a route changes."""

    def __init__(self, path: Path, workers: int, persistent: bool, num: int = NUM) -> None:
        global SCALE  # noqa: PLW0603 - the route `global`
        SCALE = 1.0
        os.environ.pop(VARIABLE, None)
        path.write_text("1.0", encoding="utf-8")
        self.rows, self.collate, self.path = Rows(path, num), Padded(), path
        self.loader = self.loader_of(self.rows, workers, persistent)
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))

    def loader_of(self, rows: Rows, workers: int, persistent: bool) -> DataLoader[Any]:
        nested: Subset[Any] = Subset(ConcatDataset([rows]), range(len(rows)))
        return DataLoader(
            nested, BATCH, shuffle=True, num_workers=workers, persistent_workers=persistent, collate_fn=self.collate
        )

    def set_global(self) -> None:
        global SCALE  # noqa: PLW0603 - the route `global`
        SCALE = 0.5

    def change_a_few_labels(self) -> None:
        self.rows.labels[np.random.default_rng(3).choice(NUM, 2, replace=False)] += 2

    def replace_method(self) -> None:
        before = self.rows.transform
        self.rows.transform = lambda x: before(x) * 0.5

    def grow(self) -> None:
        self.collate.width = 4
        self.collate.noise = 1.0


Route = Callable[[Script], Any]
ROUTES: dict[str, Route] = {
    "an attribute": lambda script: setattr(script.rows, "epoch", 3),
    "an attribute of a transform in a list": lambda script: setattr(script.rows.scale, "by", 0.5),
    "deep in containers": lambda script: script.rows.scale.deep["list"][0].update(by=0.5),
    "a transform removed": lambda script: script.rows.transform.transforms.append(torch.neg),  # type: ignore[attr-defined]
    "a transform replaced": lambda script: script.replace_method(),
    "a closure": lambda script: script.rows.change_closure(0.5),
    "a global": lambda script: script.set_global(),
    "an array in place": lambda script: script.rows.x.__imul__(0.5),
    "a few labels in place": lambda script: script.change_a_few_labels(),
    "a list in place": lambda script: script.rows.weights.__setitem__(slice(0, 3), [0.5] * 3),
    "a tensor in place": lambda script: script.rows.t.add_(1),
    "a file": lambda script: script.path.write_text("0.5", encoding="utf-8"),
    "the environment": lambda _: os.environ.__setitem__(VARIABLE, "0.5"),
    "random numbers from now on": lambda script: setattr(script.rows, "random", True),
    "a collate attribute that draws": lambda script: script.grow(),
    "nothing": lambda _: None,
}
TECHNIQUES: dict[str, tuple[Optimization, ...]] = {
    "sample_cache": (SampleCache(),),
    "sample_store": (SampleStore(max_gib=0.1),),
    "batched_reading": (BatchedReading(), SampleCache()),
    "loader_workers": (LoaderWorkers(num_workers=1),),
    "loader_workers, kept": (LoaderWorkers(num_workers=2, persistent=True),),
}


class Attached:
    def __init__(self, items: tuple[Optimization, ...]) -> None:
        self.why: dict[str, str] = {}
        self.live = script_live()
        self.loading = Loading(
            self.live, Plan(optimizations=items), lambda name, error: self.why.__setitem__(name, str(error))
        )


@contextmanager
def attached(items: tuple[Optimization, ...]) -> Iterator[Attached]:
    found, patches = Attached(items), Patches()
    found.loading.install(patches)
    try:
        yield found
    finally:
        found.loading.close()
        patches.restore()


def train(script: Script, change: Route, *, at_step: int | None = None) -> list[Any]:
    """Train, make a change at an epoch or step, and return batches, generator states and weights."""
    seed_everything(7)
    optimizer, seen, step = torch.optim.SGD(script.model.parameters(), 0.1), [], 0
    for epoch in range(EPOCHS):
        if at_step is None and epoch == CHANGED_AT:
            change(script)
        for x, y in script.loader:
            if step == at_step:
                change(script)
            step += 1
            seen.append((x, y, torch.get_rng_state()))
            loss = nn.functional.cross_entropy(script.model(x), y % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    python, numpy, _ = get_random_state()
    return [seen, [p.detach() for p in script.model.parameters()], python, numpy[1]]


def held_against(
    path: Path, route: str, technique: str, workers: int = 0, *, persistent: bool = False, at_step: int | None = None
) -> Attached:
    """Train with and without a technique. Both must give the same result, and the change must have an effect."""
    threads, until = threading.active_count(), monotonic() + 30.0
    alone = train(Script(path / "scale", workers, persistent), ROUTES[route], at_step=at_step)
    with attached(TECHNIQUES[technique]) as found:
        ours = train(Script(path / "scale", workers, persistent), ROUTES[route], at_step=at_step)
    assert difference(alone, ours) == ""
    while threading.active_count() > threads + 2 * (workers > 0):  # those of the workers' queues end soon after the workers
        assert monotonic() < until, threading.enumerate()
        sleep(0.01)
    return found


KEEPING = [pytest.param("sample_cache", route) for route in ROUTES] + [
    pytest.param(technique, route, marks=() if route in ("a global", "nothing") else (pytest.mark.long,))
    for technique in ("sample_store", "batched_reading")
    for route in ROUTES
]


@pytest.mark.parametrize(("technique", "route"), KEEPING)
def test_a_change_between_epochs_reaches_what_is_kept(tmp_path: Path, technique: str, route: str) -> None:
    found = held_against(tmp_path, route, technique)
    kept = TECHNIQUES[technique][-1].card.name
    assert found.live.counters[f"{kept}_hits"] > 0
    draws = "collate" in route  # the samples themselves do not change
    assert (kept in found.loading.stopped) == (route != "nothing" and not draws)
    assert found.loading.stale == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "route", ["an attribute of a transform in a list", "a global", "a few labels in place", "a collate attribute that draws"]
)
def test_a_change_between_epochs_reaches_our_workers(tmp_path: Path, route: str) -> None:
    found = held_against(tmp_path, route, "loader_workers, kept")
    assert found.loading.stopped == ([] if "draw" not in route else ["loader_workers"])
    assert found.loading.stale == ""


@pytest.mark.slow
def test_a_change_between_epochs_reaches_workers_that_the_script_has(tmp_path: Path) -> None:
    found = held_against(tmp_path, "a closure", "loader_workers, kept", 1)
    assert found.why == {}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("technique", ["loader_workers", "loader_workers, kept"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)])
def test_every_route_over_the_workers_of_a_script(
    tmp_path: Path, technique: str, route: str, workers: int, *, persistent: bool
) -> None:
    if workers and ("random" in route or "draws" in route):
        pytest.skip("the workers of the script draw for the samples: others draw other numbers, by the technique's class")
    found = held_against(tmp_path, route, technique, workers, persistent=persistent)
    assert found.loading.stale == ""


@pytest.mark.slow
@pytest.mark.parametrize("technique", ["sample_cache", "sample_store"])
def test_nothing_is_kept_for_workers_that_the_script_has(tmp_path: Path, technique: str) -> None:
    found = held_against(tmp_path, "a global", technique, 1)
    assert "each separately" in found.why[technique]


@pytest.mark.slow
@pytest.mark.parametrize("technique", ["sample_cache", "loader_workers"])
def test_a_change_of_every_sample_within_an_epoch_is_loud(tmp_path: Path, technique: str) -> None:
    alone = train(Script(tmp_path / "scale", 0, persistent=False), ROUTES["a global"], at_step=9)
    with attached(TECHNIQUES[technique]) as found:
        ours = train(Script(tmp_path / "scale", 0, persistent=False), ROUTES["a global"], at_step=9)
    assert technique in found.loading.stopped
    assert "earlier batches of this epoch may contain outdated samples" in found.loading.stale
    assert found.why[technique] == found.loading.stale
    differ = [bool(difference(one, other)) for one, other in zip(alone[0], ours[0], strict=True)]
    assert sum(differ) <= 2  # one sample in 16 is compared, in batches of 8


def test_a_table_is_gathered_as_it_is_now() -> None:
    runs = []
    for items in ((), (BatchedReading(),)):
        rows = torch.arange(40.0).reshape(20, 2).clone()
        labels = torch.zeros(20)
        with attached(items) as found:
            loader = DataLoader(TensorDataset(rows, labels), batch_size=4, shuffle=True)
            seed_everything(2)
            seen = []
            for _ in range(3):
                for batch in loader:
                    seen.append(batch)
                    labels += 1
                rows *= 2
        runs.append(seen)
    assert found.live.counters["batched_reading_calls"] > 0
    assert difference(runs[0], runs[1]) == ""


def test_a_change_of_one_percent_of_many_samples_is_seen_by_the_cache(tmp_path: Path) -> None:
    num = 2 * MOST_COMPARED

    def labels_of(items: tuple[Optimization, ...]) -> list[Any]:
        script = Script(tmp_path / "scale", 0, persistent=False, num=num)
        with attached(items) as found:
            seed_everything(5)
            seen = []
            for epoch in range(3):
                seen += [y for _, y in script.loader]
                script.rows.labels[np.random.default_rng(epoch).choice(num, num // 100 + 1, replace=False)] += 2
            assert not items or found.loading.stopped == ["sample_cache"]
        return seen

    assert difference(labels_of(()), labels_of((SampleCache(),))) == ""


@pytest.mark.parametrize("technique", ["sample_cache", "loader_workers"])
def test_the_gate_tries_an_epoch_after_a_change(tmp_path: Path, technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path / "scale", 0, persistent=False)
    with attached(TECHNIQUES[technique]) as found:
        for _ in range(2):
            list(script.loader)
        assert found.loading.boundary() == ""
        if technique == "sample_cache":  # a cache without comparisons must be detected
            monkeypatch.setattr(PureLoad, "begin_epoch", lambda _: None)
            monkeypatch.setattr(PureLoad, "_chosen", lambda *_: [])
            assert "differs" in found.loading.boundary()
        assert found.loading.stopped == []
        assert found.why == {}
    assert Rows.__getitem__.__qualname__ == "Rows.__getitem__"
