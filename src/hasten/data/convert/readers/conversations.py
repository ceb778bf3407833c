"""Read conversations in JSON, one per line, and check each on the way into the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hasten.data.conversation import SCHEMA, Refusal, row_of
from hasten.data.convert.contract import Bad, Choices, Rows, Unit
from hasten.data.convert.json_text import parsed
from hasten.data.convert.readers.jsonl import Jsonl, blocks
from hasten.data.convert.refusals import no_such_column
from hasten.data.convert.typing import read_records


class Conversations(Jsonl):
    """Read conversations, one per line, into the columns of `hasten.data.conversation.SCHEMA`."""

    name: ClassVar[str] = "conversations"
    words: ClassVar[str] = "checked conversations in JSON, one per line, only with --format conversations"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Return False: conversations have no suffix of their own."""
        return False

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Return the requested columns of the schema."""
        for name in choices.columns:
            if name not in SCHEMA.names:
                raise no_such_column(units[0].path, name, SCHEMA.names)
        return pa.schema([SCHEMA.field(name) for name in choices.columns or SCHEMA.names])

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the conversations of a range of bytes."""
        for _, lines in blocks(unit, choices):
            yield from read_records(unit.path, (_found(position, line, choices.person) for position, line in lines), choices)


def _found(position: str, line: bytes, person: str) -> tuple[str, dict[str, Any] | str, bytes]:
    """Return the position, the row or the reason why there is none, and the line."""
    record = parsed(line)
    row = record if isinstance(record, str) else row_of(record)
    if isinstance(row, Refusal):
        return f"{position}, message {row.message}" if row.message else position, row.reason, line
    if isinstance(row, dict) and person and row.get(person) is None:
        return position, f"there is no {person}, so no key could erase the conversation", line
    return position, row, line
