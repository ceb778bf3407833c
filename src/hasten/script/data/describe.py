"""Describe a script's training data to the live job, as its loader shows it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset, MapDataPipe, SequentialSampler

from hasten.core.live import LiveJob, LoaderSettings
from hasten.script.data.lookahead import Lookahead, why_unpredictable
from hasten.script.data.overrides import index_sampler

SOME = 16
"""Largest number of samples that are read to learn about the data."""
MOST_BATCHES = 1 << 20
"""Limit for the number of batches of an epoch. Loaders that never end may report billions of batches."""


def describe(live: LiveJob, loader: Any) -> None:
    """Set the live job's dataset, number of samples and batches, and loader settings.

    The sample order is up to the script and unknown, so `live.order` only gives the number of batches and their size.
    """
    live.dataset = loader.dataset
    live.loader = LoaderSettings(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or 2,
        persistent=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
    )
    live.num_samples = None if isinstance(loader.dataset, IterableDataset | MapDataPipe) else _length(loader.dataset)
    batches = _length(loader)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int) and live.num_samples and batches:
        size = max(round(live.num_samples / batches), 1)
    if isinstance(size, int):
        live.job.batch_size = size  # type: ignore[misc]  # per script; users' jobs define it as a class variable
    live.job.shuffle = type(loader.sampler) is not SequentialSampler  # type: ignore[misc]  # as above
    live.order = None if live.num_samples is None else _Batches(live.num_samples, live.job.batch_size, batches)


def likely_device(known: torch.device) -> torch.device:
    """Return the device that the script probably trains on before its model is known: a GPU if it uses one."""
    if known.type == "cpu" and torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return known


def some_indices(loader: Any) -> list[Any]:
    """Return a few indices in the sampler's order, or spread over the dataset if the sampler cannot be predicted."""
    sampler = index_sampler(loader)
    if not why_unpredictable(sampler):
        upcoming = Lookahead(sampler).peek(SOME)
        return ([index for batch in upcoming for index in batch] if loader.batch_sampler is not None else upcoming)[:SOME]
    count = _length(loader.dataset) or 0
    return list(range(0, count, max(count // SOME, 1)))[:SOME]


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # noqa: BLE001 - a class of the script whose `__len__` fails has no length
        return None


class _Batches:
    """A placeholder for the sample order: the right number of batches of the right size, all equal."""

    def __init__(self, num_samples: int, batch_size: int, batches: int | None) -> None:
        self._num, self._size = num_samples, batch_size
        self._batches = -(-num_samples // batch_size) if batches is None else batches

    def __call__(self, _epoch: int) -> list[list[int]]:
        return [[at % max(self._num, 1) for at in range(self._size)]] * min(self._batches, MOST_BATCHES)
