"""Read comma-separated values: Arrow splits the fields, and columns get their types from how their values are written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from hasten.core.errors import DataError
from hasten.data.convert.compressed import and_compressed, open_plain
from hasten.data.convert.contract import Bad, Choices, Note, Reader, ReadPart, Unit, sampled, whole_files
from hasten.data.convert.dialect import MAX_FIELD_BYTES, Dialect, check_rows, dialect_of
from hasten.data.convert.encoding import UTF_8, is_valid, not_encoded
from hasten.data.convert.listing import has_files
from hasten.data.convert.refusals import broken, needed_types, no_such_column
from hasten.data.convert.text_columns import converted, type_of_texts

ENDINGS = and_compressed((".csv", ".tsv"))
_ROWS = 20_000
"""Number of rows of a file that types are inferred from, and of a batch if Arrow cannot split the file."""
_YEARS = range(1900, 2101)
_REMARKED_FILES = 100
"""Maximum number of files whose dialects are reported."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


class Csv(Reader):
    """Read comma- or tab-separated values with a header row."""

    name: ClassVar[str] = "csv"
    words: ClassVar[str] = "comma- or tab-separated values with a header row (.csv, .tsv; also .gz, .bz2, .xz, .zst)"
    reads_partitions: ClassVar[bool] = True

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
        """Infer types from the first rows of some files."""

        def load(unit: Unit) -> tuple[str, str, pa.Table]:
            dialect = dialect_of(unit.path, choices)
            missing = [name for name in choices.columns if name not in dialect.names]
            if missing:
                raise no_such_column(unit.path, missing[0], list(dialect.names))
            batches = _by_python(unit.path, dialect, dialect.names, lambda _: "skip")
            return unit.path, dialect.delimiter, pa.Table.from_batches(list(islice(batches, 1)), _binary(dialect.names))

        paths, delimiters, samples = zip(*sampled(units, load), strict=True)
        names = samples[0].column_names
        for path, table in zip(paths, samples, strict=True):
            _check_names(path, table.column_names, names)
        table = pa.concat_tables([table.select(names) for table in samples])
        types = {
            name: type_of_texts(_texts(table.column(name).combine_chunks())[0], is_point_doubtful=";" in delimiters)
            for name in names
        }
        _check_header(paths[0], types, samples[0])
        return pa.schema([pa.field(name, types[name]) for name in choices.columns or names])

    @classmethod
    def remarks(cls, units: Sequence[Unit], choices: Choices) -> list[str]:
        """Return the encodings and delimiters of the files, of some of them if there are many."""
        dialects = set(sampled(units, lambda unit: dialect_of(unit.path, choices), _REMARKED_FILES))
        return sorted(
            {f"read as {d.encoding}, fields separated by {_SEPARATORS.get(d.delimiter, d.delimiter)}" for d in dialects}
        )

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[ReadPart]:
        """Return the rows of a file. Rows with too few or too many fields, or with a value of another type, are bad.

        Lines of nothing but spaces are skipped, as empty lines are.
        """
        schema, dialect = needed_types(choices), dialect_of(unit.path, choices)
        _check_names(unit.path, dialect.names, schema.names, others=bool(choices.columns))
        check_rows(unit.path, dialect)
        split = _by_arrow if is_valid(unit.path, dialect.encoding) else _by_python
        skipped: list[Bad] = []
        numbers: list[int] = []
        count = 0

        def handle(row: Any) -> str:
            numbers.append(row.number)
            if row.text.isspace():
                return "skip"
            reason = f"{row.actual_columns} fields, but the header has {row.expected_columns}"
            skipped.append(Bad(unit.path, f"row {row.number}", reason, row.text.encode("utf-8", "surrogateescape")))
            return "skip"

        for batch in split(unit.path, dialect, schema.names, handle):
            yield from skipped
            skipped.clear()
            table, reasons = _typed(batch, schema)
            for index, reason in reasons.items():
                number = _row_number(count + index, numbers)
                yield Bad(unit.path, f"row {number}", reason, _line(batch.slice(index, 1), dialect.delimiter))
            count += batch.num_rows
            yield table
            if batch.num_columns > 1 and (num_empty := _num_empty(batch)):
                yield Note("WARNING: rows whose fields are all empty, kept", num_empty)
        yield from skipped


def _binary(names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, pa.binary()) for name in names])


class _Row(NamedTuple):
    """Describe a row with too few or too many fields, as Arrow does."""

    number: int
    expected_columns: int
    actual_columns: int
    text: str


def _by_arrow(path: str, dialect: Dialect, columns: Sequence[str], handle: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
    """Yield the fields of some columns as bytes. Arrow cannot report rows that are not UTF-8."""
    try:
        with (
            open_plain(path) as file,
            pyarrow.csv.open_csv(
                file,
                pyarrow.csv.ReadOptions(
                    use_threads=False,
                    block_size=2 * MAX_FIELD_BYTES,
                    column_names=list(dialect.names),
                    skip_rows=dialect.blank_lines,
                    skip_rows_after_names=1,
                    encoding="utf8" if dialect.encoding == UTF_8 else dialect.encoding,
                ),
                pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=handle),
                pyarrow.csv.ConvertOptions(
                    column_types=_binary(dialect.names), include_columns=list(columns), strings_can_be_null=False
                ),
            ) as stream,
        ):
            yield from stream
    except UnicodeDecodeError as error:
        raise not_encoded(path, dialect.encoding, error) from error
    except pa.ArrowInvalid:  # its message contains text of the file
        raise broken(path, f"a row is longer than {2 * MAX_FIELD_BYTES:,} bytes") from None


