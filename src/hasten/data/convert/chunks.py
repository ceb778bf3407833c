"""Read chunk files, which contain one sample after another, as written by MosaicML's MDS and LitData.

    count: u32 | start of each sample, then the end of the last one: u32 [count + 1] | ... | bytes of the samples
    sample:  sizes of its fields: u32 each | bytes of the fields

All numbers are little-endian. Sources: `MDSReader` of mosaicml-streaming (streaming/base/format/mds/reader.py) and
`PyTreeLoader` of LitData (src/litdata/streaming/item_loader.py). This module reads such files without those libraries, which
require packages that a conversion does not need.
"""

from __future__ import annotations

import bz2
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, sampled
from hasten.data.convert.refusals import no_records, truncated
from hasten.data.convert.typing import read_records, types_of

Decode: TypeAlias = Callable[[memoryview], Any]
"""Decodes a field from its bytes; a `ValueError` says why that is impossible."""
_INFERRED_SAMPLES = 256
_U32 = np.dtype("<u4")


class Chunked(Reader):
    """Read samples from chunk files listed in the `index.json` of a folder."""

    @classmethod
    @abstractmethod
    def chunks(cls, path: Path) -> Sequence[Unit]:
        """Return the chunk files of a folder, in order.

        Raises:
            DataError: The files are of a kind that cannot be read.
        """

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> Callable[[str], Iterator[tuple[memoryview, dict[str, Any] | str]]]:
        """Return a function that reads a chunk file: the bytes of each sample, and its record or the reason it has none."""

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per chunk file."""
        try:
            return list(cls.chunks(path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} has no valid index of the format {cls.name}: copy the folder again.") from error

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer types from the first samples of some files."""

        def load(unit: Unit) -> list[dict[str, Any]]:
            samples = islice(cls.open(Path(unit.path).parent)(unit.path), _INFERRED_SAMPLES)
            records = [record for _, record in samples if isinstance(record, dict)]
            if not records:
                raise no_records(unit.path, "its first samples cannot be read")
            return records

        return types_of(list(chain.from_iterable(sampled(units, load))), choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the samples of a chunk file."""
        samples = enumerate(cls.open(Path(unit.path).parent)(unit.path))
        numbered = ((f"sample {number}", record, data) for number, (data, record) in samples)
        yield from read_records(unit.path, numbered, choices)


def index_of(path: Path) -> dict[str, Any]:
    """Return the content of a folder's `index.json`, or an empty dictionary."""
    file = path / "index.json"
    try:
        stat = file.stat()
    except OSError:
        return {}
    return _read_index(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _read_index(file: Path, _size: int, _changed_ns: int) -> dict[str, Any]:
    """Read the index once for all units of a folder, because it lists all its files."""
    try:
        read: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def chunk_unit(path: Path, name: str, index: str = "index.json") -> Unit:
    """Return the unit of a file whose name comes from an untrusted index. A missing file is a problem."""
    file = path / Path(name).name
    try:
        return Unit(path=str(file), num_bytes=file.stat().st_size)
    except (OSError, ValueError):  # missing, or a name that no file can have
        return Unit(path=str(file), problem=f"the file is listed in {index} but does not exist: copy the folder again")


def samples_of(
    path: str, compression: str, num_bytes: int | None, decodes: Sequence[tuple[int | None, Decode]]
) -> Iterator[tuple[memoryview, list[Any] | str]]:
    """Yield each sample of a chunk file: its bytes, and the values of its fields or the reason they cannot be decoded.

    Args:
        path: The file.
        compression: Compression of the file: `zstd`, `gz`, `br`, `snappy`, `bz2`; empty for none.
        num_bytes: Uncompressed size of the file, if known.
        decodes: Size of each field (None if each sample contains it), and the function that decodes the field.

    Raises:
        DataError: The file is truncated, or is not a chunk file.
    """
    data = _plain(path, compression, num_bytes)
    count = int(np.frombuffer(data[:4], _U32)[0]) if len(data) >= 4 else 0
    if len(data) < 4 * (count + 2):
        raise truncated(path)
    offsets = np.frombuffer(data[4 : 4 * (count + 2)], _U32).astype(np.int64)
    if offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise truncated(path, "or is not a chunk file")
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        sample = data[start:end]
        yield sample, _values(sample, decodes)


def _values(sample: memoryview, decodes: Sequence[tuple[int | None, Decode]]) -> list[Any] | str:
    variable = sum(size is None for size, _ in decodes)
    sizes = iter(np.frombuffer(sample[: 4 * variable], _U32).tolist() if len(sample) >= 4 * variable else ())
    start, values = 4 * variable, []
    for number, (fixed, decode) in enumerate(decodes):
        end = start + (fixed if fixed is not None else next(sizes, len(sample)))
        if end > len(sample):
            return f"field {number} extends beyond the end of the sample"
        try:
            values.append(decode(sample[start:end]))
        except Exception as error:  # noqa: BLE001  if one sample fails, the others can be read
            return f"field {number}: {type(error).__name__}: its bytes do not match its type"
        start = end
    return values


def _plain(path: str, compression: str, num_bytes: int | None) -> memoryview:
    """Return the bytes of a file, mapped or decompressed."""
    if not compression:
        size = Path(path).stat().st_size
        return np.memmap(path, np.uint8, "r").data if size else memoryview(b"")
    data = Path(path).read_bytes()
    codec = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy"}.get(compression)
    try:
        if compression == "bz2":
            return memoryview(bz2.decompress(data))
        if codec is None:
            raise DataError(f"{path} is compressed with {compression!r}: only zstd, gz, br, snappy and bz2 are supported.")
        if num_bytes is not None:
            return memoryview(pa.decompress(data, num_bytes, codec, asbytes=True))
        return memoryview(pa.input_stream(pa.BufferReader(data), compression=codec).read())
    except (OSError, EOFError, ValueError) as error:  # includes Arrow's errors
        raise truncated(path, f"or is not compressed with {compression}") from error


def array_of(data: memoryview, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    """Return an array in a form that Arrow accepts: a number, an array of one dimension, or nested lists of rows."""
    return rows_of(np.frombuffer(data, dtype).reshape(tuple(shape)))


def rows_of(array: npt.NDArray[Any]) -> Any:
    """Return an array in the form of `array_of`."""
    if not array.ndim:
        return array.item()
    return array if array.ndim == 1 else [rows_of(row) for row in array]
