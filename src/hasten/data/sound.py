"""Read sound files of any common kind with libsndfile, through the package soundfile.

Samples keep the precision of the file: up to 16 bits give `int16`; 24-bit integers, floats and lossy formats give `float32`;
32-bit integers and doubles give `float64`. Floats are in units of full scale, so integers become values from -1 to 1.
Refused, with the reason: truncated files, files without samples, samples that are not finite, headers that contradict
themselves, and more than 2**30 samples.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import MachineError

Samples = npt.NDArray[Any]
ENDINGS = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav", ".wave")
"""Suffixes of sound files, in lower case."""
MAX_SAMPLES = 2**30
"""Maximum number of samples of a file, in all channels: 6 hours at 48 kHz. A small file can expand to any number."""
_FORMATS = frozenset({"AIFF", "FLAC", "MP3", "OGG", "RF64", "WAV", "WAVEX"})
"""libsndfile's names of the formats that are read."""
_KEEP_16_BITS = frozenset({"PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM", "GSM610"})
_NEED_DOUBLES = frozenset({"PCM_32", "DOUBLE"})
_UNCOMPRESSED = frozenset({"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"})
_BLOCK_SAMPLES = 2**18
_UNKNOWN = 2**62
"""Number of frames above which libsndfile does not know how many there are."""
_MP3_SLACK = 2 * 1152
"""How many frames an MP3 file may have less than its header says, because encoders count padding differently."""
_MP3_COUNTS = (b"Xing\0\0\0", b"Info\0\0\0", b"VBRI\0")
"""Headers with the length of an MP3 file. Without one, libsndfile guesses the length, and drops what exceeds it."""
_STREAMED_BYTES = 2**31 - 2**16
"""Size from which a size in a header is a placeholder, written by a program that could not go back, such as to a pipe."""
_SIZE = re.compile(r"^\s*(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)
_FRAMES = re.compile(r"Calculated frame count (\d+) does not match value from 'ds64' chunk of (\d+)")
_RATE = re.compile(r"Bytes/sec\s*: (\d+) \(should be -?\d+\)")
"""What libsndfile notes about headers that contradict the file or themselves."""


def dtype_of(path: Path) -> np.dtype[Any]:
    """Return the smallest type that holds the samples of a file exactly: int16, float32 or float64.

    Raises:
        ValueError: The file is not a sound file.
        MachineError: The package soundfile is not installed.
    """
    with _opened(path) as file:
        return _dtype_of(file)


def read_sound(path: Path, dtype: np.dtype[Any]) -> tuple[int, int, Samples]:
    """Return the rate in Hz, the number of channels, and interleaved samples of this type.

    Raises:
        ValueError: The file cannot be used, or the type does not hold its samples exactly.
        MachineError: The package soundfile is not installed.
    """
    rates, channels, blocks = zip(*sound_blocks(path, dtype), strict=True)
    return rates[0], channels[0], np.concatenate(blocks)


def sound_blocks(path: Path, dtype: np.dtype[Any] | None = None) -> Iterator[tuple[int, int, Samples]]:
    """Read a file block by block: each with the rate in Hz, the number of channels, and interleaved samples.

    Some errors are found only after the last block. None as the type is the smallest that holds the samples exactly.

    Raises:
        ValueError: The file cannot be used, or the type does not hold its samples exactly.
        MachineError: The package soundfile is not installed.
    """
    with _opened(path) as file:
        exact = _dtype_of(file)
        dtype = exact if dtype is None else dtype
        if exact.itemsize > dtype.itemsize:
            raise ValueError(f"its samples ({file.subtype}) do not fit into {dtype}, the type of the column")
        _check_header(file)
        count = 0
        with _whole(file, path) as source:
            for block in _blocks(source, dtype):
                count += block.size
                yield file.samplerate, file.channels, block
        missing = file.frames - count // file.channels
        if source is file and (_MP3_SLACK if file.format == "MP3" else 0) < missing and file.frames < _UNKNOWN:
            raise ValueError(f"it is truncated: {missing:,} of {file.frames:,} frames are missing")
        if not count:
            raise ValueError("it contains no samples")


def _blocks(file: Any, dtype: np.dtype[Any]) -> Iterator[Samples]:
    """Read up to the end of the file, not only as far as its header says."""
    count = 0
    while (block := file.read(max(1, _BLOCK_SAMPLES // file.channels), dtype=dtype.name, always_2d=True)).size:
        count += block.size
        if count > MAX_SAMPLES:
            raise ValueError(f"it has more than {MAX_SAMPLES:,} samples")
        if dtype.kind == "f" and not np.isfinite(block).all():
            raise ValueError("some samples are not finite numbers")
        yield block.reshape(-1)


def _dtype_of(file: Any) -> np.dtype[Any]:
    if file.format not in _FORMATS:
        raise ValueError(f"files of the kind {file.format} are not supported")
    if file.subtype in _KEEP_16_BITS:
        return np.dtype(np.int16)
    return np.dtype(np.float64 if file.subtype in _NEED_DOUBLES else np.float32)


def _check_header(file: Any) -> None:
    """Refuse headers that contradict the size of the file, unless it was written to a pipe, or their own rate."""
    notes = file.extra_info
    if size := _SIZE.search(notes):
        said, found = map(int, size.groups())
        if found < said < _STREAMED_BYTES:
            raise ValueError(f"it is truncated: {found:,} of {said:,} bytes of sound")
    if frames := _FRAMES.search(notes):
        raise ValueError(f"it is truncated: {int(frames[1]):,} of {int(frames[2]):,} frames")
    if (rate := _RATE.search(notes)) and int(rate[1]) and file.subtype in _UNCOMPRESSED:
        raise ValueError(f"its header contradicts itself: {file.samplerate:,} Hz, but {int(rate[1]):,} bytes per second")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a sound file. Every error becomes a ValueError that says what is wrong."""
    sequential = _sequential()
    try:
        with sequential(path) as file:
            yield file
    except (MemoryError, ValueError):
        raise
    except Exception as error:  # soundfile raises arbitrary exceptions on damaged files
        text = str(getattr(error, "error_string", error)).removesuffix(".")
        raise ValueError(f"the sound cannot be decoded: {text}") from error


@contextmanager
def _whole(file: Any, path: Path) -> Iterator[Any]:
    """Return the file, or for an MP3 file of unknown length one that libsndfile reads from a pipe up to its end."""
    data = path.read_bytes() if file.format == "MP3" else b""
    if not data or any(mark in data for mark in _MP3_COUNTS):
        yield file
        return
    end, start = os.pipe()
    feeder = Thread(target=_feed, args=(start, data), daemon=True)
    feeder.start()
    try:
        with _sequential()(end, closefd=False) as source:
            yield source
    finally:
        os.close(end)  # ends the feeder
        feeder.join()


def _feed(start: int, data: bytes) -> None:
    try:
        with open(start, "wb") as pipe:
            pipe.write(data)
    except BrokenPipeError:  # the reader stopped early
        return


@lru_cache(maxsize=1)
def _sequential() -> Any:
    """Return a class of sound files that are read from the start to the end.

    soundfile itself seeks after each block, which fails at the end of a FLAC file whose header does not know the length.

    Raises:
        MachineError: The package soundfile is not installed.
    """
    try:
        import soundfile  # noqa: PLC0415  of the extra `audio`
    except (ImportError, OSError) as error:  # OSError: there is no libsndfile
        raise MachineError("sound needs soundfile: pip install 'hasten[audio]'.") from error

    class Sequential(soundfile.SoundFile):  # type: ignore[misc, unused-ignore]  # it may not be installed
        def seekable(self) -> bool:
            return False

    return Sequential
