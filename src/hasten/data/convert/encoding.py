"""Decide the encoding of a text file once, from its byte order mark and its first bytes."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.convert.compressed import open_plain

UTF_8 = "utf-8"
HEAD_BYTES = 2**20
"""Number of bytes at the start of a file that decide its encoding and dialect."""
_CHUNK = 2**20
_MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(path: str, chosen: str = "", *, is_checked: bool = True) -> str:
    """Return the encoding of a file: the one chosen, what the byte order mark says, or UTF-8.

    Args:
        path: The file.
        chosen: Name of the encoding; empty detects it.
        is_checked: Check that the start of a file without a byte order mark is UTF-8.

    Raises:
        DataError: The file has another encoding, or the chosen one is unknown.
    """
    if chosen:
        try:
            return codecs.lookup(chosen).name
        except LookupError as error:
            raise DataError(f"unknown encoding {chosen!r}: use a name that Python knows, such as cp1252.") from error
    with open_plain(path) as file:
        head = file.read(HEAD_BYTES)
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if head[:64].count(0) > 16:
        guess = "utf-16-le" if head[1:64:2].count(0) > head[:64:2].count(0) else "utf-16-be"
        raise BrokenFileError(path, f"looks like UTF-16 without a byte order mark: set --encoding {guess}.")
    try:
        if is_checked:
            codecs.getincrementaldecoder(UTF_8)().decode(head)
    except UnicodeDecodeError as error:
        guess = "cp1252" if _decodes(head, "cp1252") else "latin-1"
        raise BrokenFileError(
            path,
            f"is not UTF-8 (byte 0x{head[error.start]:02x} at offset {error.start:,}). Set the encoding it was written in, "
            f"perhaps --encoding {guess}, or --encoding utf-8 to quarantine the rows that are not UTF-8.",
        ) from error
    return UTF_8


def _decodes(head: bytes, encoding: str) -> bool:
    try:
        head.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def utf8_chunks(path: str, encoding: str) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8, without its byte order mark. UTF-8 files are not validated.

    Raises:
        DataError: The file cannot be decoded.
    """
    with open_plain(path) as file:
        if encoding == UTF_8:
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            while chunk := file.read(_CHUNK):
                yield chunk
            return
        try:
            text = io.TextIOWrapper(file, encoding=encoding, newline="")
            while part := text.read(_CHUNK):
                yield part.encode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise not_encoded(path, encoding, error) from error


def is_valid(path: str, encoding: str) -> bool:
    """Return True unless a file is to be read as UTF-8 and is not."""
    decoder = codecs.getincrementaldecoder(UTF_8)()
    try:
        for chunk in utf8_chunks(path, encoding) if encoding == UTF_8 else ():
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def not_encoded(path: str, encoding: str, error: UnicodeDecodeError) -> BrokenFileError:
    """Build the error for a file that is not in the encoding it was read with."""
    return BrokenFileError(path, f"is not {encoding} ({error.reason}): set --encoding to the encoding it was written in.")
