"""Read folders of sound files as samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hasten.data.convert.contract import Bad, Choices, FileFolder, Rows, Unit, folder_of, parts_of
from hasten.data.convert.reasons import reason_of
from hasten.data.convert.refusals import needed_types, no_such_column
from hasten.data.sound import ENDINGS, Samples, dtype_of, read_sound


class Sound(FileFolder):
    """Read sound, one row per file: `path`, `label` (its folder), `rate` in Hz, `channels`, interleaved `samples`."""

    name: ClassVar[str] = "sound"
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    words: ClassVar[str] = "a folder of sound files (.wav, .flac, .ogg, .mp3, ...)"
    needs: ClassVar[str] = "soundfile"

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Choose the type that holds the samples of all files exactly."""
        dtypes = {_dtype_of(Path(unit.path) / name) for unit in units for name in unit.files}
        widest = max(dtypes, key=lambda dtype: dtype.itemsize)
        types = {
            "path": pa.string(),
            "label": pa.string(),
            "rate": pa.int32(),
            "channels": pa.int16(),
            "samples": pa.large_list(pa.from_numpy_dtype(widest)),
        }
        for name in choices.columns:
            if name not in types:
                raise no_such_column(units[0].path, name, list(types))
        return pa.schema([pa.field(name, types[name]) for name in choices.columns or types])

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the sounds of some files. Files that are damaged, truncated or empty are bad."""
        schema = needed_types(choices)
        wanted = np.dtype(np.float64)
        if "samples" in schema.names:
            wanted = np.dtype(schema.field("samples").type.value_type.to_pandas_dtype())
        for part in parts_of(_rows(unit, wanted)):
            if isinstance(part, Bad):
                yield part
                continue
            paths, labels, rates, channels, sounds = zip(*part, strict=True)
            columns = {"path": paths, "label": labels, "rate": rates, "channels": channels}
            arrays = {name: pa.array(values) for name, values in columns.items()}
            arrays["samples"] = _lists(sounds)
            yield pa.table([arrays[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def _dtype_of(path: Path) -> np.dtype[Any]:
    try:
        return dtype_of(path)
    except (OSError, ValueError):  # bad when it is converted
        return np.dtype(np.int16)


def _rows(unit: Unit, dtype: np.dtype[Any]) -> Iterator[tuple[int, tuple[Any, ...]] | Bad]:
    for name in unit.files:
        try:
            rate, channels, samples = read_sound(Path(unit.path) / name, dtype)
        except Exception as error:  # noqa: BLE001  if one file fails, the others can be read
            yield Bad(name, "the file", reason_of(error))
            continue
        yield samples.nbytes, (name, folder_of(name), rate, channels, samples)


def _lists(sounds: Sequence[Samples]) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum([len(sound) for sound in sounds]))).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(sounds)))
