"""Memory of PyTorch's CUDA allocator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from hasten.core.errors import MachineError
from hasten.monitor.metric import Card, Metric
from hasten.monitor.sampler import Host


class Cuda:
    """Reads the allocator's statistics, which does not wait for the device."""

    card: ClassVar[Card] = Card(
        name="cuda",
        source="torch.cuda.memory_stats",
        needs="CUDA",
        metrics=(
            Metric(name="torch.memory.allocated", unit="By", help="Bytes in tensors on the device."),
            Metric(name="torch.memory.reserved", unit="By", help="Bytes that the allocator has taken from the device."),
            Metric(name="torch.memory.peak", unit="By", help="Most bytes in tensors so far."),
            Metric(name="torch.memory.retries", unit="{retry}", help="Times so far that memory was freed for a request."),
        ),
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        if not torch.backends.cuda.is_built() or not torch.cuda.is_available():
            raise MachineError("There is no CUDA device.")
        self._device = host.device

    def sample(self) -> Mapping[str, float]:
        """Return the current values; none before the training uses the device."""
        device = self._device()
        if device is None:
            return {}
        stats = torch.cuda.memory_stats(device)
        return {
            "torch.memory.allocated": stats["allocated_bytes.all.current"],
            "torch.memory.reserved": stats["reserved_bytes.all.current"],
            "torch.memory.peak": stats["allocated_bytes.all.peak"],
            "torch.memory.retries": stats["num_alloc_retries"],
        }
