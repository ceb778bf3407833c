"""Read checkpoints: combine the files of all ranks, and export the weights for other programs."""

from __future__ import annotations

import io
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.core.errors import DataError, MachineError
from hasten.core.files import write_atomically
from hasten.train.checkpoints.file import lay_out, read_layout, views_of
from hasten.train.checkpoints.folder import Saved
from hasten.train.checkpoints.shards import StoredTensor, joined

_MODEL = "model."


@dataclass(frozen=True)
class Opened:
    """A memory-mapped checkpoint file of one rank.

    Attributes:
        tensors: Name -> tensor. They share the mapped memory. Writing to them does not change the file.
        meta: The plain data of the file.
    """

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    """A checkpoint combined from the files of all ranks.

    Attributes:
        tensors: Name -> tensor. Shards are combined; tensors that differ by rank are those of rank 0.
        meta: Rank 0's plain data, with the `samples` of all ranks.
        ranks: The file of each rank.
    """

    tensors: Mapping[str, StoredTensor]
    meta: Mapping[str, Any]
    ranks: tuple[Opened, ...]

    def of_rank(self, rank: int, world: int) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
        """Return tensors and plain data for one rank of the resumed run, with its own random state and buffers if saved.

        Args:
            rank: Index of the rank.
            world: Number of ranks of the resumed run. If it changed, each rank gets an equal share of the samples seen.
        """
        tensors, meta = dict(self.tensors), dict(self.meta)
        if rank < len(self.ranks):
            mine = self.ranks[rank]
            shards = mine.meta.get("shards", {})
            tensors |= {name: StoredTensor.of(tensor) for name, tensor in mine.tensors.items() if name not in shards}
            meta["random"] = mine.meta["random"]
        if world == len(self.ranks):
            meta["samples"] = self.ranks[rank].meta["samples"]
        else:
            meta["samples"] = meta["samples"] // world + (rank < meta["samples"] % world)
        return tensors, meta


def open_file(path: Path) -> Opened:
    """Memory-map a checkpoint file. Tensors are read on first use.

    Raises:
        CorruptError: It is not a checkpoint file, or is truncated.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    layout, meta = read_layout(memoryview(data)[: _header_bytes(data)], size, str(path))
    return Opened(views_of(data, layout), meta)


def open_whole(saved: Saved) -> Whole:
    """Memory-map the files of all ranks of a checkpoint. Tensors are read on first use.

    Raises:
        CorruptError: A file is not a checkpoint file or is truncated, or parts of a tensor are missing.
    """
    ranks = tuple(open_file(saved.path / f"rank{rank}.safetensors") for rank in range(saved.world))
    parts: dict[str, list[Any]] = {}
    for opened in ranks:
        for name, place in opened.meta.get("shards", {}).items():
            parts.setdefault(name, []).append((place["shape"], place["start"], opened.tensors[name]))
    tensors = {name: StoredTensor.of(tensor) for name, tensor in ranks[0].tensors.items() if name not in parts}
    samples = sum(opened.meta.get("samples", 0) for opened in ranks)
    return Whole({**tensors, **joined(parts, str(saved.path))}, {**ranks[0].meta, "samples": samples}, ranks)


def _header_bytes(data: Any) -> int:
    return min(len(data), 8 + int.from_bytes(bytes(data[:8]), "little"))


def export_weights(saved: Saved, path: Path) -> int:
    """Write the model's state_dict to a file, and return its number of tensors.

    Args:
        saved: The checkpoint. Shards are combined.
        path: `FILE.safetensors`, or `FILE.pt` for `torch.load(..., weights_only=True)`.

    Raises:
        DataError: The file name has another extension.
        MachineError: The file cannot be written.
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
        raise DataError(f"{path} must end in .safetensors or .pt, which selects the format.")
    try:
        write_atomically(path, data)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another path.") from error
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
