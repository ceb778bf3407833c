"""Read checkpoints: the files of all ranks put together, and the weights exported for other programs."""

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
    """A checkpoint file in memory: what one rank wrote.

    Attributes:
        tensors: By name; they share the file's memory, and may be written to without changing the file.
        meta: Its plain data.
    """

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    """A checkpoint, the files of all ranks put together.

    Attributes:
        tensors: By name, those in shards as wholes; of what each rank has for itself, rank 0's.
        meta: Rank 0's plain data, with `samples` of all ranks.
        ranks: What each rank wrote.
    """

    tensors: Mapping[str, StoredTensor]
    meta: Mapping[str, Any]
    ranks: tuple[Opened, ...]

    def of_rank(self, rank: int, world: int) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
        """Tensors and plain data for one of the ranks that go on: its own random numbers and buffers where it was there.

        Args:
            rank: Which one.
            world: How many go on. Where others wrote the checkpoint, each takes an equal share of the samples seen.
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
    """Map a checkpoint file; nothing is read until it is used.

    Raises:
        CorruptError: It is no checkpoint, or cut.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    layout, meta = read_layout(memoryview(data)[: _header_bytes(data)], size, str(path))
    return Opened(views_of(data, layout), meta)


def open_whole(saved: Saved) -> Whole:
    """Map the files of all ranks of a checkpoint; nothing is read until it is used.

    Raises:
        CorruptError: One is no checkpoint or cut, or the parts of a tensor are not the whole of it.
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
