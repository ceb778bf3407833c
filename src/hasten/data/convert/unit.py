"""Convert one unit in a worker process, and leave the result for the publishing process."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hasten.core.files import write_atomically
from hasten.data.convert.choose import reader_named
from hasten.data.convert.contract import Bad, Choices, FileFolder, Note, ReadPart, Unit
from hasten.data.convert.partitions import with_columns
from hasten.data.convert.privately import privately
from hasten.data.convert.quarantine import BAD, line_of, open_private
from hasten.data.convert.reasons import reason_of, tallied
from hasten.data.convert.tokenizing import Tokenizing
from hasten.data.private.plan import PrivatePlan
from hasten.data.store.write import ShardWriter, Written

DONE = "done.json"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Describe a unit to convert, and how.

    Attributes:
        number: Number of the unit; rows are published in this order.
        unit: What to read.
        reader: Name of the reader.
        choices: Options for the reader.
        partitions: Names and types of columns whose values are in the names of folders.
        tokenizing: Tokenization of the rows; None for none.
        private: What is replaced and encrypted; None for nothing. It names the files of keys, and does not contain keys.
        store: Folder of the store.
        folder: Folder of this unit only.
        block_rows: Number of rows per block.
        shard_bytes: Size at which a new shard is started, in bytes.
    """

    number: int
    unit: Unit
    reader: str
    choices: Choices
    partitions: tuple[tuple[str, str], ...]
    tokenizing: Tokenizing | None
    private: PrivatePlan | None
    store: str
    folder: str
    block_rows: int
    shard_bytes: int


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Describe the result of converting a unit.

    Attributes:
        number: Number of the unit.
        written: Shards of the unit.
        num_records: Number of records used. It differs from the number of rows if tokens are concatenated.
        num_bad: Number of records quarantined.
        num_bytes: Size of the unit in the source, in bytes.
        is_lost: True if the unit, with possibly many records, was not read to its end.
        reasons: Why records were quarantined, with counts.
        notes: What was skipped or interpreted, with counts.
    """

    number: int
    written: Written
    num_records: int
    num_bad: int
    num_bytes: int
    is_lost: bool
    reasons: Mapping[str, int]
    notes: Mapping[str, int]

    @classmethod
    def load(cls, folder: Path) -> Converted | None:
        """Load the result of an earlier run from a unit's folder; None if the unit was not completed."""
        try:
            text = (folder / DONE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        read = json.loads(text)
        written = {**read.pop("written"), "folder": str(folder)}  # the store may have moved
        return cls(written=Written(**{**written, "schema": bytes.fromhex(written["schema"])}), **read)

    def save(self, folder: Path) -> None:
        """Save the result in the unit's folder, which marks the unit as completed."""
        read = asdict(self)
        read["written"]["schema"] = self.written.schema.hex()
        write_atomically(folder / DONE, json.dumps(read))


def convert_unit(task: Task) -> Converted:
    """Convert a unit, or load the result of an earlier run."""
    folder = Path(task.folder)
    done = Converted.load(folder)
    if done is not None:
        return done
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    records, is_lost = 0, False
    reasons, notes = Counter[str](), Counter(dict(task.unit.notes))
    writer = ShardWriter(task.store, block_rows=task.block_rows, shard_bytes=task.shard_bytes, folder=folder)
    with writer, open_private(folder / BAD) as quarantine:
        for part in privately(task.private, task.unit, _read(task)) if task.private else _read(task):
            if isinstance(part, Note):
                notes[part.words] += part.count
            elif isinstance(part, Bad):
                quarantine.write(line_of(part))
                reasons[part.reason] += 1
                is_lost |= part.is_rest
            else:
                records += _count(part)
                writer.write(task.tokenizing(part) if task.tokenizing else part)
        written = writer.finish()
    converted = Converted(
        number=task.number,
        written=written,
        num_records=records,
        num_bad=reasons.total(),
        num_bytes=task.unit.num_bytes,
        is_lost=is_lost,
        reasons=tallied(reasons.items()),
        notes=dict(notes),
    )
    converted.save(folder)
    return converted


def _read(task: Task) -> Iterator[ReadPart]:
    """Yield what a reader finds in a unit. An exception quarantines the rest of the unit, unless it concerns all of them."""
    unit, reader = task.unit, reader_named(task.reader)
    if unit.problem:
        yield Bad(unit.path, "the file", unit.problem, is_rest=not issubclass(reader, FileFolder))
        return
    records, types = 0, {name: pa.type_for_alias(kind) for name, kind in task.partitions}
    try:
        for part in reader.read(unit, task.choices):
            records += 0 if isinstance(part, (Bad, Note)) else _count(part)
            yield with_columns(part, unit, types) if isinstance(part, pa.Table) and types else part
    except Exception as error:  # noqa: BLE001  a damaged file ends no conversion; `reason_of` raises what does
        position = f"after {records:,} records" if records else "the file"
        yield Bad(unit.path, position, reason_of(error), is_rest=True)


def _count(rows: Any) -> int:
    return int(rows.num_rows) if isinstance(rows, pa.Table) else len(next(iter(rows.values()), ()))
