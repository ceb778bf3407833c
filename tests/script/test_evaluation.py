"""Evaluation batches computed together: the loop sees what it would see alone, and whatever could differ is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten.script.calls import ApartError, difference, filled, slots_of, used
from hasten.script.evaluation.ahead import COUNTER, EvaluationAhead, Loop
from hasten.script.evaluation.groups import parted
from hasten.script.patches import Patches
from hasten.script.plan.live import script_live


class Net(nn.Module):
    """Counts the rows of each call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.append(len(x))
        found: torch.Tensor = self.layers(x)
        return found


CALLS: list[int] = []


class Seams:
    """The seam as a host has it, without a host."""

    def __init__(self, model: nn.Module, batches: int = 4) -> None:
        self.live = script_live()
        self.live.model = model
        self.live.around.validation_batches = batches
        self.failures: list[str] = []
        self.ahead = EvaluationAhead(self.live, lambda error: self.failures.append(str(error)))
        self.patches = Patches()
        self.ahead.install(self.patches)

        def calling(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if args[0] is not model or torch.is_grad_enabled() or not self.ahead.wanted:
                    return original(*args, **kwargs)
                return self.ahead.call(original, args, kwargs)

            return call

        self.patches.put(nn.Module, "__call__", calling)

    @property
    def groups(self) -> int:
        return int(self.live.counters.get(COUNTER, 0))


@contextmanager
def seams_on(model: nn.Module, batches: int = 4) -> Iterator[Seams]:
    seams = Seams(model, batches)
    CALLS.clear()
    try:
        yield seams
    finally:
        seams.patches.restore()


def loader_of(samples: int = 22, batch_size: int = 2, **more: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(samples, 5, generator=generator), torch.arange(samples)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **more)


def evaluate(model: nn.Module, loader: DataLoader[Any]) -> list[torch.Tensor]:
    model.eval()
    with torch.no_grad():
        return [model(x).clone() for x, _ in loader]


def assert_alike(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert [tuple(item.shape) for item in found] == [tuple(item.shape) for item in wanted]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("samples", [22, 21, 8, 2, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loop_gets_what_it_would_get_alone(samples: int, workers: int) -> None:
    model, loader = Net(), loader_of(samples, num_workers=workers)
    wanted = evaluate(model, loader)
    with seams_on(model) as seams:
        found = evaluate(model, loader)
    assert_alike(found, wanted)
    assert seams.failures == []
    assert (seams.groups > 0) == (samples >= 4)


def test_one_call_serves_several_batches_and_the_first_groups_are_held_against_the_plain_call() -> None:
    model, loader = Net(), loader_of(40)
    with seams_on(model) as seams:
        evaluate(model, loader)
    # 20 batches in groups of 4; three of the groups are compared at their first and last batch.
    assert seams.groups == 5
    assert sorted(CALLS) == [2] * 6 + [8] * 5


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_both_ways_of_turning_gradients_off_are_served(mode: Callable[[], AbstractContextManager[None]]) -> None:
    model, loader = Net().eval(), loader_of()
    with torch.no_grad():
        wanted = [model(x) for x, _ in loader]
    with seams_on(model) as seams, mode():
        found = [model(x) for x, _ in loader]
    assert seams.failures == []
    assert seams.groups > 0
    assert_alike([item.clone() for item in found], wanted)


def test_keywords_and_containers_are_taken_apart_and_put_together() -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float, y: torch.Tensor | None = None) -> dict[str, Any]:
            return {"twice": x * 2, "parts": (x + 1, [x.sum(1)]), "none": y}

    model, loader = Named().eval(), loader_of()
    with seams_on(model) as seams, torch.no_grad():
        for x, _ in loader:
            found = model(x, scale=2.0)
            torch.testing.assert_close(found["twice"], x * 2)
            torch.testing.assert_close(found["parts"][1][0], x.sum(1))
            assert found["none"] is None
    assert seams.failures == []
    assert seams.groups > 0


def test_training_and_loops_over_training_data_are_not_touched() -> None:
    model, loader = Net(), loader_of(shuffle=True)
    with seams_on(model) as seams:
        model.train()
        iterator = iter(loader)
        assert not isinstance(iterator, Loop)
        model(next(iterator)[0])
        assert not isinstance(iter(loader_of()), Loop)  # gradients on, and the model trains
    assert seams.groups == 0


def test_what_changes_between_two_calls_is_seen() -> None:
    model, loader = Net().eval(), loader_of(16)
    with torch.no_grad():
        plain = [model(x) for x, _ in loader]
    with seams_on(model), torch.no_grad():
        found = []
        for at, (x, _) in enumerate(loader):
            if at == 1:
                model.get_parameter("layers.3.bias").add_(1.0)  # in the middle of a group
            if at == 6:
                x.mul_(2.0)
            found.append(model(x).clone())
    assert_alike(found[:1], plain[:1])
    assert_alike(found[1:6], [item + 1.0 for item in plain[1:6]])
    assert not torch.allclose(found[6], plain[6] + 1.0)


def test_a_second_call_with_the_same_batch_and_calls_with_others_are_plain() -> None:
    model, loader = Net().eval(), loader_of()
    with seams_on(model) as seams, torch.no_grad():
        for x, _ in loader:
            torch.testing.assert_close(model(x), model(x), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(model(x.clone()), model.layers(x), rtol=1e-5, atol=1e-6)
    assert seams.failures == []


def test_a_loop_that_is_left_early_and_begun_anew_starts_at_the_beginning() -> None:
    model, loader = Net().eval(), loader_of()
    with seams_on(model) as seams, torch.no_grad():
        for _ in range(3):
            for at, (x, y) in enumerate(loader):
                model(x)
                assert y.tolist() == [2 * at, 2 * at + 1]
                if at == 1:
                    break
    assert seams.groups == 3


class Broken(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise KeyError("sample 5 is broken")
        return torch.full((5,), float(index))


def test_an_error_of_the_data_comes_at_its_batch() -> None:
    model, seen = Net().eval(), []

    def go_through() -> None:
        for x in DataLoader(Broken(), batch_size=1):
            seen.append(x[0, 0].item())
            model(x)

    with seams_on(model), torch.no_grad(), pytest.raises(KeyError, match="sample 5 is broken"):
        go_through()
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0]


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen, self.last = 0, list[int](), torch.zeros(2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(len(x))
        found = x + self.last.mean()
        self.last = x
        return found


class Totals(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2:
            raise ValueError("two at a time")
        return x


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Centred(), "depends on the samples beside it"),
        (Drawing(), "draws random numbers"),
        (Remembering(), "keeps something from call to call"),
        (Totals(), "not a row for each sample"),
        (Pairs(), "ValueError: two at a time"),
    ],
)
def test_a_model_that_does_not_allow_it_is_left_alone_and_computes_as_ever(model: nn.Module, why: str) -> None:
    loader = loader_of()
    fresh = type(model)()
    torch.manual_seed(3)
    wanted, chance = evaluate(fresh, loader), torch.get_rng_state()
    torch.manual_seed(3)
    with seams_on(model) as seams:
        found = evaluate(model, loader)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(torch.get_rng_state(), chance)
    assert len(seams.failures) == 1
    assert why in seams.failures[0]
    if isinstance(model, Remembering) and isinstance(fresh, Remembering):
        assert (model.calls, model.seen) == (fresh.calls, fresh.seen)


class Random(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((5,), random.random()), index


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (loader_of(shuffle=True), "the order of the evaluation"),
        (DataLoader(Random(), batch_size=2), "may differ from visit"),
    ],
)
def test_data_that_must_not_be_fetched_ahead_is_not(loader: DataLoader[Any], why: str) -> None:
    model = Net()
    with seams_on(model) as seams:
        evaluate(model, loader)
    assert seams.groups == 0
    assert why in seams.failures[0]


def test_a_model_that_is_looked_at_is_called_as_ever() -> None:
    model, sizes = Net(), list[int]()
    model.layers.register_forward_hook(lambda _, args, __: sizes.append(len(args[0])))
    with seams_on(model) as seams:
        evaluate(model, loader_of(8))
    assert sizes == [2, 2, 2, 2]
    assert seams.groups == 0


def test_a_model_in_training_mode_is_called_as_ever_without_gradients_too() -> None:
    model = Net()
    with seams_on(model) as seams, torch.no_grad():
        for x, _ in loader_of():
            model(x)
    assert seams.groups == 0


def test_a_rehearsal_is_the_evidence_and_leaves_the_modes() -> None:
    model, x = Net(), torch.randn(6, 5)
    model.layers[2].eval()
    with seams_on(model) as seams:
        seams.ahead.rehearse(nn.Module.__call__, model, (x,), {})
    assert seams.groups == 1
    assert model.training
    assert model.layers[0].training
    assert not model.layers[2].training


def test_slots_name_the_tensors_of_the_batch() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    slots = slots_of([[x, 3], {"y": (y, None)}], [x, y])
    assert used(slots) == [0, 1]
    assert filled(slots, [y, x])[1]["y"][0] is x
    with pytest.raises(ApartError, match="made of the batch"):
        slots_of([x * 2], [x, y])
    with pytest.raises(ApartError, match="a Net"):
        slots_of([Net()], [x])


def test_results_are_taken_apart_by_rows_only() -> None:
    first, second = parted({"a": torch.arange(6).reshape(3, 2)}, [1, 2])
    assert first["a"].tolist() == [[0, 1]]
    assert second["a"].tolist() == [[2, 3], [4, 5]]
    with pytest.raises(ApartError, match="not a row"):
        parted(torch.ones(4), [1, 2])
    with pytest.raises(ApartError, match="a float"):
        parted([torch.ones(3), 0.5], [1, 2])


def test_rounding_is_no_difference_and_everything_else_is() -> None:
    one = torch.tensor([1.0, float("nan"), 100.0])
    assert difference(one, one + 1e-4) == ""
    assert "move by" in difference(one, one + 0.1)
    assert "not finite" in difference(one, torch.tensor([1.0, 2.0, 100.0]))
    assert "whole numbers" in difference(torch.tensor([1]), torch.tensor([2]))
    assert "other containers" in difference([one], one)


@dataclass
class Answer:
    logits: torch.Tensor
    label: str = "a"


def test_a_dataclass_is_taken_apart_too() -> None:
    first, second = parted(Answer(torch.arange(3.0)), [1, 2])
    assert (first.logits.tolist(), second.logits.tolist(), second.label) == ([0.0], [1.0, 2.0], "a")
