"""Read comma-separated values with Arrow's streaming reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, has_files, spread, whole_files
from hasten.data.convert.refusals import broken

ENDINGS = (".csv", ".tsv")
_BLOCK = 4 * 2**20


class Csv(Reader):
    """Read comma- or tab-separated values with a header line."""

    name: ClassVar[str] = "csv"
    words: ClassVar[str] = "comma- or tab-separated values with a header line (.csv, .tsv)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per file, because a quoted field can contain line breaks."""
        return whole_files(path, ENDINGS)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer types with Arrow from the first megabytes of some files."""
        schemas = []
        for unit in spread(units):
            try:
                with pyarrow.csv.open_csv(unit.path, *_options(unit.path, _skip, choices, None)) as stream:
                    schemas.append(stream.schema)
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                raise DataError(f"{unit.path} is not a table of comma-separated values: {error}.") from error
        try:
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(f"the types of the columns differ between files: {error}.") from error
        return pa.schema([pa.field(p.name, pa.string() if pa.types.is_null(p.type) else p.type) for p in schema])

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the rows of a file. Lines with too few or too many fields are bad."""
        bad: list[Bad] = []

        def handle(row: Any) -> str:
            where = f"line {row.number}" if row.number is not None else "a line"
            reason = f"{row.actual_columns} fields, but the header has {row.expected_columns}"
            bad.append(Bad(unit.path, where, reason, row.text.encode()))
            return "skip"

        try:
            with pyarrow.csv.open_csv(unit.path, *_options(unit.path, handle, choices, choices.arrow_schema)) as stream:
                for batch in stream:
                    yield from bad
                    bad.clear()
                    yield pa.Table.from_batches([batch])
        except pa.ArrowInvalid as error:
            raise broken(unit.path, _without_value(error), "omit the column (--columns)") from error
        yield from bad


def _skip(_row: Any) -> str:
    return "skip"


def _options(path: str, handle: Any, choices: Choices, schema: pa.Schema | None) -> tuple[Any, Any, Any]:
    types = {part.name: part.type for part in schema} if schema is not None else None
    return (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
        pyarrow.csv.ParseOptions(
            delimiter="\t" if path.lower().endswith(".tsv") else ",", newlines_in_values=True, invalid_row_handler=handle
        ),
        pyarrow.csv.ConvertOptions(
            column_types=types, include_columns=list(choices.columns) or None, strings_can_be_null=False
        ),
    )


def _without_value(error: Exception) -> str:
    """Return Arrow's message without the value, which must not be logged."""
    return str(error).split(": invalid value")[0].splitlines()[0]
