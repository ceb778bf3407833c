"""What readers say when a source cannot be read on: the same words for the same trouble, whatever the format."""

from __future__ import annotations

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Choices


def needed_types(choices: Choices) -> pa.Schema:
    """The types of the columns that all units hold to.

    Raises:
        DataError: Nobody looked for them.
    """
    schema = choices.arrow_schema
    if schema is None:
        raise DataError("records need the types of their columns: give choices the schema that the reader's `schema` found.")
    return schema


def no_records(path: str, wanted: str) -> DataError:
    """A source in which nothing is found."""
    return DataError(f"{path} holds no record: {wanted}.")


def cut(path: str, where: str = "") -> DataError:
    """A file that ends before its content does."""
    return DataError(f"{path} breaks off{f' {where}' if where else ''}: it was cut. Get it again.")


def broken(path: str, trouble: object, otherwise: str = "cut it there") -> DataError:
    """A file that cannot be read past a place.

    Args:
        path: The file.
        trouble: What stands there, without content.
        otherwise: What to do where the file cannot be mended.
    """
    return DataError(f"{path}: {trouble}. Mend the file, or {otherwise}.")


def no_such_column(path: str, column: str, have: list[str]) -> DataError:
    """A column that was asked for and is not there."""
    return DataError(f"{path} has no column {column!r}; it has {', '.join(have)}.")
