"""Test that parts of a batch give the same update with less memory, and that other batches are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.errors import JobError, PlanError
from hasten.core.job import Job
from hasten.core.plan import Plan
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.sequence_packing import SequencePacking
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.microbatch import split_batch
from hasten.train.trace import trace_step
from tests.optimizations.contract import CPU, Images, Ragged, RaggedPacked, facts, make_loop, run


class Doubles(Ragged):
    """Losses per token in float64, so that only a wrong weight makes a difference. The last batch has 2 samples."""

    clip_norm = 0.5

    def model(self) -> nn.Module:
        return super().model().double()


class Means(Job):
    """A mean over 5 samples per batch, in parts of 3 and 2."""

    batch_size = 5
    accumulation = 2
    epochs = 2

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(23, 6, generator=torch.Generator().manual_seed(5)).double()
        return TensorDataset(x, x.sum(dim=1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.mse_loss(model(batch[0])[:, 0], batch[1])


class Whole(Means):
    accumulation = 1


@pytest.mark.parametrize("job", [Doubles, Means, Whole])
@pytest.mark.parametrize("parts", [2, 3, 100])
def test_parts_give_the_update_of_the_whole(job: type[Job], parts: int) -> None:
    assert run(job(), 12, Microbatch(parts=parts)) == pytest.approx(run(job(), 12), rel=1e-9)


def test_a_step_sees_the_parts_and_only_the_parts() -> None:
    item, rows = Microbatch(parts=3), []

    class Watched(Doubles):
        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            rows.append(len(batch))
            return super().loss(model, batch)

    loop = make_loop(Watched(), item)
    loop.run(1)
    assert rows == [2, 2]  # 4 samples in at most 3 parts of equal size
    assert item.evidence(loop.live, trace_step(loop))[0].passed


def test_one_part_is_the_plain_run() -> None:
    item = Microbatch(parts=1)
    assert run(Means(), 6, item) == run(Means(), 6)
    loop = make_loop(Means(), item)
    assert not item.evidence(loop.live, trace_step(loop))[0].passed


def test_less_is_kept_at_once() -> None:
    def largest(*items: Microbatch) -> int:
        loop, most, now = make_loop(Doubles(), *items), 0, 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal most, now
            now += tensor.numel()
            most = max(most, now)
            return tensor

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal now
            now -= tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loop.run(1)
        return most

    assert largest(Microbatch(parts=4)) < 0.5 * largest()


def test_a_packed_batch_is_refused() -> None:
    with pytest.raises(PlanError, match="exclude each other"):
        Plan(optimizations=(Microbatch(), SequencePacking()))

    class Packed(RaggedPacked):
        def collate(self, samples: list[Any]) -> Any:
            return torch.cat(samples)[None], hasten.Packing.of([len(sample) for sample in samples])

    loop = Loop(build(Packed(), Plan(optimizations=(Microbatch(),)), device=CPU))
    with pytest.raises(JobError, match="cannot split a packed batch"):
        loop.run(1)


def test_which_values_are_split() -> None:
    x, scale = torch.arange(10).view(5, 2), torch.tensor(3.0)
    pieces = split_batch({"x": x, "names": list("abcde"), "pair": [x, x], "scale": scale, "kind": "words", "no": None}, 5, 2)
    assert [size for _, size in pieces] == [3, 2]
    first, second = (piece for piece, _ in pieces)
    assert torch.equal(torch.cat([first["x"], second["x"]]), x)
    assert first["x"].data_ptr() == x.data_ptr()
    assert (first["names"], second["names"]) == (["a", "b", "c"], ["d", "e"])
    assert [len(part) for part in second["pair"]] == [2, 2]
    assert second["scale"] is scale
    assert (second["kind"], second["no"]) == ("words", None)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(4, 2), torch.zeros(7, 2)), r"tensor of shape \(7, 2\), whose first dimension is not the samples"),
        ((torch.tensor(1.0), "text"), "no tensor whose first dimension is the samples"),
        (["a", "b", "c", "d"], "no tensor"),
        ({"rows": torch.zeros(4), "packing": hasten.Packing.of([1, 3])}, "packed batch"),
    ],
)
def test_batches_that_cannot_be_split_are_refused(batch: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        split_batch(batch, 4, 2)


def test_settings() -> None:
    assert [item.settings() for item in Microbatch.fit(facts(job={"batch_size": 3})).settings] == [{"parts": 2}]
    assert [item.settings() for item in Microbatch.fit(facts()).settings] == [{"parts": 2}, {"parts": 4}]
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Microbatch(parts=0)


def test_batch_statistics_would_change() -> None:
    """Show why BatchNorm is refused: the parts have other statistics than the whole batch."""
    assert run(Images(), 2, Microbatch()) != pytest.approx(run(Images(), 2), rel=1e-4)
