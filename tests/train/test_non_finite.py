"""NaN and infinite losses and gradients, and running out of memory: how a run handles and records them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.errors import LossError, MachineError
from hasten.core.plan import Plan
from hasten.optimizations.microbatch import Microbatch
from hasten.train.build import build
from hasten.train.checkpoints.saver import Pace
from hasten.train.guards.non_finite import NonFinitePolicy, SpikeWatch, all_finite
from hasten.train.guards.oom import ChangedBuffers, PieceLimit, Window, is_out_of_memory
from hasten.train.run import RunOptions, train

BAD = 37
"""Index of the sample with a NaN or infinite result."""


class Badly(hasten.Job):
    """One sample has a loss that is not finite, or only a gradient that is not."""

    batch_size, epochs, seed = 4, 1, 5
    in_loss = True

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(80))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y, number = batch
        loss = nn.functional.mse_loss(model(x), y)
        if BAD not in number:
            return loss
        if self.in_loss:
            return loss * float("nan")
        return loss + (next(model.parameters()).sum() * 0.0).sqrt()  # 0, but its gradient is infinite


class InGradient(Badly):
    in_loss = False


def incidents(out: Path) -> list[dict[str, Any]]:
    path = out / "incidents.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(out / "model.pt", weights_only=True)
    return found


def test_a_run_stops_at_a_loss_that_is_nan_and_names_the_samples(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(LossError, match="became nan"):
        train(Badly(), Plan(), tmp_path, options=RunOptions(pace=Pace(every=2), say=said.append))
    (incident,) = incidents(tmp_path)
    assert (incident["kind"], incident["action"]) == ("not finite", "the run stops")
    assert BAD in incident["samples"]
    assert len(incident["samples"]) == 4
    assert any(str(BAD) in words for words in said)


@pytest.mark.parametrize("job", [Badly, InGradient])
def test_an_update_that_is_not_finite_is_skipped(tmp_path: Path, job: type[Badly]) -> None:
    result = train(
        job(), Plan(), tmp_path, options=RunOptions(non_finite=NonFinitePolicy(policy="skip"), say=lambda _: None)
    )
    assert result.updates == 20
    (incident,) = incidents(tmp_path)
    assert BAD in incident["samples"]
    assert incident["action"] == "the update is skipped"
    want = trained_without_the_bad_batch(job(), set(incident["samples"]))
    have = weights(tmp_path)
    assert all(torch.equal(want[name], have[name]) for name in want)


def trained_without_the_bad_batch(job: Badly, left_out: set[int]) -> dict[str, torch.Tensor]:
    """Train with the simplest loop, without the bad batch."""
    live = build(job, Plan())
    for indices in live.batches(0):
        if set(indices) == left_out:
            continue
        batch = live.pipeline.fetch(0, indices)
        live.optimizer.zero_grad()
        loss = job.loss(live.model, batch)
        loss.backward()
        live.optimizer.step()
    return live.model.state_dict()


def test_too_many_skipped_updates_in_a_row_stop_the_run(tmp_path: Path) -> None:
    class Hopeless(Badly):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            return super().loss(model, (batch[0], batch[1], batch[2] * 0 + BAD))

    with pytest.raises(LossError, match="3 updates in a row"):
        train(
            Hopeless(),
            Plan(),
            tmp_path,
            options=RunOptions(non_finite=NonFinitePolicy(policy="skip", most=2), say=lambda _: None),
        )
    assert len(incidents(tmp_path)) == 2


class Explodes(Badly):
    """A loss that is finite only at a low learning rate."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.made = torch.optim.SGD(model.parameters(), lr=1.0)
        return self.made

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0)

    @property
    def rate(self) -> float:
        return float(self.made.param_groups[0]["lr"])

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        return loss * float("nan") if self.rate > 0.3 and BAD in batch[2] else loss


def test_a_run_rolls_back_and_continues_at_a_lower_rate(tmp_path: Path) -> None:
    job = Explodes()
    options = RunOptions(pace=Pace(every=3), non_finite=NonFinitePolicy(policy="rollback"), say=lambda _: None)
    result = train(job, Plan(), tmp_path, options=options)
    assert result.updates == 20
    found = incidents(tmp_path)
    assert [one["kind"] for one in found] == ["not finite"] * len(found)
    assert len(found) == 2  # 1.0 -> 0.5 -> 0.25, which is low enough
    assert all("multiplied by 0.5" in one["action"] or "multiplied by 0.25" in one["action"] for one in found)
    assert job.rate == pytest.approx(0.25)
    assert all(math.isfinite(float(value.sum())) for value in weights(tmp_path).values())


