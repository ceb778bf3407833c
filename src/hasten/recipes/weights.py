"""Load weights of an earlier training into a new network by name.

Supported are Hasten's own files (`hasten checkpoints export RUN FILE.safetensors`, or a run's `model.pt`) and any file with
the network's plain parameter names. Loading a file cannot execute code from it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from hasten.core.errors import CorruptError, DataError, JobError
from hasten.train.checkpoints.read import open_file

Tensors = Mapping[str, torch.Tensor]

NAMES_SHOWN = 4


def read_weights(path: Path) -> Tensors:
    """Return the tensors of a file by name, on the CPU.

    Args:
        path: `FILE.safetensors`, or `FILE.pt` with a state_dict.

    Raises:
        DataError: The file is missing, truncated or of another kind.
    """
    if not path.is_file():
        raise DataError(f"the initial weights are missing: there is no file {path}.")
    if path.suffix == ".safetensors":
        return open_file(path).tensors
    if path.suffix not in {".pt", ".pth"}:
        raise DataError(f"{path} must end in .safetensors or .pt: `hasten checkpoints export RUN FILE` writes both.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CorruptError(
            f"{path} cannot be read as weights ({type(error).__name__}): it is truncated or not a state_dict."
        ) from error
    if not isinstance(state, Mapping):
        raise DataError(f"{path} contains {type(state).__name__}, not a state_dict.")
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def load_weights(network: nn.Module, path: Path) -> None:
    """Copy all weights and buffers of a file into a network.

    Args:
        network: The network to overwrite.
        path: The file, as for `read_weights`.

    Raises:
        DataError: The file is missing, truncated or of another kind.
        JobError: The file belongs to another network.
    """
    wanted, available = network.state_dict(), read_weights(path)
    if problems := differences(wanted, available):
        raise JobError(f"{path} belongs to another network: {'; '.join(problems)}. Use the settings it was trained with.")
    copy_tensors(wanted, available)


def differences(wanted: Tensors, available: Tensors) -> list[str]:
    """Describe how the tensors of a file differ from the expected ones; empty if names and shapes match."""
    missing = sorted(wanted.keys() - available.keys())
    unexpected = sorted(available.keys() - wanted.keys())
    reshaped = [
        f"{name} {tuple(available[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in available and available[name].shape != tensor.shape
    ]
    groups = (("missing:", missing), ("unexpected:", unexpected), ("different shape:", reshaped))
    return [f"{words} {_first_names(names)}" for words, names in groups if names]


def copy_tensors(wanted: Tensors, available: Tensors) -> None:
    """Copy tensors into those of the same names, in place."""
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(available[name])


def _first_names(names: Sequence[str]) -> str:
    num_hidden = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {num_hidden} more" if num_hidden > 0 else "")
