"""Read Parquet files, one row group per unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, files_under, has_files
from hasten.data.convert.refusals import no_such_column

ENDINGS = (".parquet", ".pq")
_ROWS = 2048
"""Number of rows per batch."""


class Parquet(Reader):
    """Read Parquet files."""

    name: ClassVar[str] = "parquet"
    words: ClassVar[str] = "Parquet (.parquet, .pq)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per row group."""
        units, first = [], None
        for file in files_under(path, ENDINGS):
            try:
                read = pyarrow.parquet.ParquetFile(file)
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"{file} is not a Parquet file: {error}.") from error
            first = first or read.schema_arrow
            if not read.schema_arrow.remove_metadata().equals(first.remove_metadata()):
                raise DataError(f"{file} has other columns than the first file of {path}: convert them to separate stores.")
            units += [
                Unit(path=str(file), start=group, end=group + 1, num_bytes=read.metadata.row_group(group).total_byte_size)
                for group in range(read.metadata.num_row_groups)
            ]
        return units

    @classmethod
    def remarks(cls, units: Sequence[Unit], choices: Choices) -> list[str]:
        """Say if the names of folders hold values, such as `year=2020`, which are not converted."""
        folders = (part for unit in units for part in Path(unit.path).parts[:-1])
        keys = sorted({part.partition("=")[0] for part in folders if "=" in part})
        return [f"not read: the values in the names of folders ({', '.join(keys)})"] if keys else []

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the rows of a row group in batches of a few thousand."""
        file = pyarrow.parquet.ParquetFile(unit.path, memory_map=True)
        missing = [name for name in choices.columns if name not in file.schema_arrow.names]
        if missing:
            raise no_such_column(unit.path, missing[0], file.schema_arrow.names)
        try:
            for batch in file.iter_batches(
                _ROWS, row_groups=range(unit.start, unit.end), columns=list(choices.columns) or None, use_threads=False
            ):
                yield pa.Table.from_batches([batch])
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{unit.path} cannot be read at row group {unit.start}: {error}.") from error