def test_a_run_that_cannot_roll_back_says_so(tmp_path: Path) -> None:
    with pytest.raises(LossError, match="no checkpoint to roll back to"):
        train(
            Badly(), Plan(), tmp_path, options=RunOptions(non_finite=NonFinitePolicy(policy="rollback"), say=lambda _: None)
        )


def test_the_number_of_rollbacks_is_limited(tmp_path: Path) -> None:
    with pytest.raises(LossError, match="already rolled back 2 times"):
        train(
            Badly(), Plan(), tmp_path,
            options=RunOptions(
                pace=Pace(every=2), non_finite=NonFinitePolicy(policy="rollback", most=2), say=lambda _: None
            ),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"), [({"policy": "hope"}, "policy must be"), ({"rate": 0.0}, "rate must"), ({"most": 0}, "most must")]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NonFinitePolicy(**wrong)


def test_a_spike_is_reported_and_noise_is_not() -> None:
    generator = torch.Generator().manual_seed(1)
    watch = SpikeWatch()
    for update in range(300):
        loss = 2.0 * math.exp(-update / 100) + 0.1 * float(torch.randn((), generator=generator))
        assert not watch.look(update, loss)
    assert "jumped to 9" in watch.look(300, 9.0)
    assert not watch.look(301, 9.0)
    watch.forget()
    assert not watch.look(302, 9.0)


def test_losses_near_zero_do_not_jump_and_messages_become_rarer() -> None:
    generator = torch.Generator().manual_seed(2)
    watch = SpikeWatch()
    noise = torch.randn(3000, generator=generator).exp().tolist()
    quiet = [2.0 * math.exp(-update / 20) + 1e-4 * noise[update] for update in range(3000)]
    assert not [update for update, loss in enumerate(quiet) if watch.look(update, loss)]
    watch.forget()
    loud = [update for update in range(3000) if watch.look(update, 9.0 if update % 30 == 29 else 1.0)]
    assert 3 <= len(loud) <= 6


def test_all_finite() -> None:
    assert all_finite([])
    assert all_finite([torch.ones(3), torch.zeros(0)])
    assert not all_finite([torch.ones(3), torch.tensor([0.0, math.inf])])
    assert not all_finite([torch.tensor([math.nan])])
    rows = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, math.inf]), (9,), check_invariants=True)
    assert not all_finite([torch.ones(3), rows])
    assert all_finite([torch.ones(3, dtype=torch.float64), torch.ones(2, dtype=torch.complex64), torch.eye(3).to_sparse()])


