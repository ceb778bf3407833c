"""Read Parquet files, one row group per unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, sampled, units_of
from hasten.data.convert.listing import has_files
from hasten.data.convert.refusals import no_such_column

ENDINGS = (".parquet", ".pq")
_ROWS = 2048
"""Number of rows per batch."""


class Parquet(Reader):
    """Read Parquet files."""

    name: ClassVar[str] = "parquet"
    words: ClassVar[str] = "Parquet (.parquet, .pq)"
    reads_partitions: ClassVar[bool] = True

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per row group."""
        first: list[pa.Schema] = []

        def parts(file: Path) -> Iterator[Unit]:
            try:
                read = pyarrow.parquet.ParquetFile(file)
            except (pa.ArrowInvalid, OSError) as error:
                raise BrokenFileError(str(file), f"is not a Parquet file: {error}.") from error
            schema = read.schema_arrow.remove_metadata()
            _ = schema.names  # raises if a name is not UTF-8
            if not schema.equals((first or [schema])[0]):
                raise DataError(f"{file} has other columns than the first file of {path}: convert them to separate stores.")
            first[:] = [schema]
            for group in range(read.metadata.num_row_groups):
                size = read.metadata.row_group(group).total_byte_size
                yield Unit(path=str(file), start=group, end=group + 1, num_bytes=size)

        return units_of(path, ENDINGS, parts)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Return the types of a file; all have the same."""

        def load(unit: Unit) -> pa.Schema:
            schema = pyarrow.parquet.read_schema(unit.path)
            missing = [name for name in choices.columns if name not in schema.names]
            if missing:
                raise no_such_column(unit.path, missing[0], schema.names)
            fields = [schema.field(name) for name in choices.columns] if choices.columns else list(schema)
            return pa.schema(fields)

        return sampled(units, load, 1)[0]

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
                batch.validate(full=True)
                yield pa.Table.from_batches([batch])
        except (pa.ArrowInvalid, OSError) as error:
            raise BrokenFileError(unit.path, f"cannot be read at row group {unit.start}: {error}.") from error
