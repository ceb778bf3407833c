"""Convert text to tokens while writing a store, with a `tokenizers` file or as UTF-8 bytes.

The tokens of a row become the list column `tokens` next to the other columns. With `flat`, the store contains only one long
raw column `tokens`, from which windows are cut (`Stream(..., length=1024)`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import DataError, MachineError
from hasten.data.convert.contract import Rows

BYTES = "bytes"
_BYTES_END = 256


@dataclass(frozen=True, kw_only=True)
class Tokenizing:
    """Convert text to tokens.

    Attributes:
        tokenizer: File of the `tokenizers` library (`tokenizer.json`), or `bytes`.
        column: Text column: strings, or messages with `role` and `content`, written one per line as `role: content`.
        flat: Store only one long row of tokens.
        end: Token added after each row; None adds none, except 256 for flat bytes.
    """

    tokenizer: str
    column: str
    flat: bool = False
    end: int | None = None

    def __post_init__(self) -> None:
        if self.tokenizer != BYTES and not Path(self.tokenizer).is_file():
            raise DataError(f"the tokenizer file {self.tokenizer} does not exist: use a tokenizer.json, or the word bytes.")

    def __call__(self, rows: Rows) -> Rows:
        """Return the rows with their tokens."""
        table = (
            rows
            if isinstance(rows, pa.Table)
            else pa.table({k: v for k, v in rows.items() if not isinstance(v, np.ndarray)})
        )
        if self.column not in table.column_names:
            raise DataError(
                f"there is no column {self.column!r} to tokenize; the columns are {', '.join(table.column_names)}."
            )
        texts = [_text(value) for value in table.column(self.column).to_pylist()]
        tokens = self._encoded(texts)
        end = _BYTES_END if self.end is None and self.flat and self.tokenizer == BYTES else self.end
        if end is not None:
            tokens = [np.append(row, row.dtype.type(end)) for row in tokens]
        if self.flat:
            return {"tokens": np.concatenate(tokens) if tokens else np.empty(0, self.dtype)}
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in tokens]))).astype(np.int32)
        values = np.concatenate(tokens) if tokens else np.empty(0, self.dtype)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
        return table.append_column("tokens", column)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the smallest type that can hold all tokens."""
        largest = _BYTES_END if self.tokenizer == BYTES else int(self._loaded.get_vocab_size()) - 1
        return np.dtype(np.uint16) if max(largest, self.end or 0) < 2**16 else np.dtype(np.uint32)

    def _encoded(self, texts: list[str]) -> list[npt.NDArray[Any]]:
        if self.tokenizer == BYTES:
            return [np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(self.dtype) for text in texts]
        return [np.array(encoding.ids, self.dtype) for encoding in self._loaded.encode_batch(texts)]

    @cached_property
    def _loaded(self) -> Any:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # units already run in parallel
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415  optional dependency
        except ImportError as error:
            raise MachineError("a tokenizer file needs the tokenizers library: pip install 'hasten[tokenizers]'.") from error
        try:
            return Tokenizer.from_file(self.tokenizer)
        except Exception as error:  # the library raises Exception itself
            raise DataError(f"{self.tokenizer} is not a file of the tokenizers library: {error}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_loaded"}


def _text(value: Any) -> str:
    """Return the text of a row."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and "content" in part for part in value):
        return "".join(f"{part.get('role') or ''}: {part['content'] or ''}\n" for part in value)
    raise DataError(f"a {type(value).__name__} cannot be tokenized: use strings, or messages with role and content.")
