"""Read folders of WAV files as 16-bit samples."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.data.convert.contract import Bad, Choices, FileFolder, Rows, Unit, folder_of

ENDINGS = (".wav",)
_PART_FILES = 64


class Wav(FileFolder):
    """Read sound, one row per file: `path`, `label` (its folder), `rate` in Hz, `channels`, interleaved `samples`."""

    name: ClassVar[str] = "wav"
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    words: ClassVar[str] = "a folder of WAV files (.wav)"

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the sounds of some files. Truncated files and files with other encodings are bad."""
        for start in range(0, len(unit.files), _PART_FILES):
            rows: list[tuple[Any, ...]] = []
            for name in unit.files[start : start + _PART_FILES]:
                try:
                    rate, channels, samples = read_wav(Path(unit.path) / name)
                except (OSError, EOFError, ValueError, wave.Error) as error:
                    yield Bad(name, "the file", str(error) or "the file is truncated")
                    continue
                rows.append((name, folder_of(name), rate, channels, samples))
            if rows:
                path, label, rates, counts, sounds = zip(*rows, strict=True)
                columns = {
                    "path": pa.array(path, pa.string()),
                    "label": pa.array(label, pa.string()),
                    "rate": pa.array(rates, pa.int32()),
                    "channels": pa.array(counts, pa.int16()),
                    "samples": _lists(sounds),
                }
                yield {name: values for name, values in columns.items() if not choices.columns or name in choices.columns}


def read_wav(path: Path) -> tuple[int, int, npt.NDArray[np.int16]]:
    """Return the rate in Hz, the number of channels, and interleaved 16-bit samples.

    Raises:
        ValueError: The file is truncated, or its samples do not have 8 or 16 bits.
    """
    with wave.open(str(path), "rb") as file:
        width, channels, frames = file.getsampwidth(), file.getnchannels(), file.getnframes()
        data = file.readframes(frames)
        if len(data) != frames * width * channels:
            raise ValueError(f"the file is truncated: {len(data)} bytes of sound instead of {frames * width * channels}")
        if width == 2:
            return file.getframerate(), channels, np.frombuffer(data, "<i2")
        if width == 1:
            return file.getframerate(), channels, (np.frombuffer(data, np.uint8).astype(np.int16) - 128) << 8
    raise ValueError(f"samples have {8 * width} bits: only 8 and 16 bits are supported")


def _lists(sounds: tuple[npt.NDArray[np.int16], ...]) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum([len(sound) for sound in sounds]))).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(sounds)))
