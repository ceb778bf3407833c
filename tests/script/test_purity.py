"""Samples that may be cached are distinguished from those that may not, without affecting the script."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from hasten.core.live import LoaderSettings
from hasten.core.seeding import get_random_state, seed_everything
from hasten.script.data.equality import difference, moved_generator
from hasten.script.data.fingerprint import counted, fingerprint, open_handle
from hasten.script.data.fork import ForkError, run_in_fork
from hasten.script.data.purity import Purity, loader_facts, measure_purity
from hasten.script.plan.live import script_live


class Made(Dataset[Any]):
    """Samples that a function creates from their index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.visits = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.visits += 1
        return self.make(index)


@dataclass
class Pair:
    x: torch.Tensor
    name: str


def plain(index: int) -> Any:
    return {"x": torch.full((3,), float(index)), "y": index, "name": str(index)}


def augmented(index: int) -> Any:
    return torch.rand(3) + index


def flipped_by_numpy(index: int) -> Any:
    return torch.full((3,), float(index)) * (1 if np.random.rand() < 0.5 else -1)  # noqa: NPY002


def drawn_and_not_used(index: int) -> Any:
    random.random()
    return torch.full((3,), float(index))


class OwnGenerator:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + self.generator.random()


class OneBuffer:
    def __init__(self) -> None:
        self.buffer = torch.zeros(3)

    def __call__(self, index: int) -> Any:
        return self.buffer.fill_(index)


def printing(index: int) -> Any:
    sys.stdout.write(f"sample {index}\n")
    return torch.zeros(3)


def ending(index: int) -> Any:
    os._exit(3)


def broken(index: int) -> Any:
    raise KeyError(index)


def waiting(index: int) -> Any:
    time.sleep(0.01)
    return torch.zeros(3)


IMPURE: dict[str, tuple[Callable[[int], Any], str]] = {
    "torch": (augmented, "draws random numbers (torch)"),
    "numpy": (flipped_by_numpy, "draws random numbers (numpy.random)"),
    "drawn and not used": (drawn_and_not_used, "draws random numbers (random)"),
    "a generator of its own": (OwnGenerator(), "read again, samples[0]"),
    "a clock": (lambda _: time.perf_counter(), "read again, samples[0]"),
    "one buffer": (OneBuffer(), "after other samples were read"),
    "prints": (printing, "prints"),
    "not to be compared": (lambda index: (at for at in range(index)), "generator"),
    "raises": (broken, "KeyError: 0"),
    "ends the process": (ending, "it ended the process"),
}


def first(samples: list[Any]) -> Any:
    return samples[0]


@pytest.mark.parametrize("case", IMPURE)
def test_what_may_differ_from_visit_to_visit_is_not_pure(case: str) -> None:
    make, words = IMPURE[case]
    found = measure_purity(Made(make), first, [0, 1, 2, 3, 4, 5, 6, 7])
    assert not found.pure
    assert words in found.reason


@pytest.mark.parametrize(
    "dataset",
    [
        Made(plain),
        Made(lambda index: (np.arange(index), "text", None, 2.5)),
        Made(lambda index: Pair(torch.tensor([float("nan"), index]), "x")),
        TensorDataset(torch.randn(40, 3)),
        Subset(Made(plain), range(5, 30)),
    ],
)
def test_what_repeats_is_pure(dataset: Any) -> None:
    found = measure_purity(dataset, first, list(range(8)))
    assert (found.pure, found.reason, found.num_read) == (True, "", 8)


def test_a_collate_function_that_draws_is_not_pure() -> None:
    def masked(samples: list[Any]) -> Any:
        return default_collate(samples)["x"] * (torch.rand(1) < 0.5)

    found = measure_purity(Made(plain), masked, [0, 1])
    assert not found.pure
    assert "collating draws random numbers (torch)" in found.reason


def test_a_collate_function_with_a_memory_is_not_pure() -> None:
    calls: list[int] = []

    def counted(samples: list[Any]) -> Any:
        calls.append(1)
        return len(calls)

    assert "collated again, batches[0]" in measure_purity(Made(plain), counted, [0, 1]).reason


def test_samples_that_come_otherwise_in_one_call_are_not_pure() -> None:
    class Twofold(Made):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self.make(index + 1) for index in indices]

    assert "read again, samples[0]" in measure_purity(Twofold(plain), first, [0, 1]).reason


