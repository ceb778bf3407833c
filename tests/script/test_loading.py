"""A script's loaders under a plan give the same batches and random numbers, and leave nothing behind."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seeding import get_random_state, seed_everything
from hasten.optimizations.batched_reading import BatchedReading
from hasten.optimizations.drop_last import DropLast
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.pinned_memory import PinnedMemory
from hasten.optimizations.sample_cache import SampleCache
from hasten.optimizations.sample_store import SampleStore
from hasten.optimizations.trim_padding import TrimPadding
from hasten.script.data.equality import difference
from hasten.script.data.guard import PureLoad
from hasten.script.data.iterator import ScriptIterator
from hasten.script.data.loading import Loading
from hasten.script.patches import Patches
from hasten.script.plan.live import script_live
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.record import Recorder
from hasten.script.watch.replay import KEPT, Replay
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

NUM = 26


class Visits:
    """Counts outside of the dataset, because datasets with their own counter are refused."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Rows(Dataset[Any]):
    """A pure dataset that counts the samples read in this process."""

    def __init__(self) -> None:
        self._visits = Visits()
        self.offset = 0.0

    @property
    def visits(self) -> int:
        return self._visits.count

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        self._visits.count += 1
        return {"x": torch.full((3,), float(index)) + self.offset, "y": index}


class Augmented(Rows):
    """Draws from every generator, and returns a different sample each time."""

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(3) + random.random() + np.random.rand()  # noqa: NPY002
        return {"x": noise, "y": index}


class ListRows(Rows):
    """Accepts lists of indices."""

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(index, dtype=torch.float)


class Shuffled(Sampler[Any]):
    """A custom batch sampler that draws its whole order at once, from the generator that dropout uses."""

    def __init__(self, data: Any) -> None:
        self.order = list(range(len(data)))

    def __iter__(self) -> Iterator[Any]:
        random.shuffle(self.order)
        return iter([self.order[at : at + 5] for at in range(0, len(self.order), 5)])

    def __len__(self) -> int:
        return (len(self.order) + 4) // 5


class AsItGoes(Sampler[int]):
    """Draws each index on demand, so that random numbers drawn by the training affect the order."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM):
            yield int(torch.randint(NUM, ()))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (torch.tensor([float(at)]) for at in range(7))


class Refused:
    """Records the calls of on_failure."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    def __call__(self, name: str, error: BaseException) -> None:
        assert name not in self.why
        self.why[name] = str(error)


class Attached:
    def __init__(self, *items: Optimization) -> None:
        self.live = script_live()
        self.refused = Refused()
        self.loading = Loading(self.live, Plan(optimizations=items), self.refused)

    @property
    def why(self) -> dict[str, str]:
        return self.refused.why

    @property
    def counters(self) -> dict[str, float]:
        return self.live.counters


@contextmanager
def attached(*items: Optimization) -> Iterator[Attached]:
    found, patches, before = Attached(*items), Patches(), threading.enumerate()
    found.loading.install(patches)
    try:
        yield found
    finally:
        found.loading.close()
        patches.restore()
        assert not [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("hasten")]
        assert multiprocessing.active_children() == []
        assert found.live.applied == []


def note(seen: list[Any], batch: Any) -> None:
    """Simulate a training step: record the batch and the generators, and draw from each generator, as dropout does."""
    python, numpy, cpu = get_random_state()
    seen.append((batch, hash((python, numpy[1].tobytes(), numpy[2:], cpu.numpy().tobytes()))))
    torch.rand(2), random.random(), np.random.rand()  # noqa: NPY002


def train(loader: DataLoader[Any], epochs: int = 3) -> list[Any]:
    """Read whole epochs, an interrupted one, one inside another one, and a few single batches."""
    seed_everything(11)
    seen: list[Any] = []
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            note(seen, batch)
            if epoch == 1 and step == 1:
                break
    for step, batch in enumerate(loader):
        note(seen, batch)
        if step == 1:
            for inner in loader:
                note(seen, inner)
    by_hand = iter(loader)
    torch.rand(1)
    note(seen, next(by_hand))
    for batch in loader:
        note(seen, batch)
    note(seen, next(by_hand))
    del by_hand
    with torch.no_grad():
        for batch in loader:
            note(seen, batch)
    return seen


def given_generator() -> dict[str, Any]:
    return {"generator": torch.Generator().manual_seed(3)}


