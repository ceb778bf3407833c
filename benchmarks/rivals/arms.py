"""The arms: each trains an example job in its own way, and waits for commands between updates.

An arm may only set what its users set: trainer flags, loader arguments, and the settings listed in tuning guides. No arm
changes the batch size except Lightning's tuner, whose purpose that is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hasten.core.batch import map_tensors
from hasten.core.job import Job, Loss
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.train.build import build
from hasten.train.loop import Loop

READ_EVERY = 50
BIG_BATCHES = 3
"""Number of doublings that Lightning's tuner may try: from 8 to 64 samples, or from 32 to 256."""
Pause = Callable[[int], None]
"""Called after each update with its number of samples; returns when the next update may start."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """Settings that a good engineer would guess."""

    bf16: bool = False
    channels_last: bool = False
    fused: bool = True
    compiled: bool = False
    workers: int = 0
    trims: bool = True


class Prepared(Dataset[Any]):
    """A job's samples, prepared as in a plain script."""

    def __init__(self, job: Job, data: Any) -> None:
        self.job, self.data = job, data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.job.random_transform(self.job.deterministic_transform(self.data[index]))


def loader(job: Job, *, workers: int = 0, trims: bool = False, batch_size: int | None = None) -> DataLoader[Any]:
    """Return the loader of a plain script; `trims` trims each batch to its longest sample (dynamic padding)."""

    def trimmed(samples: list[Any]) -> Any:
        longest = max(job.length(sample) for sample in samples)
        return map_tensors(job.collate(samples), lambda tensor: tensor[:, :longest].contiguous())

    return DataLoader(
        Prepared(job, job.train_data()),
        batch_size=batch_size or job.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=trimmed if trims and job.overrides("length") else job.collate,
    )


def mean_loss(job: Job, model: Any, batch: Any) -> torch.Tensor:
    """Return the mean loss of a batch."""
    loss = job.loss(model, batch)
    return loss.total / loss.weight if isinstance(loss, Loss) else loss


def endless(batches: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    return itertools.chain.from_iterable(iter(batches) for _ in itertools.count())


def by_hand(job: Job, pause: Pause, guess: Guess | None = None) -> None:
    """Run a hand-written loop: for the unchanged job, or with guessed settings."""
    model = job.model()
    optimizer = job.optimizer(model)
    read_every = job.read_every
    if guess is not None:
        read_every = READ_EVERY
        if guess.fused:
            kind: Any = type(optimizer)
            optimizer = kind([{**group, "fused": True} for group in optimizer.param_groups])
        if guess.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if guess.compiled:
            model.compile(dynamic=job.overrides("length") or None)
    schedule = job.schedule(optimizer, 10_000)
    source = loader(job, workers=guess.workers, trims=guess.trims) if guess else loader(job)
    for update, batch in enumerate(endless(source)):
        if guess is not None and guess.channels_last:
            batch = (batch[0].to(memory_format=torch.channels_last), *batch[1:])  # noqa: PLW2901
        with torch.autocast("cpu", torch.bfloat16, enabled=guess is not None and guess.bf16):
            mean = mean_loss(job, model, batch)
        mean.backward()
        if job.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=guess is not None or job.zero_grad_to_none)
        if schedule is not None:
            schedule.step()
        job.after_update(model)
        if update % read_every == 0:
            mean.item()
        pause(job.batch_size)


def by_lightning(job: Job, pause: Pause, precision: str = "32-true", *, tunes: bool = False, workers: int = 0) -> None:
    """Run Lightning's Trainer with its own flags; `tunes` lets its tuner choose the batch size first."""
    import lightning  # noqa: PLC0415  an extra
    from lightning.pytorch.tuner import Tuner  # noqa: PLC0415

    class Module(lightning.LightningModule):  # type: ignore[misc]  # its types depend on whether it is installed
        def __init__(self) -> None:
            super().__init__()
            self.net, self.batch_size, self.stops = job.model(), job.batch_size, not tunes

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            return mean_loss(job, self.net, batch)

        def configure_optimizers(self) -> Any:
            optimizer = job.optimizer(self.net)
            schedule = job.schedule(optimizer, 10_000)
            if schedule is None:
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def train_dataloader(self) -> Any:
            return loader(job, batch_size=self.batch_size, workers=workers)

        def on_train_batch_end(self, *_: Any) -> None:
            job.after_update(self.net)
            if self.stops:
                pause(self.batch_size)

    trainer = lightning.Trainer(
        accelerator="cpu", precision=precision, max_steps=-1, max_epochs=-1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=job.clip_norm,
    )  # fmt: skip
    module = Module()
    if tunes:
        tuner, first = Tuner(trainer), job.batch_size
        tuner.scale_batch_size(module, mode="power", steps_per_trial=2, init_val=first, max_trials=BIG_BATCHES)
        module.stops = True
    trainer.fit(module)


def by_accelerate(job: Job, pause: Pause, mixed_precision: str = "no") -> None:
    """Run a plain loop with Accelerate."""
    from accelerate import Accelerator  # noqa: PLC0415  an extra

    accelerator = Accelerator(cpu=True, mixed_precision=mixed_precision)
    model = job.model()
    optimizer = job.optimizer(model)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(job))
    schedule = job.schedule(optimizer.optimizer, 10_000)
    for update, batch in enumerate(endless(batches)):
        mean = mean_loss(job, model, batch)
        accelerator.backward(mean)
        if job.clip_norm is not None:
            accelerator.clip_grad_norm_(model.parameters(), job.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        job.after_update(model)
        if update % READ_EVERY == 0:
            mean.item()
        pause(job.batch_size)


def by_hasten(job: Job, pause: Pause, plan: dict[str, Any]) -> None:
    """Run Hasten's loop under a plan."""
    loop = Loop(build(job, Plan.from_dict(plan, catalogue())))
    while True:
        before = loop.position.samples
        loop.run(1)
        pause(loop.position.samples - before)


def arms(job: Job, plan: dict[str, Any]) -> dict[str, Callable[[Pause], None]]:
    """Return all arms of a job by name; the first is the naive one."""
    image = not job.overrides("length")
    return {
        "naive": lambda pause: by_hand(job, pause),
        "engineer": lambda pause: by_hand(job, pause, Guess(channels_last=image)),
        "engineer, bf16": lambda pause: by_hand(job, pause, Guess(bf16=True, channels_last=image)),
        "engineer, 2 workers": lambda pause: by_hand(job, pause, Guess(bf16=image, channels_last=image, workers=2)),
        "engineer, compile": lambda pause: by_hand(job, pause, Guess(channels_last=image, compiled=True)),
        "Lightning": lambda pause: by_lightning(job, pause),
        "Lightning, bf16-mixed": lambda pause: by_lightning(job, pause, "bf16-mixed"),
        "Lightning, 2 workers": lambda pause: by_lightning(job, pause, workers=2),
        "Lightning, bf16-mixed, 2 workers": lambda pause: by_lightning(job, pause, "bf16-mixed", workers=2),
        "Lightning, tuned batch size": lambda pause: by_lightning(job, pause, tunes=True),
        "Accelerate": lambda pause: by_accelerate(job, pause),
        "Accelerate, bf16": lambda pause: by_accelerate(job, pause, "bf16"),
        "Hasten": lambda pause: by_hasten(job, pause, plan),
    }
