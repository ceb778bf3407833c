"""A state_dict copied to host memory, into buffers that are used again, so that training may go on while it is written.

Storages are copied, not tensors: what shares memory in the model (tied weights, views) shares it in the copy too, and the
file that is written of it is as large as the plain one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from hasten.core.batch import iter_tensors, map_tensors


class SnapshotBuffers:
    """Buffers for one snapshot at a time, made at the first and used again as long as they fit."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Copy `state`. The copy is valid until the next call; its tensors lie on the CPU.

        Args:
            state: A state_dict: tensors by name, and whatever else modules keep there (`_extra_state`).

        Returns:
            The same, in a container of the same kind, with what that container holds beside its items.
        """
        copied: Any = copy.copy(state)
        storages: dict[int, torch.UntypedStorage] = {}
        for name, value in state.items():
            whole = isinstance(value, torch.Tensor)
            copied[name] = self._copied(value, storages) if whole else copy.deepcopy(map_tensors(value, _to_cpu))
        return copied  # type: ignore[no-any-return]

    def _copied(self, tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
        if not _is_plain(tensor):
            return _to_cpu(tensor)
        source = tensor.untyped_storage()
        address = source.data_ptr()
        if not source.nbytes():
            return _to_cpu(tensor)
        if address not in storages:
            storages[address] = self._filled(len(storages), source, tensor.device)
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(storages[address], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _filled(self, position: int, source: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
        """The buffer at `position`, holding the bytes of `source`."""
        data = torch.empty(0, dtype=torch.uint8, device=device).set_(source)
        if position == len(self._buffers):
            self._buffers.append(_buffer(data))
        if self._buffers[position].numel() != data.numel():
            self._buffers[position] = _buffer(data)
        self._buffers[position].copy_(data)
        return self._buffers[position].untyped_storage()


def on_cpu(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """`state` as it is written: itself where its tensors are on the CPU, else a copy in host memory.

    So a checkpoint loads on a machine without the accelerator as well.
    """
    if all(tensor.device.type == "cpu" for tensor in iter_tensors(dict(state))):
        return state
    return SnapshotBuffers().take(state)


def _buffer(data: torch.Tensor) -> torch.Tensor:
    return torch.empty(data.numel(), dtype=torch.uint8, pin_memory=data.is_cuda)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of a storage and nothing else."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