ROWS = torch.randn(NUM, 2, generator=torch.Generator().manual_seed(5))
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: DataLoader(Rows(), batch_size=4, shuffle=True),
    "in order": lambda: DataLoader(Rows(), batch_size=4),
    "a sampler": lambda: DataLoader(Rows(), batch_size=3, sampler=WeightedRandomSampler([1.0, 2.0] * 13, 40)),
    "a batch sampler of its own": lambda: DataLoader(Rows(), batch_sampler=Shuffled(range(NUM))),
    "singly": lambda: DataLoader(Rows(), batch_size=None, shuffle=True),
    "lists of indices": lambda: DataLoader(
        ListRows(), batch_size=None, sampler=BatchSampler(RandomSampler(range(NUM)), 4, drop_last=False)
    ),
    "tensors": lambda: DataLoader(TensorDataset(torch.arange(NUM), ROWS), batch_size=4, shuffle=True),
    "a subset": lambda: DataLoader(Subset(Rows(), range(3, 20)), batch_size=4, shuffle=True),
    "a generator": lambda: DataLoader(Rows(), batch_size=4, shuffle=True, **given_generator()),
    "replacement": lambda: DataLoader(
        Rows(), batch_size=4, sampler=RandomSampler(range(NUM), replacement=True, num_samples=60, **given_generator())
    ),
    "drop last": lambda: DataLoader(Rows(), batch_size=4, shuffle=True, drop_last=True),
    "a collate function": lambda: DataLoader(Rows(), batch_size=4, shuffle=True, collate_fn=lambda samples: samples),
    "a start-up function": lambda: DataLoader(Rows(), batch_size=4, shuffle=True, worker_init_fn=lambda _: None),
}
ITEMS: dict[str, tuple[Optimization, ...]] = {
    "cache": (SampleCache(),),
    "store": (SampleStore(max_gib=0.1),),
    "nothing": (),
}
COUNTED = {"cache": "sample_cache_hits", "store": "sample_store_hits"}
WORKERS = {
    "workers": LoaderWorkers(num_workers=2, prefetch_factor=2),
    "another prefetch": LoaderWorkers(num_workers=1, prefetch_factor=3),
}


def compare(case: str, items: tuple[Optimization, ...]) -> Attached:
    """Train with and without a plan, and compare every batch and generator state."""
    alone = train(LOADERS[case]())
    with attached(*items) as found:
        ours = train(LOADERS[case]())
    assert difference(alone, ours) == ""
    for item in items:
        # Two nested epochs draw alternately from the one generator that they share, which cannot be predicted.
        why = found.why.get(item.card.name, "")
        told = case == "replacement" and "the sampler gave a different batch" in why
        assert told or not why or (case == "a batch sampler of its own" and "PyTorch's samplers" in why)
    return found


@pytest.mark.parametrize("plan", ITEMS)
@pytest.mark.parametrize("case", LOADERS)
def test_the_loop_sees_the_same(case: str, plan: str) -> None:
    found = compare(case, ITEMS[plan])
    if plan in COUNTED and case != "lists of indices":
        assert found.counters[COUNTED[plan]] > 0


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["workers", pytest.param("another prefetch", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", LOADERS)
def test_the_loop_sees_the_same_with_worker_processes(case: str, plan: str) -> None:
    compare(case, (WORKERS[plan],))


def test_a_store_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with attached(SampleStore(max_gib=0.1)):
        list(LOADERS["shuffled"]())
        assert len(list(tmp_path.glob("hasten-samples-*/data"))) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_seen_is_told() -> None:
    with attached() as found:
        dataset = Rows()
        loader = DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True)
        list(loader)
        live = found.live
        assert live.dataset is dataset
        assert live.order is not None
        assert [len(batch) for batch in live.order(0)] == [4] * 6
        assert (live.num_samples, live.job.batch_size, live.job.shuffle) == (NUM, 4, True)
        assert (live.loader.num_workers, live.loader.pin_memory) == (0, False)
        assert live.pipeline.load_is_random  # no plan needed to know it, so nothing was read for it
        assert difference(live.pipeline.load(3), dataset[3]) == ""
        assert live.pipeline.collate is loader.collate_fn
        assert dataset.visits == 26


def test_batches_of_a_sampler_that_names_no_size_are_counted() -> None:
    with attached() as found:
        list(DataLoader(Rows(), batch_sampler=Shuffled(range(NUM))))
        assert found.live.job.batch_size == 4  # 26 samples in 6 batches
        assert found.live.order is not None
        assert len(found.live.order(0)) == 6


def test_an_evaluation_before_the_training_is_not_it() -> None:
    with attached(SampleCache()) as found:
        held_out = DataLoader(Rows(), batch_size=5)
        with torch.no_grad():
            assert len(list(held_out)) == 6
        assert [found.live.dataset] == [None]
        train_rows = Rows()
        list(DataLoader(train_rows, batch_size=4))
        found.loading.trained = True
        assert found.live.dataset is train_rows
        assert type(iter(held_out)) is _SingleProcessDataLoaderIter
        with torch.no_grad():
            assert type(iter(DataLoader(train_rows, batch_size=4))) is _SingleProcessDataLoaderIter
        assert type(iter(DataLoader(train_rows, batch_size=2))) is ScriptIterator


def test_a_new_loader_each_epoch_is_the_training_loader_too() -> None:
    rows = Rows()
    with attached(SampleCache()) as found:
        for _ in range(3):
            loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=lambda samples: samples)
            assert sum(len(batch) for batch in loader) == NUM
        assert found.counters["sample_cache_misses"] == NUM
        assert found.why == {}


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.full((2, 3), float(index)), "of": (index, np.float32(index))}