class Hungry(hasten.Job):
    """A job whose batches do not fit in memory above `fits` rows."""

    batch_size, accumulation, epochs, seed = 8, 2, 2, 7
    fits = 3

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(44, 5, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        if len(out) > self.fits:
            raise torch.OutOfMemoryError(f"{len(out)} rows do not fit")
        return hasten.Loss(nn.functional.mse_loss(out, batch[1], reduction="sum"), len(out))


class Sated(Hungry):
    fits = 99


def losses(out: Path, every: int) -> dict[int, float]:
    """Return the losses at the ends of epochs. The times of other reports vary."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["update"]: line["loss"] for line in lines if line["update"] % every == 0}


def test_an_update_that_does_not_fit_is_done_in_smaller_parts(tmp_path: Path) -> None:
    train(Sated(), Plan(), tmp_path / "sated")
    result = train(Hungry(), Plan(), tmp_path / "hungry", options=RunOptions(say=lambda _: None))
    assert result.samples == 88
    assert set(losses(tmp_path / "sated", 3)) >= {3, 6}
    assert losses(tmp_path / "hungry", 3) == pytest.approx(losses(tmp_path / "sated", 3), rel=1e-5)
    want, have = weights(tmp_path / "sated"), weights(tmp_path / "hungry")
    assert all(torch.allclose(want[name], have[name], rtol=1e-4, atol=1e-6) for name in want)
    found = incidents(tmp_path / "hungry")
    assert [one["kind"] for one in found] == ["out of memory"] * 2  # 8 rows, then 4; then the limit is known
    assert all(one["update"] == 0 for one in found)


def test_a_plan_in_parts_is_cut_further(tmp_path: Path) -> None:
    train(Hungry(), Plan(optimizations=(Microbatch(parts=2),)), tmp_path, options=RunOptions(say=lambda _: None))
    assert len(incidents(tmp_path)) == 1


def test_a_single_sample_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    class Starved(Hungry):
        fits = 0

    with pytest.raises(MachineError, match="with a single sample"):
        train(Starved(), Plan(), tmp_path, options=RunOptions(say=lambda _: None))


def test_running_statistics_of_a_failed_pass_are_restored(tmp_path: Path) -> None:
    class Normed(Sated):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))

    class FailsAfterIt(Normed):
        failed = False

        def loss(self, model: nn.Module, batch: Any) -> Any:
            loss = super().loss(model, batch)
            if len(batch[0]) == 8 and not FailsAfterIt.failed:
                FailsAfterIt.failed = True
                raise torch.OutOfMemoryError("once")
            return loss

    said: list[str] = []
    train(FailsAfterIt(), Plan(), tmp_path / "a", max_updates=1, options=RunOptions(say=said.append))
    train(Normed(), Plan(optimizations=()), tmp_path / "b", max_updates=1)
    assert "BatchNorm computes its statistics over the parts" in said[0]
    # Two micro-batches, each in two parts, give four forward passes. The failed pass does not count.
    assert int(weights(tmp_path / "a")["1.num_batches_tracked"]) == 4
    assert int(weights(tmp_path / "b")["1.num_batches_tracked"]) == 2


def test_constant_buffers_are_copied_only_once() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm)
    model.register_buffer("constant", torch.ones(4))
    buffers = ChangedBuffers(model)
    buffers.keep()
    model(torch.randn(8, 4))
    buffers.learn()
    buffers.keep()
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    model.constant.add_(1)  # type: ignore[operator]
    model(torch.randn(8, 4))
    buffers.put_back()
    assert torch.equal(norm.running_mean, before)
    assert float(model.constant[0]) == 2.0  # type: ignore[index]


def test_errors_that_mean_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_limit_is_of_pieces_and_not_of_batches() -> None:
    limit = PieceLimit()
    long, short = torch.zeros(8, 100), torch.zeros(8, 10)
    assert limit.parts(long, 8, 1) == 1
    assert limit.lower()
    assert limit.parts(long, 8, 1) == 2
    assert limit.parts(short, 8, 1) == 1
    assert limit.parts(long, 8, 1) == 2
    assert limit.lower()
    assert limit.parts(long, 8, 1) == 4
    assert limit.parts(torch.zeros(1, 10000), 1, 1) == 1
    assert not limit.lower()


def test_a_window_can_be_repeated_and_continued() -> None:
    def source() -> Iterator[Any]:
        yield from [("a", 1), None, ("b", 1), ("c", 1)]

    window = Window(source())
    assert [next(window), next(window)] == [("a", 1), None]
    window.again()
    assert [next(window), next(window), next(window)] == [("a", 1), None, ("b", 1)]
    assert window.num_batches == 2


UNDER_A_LIMIT = """
import json, resource, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import hasten
from hasten.core.plan import Plan
from hasten.train.run import RunOptions, train

torch.set_num_threads(1)

class Wide(hasten.Job):
    batch_size, epochs, seed = 32, 2, 1

    def model(self):
        return nn.Linear(64, 64)

    def train_data(self):
        x = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, torch.ones(96))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        # A batch of 32 keeps 32 x 64 x 32768 numbers twice, 512 MiB. Half of it would fit.
        wide = model(batch[0])[:, :, None] * torch.linspace(0, 1, 32768)
        return hasten.Loss(wide.tanh().mean((1, 2)).sum(), len(batch[0]))

if sys.argv[2] != "0":
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]) * 2**20,) * 2)
train(Wide(), Plan(), Path(sys.argv[1]), options=RunOptions(say=lambda words: None))
"""


@pytest.mark.long
def test_a_job_continues_under_a_limit_that_its_batches_exceed(tmp_path: Path) -> None:
    for name, limit in (("free", 0), ("limited", 400)):
        done = subprocess.run(
            [sys.executable, "-c", UNDER_A_LIMIT, str(tmp_path / name), str(limit)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path / "limited", 3)[6] == pytest.approx(losses(tmp_path / "free", 3)[6], rel=1e-5)
    assert not incidents(tmp_path / "free")
    assert {one["kind"] for one in incidents(tmp_path / "limited")} == {"out of memory"}
