"""Build the errors of readers, with the same message for the same problem in every format."""

from __future__ import annotations

import pyarrow as pa

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.convert.contract import Choices


def needed_types(choices: Choices) -> pa.Schema:
    """Return the types of the columns that all units must have.

    Raises:
        DataError: The types were not inferred.
    """
    schema = choices.arrow_schema
    if schema is None:
        raise DataError(
            "the column types are missing: set the schema of the choices to the result of the reader's `schema`."
        )
    return schema


def no_records(path: str, wanted: str) -> BrokenFileError:
    """Build the error for a file without records."""
    return BrokenFileError(path, f"contains no records: {wanted}.")


def truncated(path: str, where: str = "") -> BrokenFileError:
    """Build the error for a truncated file."""
    return BrokenFileError(path, f"is truncated{f' {where}' if where else ''}: copy or download it again.")


def broken(path: str, trouble: object, otherwise: str = "remove the rest") -> BrokenFileError:
    """Build the error for a file that cannot be read beyond some position.

    Args:
        path: The file.
        trouble: The problem at that position, without content.
        otherwise: What to do if the file cannot be fixed.
    """
    return BrokenFileError(path, f": {trouble}. Fix the file, or {otherwise}.")


def no_such_column(path: str, column: str, have: list[str]) -> DataError:
    """Build the error for a requested column that does not exist."""
    return DataError(f"{path} has no column {column!r}; its columns are {', '.join(have)}.")
