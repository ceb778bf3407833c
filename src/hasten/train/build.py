"""Build the live job of a job under a plan: open the seams in order, and apply the optimizations at each."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from hasten.core.errors import JobError, PlanError
from hasten.core.job import Job, check_job, is_iterable, planned_updates
from hasten.core.live import LiveJob, Pipeline
from hasten.core.optimization import missing_environment, required_environment
from hasten.core.plan import Plan
from hasten.core.seams import Seam
from hasten.core.seeding import epoch_permutation, seed_everything
from hasten.core.system import started_with


def pick_device() -> torch.device:
    """Return the accelerator of this process, or the CPU if there is none. Under torchrun, each local rank has its own."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None:
        return accelerator
    return torch.device(accelerator.type, int(local_rank) % torch.accelerator.device_count())


def build(
    job: Job,
    plan: Plan | None = None,
    *,
    seed: int | None = None,
    device: torch.device | None = None,
    on_failure: Callable[[str, Exception], None] | None = None,
) -> LiveJob:
    """Build the live job.

    Args:
        job: The job to train.
        plan: The optimizations to apply; None or an empty plan changes nothing.
        seed: Overrides the job's seed.
        device: Overrides the default device.
        on_failure: Called with the name of an optimization that could not be applied, and the error. By default, the error
            is raised.

    Raises:
        JobError: A method of the job returned something that cannot be trained. Says what, and how to fix it.
        PlanError: The plan requires environment variables that this process was not started with.
    """
    check_job(job)
    if plan is not None:
        _check_environment(plan)
    live = LiveJob(job=job, device=device or pick_device(), seed=job.seed if seed is None else seed)
    live.zero_grad_to_none, live.read_every = job.zero_grad_to_none, job.read_every
    steps: dict[Seam, Callable[[LiveJob], None]] = {
        Seam.DATASET: _open_dataset,
        Seam.MODEL: _open_model,
        Seam.OPTIMIZER: _open_optimizer,
    }
    seed_everything(live.seed)
    for seam in Seam:
        if seam in steps:
            steps[seam](live)
        for optimization in plan.optimizations if plan else ():
            if optimization.card.seam is seam:
                try:
                    live.apply(optimization)
                except Exception as error:
                    if on_failure is None:
                        raise
                    on_failure(optimization.card.name, error)
        if seam is Seam.OPTIMIZER:
            live.rebuild_schedule()
    return live


def _check_environment(plan: Plan) -> None:
    missing = missing_environment(required_environment(plan.optimizations), started_with())
    if missing:
        names = ", ".join(item.card.name for item in plan.optimizations if item.environment())
        needed = " ".join(f"{name}={value}" for name, value in missing.items())
        raise PlanError(
            f"The plan's {names} can work only in a process that was started with {needed}. `hasten run`, `tune` and "
            f"`compare` set it automatically; for other commands, set it yourself: {needed} python ..."
        )


def _open_dataset(live: LiveJob) -> None:
    live.reopen = _open_dataset
    job, dataset = live.job, live.job.train_data()
    name = type(job).__name__
    if dataset is None:
        raise JobError(f"{name}.train_data() returned None: return a torch Dataset of single samples.")
    if isinstance(dataset, DataLoader):
        raise JobError(
            f"{name}.train_data() returned a DataLoader: return its dataset. Hasten makes the loader, with `batch_size`, "
            f"`shuffle` and `collate` of the job."
        )
    live.dataset = dataset
    if not is_iterable(dataset):
        live.num_samples = _length(dataset, name)
        live.order = sample_order(live.num_samples, job.batch_size, live.seed, shuffle=job.shuffle)
    kept = job.overrides("deterministic_transform")
    live.pipeline = Pipeline(
        load=_Load(job, dataset),
        finish=job.random_transform,
        collate=job.collate,
        seed=live.seed,
        load_is_random=not (kept or type(dataset) is TensorDataset),
        finish_is_random=job.overrides("random_transform"),
        collate_is_random=job.overrides("collate"),
    )
    batches = None if live.order is None else len(live.order(0))
    live.planned_updates = planned_updates(job, None if batches is None else -(-batches // job.accumulation))


class _Load:
    """Read one sample and apply the deterministic transform."""

    def __init__(self, job: Job, dataset: Any) -> None:
        self.job, self.dataset = job, dataset

    def __call__(self, index: int) -> Any:
        return self.job.deterministic_transform(self.dataset[index])


def _length(dataset: Any, name: str) -> int:
    try:
        length = len(dataset)
    except TypeError as error:
        raise JobError(
            f"{name}.train_data() returned a {type(dataset).__name__} with __getitem__ but without a usable __len__: "
            f"write __len__, or make it an IterableDataset."
        ) from error
    if length == 0:
        raise JobError(f"{name}.train_data() has 0 samples. Check the path and the filter that it uses.")
    return int(length)


def _open_model(live: LiveJob) -> None:
    model = live.job.model()
    if not isinstance(model, nn.Module):
        raise JobError(f"{type(live.job).__name__}.model() returned {type(model).__name__}, not a torch.nn.Module.")
    if not any(p.requires_grad for p in model.parameters()):
        raise JobError(f"{type(live.job).__name__}.model() has no parameter that requires a gradient: nothing to train.")
    live.model = model.to(live.device)


def _open_optimizer(live: LiveJob) -> None:
    optimizer = live.job.optimizer(live.model)
    if not isinstance(optimizer, Optimizer):
        raise JobError(f"{type(live.job).__name__}.optimizer() returned {type(optimizer).__name__}, not a torch Optimizer.")
    live.optimizer = optimizer


def sample_order(num_samples: int, batch_size: int, seed: int, *, shuffle: bool) -> Callable[[int], list[list[int]]]:
    """Return the default order: a permutation per epoch, cut into batches. The last batch may be short."""

    def batches(epoch: int) -> list[list[int]]:
        order = epoch_permutation(num_samples, seed, epoch) if shuffle else list(range(num_samples))
        return [order[start : start + batch_size] for start in range(0, num_samples, batch_size)]

    return batches
