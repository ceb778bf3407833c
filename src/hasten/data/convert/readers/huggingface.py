"""Datasets that Hugging Face's `datasets` saved (`save_to_disk`): Arrow streams, read without that library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit

_STATE = "state.json"
_ROWS = 2048


class HuggingFace(Reader):
    """A dataset saved by `Dataset.save_to_disk`; of a `DatasetDict`, give the folder of one split."""

    name: ClassVar[str] = "huggingface"
    words: ClassVar[str] = "a dataset saved by Hugging Face's save_to_disk (a folder with state.json)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By the files that `save_to_disk` writes."""
        return (path / _STATE).is_file() or (path / "dataset_dict.json").is_file()

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """An Arrow file each."""
        if not (path / _STATE).is_file():
            splits = sorted(part.name for part in path.iterdir() if (part / _STATE).is_file())
            raise DataError(f"{path} holds the splits {', '.join(splits)}: give the folder of one of them.")
        try:
            state = json.loads((path / _STATE).read_text(encoding="utf-8"))
            names = [part["filename"] for part in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path / _STATE} is not what save_to_disk writes ({error}).") from error
        if state.get("_indices_data_files"):
            raise DataError(f"{path} is a selection of rows: call flatten_indices() on the dataset before save_to_disk.")
        files = [path / Path(name).name for name in names]
        return [Unit(path=str(file), num_bytes=file.stat().st_size) for file in files]

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """The rows of an Arrow file, a few thousand at a time."""
        try:
            with pa.memory_map(unit.path) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    table = pa.Table.from_batches([batch])
                    if choices.columns:
                        table = table.select(list(choices.columns))
                    for at in range(0, table.num_rows, _ROWS):
                        yield table.slice(at, _ROWS)
        except KeyError as error:
            raise DataError(f"{unit.path} has no column {error}.") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{unit.path} is no Arrow stream ({error}).") from error
