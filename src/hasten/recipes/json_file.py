"""Read JSON files of labels, with errors that name the file and the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hasten.recipes.findings import BadFileError
from hasten.recipes.pictures import read_text


def read_json(path: Path, encoding: str | None = None) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        encoding: Encoding of a file without a byte order mark; None is UTF-8.

    Raises:
        BadFileError: The file is empty, in another encoding, not JSON, nested too deeply, or has a number of thousands of
            digits.
    """
    text = read_text(path, encoding)
    if not text.strip():
        raise BadFileError(path, "the file is empty: export the labels again")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFileError(path, f"it is not valid JSON ({error.msg})", line=error.lineno) from error
    except RecursionError as error:
        raise BadFileError(path, "it is nested too deeply to be a file of labels") from error
    except ValueError as error:  # Python limits the digits of an integer
        raise BadFileError(path, f"it has a number that cannot be read ({error})") from error
