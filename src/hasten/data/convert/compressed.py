"""Read compressed files like plain ones. Their first bytes say how they are compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")


def and_compressed(endings: Sequence[str]) -> tuple[str, ...]:
    """Return endings, and those of the same files compressed."""
    return (*endings, *(f"{ending}{suffix}" for ending in endings for suffix in SUFFIXES))


def is_compressed(path: str) -> bool:
    """Return True if a file is compressed."""
    return _opener(path) is not open


def open_plain(path: str) -> IO[bytes]:
    """Open a file, and decompress what is read from it if it is compressed."""
    file: IO[bytes] = _opener(path)(path, "rb")
    return file


def _opener(path: str) -> Callable[[str, str], Any]:
    with Path(path).open("rb") as file:
        start = file.read(6)
    return next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), open)


class _Zstd(io.RawIOBase):
    """Read a file compressed with Zstandard; going back means to begin again."""

    def __init__(self, path: str, _mode: str) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._stream, self._at = pa.input_stream(self._path, compression="zstd"), 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size if size >= 0 else None)
        self._at += len(data)
        return data

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, origin: int = 0) -> int:
        if origin != io.SEEK_SET:
            raise io.UnsupportedOperation("only from the start")
        if offset < self._at:
            self._begin()
        while self._at < offset and self.read(min(offset - self._at, 2**20)):
            pass
        return self._at


_OPENERS: dict[bytes, Callable[[str, str], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zX": lzma.open,
    b"\x28\xb5\x2f\xfd": _Zstd,
}
