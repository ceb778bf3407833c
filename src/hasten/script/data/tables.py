"""Gather batches of in-memory tables in one indexing call, instead of row by row as torch's loader does.

A `TensorDataset` returns the rows of a batch one by one, and the default collate function stacks them. Selecting the same
rows of each tensor in one call gives a bitwise equal batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset
from torch.utils.data._utils.collate import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from hasten.core.live import LiveJob
from hasten.script.patches import Patches

_ROW = TensorDataset.__getitem__
"""Torch's own method, to detect that a script has replaced it."""


def is_table(dataset: Any, collate: Any) -> bool:
    """Return whether the batches of a dataset are just stacked rows of tensors in memory."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or collate is not default_collate or TensorDataset.__getitem__ is not _ROW:
        return False
    return all(
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        for tensor in dataset.tensors
    )


def gathered(dataset: Any, indices: Sequence[int]) -> list[torch.Tensor]:
    """Return the batch of these samples of a table: a `[rows, ...]` tensor for each tensor of the dataset.

    Raises:
        IndexError: An index is out of range.
    """
    while type(dataset) is Subset:
        indices, dataset = [dataset.indices[index] for index in indices], dataset.dataset
    rows = torch.tensor(indices)
    return [tensor[rows] for tensor in dataset.tensors]


class Gathering:
    """Gathers the batches of the training loader if `live.pipeline.gather` is set.

    Args:
        live: The script's live job. Counts `batched_reading_calls` and `batched_reading_samples`.
        trains: Returns whether a dataset is the training data, read in the loop's own process and thread.
    """

    def __init__(self, live: LiveJob, trains: Callable[[Any], bool]) -> None:
        self._live, self._trains = live, trains

    def install(self, patches: Patches) -> None:
        """Install the seam."""
        patches.put(_MapDatasetFetcher, "fetch", self._fetching)

    def _fetching(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @functools.wraps(original)
        def fetch_seam(fetcher: Any, index: Any) -> Any:
            if not self._live.pipeline.gather or not fetcher.auto_collation or not self._trains(fetcher.dataset):
                return original(fetcher, index)
            plain = type(index) is list and all(type(one) is int for one in index)
            collate = getattr(fetcher.collate_fn, "hasten_collate", fetcher.collate_fn)  # without the wrapper for timing
            if not plain or not is_table(fetcher.dataset, collate):
                return original(fetcher, index)
            try:
                batch = gathered(fetcher.dataset, index)
            except IndexError:  # torch's own error names the sample
                return original(fetcher, index)
            self._live.count("batched_reading_calls")
            self._live.count("batched_reading_samples", len(index))
            return batch

        return fetch_seam
