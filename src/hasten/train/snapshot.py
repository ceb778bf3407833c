"""Copy tensors to reusable buffers in host memory, so that training can continue while they are written.

Storages are copied, not tensors. Tensors that share memory in the model (tied weights, views) also share it in the copy, so
the file written from it does not grow.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hasten.core.batch import iter_tensors, map_tensors


class StorageBuffers:
    """A pool of reusable host memory buffers. Pages that are already mapped are filled much faster than new ones.

    Keeps at most 2x the size of the largest snapshot so far. Thread-safe.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}
        self._num_bytes = self._largest = 0
        self._lock = threading.RLock()

    def copy(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Copy a storage. A new buffer is pinned if the storage is on a GPU.

        Raises:
            RuntimeError: There is not enough memory.
        """
        buffer = self._take(storage.nbytes())
        if buffer is None:
            is_cuda = storage.device.type == "cuda"
            buffer = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=is_cuda).untyped_storage()
        buffer.copy_(storage)
        return buffer

    def put_back(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Allow copies that are no longer needed to be overwritten."""
        with self._lock:
            for storage in storages:
                self._free.setdefault(storage.nbytes(), []).append(storage)
            num_bytes = sum(storage.nbytes() for storage in storages)
            self._num_bytes += num_bytes
            self._largest = max(self._largest, num_bytes)
            while self._num_bytes > 2 * self._largest:
                self._take(next(iter(self._free)))

    def _take(self, num_bytes: int) -> torch.UntypedStorage | None:
        with self._lock:
            free = self._free.get(num_bytes)
            if free is None:
                return None
            buffer = free.pop()
            self._num_bytes -= num_bytes
            if not free:
                del self._free[num_bytes]
            return buffer


class StateSnapshot:
    """One snapshot of a state_dict at a time, in reusable buffers."""

    def __init__(self) -> None:
        self._buffers = StorageBuffers()
        self._copies: dict[int, torch.UntypedStorage] = {}

    def take(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Copy `state` to host memory. The copy is valid until the next call.

        Args:
            state: A state_dict: tensors by name, and other objects that modules add (`_extra_state`).

        Returns:
            A container of the same kind, with the attributes of the original (`_metadata`).
        """
        self._buffers.put_back(list(self._copies.values()))
        self._copies = {}
        copied: Any = copy.copy(state)
        for name, value in state.items():
            is_tensor = isinstance(value, torch.Tensor)
            copied[name] = self._copy(value) if is_tensor else copy.deepcopy(map_tensors(value, _to_cpu))
        return copied  # type: ignore[no-any-return]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.untyped_storage() if _is_plain(tensor) else None
        if source is None or not source.nbytes():
            return _to_cpu(tensor)
        address = source.data_ptr()
        if address not in self._copies:
            self._copies[address] = self._buffers.copy(source)
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(self._copies[address], tensor.storage_offset(), tensor.size(), tensor.stride())


def on_cpu(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `state` if its tensors are on the CPU, otherwise a copy in host memory.

    Checkpoints written from it can also be loaded on a machine without the accelerator.
    """
    if all(tensor.device.type == "cpu" for tensor in iter_tensors(dict(state))):
        return state
    return StateSnapshot().take(state)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is only a strided view of a storage."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
