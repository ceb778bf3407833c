"""The loop equals training written by hand, and equals itself under every change that must not matter."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.errors import JobError, LossError
from hasten.core.job import Job
from hasten.core.live import LiveJob, LoaderSettings
from hasten.core.seeding import epoch_permutation, mix, seed_everything
from hasten.train.build import build, pick_device
from hasten.train.loop import Loop
from tests.train.jobs import CPU, CollateOnly, Masked, Plain, Stormy, Streamed, Tokens


def make(job: Job, seed: int | None = None) -> Loop:
    return Loop(build(job, seed=seed, device=CPU))


def trained(job: Job, updates: int, *, workers: int = 0, read_every: int | None = None) -> list[float]:
    live = build(job, device=CPU)
    live.loader = LoaderSettings(num_workers=workers, persistent=workers > 0)
    live.read_every = read_every or live.read_every
    loop = Loop(live)
    loop.run(updates)
    loop.close()
    return loop.losses


def weights(loop: Loop) -> list[torch.Tensor]:
    return [p.detach().clone() for p in loop.live.model.parameters()]


# Comparison with training written by hand.


@pytest.mark.parametrize("clip", [None, 0.1])
def test_it_is_bit_equal_to_a_loop_written_by_hand(clip: float | None) -> None:
    class Clipped(Stormy):
        batch_size = 6  # not a power of two, so a mean times 6 divided by 6 is not the same mean
        clip_norm = clip

        def random_transform(self, sample: Any) -> Any:
            return sample

        def collate(self, samples: list[Any]) -> Any:
            return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

    job = Clipped()
    loop = make(job)
    loop.run(9)

    seed_everything(job.seed)
    data = job.train_data()
    model = job.model()
    optimizer = job.optimizer(model)
    schedule = job.schedule(optimizer, 8)
    assert schedule is not None
    seed_everything(mix(job.seed, 0x100))
    losses: list[float] = []
    for epoch in itertools.count():
        order = epoch_permutation(22, job.seed, epoch)
        for at in range(0, 22, 6):
            loss = job.loss(model, job.collate([data[index] for index in order[at : at + 6]]))
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if len(losses) > 8:
            break
    assert loop.losses == losses[:9]


def test_accumulation_over_unequal_weights_is_one_big_batch() -> None:
    class Small(Tokens):
        batch_size = 3
        accumulation = 4
        shuffle = False

    class Big(Tokens):
        batch_size = 12
        shuffle = False

    small, big = make(Small()), make(Big())
    for _ in range(5):  # 18 samples: windows of 12 and 6, the second with its true size
        small.run(1)
        big.run(1)
        for one, other in zip(weights(small), weights(big), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)
    assert small.losses == pytest.approx(big.losses, rel=1e-12)
    assert small.position.samples == big.position.samples == 12 + 6 + 12 + 6 + 12


def test_plain_means_weigh_by_samples_in_a_short_last_batch() -> None:
    class Double(Plain):
        def model(self) -> nn.Module:
            return super().model().double()

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            return nn.functional.mse_loss(model(batch[0].double()), batch[1].double())

    class Small(Double):
        accumulation = 6  # 22 samples: five batches of 4 and one of 2

    class Big(Double):
        batch_size = 22

    small, big = make(Small()), make(Big())
    small.run(3)
    big.run(3)
    for one, other in zip(weights(small), weights(big), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert small.losses == pytest.approx(big.losses, rel=1e-12)


def test_a_micro_batch_without_valid_items_counts_for_nothing() -> None:
    class Gap(Tokens):
        batch_size = 1
        accumulation = 2
        shuffle = False
        num_samples = 2
        first_is_empty = True

        def train_data(self) -> Dataset[Any]:
            real, empty = torch.arange(1, 10), torch.zeros(9, dtype=torch.long)
            return TensorDataset(torch.stack([empty, real] if self.first_is_empty else [real, empty]))

    class Alone(Gap):
        accumulation = 1
        num_samples = 1

        def train_data(self) -> Dataset[Any]:
            return TensorDataset(torch.arange(1, 10).reshape(1, 9))

    class Last(Gap):
        first_is_empty = False

    loops = [make(Gap()), make(Last()), make(Alone())]
    for loop in loops:
        loop.run(2)
    for loop in loops[:2]:
        assert loop.losses == pytest.approx(loops[2].losses, rel=1e-12)
        for one, other in zip(weights(loop), weights(loops[2]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_the_schedule_steps_once_per_update() -> None:
    class Scheduled(Plain):
        accumulation = 4  # windows of 4 and 2 micro-batches

        def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler | None:
            assert num_updates == 4  # two epochs of two windows
            return LambdaLR(optimizer, lambda update: 0.5**update)

    loop = make(Scheduled())
    loop.run(3)
    assert loop.live.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
    assert loop.position.samples == 22 + 16


# The gradient scaler.


class _Spy(torch.amp.GradScaler):
    def __init__(self, calls: list[str]) -> None:
        super().__init__("cpu", init_scale=2.0**4)
        self.calls = calls

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("unscale")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        self.calls.append("update")
        super().update(new_scale)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_scaled_run_trains_like_a_plain_one(
    accumulation: int, clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plain, "accumulation", accumulation)
    monkeypatch.setattr(Plain, "clip_norm", clip)
    calls: list[str] = []
    clip_grad_norm = nn.utils.clip_grad_norm_

    def spy(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append("clip")
        return clip_grad_norm(*args, **kwargs)

    plain = make(Plain())
    plain.run(5)
    live = build(Plain(), device=CPU)
    live.scaler = _Spy(calls)
    scaled = Loop(live)
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", spy)
    scaled.run(1)
    assert calls == (["step", "unscale", "update"] if clip is None else ["unscale", "clip", "step", "update"])
    scaled.run(4)
    assert scaled.losses == pytest.approx(plain.losses, rel=1e-6)  # a scale of 16 is exact; clipping saw true gradients
    assert scaled.skipped == 0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_infinite_gradient_skips_the_update_and_the_schedule(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stormy, "accumulation", accumulation)
    monkeypatch.setattr(Stormy, "clip_norm", 1.0)
    live = build(Stormy(), device=CPU)
    live.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    loop = Loop(live)
    loop.run(1)
    rate, before = live.optimizer.param_groups[0]["lr"], weights(loop)
    handle = next(live.model.parameters()).register_hook(lambda grad: grad * torch.inf)
    loop.run(1)
    handle.remove()
    assert loop.skipped == 1
    assert loop.position.update == 2
    assert live.optimizer.param_groups[0]["lr"] == rate
    assert live.scaler.get_scale() == 2.0**3
    assert all(torch.equal(one, other) for one, other in zip(before, weights(loop), strict=True))
    loop.run(1)
    assert live.optimizer.param_groups[0]["lr"] < rate
    assert not torch.equal(before[0], weights(loop)[0])
    loop.rewind()
    assert live.scaler.get_scale() == 2.0**4
    assert loop.skipped == 0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_after_update_is_called_after_each_applied_update(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Averaging(Stormy):
        def model(self) -> nn.Module:
            model = super().model()
            model.register_buffer("calls", torch.zeros(()))
            model.register_buffer("mean", torch.zeros(()))
            return model

        def after_update(self, model: nn.Module) -> None:
            assert not torch.is_grad_enabled()
            model.get_buffer("calls").add_(1)
            model.get_buffer("mean").add_(next(model.parameters()).mean())

    monkeypatch.setattr(Stormy, "accumulation", accumulation)
    live = build(Averaging(), device=CPU)
    live.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    loop = Loop(live)
    seen = 0.0
    for skips in (False, True, False):
        handle = next(live.model.parameters()).register_hook(lambda grad, by=torch.inf if skips else 1.0: grad * by)
        loop.run(1)
        handle.remove()
        seen += 0.0 if skips else float(next(live.model.parameters()).detach().mean())
    assert float(live.model.get_buffer("calls")) == 2
    assert float(live.model.get_buffer("mean")) == pytest.approx(seen)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_without_the_optimizer_nothing_moves(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "accumulation", accumulation)
    live = build(Plain(), device=CPU)
    live.scaler = torch.amp.GradScaler("cpu")
    loop = Loop(live)
    before = weights(loop)
    loop.steps_optimizer = False
    loop.run(3)
    assert all(torch.equal(one, other) for one, other in zip(before, weights(loop), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_float16_with_a_scaler_trains_on_a_gpu() -> None:
    live = build(Stormy(), device=torch.device("cuda"))
    live.scaler = torch.amp.GradScaler("cuda")
    live.forward_contexts.append(lambda: torch.autocast("cuda", dtype=torch.float16))
    loop = Loop(live)
    loop.run(10)
    assert len(loop.losses) == 10


# Changes that must not matter.


@pytest.mark.parametrize("kind", [Stormy, Masked, CollateOnly, Streamed, Tokens])
def test_a_rewound_run_is_bit_equal(kind: type[Job]) -> None:
    loop = make(kind())
    loop.run(7)
    first = list(loop.losses)
    loop.rewind()
    assert loop.losses == []
    loop.run(7)
    assert loop.losses == first


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adam])
def test_a_rewind_knows_the_state_of_an_optimizer(optimizer: Any) -> None:
    class Other(Plain):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            made: torch.optim.Optimizer = optimizer(model.parameters(), lr=0.01)
            return made

    loop = make(Other())
    loop.run(4)
    first = list(loop.losses)
    loop.rewind()
    loop.run(4)
    assert loop.losses == first


def test_a_rewind_restores_non_persistent_buffers() -> None:
    class Counting(nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 1)
            self.register_buffer("steps", torch.zeros(()), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            out: torch.Tensor = self.linear(x) * self.steps
            return out

    class Counted(Plain):
        def model(self) -> nn.Module:
            return Counting()

        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.001)

    loop = make(Counted())
    loop.run(4)
    first = list(loop.losses)
    loop.rewind()
    loop.run(4)
    assert loop.losses == first


def test_the_seed_determines_everything() -> None:
    runs = []
    for seed in (5, 5, 6):
        torch.rand(3)  # random numbers drawn before
        loop = make(Stormy(), seed)
        loop.run(6)
        runs.append(loop.losses)
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stormy, Masked, CollateOnly])
def test_workers_change_no_bit(kind: type[Job]) -> None:
    alone = trained(kind(), 12)
    for workers in (1, 2):
        assert trained(kind(), 12, workers=workers) == alone


@pytest.mark.slow
def test_workers_that_end_with_the_epoch_change_no_bit() -> None:
    live = build(Stormy(), device=CPU)
    live.loader = LoaderSettings(num_workers=1, persistent=False)
    loop = Loop(live)
    loop.run(3)
    assert loop.stream.workers_alive() == 1
    loop.run(9)
    loop.close()
    assert loop.losses == trained(Stormy(), 12)


def test_dropout_does_not_see_the_randomness_of_samples() -> None:
    masks: list[torch.Tensor] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            masks[-1:] = [*masks[-1:], torch.nn.functional.dropout(torch.ones(64), 0.5)]
            out: torch.Tensor = self.linear(x)
            return out

    class Quiet(Stormy):
        def model(self) -> nn.Module:
            return Watched()

        def random_transform(self, sample: Any) -> Any:
            return sample

    class Loud(Quiet):
        def random_transform(self, sample: Any) -> Any:
            return sample[0] + torch.rand(5), sample[1]

    seen = []
    for job in (Quiet(), Loud()):
        masks.clear()
        make(job).run(4)
        seen.append(torch.stack(masks))
    assert torch.equal(*seen)
    assert len(seen[0]) == 4
    assert not torch.equal(seen[0][0], seen[0][1])


@pytest.mark.parametrize("every", [2, 5, 100])
def test_reading_rarely_changes_no_loss(every: int) -> None:
    assert trained(Stormy(), 9, read_every=every) == trained(Stormy(), 9)


def test_losses_are_read_when_due() -> None:
    live = build(Plain(), device=CPU)
    live.read_every = 3
    loop = Loop(live)
    seen: list[int] = []
    loop.run(5, on_update=lambda: seen.append(len(loop.losses)))
    assert seen == [0, 0, 3, 3, 3]
    assert len(loop.losses) == 5


# Iterable datasets and upcoming batches.


def test_an_iterable_dataset_is_read_epoch_after_epoch() -> None:
    loop = make(Streamed())
    loop.run(6)  # ten samples: batches of 4, 4 and 2
    assert loop.position.samples == 20
    assert loop.upcoming(3) == []
    assert loop.live.planned_updates == 8


def test_reading_an_iterable_dataset_does_not_disturb_dropout() -> None:
    loop = make(Streamed())
    expected = []
    source = loop.stream.epoch(0)
    torch.manual_seed(9)
    expected = [torch.rand(3) for _ in range(3)]
    torch.manual_seed(9)
    for number in expected:
        next(source)
        assert torch.equal(torch.rand(3), number)


def test_an_iterable_dataset_that_is_spent_is_named() -> None:
    class Spent(Streamed):
        def train_data(self) -> Dataset[Any]:
            data: Any = iter([(torch.rand(5), torch.rand(1)) for _ in range(4)])
            return data  # type: ignore[no-any-return]

    loop = make(Spent())
    loop.run(1)
    with pytest.raises(JobError, match="gave no samples in epoch 1"):
        loop.run(1)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_upcoming_agrees_with_the_batches_fetched(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "accumulation", accumulation)
    live = build(Plain(), device=CPU)
    fetched: list[tuple[int, ...]] = []
    fetch = live.pipeline.fetch

    def spy(epoch: int, indices: Any) -> Any:
        fetched.append(tuple(indices))
        return fetch(epoch, indices)

    monkeypatch.setattr(live.pipeline, "fetch", spy)
    loop = Loop(live)
    for updates in (1, 2, 5, 1):
        upcoming = [tuple(indices) for indices in loop.upcoming(updates)]
        assert len(upcoming) == updates * accumulation
        start = len(fetched)
        loop.run(updates)
        assert fetched[start:] == upcoming[: len(fetched) - start]
    batch = live.pipeline.fetch(0, [0, 1])
    upcoming = [tuple(indices) for indices in loop.upcoming(1)]
    loop.run(3, batches=[(batch, 2)])
    start = len(fetched)
    assert [tuple(indices) for indices in loop.upcoming(1)] == upcoming  # a replay takes nothing from the stream
    loop.run(1)
    assert fetched[start:] == upcoming[: len(fetched) - start]


# Errors for users.


def _with_loss(value: Any) -> Job:
    class Odd(Plain):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            return value(model(batch[0]))

    return Odd()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda out: out.mean().item(), "returned float; return a scalar tensor"),
        (lambda _: hasten.Loss(1.0, 2), "returned float; return a scalar tensor"),  # type: ignore[arg-type]
        (lambda _: None, "returned NoneType"),
        (lambda out: out, r"shape \(4, 1\); take the mean"),
        (lambda out: out.mean().detach(), "without a gradient; check for .detach"),
        (lambda out: hasten.Loss(out.sum(), None), "a weight of type NoneType"),  # type: ignore[arg-type]
        (lambda out: out.mean() * float("nan"), "The first loss is nan. Check the data"),
    ],
)
def test_a_value_that_is_not_a_loss_is_refused(value: Any, message: str) -> None:
    with pytest.raises(LossError, match=message) as caught:
        make(_with_loss(value)).run(1)
    assert caught.value.update == 0


def test_a_loss_that_becomes_infinite_names_its_update() -> None:
    calls = itertools.count()
    loop = make(_with_loss(lambda out: out.mean() * (float("inf") if next(calls) == 3 else 1.0)))
    loop.live.read_every = 10
    with pytest.raises(LossError, match=r"The loss became -?inf at update 3\. Lower the learning rate") as caught:
        loop.run(6)
    assert caught.value.update == 3
    assert len(loop.losses) == 3


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_loss_of_one_element_is_a_scalar(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "accumulation", accumulation)
    job = _with_loss(lambda out: out.mean().reshape(1))
    assert trained(job, 2) == trained(_with_loss(lambda out: out.mean()), 2)
    weighted = _with_loss(lambda out: hasten.Loss(out.sum().reshape(1), torch.tensor([len(out)])))
    assert trained(weighted, 2) == pytest.approx(trained(job, 2), rel=1e-5)


class _NoLength(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(5)


def _bad(**changes: Any) -> Job:
    def giving(value: Any) -> Any:
        return lambda *_: value

    kind: type[Job] = type("Bad", (Plain,), {name: giving(value) for name, value in changes.items()})
    return kind()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_data": TensorDataset(torch.zeros(0, 5), torch.zeros(0, 1))}, r"Bad.train_data\(\) has 0 samples"),
        ({"train_data": None}, r"Bad.train_data\(\) returned None"),
        ({"train_data": _NoLength()}, "without a usable __len__"),
        ({"model": nn.ReLU()}, "no parameter that requires a gradient"),
        ({"model": nn.Linear(5, 1).requires_grad_(requires_grad=False)}, "no parameter that requires a gradient"),
        ({"model": "resnet"}, "returned str, not a torch.nn.Module"),
        ({"optimizer": None}, "returned NoneType, not a torch Optimizer"),
    ],
)
def test_a_job_that_cannot_be_trained_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        build(_bad(**changes), device=CPU)


def test_each_local_rank_takes_its_own_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert pick_device() == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device() == torch.device("cuda", 3)


def test_the_original_job_is_never_changed() -> None:
    job = Stormy()
    before = copy.deepcopy(vars(job))
    live: LiveJob = build(job, device=CPU)
    Loop(live).run(2)
    assert vars(job) == before
