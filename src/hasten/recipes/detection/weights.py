"""Load weights of an earlier training, or parts of them, into a new detector.

If a run's file contains both the live weights and their average, the average is used.
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
    """Copy the weights and statistics of the given parts into the detector.

    Args:
        detector: The detector to overwrite.
        path: `FILE.safetensors`, or `FILE.pt` with a state_dict.
        parts: Parts to copy, of `PARTS`; the others stay unchanged.

    Raises:
        DataError: The file is missing, truncated or of another kind.
        JobError: `parts` has an unknown name or is empty, or the file belongs to another detector: a tensor is missing,
            unexpected, or of a different shape.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise JobError(f"start_parts is {tuple(parts)!r}: name some of {', '.join(PARTS)}.")
    available = _of_parts(_plain_names(read_weights(path)), parts)
    wanted = _of_parts(detector.state_dict(), parts)
    if problems := differences(wanted, available):
        raise JobError(
            f"{path} belongs to another detector: {'; '.join(problems)}. Use the model_size and the classes it was trained "
            f"with. If only the classes differ, set start_parts = ('backbone', 'neck')."
        )
    copy_tensors(wanted, available)


def _plain_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under the detector's own names, without wrapper prefixes."""
    for owner in _OWNERS:
        if any(name.startswith(owner) for name in tensors):
            return {name.removeprefix(owner): tensor for name, tensor in tensors.items() if name.startswith(owner)}
    return dict(tensors)


def _of_parts(tensors: Mapping[str, torch.Tensor], parts: Sequence[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] in parts}
