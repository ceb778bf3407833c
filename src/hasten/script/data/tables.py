"""Batches of a table in memory, gathered at once: what torch's loader does row by row, and stacks again.

A `TensorDataset` gives the rows of a batch one by one, and the default collate function stacks them. Picking the same rows
of each tensor in one call gives the same batch, bit for bit.
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
"""As torch has it: a script may put another in its place."""


def is_table(dataset: Any, collate: Any) -> bool:
    """Whether batches of a data set are stacked rows of tensors in memory, and nothing else happens to them."""
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
    """The batch of these samples of a table, `[rows, ...]` of each of its tensors.

    Raises:
        IndexError: There is no such sample.
    """
    while type(dataset) is Subset:
        indices, dataset = [dataset.indices[index] for index in indices], dataset.dataset
    at = torch.tensor(indices)
    return [tensor[at] for tensor in dataset.tensors]


class Gathering:
    """Gathers the batches of the training loader where `live.pipeline.gather` says so.

    Args:
        live: The script's live job; told `batched_reading_calls` and `batched_reading_samples`.
        trains: Whether a fetcher reads the training data, in the loop's own process and thread.
    """

    def __init__(self, live: LiveJob, trains: Callable[[Any], bool]) -> None:
        self._live, self._trains = live, trains

    def install(self, patches: Patches) -> None:
        """Put the seam on."""
        patches.put(_MapDatasetFetcher, "fetch", self._fetching)

    def _fetching(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @functools.wraps(original)
        def fetch_seam(fetcher: Any, index: Any) -> Any:
            if not self._live.pipeline.gather or not fetcher.auto_collation or not self._trains(fetcher.dataset):
                return original(fetcher, index)
            plain = type(index) is list and all(type(one) is int for one in index)
            collate = getattr(fetcher.collate_fn, "hasten_collate", fetcher.collate_fn)  # beneath a seam that looks on
            if not plain or not is_table(fetcher.dataset, collate):
                return original(fetcher, index)
            try:
                batch = gathered(fetcher.dataset, index)
            except IndexError:  # its own error names the sample
                return original(fetcher, index)
            self._live.count("batched_reading_calls")
            self._live.count("batched_reading_samples", len(index))
            return batch

        return fetch_seam
