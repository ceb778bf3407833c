"""Text into tokens on the way into a store: by a file of the `tokenizers` library, or as its bytes.

Tokens of a row become a list column `tokens` beside the others; or, flat, the store holds nothing but one long raw column
`tokens`, from which windows are cut (`Stream(..., length=1024)`).
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
    """How text becomes tokens.

    Attributes:
        tokenizer: A file of the `tokenizers` library (`tokenizer.json`), or `bytes`.
        column: The text: strings, or messages with `role` and `content`, which are put one a line as `role: content`.
        flat: Keep nothing but one long row of tokens.
        end: A token put after each row; None puts none, or for flat bytes 256.
    """

    tokenizer: str
    column: str
    flat: bool = False
    end: int | None = None

    def __post_init__(self) -> None:
        if self.tokenizer != BYTES and not Path(self.tokenizer).is_file():
            raise DataError(f"there is no tokenizer file {self.tokenizer}: give a tokenizer.json, or the word bytes.")

    def __call__(self, rows: Rows) -> Rows:
        """The rows with their tokens."""
        table = (
            rows
            if isinstance(rows, pa.Table)
            else pa.table({k: v for k, v in rows.items() if not isinstance(v, np.ndarray)})
        )
        if self.column not in table.column_names:
            raise DataError(
                f"there is no column {self.column!r} to make tokens of; there are {', '.join(table.column_names)}."
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
        """The smallest type that holds all tokens."""
        largest = _BYTES_END if self.tokenizer == BYTES else int(self._loaded.get_vocab_size()) - 1
        return np.dtype(np.uint16) if max(largest, self.end or 0) < 2**16 else np.dtype(np.uint32)

    def _encoded(self, texts: list[str]) -> list[npt.NDArray[Any]]:
        if self.tokenizer == BYTES:
            return [np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(self.dtype) for text in texts]
        return [np.array(found.ids, self.dtype) for found in self._loaded.encode_batch(texts)]

    @cached_property
    def _loaded(self) -> Any:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the units are converted side by side already
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415  only where it is used
        except ImportError as error:
            raise MachineError("a tokenizer file needs the tokenizers library: pip install 'hasten[tokenizers]'.") from error
        try:
            return Tokenizer.from_file(self.tokenizer)
        except Exception as error:  # the library raises Exception itself
            raise DataError(f"{self.tokenizer} is no file of the tokenizers library: {error}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_loaded"}


def _text(value: Any) -> str:
    """The text of a row."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and "content" in part for part in value):
        return "".join(f"{part.get('role') or ''}: {part['content'] or ''}\n" for part in value)
    raise DataError(
        f"a {type(value).__name__} is no text: tokens are made of strings, or of messages with role and content."
    )
