"""Trace one update of a user's job: on fake tensors, or once for real where its code reads values."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from hasten.core.batch import map_tensors
from hasten.core.errors import JobError
from hasten.core.job import Job, Loss, is_iterable
from hasten.core.modules import repeated_blocks
from hasten.core.user_code import error_words
from hasten.size.memory import Weights
from hasten.size.trace import Trace, trace


@dataclass(frozen=True, kw_only=True)
class TracedJob:
    """One update of a job, as traced.

    Attributes:
        trace: The memory of the update.
        weights: What can be sharded.
        batch: Samples of the traced micro-batch.
        ran: Why the update ran on real tensors; empty if it ran on fake ones, which allocate nothing.
    """

    trace: Trace
    weights: Weights
    batch: int
    ran: str


def trace_job(job: Job, batch_size: int | None = None) -> TracedJob:
    """Trace one update of a job on the CPU.

    The model is made and trained on fake tensors. If its code reads values (`.item()`, a boolean index, NumPy), the update
    runs twice on real tensors instead.

    Args:
        job: The job.
        batch_size: Samples of a micro-batch; None is the job's.

    Raises:
        JobError: The job has no data, or cannot compute its loss.
    """
    batch, size = _first_batch(job, batch_size or job.batch_size)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, patch.object(FakeTensor, "__deepcopy__", _copied):
            traced, weights = _trace(copy(job), map_tensors(batch, fake.from_tensor))  # what it keeps is fake
    except Exception as error:  # noqa: BLE001 - any code may fail on fake tensors; on real ones it fails for itself
        why = error_words(error).splitlines()[0]
        traced, weights = _trace(job, batch)
        return TracedJob(trace=traced, weights=weights, batch=size, ran=why)
    return TracedJob(trace=traced, weights=weights, batch=size, ran="")


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Copy a fake tensor. PyTorch 2.13 copies the storage that it does not have, and damages memory."""
    memo[id(tensor)] = tensor.detach().clone()
    return memo[id(tensor)]  # type: ignore[no-any-return]


def _first_batch(job: Job, size: int) -> tuple[Any, int]:
    data: Any = job.train_data()
    raw = list(islice(data, size)) if is_iterable(data) else [data[index] for index in range(min(size, len(data)))]
    if not raw:
        raise JobError(f"{type(job).__name__}.train_data is empty: no batch can be made of it.")
    return job.collate([job.random_transform(job.deterministic_transform(sample)) for sample in raw]), len(raw)


def _trace(job: Job, batch: Any) -> tuple[Trace, Weights]:
    model = job.model()
    model.train()
    optimizer = job.optimizer(model)

    def loss() -> torch.Tensor:
        found = job.loss(model, job.device_transform(batch))
        return found.total / found.weight if isinstance(found, Loss) else found

    traced = trace(
        model,
        loss,
        batch=batch,
        optimizer=optimizer,
        clip_norm=job.clip_norm,
        to_none=job.zero_grad_to_none,
        after_update=job.after_update,
    )
    return traced, _weights(model, float(traced.lines["states"][0]))


def _weights(model: nn.Module, state_bytes: float) -> Weights:
    total, stored = _count(model)
    blocks = [_count(block)[0] for block in repeated_blocks(model)]
    return Weights(
        total=total,
        block=max(blocks, default=0),
        rest=total - sum(blocks),
        kept_bytes=stored / max(total, 1),
        used_bytes=stored / max(total, 1),
        state_bytes=state_bytes / max(total, 1),
    )


def _count(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters and their bytes."""
    parameters = list(module.parameters())
    return sum(item.numel() for item in parameters), sum(item.numel() * item.element_size() for item in parameters)
