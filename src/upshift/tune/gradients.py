"""Sample gradients at the initial weights, so that two plans can be compared in direction and size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from upshift.core.job import Loss
from upshift.core.live import LiveJob
from upshift.core.seeding import kept_random_state
from upshift.train.loop import MicroBatch

MAX_COORDINATES = 1_000_000


def gradient_sample(live: LiveJob, batches: list[MicroBatch]) -> npt.NDArray[np.float32]:
    """Gradients of the mean loss, one row a batch, `[batches, coordinates]`, float32.

    Dropout is off meanwhile: plans may draw their random numbers in another order. Above a million parameters a fixed
    random part of the coordinates stands for all.
    """
    rows = []
    with _without_dropout(live.model), kept_random_state():
        for batch, size in batches:
            rows.append(_gradient(live, batch, size))
    live.optimizer.zero_grad(set_to_none=True)
    return np.stack(rows)


def _gradient(live: LiveJob, batch: object, size: int) -> npt.NDArray[np.float32]:
    live.model.train()
    live.optimizer.zero_grad(set_to_none=True)
    loss = live.compute_loss(live.to_device(batch))
    part = loss if isinstance(loss, Loss) else Loss(loss * size, size)
    scale = 1.0 if live.scaler is None else 1024.0
    (part.total / part.weight * scale).backward()
    pieces = [
        (torch.zeros_like(p) if p.grad is None else p.grad / scale).detach().float().cpu().contiguous().reshape(-1)
        for p in live.model.parameters()
        if p.requires_grad
    ]
    flat = torch.cat(pieces)
    if flat.numel() > MAX_COORDINATES:
        chosen = torch.randint(flat.numel(), (MAX_COORDINATES,), generator=torch.Generator().manual_seed(0))
        flat = flat[chosen]
    return flat.numpy()


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    kept = [(module, module.p) for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]  # noqa: SLF001
    for module, _ in kept:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in kept:
            module.p = p
