"""Convert one unit: what a worker process does, and what it leaves for the one that publishes."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hasten.core.files import write_atomically
from hasten.data.convert.choose import reader_named
from hasten.data.convert.contract import Bad, Choices, Unit
from hasten.data.convert.quarantine import BAD, line_of, only_for_its_owner
from hasten.data.convert.tokenizing import Tokenizing
from hasten.data.store.write import ShardWriter, Written

DONE = "done.json"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A unit to convert, and how.

    Attributes:
        number: Of the unit; rows are published in this order.
        unit: What to read.
        reader: Its reader's name.
        choices: For the reader.
        tokenizing: Applied to its rows; None for none.
        store: Where the rows go.
        folder: Of this unit alone.
        block_rows: Rows of a block.
        shard_bytes: Bytes after which a new shard is begun.
    """

    number: int
    unit: Unit
    reader: str
    choices: Choices
    tokenizing: Tokenizing | None
    store: str
    folder: str
    block_rows: int
    shard_bytes: int


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What came of a unit.

    Attributes:
        number: Of the unit.
        written: Its shards.
        num_records: Records used. Differs from rows where tokens are laid end to end.
        num_bad: Records set aside.
        num_bytes: Bytes of the source, as the unit has it.
    """

    number: int
    written: Written
    num_records: int
    num_bad: int
    num_bytes: int

    @classmethod
    def load(cls, folder: Path) -> Converted | None:
        """What an earlier run left in a unit's folder; None where it did not end."""
        try:
            text = (folder / DONE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return cls.from_json(text, folder)

    @classmethod
    def from_json(cls, text: str, folder: Path) -> Converted:
        """Read what `to_json` wrote.

        Args:
            text: As it was written.
            folder: Of the unit, as it is seen here and now.
        """
        read = json.loads(text)
        written = {**read.pop("written"), "folder": str(folder)}  # the store may have been moved
        return cls(written=Written(**{**written, "schema": bytes.fromhex(written["schema"])}), **read)

    def to_json(self) -> str:
        """The same as text, for a file or another machine."""
        read = asdict(self)
        read["written"]["schema"] = self.written.schema.hex()
        return json.dumps(read)

    def save(self, folder: Path) -> None:
        """Leave it in the unit's folder: from here on the unit is done."""
        write_atomically(folder / DONE, self.to_json())


def convert_unit(task: Task) -> Converted:
    """Convert a unit, or take over what an earlier run made of it."""
    folder = Path(task.folder)
    done = Converted.load(folder)
    if done is not None:
        return done
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    records = bad = 0
    reader = reader_named(task.reader)
    writer = ShardWriter(task.store, block_rows=task.block_rows, shard_bytes=task.shard_bytes, folder=folder)
    with writer, only_for_its_owner(folder / BAD) as aside:
        for rows in reader.read(task.unit, task.choices):
            if isinstance(rows, Bad):
                aside.write(line_of(rows))
                bad += 1
                continue
            records += _count(rows)
            writer.write(task.tokenizing(rows) if task.tokenizing else rows)
        written = writer.finish()
    found = Converted(number=task.number, written=written, num_records=records, num_bad=bad, num_bytes=task.unit.num_bytes)
    found.save(folder)
    return found


def _count(rows: Any) -> int:
    return int(rows.num_rows) if isinstance(rows, pa.Table) else len(next(iter(rows.values()), ()))