def test_nothing_of_the_script_moves(capfd: pytest.CaptureFixture[str]) -> None:
    seed_everything(5)
    before = get_random_state()
    dataset, own = Made(printing), OwnGenerator()
    drawn = own.generator.bit_generator.state
    measure_purity(dataset, first, [0, 1, 2])
    measure_purity(Made(own), first, [0, 1, 2])
    measure_purity(Made(augmented), first, [0, 1, 2])
    assert moved_generator(before, get_random_state()) == ""
    assert dataset.visits == 0
    assert own.generator.bit_generator.state == drawn
    assert capfd.readouterr() == ("", "")


def test_what_reading_costs_is_told() -> None:
    found = measure_purity(Made(waiting), first, list(range(4)))
    assert found.wait_frac > 0.5
    assert 0.5 < found.load_frac <= 1.0
    size = measure_purity(TensorDataset(torch.zeros(40, 256)), default_collate, [0, 1]).sample_bytes
    assert size is not None
    assert 1024 <= size < 2048
    assert measure_purity(Made(plain), first, []) == Purity()


def test_slow_samples_are_read_twice_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.script.data.purity.ENOUGH_S", 0.0)
    assert measure_purity(Made(plain), first, list(range(8))).num_read == 2


def test_single_samples_are_collated_singly() -> None:
    found = measure_purity(Made(plain), lambda sample: sample["x"], [3, 4], batched=False)
    assert found.pure


def test_an_open_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(80))

    class Opens:
        file: Any = None

        def __call__(self, index: int) -> Any:
            self.file = self.file or path.open("rb")
            return self.file.read(0), index

    dataset = Made(Opens())
    found = measure_purity(dataset, first, [0, 1])
    assert found.pure
    assert found.handle == "the dataset.make.file (BufferedReader)"
    assert open_handle(dataset) == ""
    dataset[0]
    assert open_handle(Subset(dataset, [0])) == "the dataset.dataset.make.file (BufferedReader)"
    dataset.make.file.close()  # type: ignore[attr-defined]
    assert open_handle(dataset) == ""


def test_the_mark_of_a_dataset_tells_of_changes() -> None:
    inner = Made(OwnGenerator())
    rows = torch.zeros(3)
    inner.rows, inner.names = rows, ["a", "b", "c"]  # type: ignore[attr-defined]
    dataset = Subset(inner, [0, 1])
    seen = [fingerprint(dataset)]
    assert fingerprint(dataset) == seen[0]
    changes: list[Callable[[], Any]] = [
        lambda: setattr(inner, "epoch", 1),
        lambda: setattr(inner.make, "strength", 0.5),
        lambda: rows.add_(1),
        inner.names.reverse,  # type: ignore[attr-defined]
        lambda: inner.names.append("d"),  # type: ignore[attr-defined]
    ]
    for change in changes:
        change()
        assert fingerprint(dataset) not in seen
        seen.append(fingerprint(dataset))


def test_another_object_at_the_place_of_a_gone_one_is_a_change() -> None:
    dataset = Made(plain)
    reused = 0
    for _ in range(20):
        dataset.turned = OwnGenerator()  # type: ignore[attr-defined]
        before, place = fingerprint(dataset), id(dataset.turned)  # type: ignore[attr-defined]
        assert fingerprint(dataset) == before
        del dataset.turned  # type: ignore[attr-defined]
        dataset.turned = OwnGenerator()  # type: ignore[attr-defined]
        reused += id(dataset.turned) == place  # type: ignore[attr-defined]
        assert fingerprint(dataset) != before
    assert reused  # otherwise the test proves nothing


CALLS = 0


class ByAttribute:
    calls = 0

    def __call__(self, index: int) -> Any:
        self.calls += 1
        return index


class ByClass:
    calls = 0

    def __call__(self, index: int) -> Any:
        ByClass.calls += 1
        return index


class ByList:
    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, index: int) -> Any:
        self.read.append(index)
        return index


def by_global(index: int) -> Any:
    global CALLS  # noqa: PLW0603 - as scripts do
    CALLS += 1
    return index


def by_closure() -> Callable[[int], Any]:
    calls = 0

    def make(index: int) -> Any:
        nonlocal calls
        calls += 1
        return index

    return make


