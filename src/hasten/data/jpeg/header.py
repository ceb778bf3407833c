"""What a JPEG file is made of, from its markers (ITU-T T.81, annex B)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_START_OF_FRAME, _HUFFMAN, _QUANTIZATION, _SCAN, _RESTART = 0xC0, 0xC4, 0xDB, 0xDA, 0xDD
_OTHER_FRAMES = frozenset({0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF})
_JFIF, _ADOBE = 0xE0, 0xEE
_HALVED = (0x22, 0x11, 0x11)
"""Sampling of the components: colours at half the height and width of the brightness."""
_MOST_PIXELS = 2**26
_LEAST_COLOURS = 3
"""Columns of the colours from which libjpeg-turbo enlarges them smoothly (`jdsample.c`)."""


@dataclass(frozen=True)
class Header:
    """What the kernels decode a file by.

    Attributes:
        quant: Quantization tables of brightness and of the colours, 64 bytes each, in zigzag order.
        codes: Huffman tables of brightness and of the colours, each of differences (DC) and of the others (AC): 16 counts of
            codes by their length, then the symbols.
    """

    quant: tuple[bytes, bytes]
    codes: tuple[tuple[bytes, bytes], tuple[bytes, bytes]]


@dataclass(frozen=True)
class Picture:
    """A file that the kernels decode.

    Attributes:
        height: In pixels.
        width: In pixels.
        scan: Where its codes begin, in bytes from the start of the file.
        header: What they are decoded by; many files have the same.
    """

    height: int
    width: int
    scan: int
    header: Header


@dataclass
class _Seen:
    """What the markers said until now."""

    frame: bytes = b""
    quant: dict[int, bytes] = field(default_factory=dict)
    codes: dict[int, bytes] = field(default_factory=dict)
    is_ycbcr: bool = False


def read_header(data: bytes | memoryview) -> Picture | None:
    """Read the markers before the codes; None where the kernels do not decode such a file, or it is damaged."""
    seen, at = _Seen(), 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, end = data[at + 1], at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker == 0xFF:  # fills up before a marker
            at += 1
            continue
        if marker == _SCAN:
            return _picture(seen, bytes(data[at + 4 : end]), end)
        if marker in _OTHER_FRAMES or end < at + 4 or not _noted(seen, marker, data[at + 4 : end]):
            return None
        at = end
    return None


def _noted(seen: _Seen, marker: int, part: bytes | memoryview) -> bool:
    """Note what a marker says; whether it is nothing that the kernels refuse."""
    if marker == _START_OF_FRAME:
        seen.frame = bytes(part)
    elif marker == _QUANTIZATION:
        return _tables(seen.quant, bytes(part), lambda rest: 65 if rest[0] < 16 else 0)  # 0: numbers of 16 bits
    elif marker == _HUFFMAN:
        return _tables(seen.codes, bytes(part), lambda rest: 17 + sum(rest[1:17]))
    elif marker == _RESTART:
        return not any(part)
    elif marker == _JFIF:
        seen.is_ycbcr = seen.is_ycbcr or bytes(part[:5]) == b"JFIF\0"
    elif marker == _ADOBE and bytes(part[:5]) == b"Adobe":
        return len(part) >= 12 and part[11] == 1  # YCbCr
    return True


def _tables(into: dict[int, bytes], part: bytes, size: Callable[[bytes], int]) -> bool:
    """Split a marker's tables up by their number; whether all are whole."""
    while part:
        count = size(part)
        if not count or len(part) < count:
            return False
        into[part[0]], part = part[1:count], part[count:]
    return True


def _picture(seen: _Seen, scan: bytes, at: int) -> Picture | None:
    frame = seen.frame
    if len(frame) != 15 or frame[0] != 8 or frame[5] != 3 or tuple(frame[7::3]) != _HALVED:
        return None
    numbers = frame[6::3]
    if len(scan) != 10 or scan[0] != 3 or scan[1:7:2] != numbers or scan[7:] != b"\0\x3f\0":
        return None
    if not (seen.is_ycbcr or numbers == b"\1\2\3"):
        return None
    height, width = frame[1] << 8 | frame[2], frame[3] << 8 | frame[4]
    if not height or -(-width // 2) < _LEAST_COLOURS or height * width > _MOST_PIXELS:
        return None
    if frame[11] != frame[14] or scan[4] != scan[6]:  # both colours have the same tables
        return None
    try:
        quant = seen.quant[frame[8]], seen.quant[frame[11]]
        codes = [(seen.codes[number >> 4], seen.codes[16 | number & 15]) for number in (scan[2], scan[4])]
    except KeyError:
        return None
    return Picture(height, width, at, Header(quant, (codes[0], codes[1])))