def _by_python(
    path: str, dialect: Dialect, columns: Sequence[str], handle: Callable[[Any], str]
) -> Iterator[pa.RecordBatch]:
    """Yield the fields of some columns as bytes, also those that are not UTF-8."""
    places, width = [dialect.names.index(name) for name in columns], len(dialect.names)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_BYTES))
    encoding = "utf-8-sig" if dialect.encoding == UTF_8 else dialect.encoding
    with io.TextIOWrapper(open_plain(path), encoding=encoding, errors="surrogateescape", newline="") as file:
        rows = filter(None, csv.reader(file, delimiter=dialect.delimiter))
        numbered = enumerate(islice(rows, 1, None), 2)
        try:
            while some := list(islice(numbered, _ROWS)):
                for number, row in some:
                    if len(row) != width:
                        handle(_Row(number, width, len(row), dialect.delimiter.join(row)))
                good = [row for _, row in some if len(row) == width]
                fields = [[row[place].encode("utf-8", "surrogateescape") for row in good] for place in places]
                yield pa.record_batch([pa.array(column, pa.binary()) for column in fields], schema=_binary(columns))
        except csv.Error:
            check_rows(path, dialect)  # says where a quote is open, if that is the reason
            raise broken(path, f"a field is longer than {MAX_FIELD_BYTES:,} bytes") from None


def _check_names(path: str, names: Sequence[str], wanted: Sequence[str], *, others: bool = False) -> None:
    """Check that a file has the columns of the first one.

    Args:
        path: The file.
        names: Its columns.
        wanted: The columns it must have.
        others: True if it can have others as well.
    """
    for name in wanted:
        if name not in names:
            raise no_such_column(path, name, list(names))
    more = [name for name in names if name not in wanted]
    if more and not others:
        raise DataError(f"{path} has a column {more[0]!r} that other files lack: convert them to separate stores.")


def _check_header(path: str, types: dict[str, pa.DataType], table: pa.Table) -> None:
    """Refuse a first row that is a comment, or is written like the values below it, unless it counts up, such as years."""
    typed = [name for name, kind in types.items() if not pa.types.is_string(kind)]
    below = {name: _texts(table.column(name).slice(0, 1).combine_chunks())[0] for name in typed}
    is_comment = typed and table.column_names[0].startswith("#")
    if is_comment and all(converted(below[name], types[name])[1] for name in typed):
        raise broken(path, "the first row looks like a comment, and the second like names", "remove the first row")
    numbers = [int(name) for name in typed if re.fullmatch("[0-9]{1,18}", name)]
    counts_up = len(numbers) == len(typed) and numbers == sorted(set(numbers))
    if not typed or any(converted(pa.array([name]), types[name])[1] for name in typed):
        return
    if not counts_up or (len(numbers) < 3 and not all(number in _YEARS for number in numbers)):
        raise broken(
            path, "the first row looks like values, not like names", "add a first row with the names of the columns"
        )


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """Convert fields to the types of their columns.

    Returns:
        The rows that fit, and the reason for each row that does not, by its index.
    """
    reasons: dict[int, str] = {}
    columns = []
    for part in schema:
        texts, undecoded = _texts(batch.column(part.name))
        values, misfits = converted(texts, part.type)
        columns.append(values)
        reasons |= dict.fromkeys(misfits, f"field {part.name!r} is not of type {part.type}")
        reasons |= dict.fromkeys(undecoded, f"field {part.name!r} is not UTF-8")
    table = pa.table(columns, schema=schema)
    if reasons:
        table = table.filter(pa.array([index not in reasons for index in range(batch.num_rows)]))
    return table, dict(sorted(reasons.items()))


def _num_empty(batch: pa.RecordBatch) -> int:
    """Return the number of rows without any text, such as those that spreadsheets write below a table."""
    is_empty: Any = True
    for column in batch.columns:
        is_empty = pc.and_(is_empty, pc.equal(pc.binary_length(column), 0))
        if not pc.any(is_empty).as_py():
            return 0
    return int(pc.sum(is_empty).as_py())


def _texts(fields: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    """Decode fields; also return the indices of those that are not UTF-8."""
    try:
        return fields.cast(pa.string()), ()
    except pa.ArrowInvalid:
        texts = [_decoded(field) for field in fields.to_pylist()]
        return pa.array(texts, pa.string()), [index for index, text in enumerate(texts) if text is None]


def _decoded(field: bytes) -> str | None:
    try:
        return field.decode()
    except UnicodeDecodeError:
        return None


def _row_number(index: int, skipped: Sequence[int]) -> int:
    """Return the number of a row in its file, where the header is row 1, from its index among the rows not skipped."""
    number = index + 2
    for before in skipped:
        number += before <= number
    return number


def _line(row: pa.RecordBatch, delimiter: str) -> bytes:
    fields = (column[0].as_py() for column in row.columns)
    return delimiter.encode().join(b'"' + field.replace(b'"', b'""') + b'"' for field in fields)