def test_the_batches_of_a_cache_are_gathered_from_rows() -> None:
    alone = train(DataLoader(Pictures(), batch_size=4, shuffle=True))
    with attached(SampleCache()) as found:
        ours = train(DataLoader(Pictures(), batch_size=4, shuffle=True))
        assert found.loading._cached is not None
        assert found.loading._cached._kept_batch is not None
        assert found.loading._cached._kept_batch([0, 1]) is not None
    assert difference(alone, ours) == ""
    assert found.why == {}


def test_an_iterable_dataset_is_left_alone() -> None:
    with attached(SampleCache()) as found:
        loader = DataLoader(Stream(), batch_size=2)
        assert type(iter(loader)) is _SingleProcessDataLoaderIter
        assert len(list(loader)) == 4
        assert (found.live.num_samples, found.live.order) == (None, None)
        assert "iterable-style" in found.why["sample_cache"]
    with attached(LoaderWorkers()) as found:
        list(DataLoader(Stream(), batch_size=2))
        assert "map-style" in found.why["loader_workers"]


class Handle(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.file = io.BytesIO(b"one position for all")


class Kind(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return super()._get_iterator()


class Counting(Rows):
    """Returns different samples after an epoch, based on its own counter."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return super().__getitem__(index)["x"] + self.read // 1000


class Collating:
    """A collate function that counts its calls."""

    calls = 0

    def __call__(self, samples: list[Any]) -> Any:
        self.calls += 1
        return [sample["x"] + self.calls // 1000 for sample in samples]


class OwnNoise(Rows):
    """Draws from its own generator, of which each worker would have a copy in the same state."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)["x"] + self.noise.random()


class ByWorker(Rows):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return index if info is None else index + 100 * info.id


REFUSALS: dict[str, tuple[Callable[[], DataLoader[Any]], tuple[Optimization, ...], str]] = {
    "random, cache": (lambda: DataLoader(Augmented()), (SampleCache(),), "draws random numbers"),
    "random, store": (lambda: DataLoader(Augmented()), (SampleStore(),), "draws random numbers"),
    "open file, workers": (lambda: DataLoader(Handle()), (LoaderWorkers(),), "file (BytesIO) is open"),
    "own sampler, workers": (
        lambda: DataLoader(Rows(), batch_sampler=Shuffled(range(NUM))), (LoaderWorkers(),), "not one of PyTorch's samplers"
    ),
    "own kind, workers": (lambda: Kind(Rows()), (LoaderWorkers(),), "Kind creates its own kind of iterator"),
    "store and workers": (lambda: DataLoader(Rows()), (SampleStore(), LoaderWorkers()), "cached in this process"),
    "not for scripts": (lambda: DataLoader(Rows()), (DropLast(),), "drop_last=True) if that is acceptable"),
    "no device": (lambda: DataLoader(Rows()), (PinnedMemory(),), "needs a CUDA device"),
    "workers, cache": (lambda: DataLoader(Rows(), num_workers=1), (SampleCache(),), "each separately"),
    "workers, sampler": (
        lambda: DataLoader(Rows(), num_workers=1, sampler=AsItGoes()), (LoaderWorkers(),), "may draw random"
    ),
    "workers, generator": (
        lambda: DataLoader(Rows(), num_workers=1, shuffle=True, **given_generator()), (LoaderWorkers(),), "may draw random"
    ),
    "workers, none": (lambda: DataLoader(Rows(), num_workers=1), (LoaderWorkers(num_workers=0),), "changes that"),
    "counts, workers": (lambda: DataLoader(Counting()), (LoaderWorkers(),), "changes the dataset.read"),
    "counts, cache": (lambda: DataLoader(Counting()), (SampleCache(),), "changes the dataset.read"),
    "collate counts, workers": (
        lambda: DataLoader(Rows(), collate_fn=Collating()), (LoaderWorkers(),), "changes the collate function.calls"
    ),
    "a state of its own, workers": (lambda: DataLoader(OwnNoise()), (LoaderWorkers(),), "depend on state"),
    "asks for its worker, workers": (lambda: DataLoader(ByWorker()), (SampleCache(),), "read again, samples[0] differs"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_is_refused_and_the_loop_goes_on(case: str) -> None:
    make, items, words = REFUSALS[case]
    with attached(*items) as found:
        loader = make()
        first = next(iter(loader))
        name = items[-1].card.name
        assert words in found.why[name]
        assert name not in found.loading.applied
        assert name not in [item.card.name for item, _ in found.live.applied]
        assert first is not None
        assert found.live.loader.num_workers == loader.num_workers
        del loader, first  # together with the persistent workers


def test_a_spawned_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: "spawn")
    with attached(LoaderWorkers()) as found:
        next(iter(DataLoader(Rows())))
        assert "started by spawn" in found.why["loader_workers"]


@pytest.mark.slow
def test_a_sampler_that_the_loop_changes_gives_the_same() -> None:
    def run() -> list[Any]:
        order = list(range(NUM))
        found = []
        for step, batch in enumerate(DataLoader(Rows(), batch_size=4, sampler=order)):
            found.append(batch)
            if step == 1:
                order.reverse()
        return found

    alone = run()
    with attached(LoaderWorkers()) as found:
        assert difference(alone, run()) == ""
        assert "the sampler gave a different batch" in found.why["loader_workers"]
        assert found.loading.applied == []


@pytest.mark.slow
def test_random_samples_may_be_made_by_workers_in_the_same_order() -> None:
    def indices(loader: DataLoader[Any]) -> list[Any]:
        seed_everything(3)
        return [batch["y"].tolist() for batch in loader]

    with attached(LoaderWorkers(num_workers=2)) as found:
        loader = DataLoader(Augmented(), batch_size=4, shuffle=True)
        ours = indices(loader)
        alone = indices(DataLoader(Augmented(), batch_size=4, shuffle=True))
        assert found.loading.applied == ["loader_workers"]
        assert "draw other random numbers" in found.loading.notes["loader_workers"]
        seed_everything(4)
        first, second = ([batch["x"] for batch in loader] for _ in range(2))
        seed_everything(4)
        again = [batch["x"] for batch in loader]
    assert ours == alone
    assert len({tuple(row.tolist()) for batch in first + second for row in batch}) == 2 * NUM
    assert difference(first, again) == ""


@pytest.mark.slow
def test_workers_draw_what_the_seed_of_the_script_says() -> None:
    def drawn(seed: int) -> list[Any]:
        with attached(LoaderWorkers(num_workers=2)):
            seed_everything(seed)
            return [batch["x"] for batch in DataLoader(Augmented(), batch_size=4)]

    assert difference(drawn(3), drawn(3)) == ""
    assert difference(drawn(3), drawn(4)) != ""


@pytest.mark.slow
def test_a_worker_that_is_killed_raises_nothing_in_the_script() -> None:
    list(DataLoader(Rows(), num_workers=1))  # installs torch's SIGCHLD handler
    with attached(LoaderWorkers(num_workers=1)) as found:
        iterator = iter(DataLoader(Rows(), batch_size=2))
        next(iterator)
        worker = multiprocessing.active_children()[0]
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(30)
        time.sleep(0.1)  # no error may be raised in the script in the meantime
        assert len(list(iterator)) == 12
        assert "loader_workers" in found.why


def test_samples_that_become_random_are_noticed_in_a_cache() -> None:
    rows = Rows()
    with attached(SampleCache()) as found:
        loader = DataLoader(rows, batch_size=4)
        list(loader)
        rows.offset = 0.5
        second = [batch["x"][:, 0].tolist() for batch in loader]
        assert second[0] == [0.5, 1.5, 2.5, 3.5]
        assert sum(map(len, second)) == NUM
        assert "samples have changed: when read again, sample" in found.why["sample_cache"]
        assert found.loading.applied == []
        assert found.live.applied == []


def test_a_change_late_in_the_run_is_noticed_at_the_next_epoch() -> None:
    rows = Rows()
    with attached(SampleCache()) as found:
        loader = DataLoader(rows, batch_size=4)
        for _ in range(5):
            list(loader)
        rows.offset = 0.5
        assert next(batch["x"][0, 0].item() for batch in loader) == 0.5
        assert "sample_cache" in found.why


@pytest.mark.slow
def test_samples_that_become_random_are_noticed_when_workers_make_them() -> None:
    class Later(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(1) if self.offset else super().__getitem__(index)["x"]

    rows = Later()
    with attached(LoaderWorkers(num_workers=1)) as found:
        loader = DataLoader(rows, batch_size=4)
        for _ in range(2):
            list(loader)
        assert found.loading.applied == ["loader_workers"]
        rows.offset = 0.5
        list(loader)
        assert "samples have changed" in found.why["loader_workers"]
        assert multiprocessing.active_children() == []


class Faulty(Rows):
    """Raises an error for one sample, or ends the worker process."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.home = where, os.getpid()

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            if self.where == "everywhere":
                raise LookupError("sample 13 is broken")
            if os.getpid() != self.home:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def take(loader: DataLoader[Any]) -> list[Any]:
    """Return batches of two, continuing after errors."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator)["y"].tolist())
        except StopIteration:
            return found
        except LookupError as error:
            found.append(f"{error!r} {error.__context__}")


@pytest.mark.slow
def test_what_the_dataset_raises_is_raised_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.script.data.describe.SOME", 4)  # otherwise the purity test would read the broken sample
    expected = [[at, at + 1] if at != 12 else "LookupError('sample 13 is broken') None" for at in range(0, NUM, 2)]
    with attached(LoaderWorkers()) as found:
        loader = DataLoader(Faulty("everywhere"), batch_size=2)
        assert take(loader) == expected
        assert take(loader) == expected
        assert (found.why, found.loading.applied) == ({}, ["loader_workers"])


@pytest.mark.slow
def test_what_fails_in_a_worker_alone_ends_that_and_not_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.script.data.describe.SOME", 4)
    with attached(LoaderWorkers(num_workers=1)) as found:
        loader = DataLoader(Faulty("workers"), batch_size=2)
        for _ in range(2):
            assert take(loader) == [[at, at + 1] for at in range(0, NUM, 2)]
        assert "batches are no longer made ahead" in found.why["loader_workers"]
        assert found.loading.applied == []
        assert multiprocessing.active_children() == []


class Places(Dataset[Any]):
    """Returns the process that made a sample, and the dataset's setting in that process."""

    epoch = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([os.getpid(), self.epoch])


def pids(loader: DataLoader[Any]) -> tuple[set[int], set[int]]:
    rows = torch.cat(list(loader))
    return set(rows[:, 0].tolist()) - {os.getpid()}, set(rows[:, 1].tolist())


@pytest.mark.slow
def test_workers_are_forked_for_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.script.data.iterator.difference", lambda *_: "")  # batches contain their process id
    monkeypatch.setattr("hasten.script.data.purity.difference", lambda *_: "")
    handler = signal.getsignal(signal.SIGCHLD)
    with attached(LoaderWorkers(num_workers=2, persistent=True)) as found:
        dataset = Places()
        loader = DataLoader(dataset, batch_size=4)
        first, second = pids(loader)[0], pids(loader)[0]
        assert len(first) == len(second) == 2
        assert first.isdisjoint(second)
        dataset.epoch = 3
        assert pids(loader)[1] == {3}
        assert found.why == {}
        assert loader.num_workers == 0
        assert signal.getsignal(signal.SIGCHLD) is handler
        assert multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_a_script_has_become_others_and_persist_where_they_did(persistent: bool) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=persistent)

    def simple(loader: DataLoader[Any]) -> list[Any]:
        seed_everything(5)
        seen: list[Any] = []
        for _ in range(3):
            for batch in loader:
                note(seen, batch)
        return seen

    alone = simple(loader())
    with attached(LoaderWorkers(num_workers=2, prefetch_factor=3, persistent=not persistent)) as found:
        ours = loader()
        assert difference(alone, simple(ours)) == ""
        assert (ours.num_workers, ours.prefetch_factor, ours.persistent_workers) == (2, 3, persistent)
        assert found.loading.applied == ["loader_workers"]
        assert len(multiprocessing.active_children()) == 2 * persistent
        if persistent:
            ours._iterator._shutdown_workers()  # type: ignore[union-attr]
    assert (ours.num_workers, ours.prefetch_factor, ours.persistent_workers) == (1, 2, persistent)


@pytest.mark.slow
@pytest.mark.parametrize("items", [(LoaderWorkers(),), (SampleCache(),)])
def test_it_may_end_in_the_middle_of_an_epoch(items: tuple[Optimization, ...]) -> None:
    runs = []
    for ends in (False, True):
        seed_everything(9)
        seen: list[Any] = []
        with attached(*(items if ends else ())) as found:
            loader = DataLoader(Rows(), batch_size=4, shuffle=True)
            for _ in range(2):
                for step, batch in enumerate(loader):
                    note(seen, batch)
                    if step == 2:
                        found.loading.close()
        runs.append(seen)
    assert difference(runs[0], runs[1]) == ""


@pytest.mark.slow
def test_a_forked_process_reads_as_torch_does() -> None:
    with attached(SampleCache()):
        loader = DataLoader(Rows(), batch_size=4)
        list(loader)
        queue: Any = multiprocessing.get_context("fork").Queue()

        def child() -> None:
            queue.put((type(iter(loader)).__name__, len(list(loader))))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        assert queue.get(timeout=60) == ("_SingleProcessDataLoaderIter", 7)
        process.join()


def test_another_thread_reads_as_torch_does() -> None:
    with attached(SampleCache()) as found:
        names: list[str] = []
        thread = threading.Thread(target=lambda: names.append(type(iter(DataLoader(Rows()))).__name__))
        thread.start()
        thread.join()
        assert names == ["_SingleProcessDataLoaderIter"]
        assert found.live.dataset is None


def test_the_next_batches_can_be_kept_before_they_come() -> None:
    rows = Rows()
    with attached(SampleCache()) as found:
        assert found.loading.prime(3) == 0
        iterator = iter(DataLoader(rows, batch_size=4, shuffle=True))
        next(iterator)
        assert found.loading.prime(3) == 12
        visits = rows.visits
        assert visits == 16
        for _ in range(3):
            next(iterator)
        assert found.counters["sample_cache_hits"] == 12
        assert rows.visits == visits + 12  # each sample was read, by the cache or for a comparison
        assert found.loading.prime(100) == 10


def test_a_kept_sample_changed_by_the_loop_is_not_changed_in_the_cache() -> None:
    rows = Rows()
    with attached(SampleCache()) as found:
        loader = DataLoader(rows, batch_size=2, collate_fn=lambda samples: samples)
        for _ in range(3):
            for batch in loader:
                assert all(float(sample["x"][0]) == sample["y"] for sample in batch)
                for sample in batch:
                    sample["x"].add_(1)
        assert found.why == {}


def test_samples_read_in_one_call_are_kept_so_too() -> None:
    class Many(Rows):
        calls: tuple[int, ...] = ()

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.calls = (*self.calls, len(indices))
            return [self[index] for index in indices]

    for items in ((SampleCache(),), (BatchedReading(), SampleCache())):
        rows = Many()
        with attached(*items) as found:
            loader = DataLoader(rows, batch_size=4)
            assert difference(list(loader), list(loader)) == ""
            several = [size for size in rows.calls if size > 1]
            assert several[:8] == [4, 4, 4, 4, 4, 4, 2, NUM]  # the second epoch begins with a comparison of all
            assert found.counters["sample_cache_hits"] == NUM
            assert found.why == {}


def test_what_fails_of_ours_is_told_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("broken on purpose")

    with attached(SampleCache()) as found:
        loader = DataLoader(Rows(), batch_size=4)
        list(loader)
        monkeypatch.setattr("hasten.script.data.loading.why_unpredictable", fails)
        assert len(list(loader)) == 7
        assert found.why == {"sample_cache": "broken on purpose"}
    with attached() as found:
        monkeypatch.setattr("hasten.script.data.loading.describe", fails)
        assert len(list(DataLoader(Rows(), batch_size=4))) == 7
        assert found.why == {"data": "broken on purpose"}


@pytest.mark.slow
def test_an_iterator_that_is_dropped_leaves_no_worker() -> None:
    with attached(LoaderWorkers(num_workers=1)) as found:
        iterator = iter(DataLoader(Rows(), batch_size=1))
        next(iterator)
        assert len(multiprocessing.active_children()) == 1
        del iterator
        gc.collect()
        assert multiprocessing.active_children() == []
        assert found.why == {}


def test_page_locking_is_left_off_without_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.script.data.loading.likely_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with attached(PinnedMemory()) as found:
        loader = DataLoader(Rows(), batch_size=4)
        assert len(list(loader)) == 7
        assert found.live.loader.pin_memory
        assert loader.pin_memory is False


UNDER = """
import os, sys
from hasten.script.entry.launch import run_under
names = sys.argv[1].split()
ran = run_under(sys.argv[2:], {name: {} for name in names}, env=os.environ)
sys.exit(ran.code if ran.ranks[0] == {**ran.ranks[0], "applied": names, "failures": {}} else 99)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_script_prints_under_a_plan_what_it_prints_without() -> None:
    script = (str(Path(__file__).parent / "scripts" / "plain.py"), "--end", "raise")
    plans = (("-c", UNDER, "loader_workers"), ("-c", UNDER, "sample_cache"))
    started = [
        subprocess.Popen([sys.executable, *words, *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in ((), *plans)
    ]
    alone, *ours = [(*process.communicate(timeout=100), process.returncode) for process in started]
    assert alone[2] == 1
    assert "in the middle of an epoch" in alone[1]
    assert ours == [alone, alone]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("items", [(), (LoaderWorkers(),)])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_page_locked(items: tuple[Optimization, ...], workers: int) -> None:
    torch.zeros(1, device="cuda")
    with attached(PinnedMemory(), *items) as found:
        loader = DataLoader(Rows(), batch_size=4, num_workers=workers)
        assert all(batch["x"].is_pinned() for batch in loader)
        assert found.counters["pinned_batches"] == 7
        assert found.why == {}
    assert loader.pin_memory is False


class Padded(Dataset[Any]):
    """Token ids of different lengths with labels, padded to 32 by the collate function."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(1, 5 + index % 13)

    @staticmethod
    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = torch.zeros(len(rows), 32, dtype=torch.long)
        labels = torch.full((len(rows), 32), -100)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
        return {"ids": ids, "labels": labels, "weights": (ids > 0).float(), "rows": torch.arange(len(rows))}


def padded_loader(**more: Any) -> DataLoader[Any]:
    return DataLoader(Padded(), batch_size=4, shuffle=True, collate_fn=Padded.collate, **more)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("workers", [0, 2])
def test_padding_that_can_be_seen_is_cut_but_for_one_column(multiple: int, workers: int) -> None:
    seed_everything(3)
    plain = list(padded_loader(num_workers=workers))
    seed_everything(3)
    with attached(TrimPadding(multiple=multiple)) as found:
        cut = list(padded_loader(num_workers=workers))
        with torch.no_grad():
            assert next(iter(padded_loader(num_workers=workers)))["ids"].shape == (4, 32)  # evaluation is not trimmed
        assert found.why == {}
        assert found.loading.applied == ["trim_padding"]
    for before, after in zip(plain, cut, strict=True):
        longest = int((before["ids"] > 0).sum(1).max())
        keep = min(-(-(longest + 1) // multiple) * multiple, 32)
        for name in ("ids", "labels", "weights"):
            assert after[name].is_contiguous()
            assert torch.equal(after[name], before[name][:, :keep])
        assert torch.equal(after["rows"], before["rows"])


@pytest.mark.parametrize("name", ["tail", "pairs", "value"])
def test_batches_whose_ends_are_no_padding_stay_as_they_are(name: str) -> None:
    made = 0

    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        nonlocal made
        made += 1
        batch = Padded.collate(rows)
        if name == "tail":
            batch["weights"][0, -1] = 0.5
        elif name == "pairs":
            batch["mask"] = torch.ones(len(rows), 32, 32)
        elif made > 1:
            batch["ids"][batch["ids"] == 0] = 7  # the first batch has shown that 0 is padding
        return batch

    with attached(TrimPadding()) as found:
        widths = [batch["ids"].shape[1] for batch in DataLoader(Padded(), batch_size=4, collate_fn=collate)]
    assert found.why == {}
    assert widths[1:] == [32] * (len(widths) - 1)
    assert (widths[0] < 32) == (name == "value")


class Reader(torch.nn.Module):
    """Sums its input. `masked` ignores padding; dropout draws random numbers."""

    def __init__(self, *, masked: bool, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 2)
        self.dropout, self.masked = torch.nn.Dropout(dropout), masked

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.dropout(self.embed(ids))
        if self.masked:
            found = found * (ids > 0).unsqueeze(-1)
        answer: torch.Tensor = self.head(found.sum(1))
        return answer


@pytest.mark.parametrize(
    ("masked", "dropout", "differs", "draws"),
    [(True, 0.0, False, False), (True, 0.5, False, True), (False, 0.5, True, True)],
)
def test_what_cutting_does_to_a_model_is_told_without_its_dropout(
    *, masked: bool, dropout: float, differs: bool, draws: bool
) -> None:
    model = Reader(masked=masked, dropout=dropout)
    with attached(TrimPadding()) as found:
        batch = next(iter(padded_loader()))
        trimming, args = found.loading.trimming, (batch["ids"],)
        assert (trimming.difference(torch.nn.Module.__call__, model, args, {}) != "") == differs
        assert trimming.draws(torch.nn.Module.__call__, model, args, {}) == draws
        assert "computed from the batch" in trimming.difference(torch.nn.Module.__call__, model, (batch["ids"].clone(),), {})
    assert model.training


def table(**more: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(23, 3, 4, generator=generator), torch.arange(23)
    return DataLoader(TensorDataset(x, y, y > 4), batch_size=5, **more)


@pytest.mark.parametrize("kind", ["plain", "subset", "nested"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_of_a_table_are_gathered_at_once(kind: str, shuffle: bool) -> None:
    def loader() -> DataLoader[Any]:
        data: Any = table().dataset
        if kind != "plain":
            data = Subset(data, [4, 2, 20, 21, 22, 1, 0])
        if kind == "nested":
            data = Subset(data, [5, 1, 3, 0, 6, 2, 4, 1, 5])
        return DataLoader(data, batch_size=3, shuffle=shuffle)

    alone = train(loader())
    with attached(BatchedReading()) as found:
        assert difference(alone, train(loader())) == ""
        assert found.why == {}
        assert found.counters["batched_reading_samples"] > found.counters["batched_reading_calls"] > 0


def test_rows_of_a_table_keep_their_types_and_strides() -> None:
    plain = next(iter(table()))
    with attached(BatchedReading()):
        ours = next(iter(table()))
    assert type(plain) is type(ours)
    assert [(a.dtype, a.stride(), a.shape) for a in plain] == [(b.dtype, b.stride(), b.shape) for b in ours]


class Own(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(tensor[index] * 2 for tensor in self.tensors)


@pytest.mark.parametrize("kind", ["class", "collate", "gradients", "turned"])
def test_what_only_looks_like_a_table_is_read_as_ever(kind: str) -> None:
    x = torch.randn(12, 4, 3)
    if kind == "gradients":
        x.requires_grad_()
    if kind == "turned":
        x = x.transpose(1, 2)
    data = (Own if kind == "class" else TensorDataset)(x)
    collate = list if kind == "collate" else None
    with attached(BatchedReading()) as found:
        next(iter(DataLoader(data, batch_size=4, collate_fn=collate)))
    assert "batched_reading" in found.why
    assert "batched_reading_calls" not in found.counters


def test_a_sample_that_is_not_there_is_named_as_ever() -> None:
    with attached(BatchedReading()), pytest.raises(IndexError):
        list(DataLoader(TensorDataset(torch.ones(3, 2)), batch_sampler=[[0, 5]]))


def test_the_loader_whose_batches_are_trained_on_is_found_behind_one_that_is_read_first() -> None:
    plan, patches = Plan(optimizations=(SampleCache(),)), Patches()
    moved: list[str] = []
    live, first, second, third = script_live(), Rows(), Rows(), Rows()
    loading = Loading(live, plan, lambda *_: None)
    loading.on_moved = moved.extend
    loading.install(patches)
    try:
        list(DataLoader(first, batch_size=2))  # statistics
        assert live.dataset is first
        for _ in DataLoader(second, batch_size=2):
            loading.trained = True
        list(DataLoader(third, batch_size=2))  # the training loader is known by now and is not replaced
        assert live.dataset is second
        assert loading.applied == [item.card.name for item, _ in live.applied] == ["sample_cache"]
        assert moved == ["sample_cache"]
    finally:
        loading.close()
        patches.restore()


def test_loaders_that_are_read_side_by_side_do_not_take_turns() -> None:
    patches = Patches()
    moved: list[str] = []
    loading = Loading(script_live(), Plan(optimizations=(SampleCache(),)), lambda *_: None)
    loading.on_moved = moved.extend
    loading.install(patches)
    try:
        for _ in zip(DataLoader(Rows(), batch_size=2), DataLoader(Rows(), batch_size=2), strict=True):
            loading.trained = True
        assert moved == []
        assert loading.applied == ["sample_cache"]
    finally:
        loading.close()
        patches.restore()


class Slow(Rows):
    """Slow to read, like labelled images compared to rows of a table."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.parametrize("place", [0, 1])
def test_of_loaders_that_are_read_side_by_side_the_slow_one_is_cached(place: int) -> None:
    patches = Patches()
    live = script_live()
    loading = Loading(live, Plan(optimizations=(SampleCache(),)), lambda *_: None)
    loading.install(patches)
    try:
        data = [Rows(), Rows()]
        data[place] = Slow()
        for one, other in zip(*(DataLoader(item, batch_size=2) for item in data), strict=True):
            loading.trained = True
            assert torch.equal(one["y"], other["y"])
        assert live.dataset is data[place]
        assert loading.applied == ["sample_cache"]
    finally:
        loading.close()
        patches.restore()


@pytest.mark.parametrize("item", [SampleCache(), LoaderWorkers(num_workers=1)], ids=["cache", "workers"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_an_epoch_after_a_change_is_tested_with_samples_in_a_list(
    item: Optimization, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples: Any = kind(torch.tensor([float(at)]) for at in range(NUM))
    loader: DataLoader[Any] = DataLoader(samples, batch_size=4, shuffle=True)
    with attached(item) as found:
        for _ in range(2):
            list(loader)
        if kind is tuple:
            assert "put the samples in a list or a Dataset, not in a tuple" in found.loading.boundary()
            return
        assert found.loading.boundary() == ""
        if isinstance(item, SampleCache):  # a cache without comparisons must be detected
            monkeypatch.setattr(PureLoad, "begin_epoch", lambda _: None)
            monkeypatch.setattr(PureLoad, "_chosen", lambda *_: [])
            assert "differs" in found.loading.boundary()
        assert found.why == {}
    assert [float(sample) for sample in samples] == list(range(NUM))


def test_a_batch_of_our_workers_is_watched_once(tmp_path: Path) -> None:
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained(), Replay(recorder), folder=tmp_path))
    errors: list[str] = []
    seams.on_failure = lambda: errors.append(traceback.format_exc())
    rows: Any = [(at, float(at)) for at in range(4 * KEPT)]
    loader: DataLoader[Any] = DataLoader(rows, batch_size=2)
    plain = list(loader)
    with attached(LoaderWorkers(num_workers=1)) as found:
        seams.install()
        try:
            epochs = [list(loader), list(loader)]
        finally:
            seams.remove()
        assert found.why == {}
    assert errors == []
    assert difference(epochs[0][:KEPT], plain[:KEPT]) == ""
    assert all(any(difference(batch, kept) == "" for kept in plain[:KEPT]) for epoch in epochs for batch in epoch)
    assert recorder.has_workers
