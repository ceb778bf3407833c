"""Sample the effect of a plan on training: gradients, at the initial weights or later ones, and the first updates.

Gradients are taken of the first batches of the run, and of two that no short screening reaches: the last batch of the epoch,
which may be short, and the samples of the first batch in the next epoch. A cache that stores wrong data, or a loss divided
by the wrong size, shows there but not in the first losses.

A script cannot go back to its first batches; `StepSampler` records the gradients of its first steps as they happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.optim import Optimizer

from hasten.core.job import Loss
from hasten.core.layouts import numbers
from hasten.core.live import LiveJob
from hasten.core.seams import replace_attribute
from hasten.core.seeding import kept_random_state
from hasten.core.sync import whole
from hasten.train.loop import Loop, MicroBatch
from hasten.train.trace import first_batches
from hasten.tune.proof.numerics import UpdateSample

MAX_COORDINATES = 1_000_000
SAMPLED_UPDATES = 3
MAX_SKIPPED = 24
"""Maximum number of updates that a gradient scaler may skip while it searches for its scale."""
IMPLEMENTATION = frozenset({"params", "fused", "foreach", "capturable", "differentiable"})
"""Keys of a parameter group that describe the implementation, not the mathematics."""


def gradient_batches(loop: Loop, count: int) -> list[MicroBatch]:
    """Return the first `count` batches of the run, the last one of its epoch, and the first one's samples an epoch later.

    An iterable dataset yields its first batches only. Micro-batches that the plan merges are sampled separately, so that
    every plan is sampled on the same ones.
    """
    live = loop.live
    unmerged = replace_attribute(live, "merge", 1)
    batches = first_batches(loop, count)
    unmerged()
    if live.order is None:
        return batches
    epoch = live.order(0)
    chosen = [(0, epoch[-1]), (1, epoch[0])]
    return batches + [(live.pipeline.fetch(number, indices), len(indices)) for number, indices in chosen]


def gradient_sample(live: LiveJob, batches: list[MicroBatch]) -> npt.NDArray[np.float32]:
    """Return gradients of the mean loss at the present weights, one row per batch, `[batches, coordinates]`, float32.

    Dropout is disabled meanwhile, because plans may draw its random numbers in another order. Above a million parameters, a
    fixed random subset of the coordinates is used.
    """
    rows = []
    with _without_dropout(live.model), kept_random_state():
        for batch, size in batches:
            rows.append(_gradient(live, batch, size))
    live.optimizer.zero_grad(set_to_none=True)
    return np.stack(rows)


def save_weights(live: LiveJob, path: Path) -> None:
    """Write the model's parameters and buffers, for `load_weights` under another plan."""
    torch.save(_weights(live), path)


def load_weights(live: LiveJob, path: Path) -> bool:
    """Load weights into the model. Returns False, with nothing changed, if names or shapes differ."""
    mine, theirs = _weights(live), torch.load(path, map_location="cpu", weights_only=True)
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        return False
    with torch.no_grad():
        for name, value in mine.items():
            value.copy_(theirs[name])
    return True


def _weights(live: LiveJob) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their names without `torch.compile`."""
    return {name.replace("_orig_mod.", ""): value.detach() for name, value in live.model.state_dict().items()}


def group_gradient_sample(loop: Loop, count: int) -> npt.NDArray[np.float32]:
    """Return the rows of `gradient_sample` computed by several ranks, each from its share; the same on every rank.

    The rows include the effect of the gradient exchange.

    Args:
        loop: The loop; its position is lost.
        count: Number of first batches, see `gradient_batches`.
    """
    live, share = loop.live, loop.ranks.share
    batches = first_batches(loop, count)
    if live.order is not None:
        first, following = live.order(0), live.order(1)
        wanted = [(0, indices) for indices in [*first, *following][:count]] + [(0, first[-1]), (1, first[0])]
        mine = [(epoch, list(share(indices))) for epoch, indices in wanted]
        batches = [(live.pipeline.fetch(epoch, part), len(part)) if part else (None, 0) for epoch, part in mine]
    rows = []
    loop.steps_optimizer, loop.keeps_gradients = False, True
    try:
        with _without_dropout(live.model), kept_random_state():
            for batch in batches:
                live.optimizer.zero_grad(set_to_none=True)
                loop.run(1, batches=[batch])
                rows.append(_flat_gradient(live, 1.0 if live.scaler is None else live.scaler.get_scale()))
    finally:
        loop.steps_optimizer, loop.keeps_gradients = True, False
    live.optimizer.zero_grad(set_to_none=True)
    return np.stack(rows)


def _gradient(live: LiveJob, batch: object, size: int) -> npt.NDArray[np.float32]:
    live.model.train()
    live.optimizer.zero_grad(set_to_none=True)
    loss = live.compute_loss(live.to_device(batch))
    part = loss if isinstance(loss, Loss) else Loss(loss * size, size)
    scale = 1.0 if live.scaler is None else 1024.0
    (part.total / part.weight * scale).backward()
    return _flat_gradient(live, scale)


def _flat_gradient(live: LiveJob, scale: float) -> npt.NDArray[np.float32]:
    """Return all gradients in one row, divided by `scale`."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad / scale for p in live.model.parameters()]
    flat = torch.cat([numbers(gradient) for gradient in gradients])
    if flat.numel() > MAX_COORDINATES:
        chosen = torch.randint(flat.numel(), (MAX_COORDINATES,), generator=torch.Generator().manual_seed(0))
        flat = flat[chosen]
    return flat.numpy()


