"""Weights of an earlier training, or parts of them, put into a fresh detector.

A run's file holds the live weights and their average; the average is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from hasten.core.errors import JobError
from hasten.recipes.detection.model import PARTS, Detector
from hasten.recipes.weights import copy_tensors, differences, read_weights

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
    there = _of_parts(_plain_names(read_weights(path)), parts)
    wanted = _of_parts(detector.state_dict(), parts)
    if problems := differences(wanted, there):
        raise JobError(
            f"{path} holds another detector: {'; '.join(problems)}. Use the model_size and the classes it was trained with; "
            f"where only the classes differ, set start_parts = ('backbone', 'neck')."
        )
    copy_tensors(wanted, there)


def _plain_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under a detector's own names."""
    for owner in _OWNERS:
        if any(name.startswith(owner) for name in tensors):
            return {name.removeprefix(owner): tensor for name, tensor in tensors.items() if name.startswith(owner)}
    return dict(tensors)


def _of_parts(tensors: Mapping[str, torch.Tensor], parts: Sequence[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] in parts}