class Kept:
    """Caches its samples and opens its file late. Later samples do not depend on it."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self.opened: str | None = None

    def __call__(self, index: int) -> Any:
        self.opened = self.opened or "opened"
        return self.kept.setdefault(index, torch.tensor(index))


class Silent(Made):
    """A dataset without counters."""

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (ByAttribute(), "the dataset.make.calls"),
        (ByClass(), "the dataset.make.calls"),
        (ByList(), "the dataset.make.read"),
        (by_global, "the dataset.make -> CALLS"),
        (by_closure(), "the dataset.make -> calls"),
        (Kept(), ""),
        (plain, ""),
    ],
)
def test_what_reading_counts_is_found(make: Callable[[int], Any], where: str) -> None:
    found = measure_purity(Subset(Silent(make), range(20)), first, [0, 1, 2])
    assert found.pure
    assert found.counts == where.replace("the dataset.make", "the dataset.dataset.make")
    assert counted(fingerprint(make), fingerprint(make)) == ""


@pytest.mark.parametrize(("make", "repeats"), [(plain, True), (augmented, True), (OwnGenerator(), False)])
def test_randomness_from_the_generators_of_the_process_repeats(make: Callable[[int], Any], *, repeats: bool) -> None:
    assert measure_purity(Silent(make), first, [0, 1, 2]).repeats is repeats


def sparse(at: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[at]]), torch.ones(1), (2,), check_invariants=False)


NAN = float("nan")
EQUAL: list[tuple[Any, Any]] = [
    (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0])),
    (np.array([NAN]), np.array([NAN])),
    (NAN, NAN),
    ({"a": [1, (2.0, "x", b"y")]}, {"a": [1, (2.0, "x", b"y")]}),
    (Pair(torch.ones(2), "a"), Pair(torch.ones(2), "a")),
    (np.array([None, "a"], dtype=object), np.array([None, "a"], dtype=object)),
    ({1, 2}, {2, 1}),
    (sparse(0), sparse(0)),
    (torch.zeros(0, 3), torch.zeros(0, 3)),
    (torch.ones(2, 2).t(), torch.ones(2, 2)),
]  # fmt: skip
DIFFERENT: list[tuple[Any, Any]] = [
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    (0.0, -0.0),
    (torch.ones(2), torch.ones(2).double()),
    (torch.ones(2), torch.ones(2, requires_grad=True)),
    (torch.ones(2), torch.ones(1, 2)),
    (torch.ones(2), np.ones(2)),
    (1, True),
    ([1, 2], (1, 2)),
    ([1, 2], [1, 2, 3]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Pair(torch.ones(2), "a"), Pair(torch.ones(2), "b")),
    (np.array([None, "a"], dtype=object), np.array([None, "b"], dtype=object)),
    (np.float32(1), np.float64(1)),
    ((at for at in [1]), (at for at in [1])),
    (len, iter([])),
    (sparse(0), sparse(1)),
]  # fmt: skip


@pytest.mark.parametrize("pair", EQUAL)
def test_equal_to_the_last_bit(pair: tuple[Any, Any]) -> None:
    assert difference(*pair) == ""


@pytest.mark.parametrize("pair", DIFFERENT)
def test_different_in_one_bit(pair: tuple[Any, Any]) -> None:
    assert difference(*pair) != ""


def test_a_test_in_a_separate_process_ends_in_time() -> None:
    with pytest.raises(ForkError, match="more than 0 s"):
        run_in_fork(lambda: time.sleep(30), limit_s=0.2)
    with pytest.raises(ForkError, match="ValueError: no"):
        run_in_fork(lambda: _raise(ValueError("no")), limit_s=30)
    large, printed = run_in_fork(lambda: b"x" * (1 << 20), limit_s=30)
    assert (len(large), printed) == (1 << 20, False)
    assert run_in_fork(lambda: sys.stdout.write("words"), limit_s=30) == (5, True)


def _raise(error: Exception) -> None:
    raise error


def test_facts_of_the_loader() -> None:
    live = script_live()
    live.num_samples, live.order = 10, lambda _: [[0]] * 5
    live.job.batch_size = 2  # type: ignore[misc]
    live.loader = LoaderSettings(num_workers=3, pin_memory=True)
    facts = loader_facts(live, Purity(pure=True, reason=""))
    assert facts["has_deterministic_transform"]
    assert not facts["load_is_random"]
    assert facts["updates_per_epoch"] == 5
    assert facts["in_script"]
    assert facts["samples_vary"] == ""
    assert loader_facts(live, Purity(pure=True, reason="", counts="`reads`"))["samples_vary"].startswith(
        "reading a sample changes"
    )
    assert loader_facts(live, Purity())["samples_vary"] == "no sample was read"
    assert (facts["num_samples"], facts["batch_size"], facts["num_workers"], facts["pin_memory"]) == (10, 2, 3, True)
    assert loader_facts(live, Purity())["load_is_random"]
    live.order = None
    assert loader_facts(live, Purity())["updates_per_epoch"] is None
