"""Files that hold samples one after another, as MosaicML's MDS and LitData write them.

    count: u32 | where each sample begins, then where the last one ends: u32 [count + 1] | ... | the samples' bytes
    sample:  the sizes of its fields: u32 each | the fields' bytes

All numbers are little-endian. Sources: `MDSReader` of mosaicml-streaming (streaming/base/format/mds/reader.py) and
`PyTreeLoader` of LitData (src/litdata/streaming/item_loader.py). Both libraries read such files; this reads them without
either, since both ask for packages that a conversion has no use for.
"""

from __future__ import annotations

import bz2
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, spread
from hasten.data.convert.refusals import cut, no_records
from hasten.data.convert.typing import read_records, types_of

Decode: TypeAlias = Callable[[memoryview], Any]
"""A field from its bytes; a `ValueError` says why they are none."""
_LOOKED_AT = 256
_U32 = np.dtype("<u4")


class Chunked(Reader):
    """Samples of chunk files that a folder's `index.json` lists."""

    @classmethod
    @abstractmethod
    def chunks(cls, path: Path) -> Sequence[Unit]:
        """The chunk files of a folder, in order.

        Raises:
            DataError: They are of a kind that cannot be read.
        """

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> Callable[[str], Iterator[tuple[memoryview, dict[str, Any] | str]]]:
        """What reads a chunk file: each sample's bytes, and the record they hold or why they hold none."""

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """A chunk file each."""
        return list(cls.chunks(path))

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types that hold for the first samples of some files."""
        records = []
        for unit in spread(units):
            read = cls.open(Path(unit.path).parent)(unit.path)
            records += [record for (_, record), _ in zip(read, range(_LOOKED_AT), strict=False) if isinstance(record, dict)]
        if not records:
            raise no_records(units[0].path, "its first samples cannot be read")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """The samples of a chunk file."""
        samples = enumerate(cls.open(Path(unit.path).parent)(unit.path))
        found = ((f"sample {number}", record, data) for number, (data, record) in samples)
        yield from read_records(unit.path, found, choices)


def index_of(path: Path) -> dict[str, Any]:
    """What `index.json` of a folder holds; nothing where there is none."""
    file = path / "index.json"
    try:
        stat = file.stat()
    except OSError:
        return {}
    return _read_index(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _read_index(file: Path, _size: int, _changed_ns: int) -> dict[str, Any]:
    """Read once for all units of a folder: it lists every file of them."""
    try:
        read: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def chunk_unit(path: Path, name: str) -> Unit:
    """A chunk file as a unit; its name comes from an index that a stranger may have written.

    Raises:
        DataError: It is not in the folder.
    """
    file = path / Path(name).name
    if not file.is_file():
        raise DataError(f"{path / 'index.json'} names {name}, which is not there: get the folder again.")
    return Unit(path=str(file), num_bytes=file.stat().st_size)


def samples_of(
    path: str, compression: str, num_bytes: int | None, decodes: Sequence[tuple[int | None, Decode]]
) -> Iterator[tuple[memoryview, list[Any] | str]]:
    """Each sample of a chunk file: its bytes, and the values of its fields or in words why they are none.

    Args:
        path: The file.
        compression: Of the file: `zstd`, `gz`, `br`, `snappy`, `bz2`; empty for none.
        num_bytes: Of the file without compression, where that is known.
        decodes: Each field's size, None where each sample tells it, and what makes a value of its bytes.

    Raises:
        DataError: The file is cut, or is no chunk.
    """
    data = _plain(path, compression, num_bytes)
    count = int(np.frombuffer(data[:4], _U32)[0]) if len(data) >= 4 else 0
    if len(data) < 4 * (count + 2):
        raise cut(path)
    offsets = np.frombuffer(data[4 : 4 * (count + 2)], _U32).astype(np.int64)
    if offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise cut(path, "or is no chunk of samples")
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        sample = data[start:end]
        yield sample, _values(sample, decodes)


def _values(sample: memoryview, decodes: Sequence[tuple[int | None, Decode]]) -> list[Any] | str:
    told = sum(size is None for size, _ in decodes)
    sizes = iter(np.frombuffer(sample[: 4 * told], _U32).tolist() if len(sample) >= 4 * told else ())
    at, values = 4 * told, []
    for number, (fixed, decode) in enumerate(decodes):
        end = at + (fixed if fixed is not None else next(sizes, len(sample)))
        if end > len(sample):
            return f"field {number} reaches past the end of the sample"
        try:
            values.append(decode(sample[at:end]))
        except (ValueError, KeyError, IndexError) as error:
            return f"field {number}: {type(error).__name__}: its bytes are not of its kind"
        at = end
    return values


def _plain(path: str, compression: str, num_bytes: int | None) -> memoryview:
    """The bytes of a file: mapped as they lie, or decompressed."""
    if not compression:
        size = Path(path).stat().st_size
        return np.memmap(path, np.uint8, "r").data if size else memoryview(b"")
    data = Path(path).read_bytes()
    codec = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy"}.get(compression)
    try:
        if compression == "bz2":
            return memoryview(bz2.decompress(data))
        if codec is None:
            raise DataError(f"{path} is compressed by {compression!r}: zstd, gz, br, snappy and bz2 can be read.")
        if num_bytes is not None:
            return memoryview(pa.decompress(data, num_bytes, codec, asbytes=True))
        return memoryview(pa.input_stream(pa.BufferReader(data), compression=codec).read())
    except (OSError, EOFError, ValueError) as error:  # what the codecs raise; Arrow's errors are among them
        raise cut(path, f"or is not compressed by {compression}") from error


def array_of(data: memoryview, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    """An array as Arrow takes it: one dimension as it is, more as lists of rows, none as a number."""
    return rows_of(np.frombuffer(data, dtype).reshape(tuple(shape)))


def rows_of(array: npt.NDArray[Any]) -> Any:
    """The same of an array."""
    if not array.ndim:
        return array.item()
    return array if array.ndim == 1 else [rows_of(row) for row in array]
