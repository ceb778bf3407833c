"""Peak operations per second of GPUs, to express what a model uses of them."""

from __future__ import annotations

import torch

_DENSE_BF16 = (
    ("A100", 312e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("B200", 2.25e15),
    ("L40S", 362e12),
)
"""Part of a device's name -> dense operations per second in bfloat16, from NVIDIA's data sheets. The first match counts."""


def peak_flops(device: torch.device) -> float | None:
    """Return the peak of a device, in operations per second; None if it is not known."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Return the peak of the device with this name; None if it is not known."""
    return next((peak for part, peak in _DENSE_BF16 if part in name), None)
