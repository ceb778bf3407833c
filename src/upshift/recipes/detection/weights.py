"""Weights of an earlier training, put into a fresh detector by name.

A file of Upshift's own (`upshift checkpoints export RUN FILE.safetensors`, or a run's `model.pt`) holds the live weights and
their average; the average is taken. A file with a detector's plain names is taken as it is. Nothing in a file can run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from upshift.core.errors import CorruptError, DataError, JobError
from upshift.recipes.detection.model import PARTS, Detector
from upshift.train.saving.resume import open_file

NAMES_SHOWN = 4
_OWNERS = ("average.", "live.")


def load_weights(detector: Detector, path: Path, parts: Sequence[str] = PARTS) -> None:
    """Copy the weights and statistics of these parts into the detector.

    Args:
        detector: Whose are replaced.
        path: `FILE.safetensors`, or `FILE.pt` with a state_dict.
        parts: Of `PARTS`; the others stay as they are.

    Raises:
        DataError: The file is missing, cut or of another kind.
        JobError: `parts` names no part, or the file holds another detector: a tensor is missing, too many, or of another
            shape.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise JobError(f"start_parts is {tuple(parts)!r}; name some of {', '.join(PARTS)}.")
    there = _of_parts(_plain_names(_read(path)), parts)
    wanted = _of_parts(detector.state_dict(), parts)
    if problems := _differences(wanted, there):
        raise JobError(
            f"{path} holds another detector: {'; '.join(problems)}. Use the model_size and the classes it was trained with; "
            f"where only the classes differ, set start_parts = ('backbone', 'neck')."
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(there[name])


def _read(path: Path) -> Mapping[str, torch.Tensor]:
    if not path.is_file():
        raise DataError(f"the weights to start from are missing: there is no file {path}.")
    if path.suffix == ".safetensors":
        return open_file(path).tensors
    if path.suffix not in {".pt", ".pth"}:
        raise DataError(f"{path} must end in .safetensors or .pt: `upshift checkpoints export RUN FILE` writes both.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CorruptError(
            f"{path} cannot be read as weights ({type(error).__name__}): it was cut, or is no state_dict."
        ) from error
    if not isinstance(found, Mapping):
        raise DataError(f"{path} holds {type(found).__name__}, not a state_dict.")
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _plain_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under a detector's own names."""
    for owner in _OWNERS:
        if any(name.startswith(owner) for name in tensors):
            return {name.removeprefix(owner): tensor for name, tensor in tensors.items() if name.startswith(owner)}
    return dict(tensors)


def _of_parts(tensors: Mapping[str, torch.Tensor], parts: Sequence[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] in parts}


def _differences(wanted: Mapping[str, torch.Tensor], there: Mapping[str, torch.Tensor]) -> list[str]:
    """In what a file differs from what is wanted, in words."""
    missing = sorted(wanted.keys() - there.keys())
    more = sorted(there.keys() - wanted.keys())
    other = [
        f"{name} {tuple(there[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in there and there[name].shape != tensor.shape
    ]
    told = (("it lacks", missing), ("it has besides", more), ("of another shape:", other))
    return [f"{words} {_some(names)}" for words, names in told if names]


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