def update_sample(loop: Loop) -> UpdateSample:
    """Do the first updates of the run, and record movements and settings. The loop is at the start afterwards."""
    loop.rewind()
    draws = _draws(loop)
    loop.rewind()
    names, parameters = zip(*loop.live.model.named_parameters(), strict=True)
    moved: list[list[float]] = []
    settings: list[list[dict[str, float]]] = []
    tries = 0
    while len(moved) < SAMPLED_UPDATES and tries < SAMPLED_UPDATES + MAX_SKIPPED:
        tries += 1
        before = [whole(parameter.detach()).clone() for parameter in parameters]
        numbers = group_settings(loop.live.optimizer, parameters)
        loop.run(1)
        steps = [_movement(whole(now.detach()), old) for now, old in zip(parameters, before, strict=True)]
        if any(steps) or moved:  # before the first effective update, a scaler searches for its scale
            moved.append(steps)
            settings.append(numbers)
    loop.rewind()
    return UpdateSample(
        names=tuple(name.replace("_orig_mod.", "") for name in names),
        sizes=tuple(parameter.numel() for parameter in parameters),
        moved=moved,
        settings=settings,
        draws=draws,
    )


def _movement(now: torch.Tensor, old: torch.Tensor) -> float:
    """Return the root mean square of a parameter's change."""
    return float(numbers(now - old).square().mean().sqrt()) if old.numel() else 0.0


def group_settings(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> list[dict[str, float]]:
    """Return the numbers in each parameter's group; empty for a parameter that the optimizer does not have."""
    by_parameter: dict[int, dict[str, float]] = {}
    for group in optimizer.param_groups:
        numbers = {
            name: value for key, entry in group.items() if key not in IMPLEMENTATION for name, value in _numbers(key, entry)
        }
        by_parameter |= {id(parameter): numbers for parameter in group["params"]}
    return [by_parameter.get(id(parameter), {}) for parameter in parameters]


def _numbers(name: str, entry: Any) -> Iterator[tuple[str, float]]:
    if isinstance(entry, tuple | list):
        for position, part in enumerate(entry):
            yield from _numbers(f"{name}[{position}]", part)
    elif isinstance(entry, bool | int | float) or (isinstance(entry, torch.Tensor) and entry.numel() == 1):
        yield name, float(entry)


def _draws(loop: Loop) -> bool | None:
    """Return whether the loss of a batch depends on random numbers; None if it differs even with equal ones."""
    live = loop.live
    batch = live.to_device(first_batches(loop, 1)[0][0])
    live.model.train()
    losses = []
    for seed in (0, 0, 1):
        with kept_random_state():
            torch.manual_seed(seed)
            loss = live.compute_loss(batch)  # with gradients, as in training, so that a compiled model is not compiled again
        losses.append(float((loss.total if isinstance(loss, Loss) else loss).detach()))
    return None if losses[0] != losses[1] else losses[0] != losses[2]


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    rates = [(module, module.p) for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]  # noqa: SLF001
    for module, _ in rates:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in rates:
            module.p = p


class StepSampler:
    """Records the steps between `before` and `after`.

    Args:
        live: The script's live job, with a known model and optimizer.
    """

    def __init__(self, live: LiveJob) -> None:
        self._optimizer: Optimizer = live.optimizer
        names, parameters = zip(*live.model.named_parameters(), strict=True)
        self._names: tuple[str, ...] = tuple(name.replace("_orig_mod.", "") for name in names)
        self._parameters: list[torch.Tensor] = list(parameters)
        self._old: list[torch.Tensor] = []
        self._rows: list[npt.NDArray[np.float32]] = []
        self._moved: list[list[float]] = []
        self._settings: list[list[dict[str, float]]] = []
        total = sum(parameter.numel() for parameter in self._parameters)
        self._every = max(-(-total // MAX_COORDINATES), 1)

    def before(self) -> None:
        """Record the state just before an optimizer step. A second call without `after` replaces the first."""
        if self._old:
            self._rows.pop()
            self._settings.pop()
        self._rows.append(np.concatenate([self._chosen(parameter) for parameter in self._parameters]))
        self._settings.append(group_settings(self._optimizer, self._parameters))
        self._old = [parameter.detach().clone() for parameter in self._parameters]

    def after(self) -> None:
        """Record the movement just after it."""
        moves = zip(self._parameters, self._old, strict=True)
        self._moved.append([_movement(now.detach(), old) for now, old in moves])
        self._old = []

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """Gradients, one row per step, `[steps, coordinates]`; of a large model only evenly spaced coordinates."""
        return np.stack(self._rows)

    def updates(self) -> dict[str, Any]:
        """Return what the steps did to the parameters, as the dict of an `UpdateSample`."""
        sample = UpdateSample(
            names=self._names,
            sizes=tuple(parameter.numel() for parameter in self._parameters),
            moved=self._moved,
            settings=self._settings,
            draws=None,
        )
        return sample.to_dict()

    def _chosen(self, parameter: torch.Tensor) -> npt.NDArray[np.float32]:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return numbers(gradient)[:: self._every].numpy().copy()
