"""Weights of an earlier training, put into a fresh network by name.

A file of Hasten's own (`hasten checkpoints export RUN FILE.safetensors`, or a run's `model.pt`) is read, or any with a
network's plain names. Nothing in a file can run.
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
    """The tensors of a file by their names, on the CPU.

    Args:
        path: `FILE.safetensors`, or `FILE.pt` with a state_dict.

    Raises:
        DataError: The file is missing, cut or of another kind.
    """
    if not path.is_file():
        raise DataError(f"the weights to start from are missing: there is no file {path}.")
    if path.suffix == ".safetensors":
        return open_file(path).tensors
    if path.suffix not in {".pt", ".pth"}:
        raise DataError(f"{path} must end in .safetensors or .pt: `hasten checkpoints export RUN FILE` writes both.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CorruptError(
            f"{path} cannot be read as weights ({type(error).__name__}): it was cut, or is no state_dict."
        ) from error
    if not isinstance(found, Mapping):
        raise DataError(f"{path} holds {type(found).__name__}, not a state_dict.")
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def load_weights(network: nn.Module, path: Path) -> None:
    """Copy all weights and statistics of a file into a network.

    Args:
        network: Whose are replaced.
        path: As of `read_weights`.

    Raises:
        DataError: The file is missing, cut or of another kind.
        JobError: It holds another network.
    """
    wanted, there = network.state_dict(), read_weights(path)
    if problems := differences(wanted, there):
        raise JobError(f"{path} holds another network: {'; '.join(problems)}. Use the settings it was trained with.")
    copy_tensors(wanted, there)


def differences(wanted: Tensors, there: Tensors) -> list[str]:
    """In what a file differs from what is wanted, in words; empty where it does not."""
    missing = sorted(wanted.keys() - there.keys())
    more = sorted(there.keys() - wanted.keys())
    other = [
        f"{name} {tuple(there[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in there and there[name].shape != tensor.shape
    ]
    told = (("it lacks", missing), ("it has besides", more), ("of another shape:", other))
    return [f"{words} {_some(names)}" for words, names in told if names]


def copy_tensors(wanted: Tensors, there: Tensors) -> None:
    """Copy those that are there into those that are wanted, in place."""
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(there[name])


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
