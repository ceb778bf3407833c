"""The weights of a checkpoint for others, as safetensors or a plain state_dict: the same bytes for the same weights."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from hasten.core.errors import DataError, MachineError
from hasten.core.files import write_atomically
from hasten.train.saving.folder import Saved
from hasten.train.saving.layout import lay_out
from hasten.train.saving.resume import open_whole

_MODEL = "model."


def export_weights(saved: Saved, path: Path) -> int:
    """Write the model's state_dict; how many tensors it has.

    Args:
        saved: The checkpoint; tensors that lie in shards are put together.
        path: `FILE.safetensors`, or `FILE.pt` for `torch.load(..., weights_only=True)`.

    Raises:
        DataError: The file is named otherwise.
        MachineError: It cannot be written.
    """
    whole = open_whole(saved)
    names = {name: name for name in whole.tensors} | whole.meta.get("aliases", {})
    weights = {
        name.removeprefix(_MODEL): whole.tensors[source].whole() for name, source in names.items() if name.startswith(_MODEL)
    }
    if path.suffix == ".safetensors":
        data = _safetensors(weights)
    elif path.suffix in {".pt", ".pth"}:
        file = io.BytesIO()
        torch.save({name: weights[name].clone() for name in sorted(weights)}, file)
        data = file.getvalue()
    else:
        raise DataError(f"{path} must end in .safetensors or .pt: that says which of the two to write.")
    try:
        write_atomically(path, data)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another place.") from error
    return len(weights)


def _safetensors(weights: dict[str, torch.Tensor]) -> bytes:
    layout = lay_out(weights, {})
    data = bytearray(layout.num_bytes)
    data[: len(layout.header)] = layout.header
    whole = torch.frombuffer(data, dtype=torch.uint8)
    for name, place in layout.places.items():
        if place.num_bytes:
            start = len(layout.header) + place.start
            whole[start : start + place.num_bytes].view(place.dtype).view(place.shape).copy_(weights[name])
    return bytes(data)
