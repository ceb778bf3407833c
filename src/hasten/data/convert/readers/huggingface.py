"""Read datasets saved by Hugging Face's `datasets` (`save_to_disk`), which are Arrow streams, without that library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.convert.chunks import chunk_unit
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit

_STATE = "state.json"
_ROWS = 2048
"""Number of rows per batch."""


class HuggingFace(Reader):
    """Read a dataset saved by `Dataset.save_to_disk`. For a `DatasetDict`, use the folder of one split."""

    name: ClassVar[str] = "huggingface"
    words: ClassVar[str] = "a dataset saved by Hugging Face's save_to_disk (a folder with state.json)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check for the files that `save_to_disk` writes."""
        return (path / _STATE).is_file() or (path / "dataset_dict.json").is_file()

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per Arrow file."""
        if not (path / _STATE).is_file():
            splits = sorted(part.name for part in path.iterdir() if (part / _STATE).is_file())
            raise DataError(f"{path} contains the splits {', '.join(splits)}: use the folder of one of them.")
        try:
            state = json.loads((path / _STATE).read_text(encoding="utf-8"))
            names = [str(part["filename"]) for part in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path / _STATE} was not written by save_to_disk ({error}).") from error
        if state.get("_indices_data_files"):
            raise DataError(
                f"{path} contains a selection of rows: call flatten_indices() on the dataset before save_to_disk."
            )
        return [chunk_unit(path, name, _STATE) for name in names]

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the rows of an Arrow file in batches of a few thousand."""
        try:
            with pa.memory_map(unit.path) as source, pa.ipc.open_stream(source) as stream:
                _ = stream.schema.names  # raises if a name is not UTF-8
                for batch in stream:
                    batch.validate(full=True)  # damaged offsets would end the process
                    table = pa.Table.from_batches([batch])
                    if choices.columns:
                        table = table.select(list(choices.columns))
                    for start in range(0, table.num_rows, _ROWS):
                        yield table.slice(start, _ROWS)
        except KeyError as error:
            raise DataError(f"{unit.path} has no column {error}.") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise BrokenFileError(unit.path, f"is not an Arrow stream ({error}).") from error
