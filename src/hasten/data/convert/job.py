"""Convert a source to a store: in parallel, resumable after any interruption, and published atomically.

Worker processes convert the units of the source into a folder named after the conversion's settings. Running the same
command again finds the completed units and converts the rest. The store appears when all units are complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from hasten.core.errors import DataError, HastenError
from hasten.core.machine import read_cores
from hasten.data.convert.choose import reader_for, reader_named
from hasten.data.convert.contract import Choices, Reader, Unit
from hasten.data.convert.partitions import in_words as in_words_of_partitions
from hasten.data.convert.partitions import types_of_values, with_values
from hasten.data.convert.processes import in_processes
from hasten.data.convert.quarantine import BAD, write_quarantine
from hasten.data.convert.rate import check_rate
from hasten.data.convert.reasons import in_words, reason_of, tallied
from hasten.data.convert.tokenizing import Tokenizing
from hasten.data.convert.unit import Converted, Task, convert_unit
from hasten.data.private.plan import PrivatePlan
from hasten.data.store.layout import BLOCK_ROWS, QUARANTINE, WRITING, Manifest
from hasten.data.store.publish import Mode, current, exists
from hasten.data.store.write import SHARD_BYTES, publish_written


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Describe the progress of a conversion.

    Attributes:
        num_units: Number of units in the source.
        units_done: Number of completed units.
        num_bytes: Approximate size of the source.
        bytes_done: Approximate size of the completed units.
        num_records: Number of records used so far.
        num_bad: Number of records quarantined so far.
    """

    num_units: int
    units_done: int
    num_bytes: int
    bytes_done: int
    num_records: int
    num_bad: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """Describe the result of a conversion.

    Attributes:
        manifest: Manifest of the published version.
        num_records: Number of records used.
        num_bad: Number of records quarantined.
        num_resumed: Number of units completed by an earlier run.
        quarantine: File of bad records; None if there were none.
        reasons: Why records were quarantined, with counts, the commonest first.
        remarks: What the reader decided about the source, and what it skipped.
    """

    manifest: Manifest
    num_records: int
    num_bad: int
    num_resumed: int
    quarantine: Path | None
    reasons: Mapping[str, int]
    remarks: tuple[str, ...]


class Runner(Protocol):
    """Convert units with processes of this machine, or on a cluster."""

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Converted]:
        """Convert the tasks in any order, and yield each result when it is available."""
        ...


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  same name as the option
    columns: Sequence[str] = (),
    pixels: str = "bytes",
    size: tuple[int, int] | None = None,
    encoding: str = "",
    delimiter: str = "",
    grid: tuple[int, int] | None = None,
    tokenizing: Tokenizing | None = None,
    private: PrivatePlan | None = None,
    mode: Mode = "create",
    processes: int | None = None,
    max_bad_frac: float = 0.01,
    block_rows: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[Progress], None] = lambda _: None,
    runner: Runner | None = None,
) -> Result:
    """Convert a source to a store.

    A conversion that was interrupted, even by SIGKILL, resumes when it is called again with the same arguments.

    Args:
        source: A file or a folder.
        destination: Folder of the store.
        format: Name of a reader; None detects it.
        columns: Columns to convert; empty converts all.
        pixels: How images are stored: `bytes` or `decoded`.
        size: Height and width that decoded images are resized to.
        encoding: Encoding of CSV and JSON files; empty detects UTF-8 and byte order marks.
        delimiter: Delimiter of CSV files; empty detects it.
        grid: Rows and columns that fields are regridded to; None keeps their grid.
        tokenizing: Tokenization of the rows; None for none.
        private: Replace identifiers and encrypt columns as this plan says, and quarantine bad records without their content.
        mode: `create` a new store, `append` to an existing one, or `replace` all its rows in a new version.
        processes: Number of worker processes; None uses the cores available to this process.
        max_bad_frac: Maximum share of bad records before the conversion fails, 0 to 1.
        block_rows: Number of rows per block; None uses 2,048, or 2**20 for flat tokens.
        shard_bytes: Size at which a new shard is started, in bytes.
        progress: Called after every unit.
        runner: Converts the units; None uses processes of this machine.

    Raises:
        DataError: The source cannot be read, too many records are bad, or the store already exists.
        MachineError: The source requires a package that is not installed.
    """
    path, store = Path(source), Path(destination)
    if not 0 <= max_bad_frac <= 1:
        raise DataError(f"max_bad_frac must be between 0 and 1, not {max_bad_frac}.")
    have = current(store)
    if have is not None and mode == "create" and not (store / WRITING).exists():
        raise DataError(exists(store, have))
    reader = reader_named(format) if format else reader_for(path)
    person = private.person if private and private.encrypted else ""
    choices = Choices(
        columns=tuple(columns),
        pixels=pixels,
        size=size,
        encoding=encoding,
        delimiter=delimiter,
        grid=grid,
        person=person,
    )
    try:
        units, choices, partitions, remarks = _planned(path, reader, choices, have if mode == "append" else None)
    except HastenError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as {reader.name}: {reason_of(error)}.") from error
    rows = block_rows or (2**20 if tokenizing and tokenizing.flat else BLOCK_ROWS)
    if have is not None and mode == "append":
        rows = have.block_rows
    keyed = _begun(private, tokenizing, path, store)
    name = _name(path, units, (reader.name, choices, tokenizing, rows, shard_bytes, keyed), tokenizing)
    with _alone(store, name) as folder:
        tasks = [
            Task(
                number=number,
                unit=unit,
                reader=reader.name,
                choices=choices,
                partitions=partitions,
                tokenizing=tokenizing,
                private=private,
                store=str(store),
                folder=str(folder / f"{number:06d}"),
                block_rows=rows,
                shard_bytes=shard_bytes,
            )
            for number, unit in enumerate(units)
        ]
        done = {task.number: converted for task in tasks if (converted := Converted.load(Path(task.folder)))}
        resumed = len(done)
        ended = resumed == len(tasks) and _is_published(have, done.values())
        if have is not None and mode == "create" and not ended:
            raise DataError(exists(store, have))
        run = runner or Processes(processes or read_cores(environ=os.environ).value)
        _convert_rest(tasks, done, run, max_bad_frac=max_bad_frac, folder=folder, progress=progress)
        parts = [done[number] for number in range(len(tasks))]
        quarantine = write_quarantine(store, _first_shard(parts), [Path(task.folder) / BAD for task in tasks])
        # An earlier run may have been stopped right after publishing: then the version exists and only its folder is left.
        manifest = have
        notes = tallied(note for part in parts for note in part.notes.items())
        remarks += [f"{words}: {count:,}" for words, count in notes.items()]
        if manifest is None or not ended:
            if len({repr(part.written.raw) for part in parts if part.written.shards}) > 1:
                raise DataError(
                    f"{path} has rows of different types or shapes: convert them to separate stores, or set a size for "
                    f"images (--size 320x240)."
                )
            facts = {**reader.facts(units, choices), **(private.facts() if private else {})}
            provenance = {**_provenance(path, reader, parts, quarantine, remarks), **facts}
            manifest = publish_written(store, [part.written for part in parts], mode=mode, provenance=provenance)
        shutil.rmtree(folder)
    return Result(
        manifest=manifest,
        num_records=sum(part.num_records for part in parts),
        num_bad=sum(part.num_bad for part in parts),
        num_resumed=resumed,
        quarantine=store / quarantine if quarantine else None,
        reasons=tallied(reason for part in parts for reason in part.reasons.items()),
        remarks=tuple(remarks),
    )


def _begun(private: PrivatePlan | None, tokenizing: Tokenizing | None, path: Path, store: Path) -> str:
    """Write to the audit log that a private conversion begins, and return a hash of its settings and keys.

    Raises:
        DataError: It tokenizes, a key is missing, or the audit log was changed.
    """
    if private is None:
        return ""
    if tokenizing:
        raise DataError("a private conversion does not tokenize: convert first, and tokenize what `PrivatePlan.open` reads.")
    private.log("convert", {"source": str(path), "store": str(store)})
    return private.fingerprint()


class Processes:
    """Convert units in processes of this machine.

    Args:
        count: Number of processes; 1 converts in this process.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Converted]:
        """Convert the tasks."""
        yield from in_processes(convert_unit, tasks, self._count, killed=_quarantined)


def _quarantined(task: Task) -> Converted:
    """Quarantine a unit that kills its process, by running out of memory or by a fault in a library."""
    return convert_unit(replace(task, unit=replace(task.unit, problem="reading it kills the process")))


def _planned(
    path: Path, reader: type[Reader], choices: Choices, have: Manifest | None
) -> tuple[list[Unit], Choices, tuple[tuple[str, str], ...], list[str]]:
    """Return the units of a source, the choices with types, columns in the names of folders, and remarks for the user.

    Raises:
        DataError: The source is empty, or nothing in it can be read.
    """
    units = with_values(reader.units(path, choices), path)
    if not units:
        raise DataError(f"{path} is empty: there is nothing to convert.")
    usable = [unit for unit in units if not unit.problem]
    if not usable:
        problems = in_words(tallied((unit.problem, 1) for unit in units)) if len(units) > 1 else units[0].problem
        raise DataError(f"{units[0].path if len(units) == 1 else path} cannot be read: {problems.rstrip('.')}.")
    remarks = reader.remarks(usable, choices)
    columns_of_folders, choices = _partitions(path, reader, usable, choices, remarks)
    choices, partitions = _typed(reader, usable, choices, columns_of_folders, have)
    return units, choices, partitions, remarks


def _partitions(
    path: Path, reader: type[Reader], units: Sequence[Unit], choices: Choices, remarks: list[str]
) -> tuple[dict[str, pa.DataType], Choices]:
    """Return the columns in the names of folders, and the choices for the other ones. Says what is decided in the remarks.

    Raises:
        DataError: Only columns in the names of folders were requested.
    """
    types = types_of_values(units)
    above = [part for part in path.parts if "=" in part]
    if above and reader.reads_partitions:
        remarks.append(f"not read: {', '.join(above)} in the path of the source; convert the folder above to get a column")
    if not types or not reader.reads_partitions:
        remarks += [f"not read: the values in the names of folders ({', '.join(types)})"] if types else []
        return {}, choices
    schema = reader.schema(units, replace(choices, columns=()))
    in_files = schema.names if schema is not None else []
    remarks += in_words_of_partitions(types, in_files)
    of_folders = {name: kind for name, kind in types.items() if name not in in_files}
    if not choices.columns:
        return of_folders, choices
    rest = tuple(name for name in choices.columns if name not in of_folders)
    if not rest:
        wanted = ", ".join(choices.columns)
        raise DataError(f"{wanted}: not columns of the files. Add one of {', '.join(in_files)} (--columns).")
    return {name: kind for name, kind in of_folders.items() if name in choices.columns}, replace(choices, columns=rest)


def _typed(
    reader: type[Reader],
    units: Sequence[Unit],
    choices: Choices,
    columns_of_folders: Mapping[str, pa.DataType],
    have: Manifest | None,
) -> tuple[Choices, tuple[tuple[str, str], ...]]:
    """Return the choices with the types that all units must have, and the types of columns in the names of folders.

    They are those of the existing store, or inferred from the source.
    """
    types = dict(columns_of_folders)
    schema = reader.schema(units, choices)
    if have is not None and schema is not None and {*schema.names, *types} == set(have.schema.names):
        types = {name: have.schema.field(name).type for name in types}
        schema = pa.schema([part for part in have.schema if part.name not in types])
    partitions = tuple((name, str(kind)) for name, kind in types.items())
    return (choices if schema is None else replace(choices, schema=schema.serialize().to_pybytes())), partitions


def _name(path: Path, units: Sequence[Unit], chosen: tuple[object, ...], tokenizing: Tokenizing | None) -> str:
    """Name a conversion: the same for the same source and choices, and different if a source file changed."""
    digest = hashlib.sha256(repr((version("hasten"), *chosen)).encode())
    files = {str(Path(unit.path) / name) for unit in units for name in unit.files} or {unit.path for unit in units}
    if tokenizing is not None and Path(tokenizing.tokenizer).is_file():
        files.add(tokenizing.tokenizer)
    for name in sorted(files):
        try:
            stat = Path(name).stat()
        except (OSError, ValueError):  # it has vanished, is a link to nothing, or no file can have this name
            continue
        digest.update(os.fsencode(f"{name} {stat.st_size} {stat.st_mtime_ns}\n"))
    digest.update(os.fsencode(f"{path.resolve()} {len(units)}"))
    return f"convert-{digest.hexdigest()[:16]}"


@contextmanager
def _alone(store: Path, name: str) -> Iterator[Path]:
    """Provide the folder of this conversion to one process at a time. The folder is kept if the conversion fails.

    Raises:
        DataError: The same conversion is running in another process.
    """
    folder = store / WRITING / name
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"the same conversion to {store} is running in another process: wait until it ends.") from error
        yield folder
    finally:
        os.close(handle)
        if {part.name for part in folder.glob("*")} <= {"owner.lock"}:  # remove the folder if it has no results
            shutil.rmtree(folder, ignore_errors=True)
        for parent in (store / WRITING, store):
            with suppress(OSError):  # not empty
                parent.rmdir()


def _convert_rest(
    tasks: Sequence[Task],
    done: dict[int, Converted],
    run: Runner,
    *,
    max_bad_frac: float,
    folder: Path,
    progress: Callable[[Progress], None],
) -> None:
    """Convert the remaining tasks, and add the results to `done`."""
    total = sum(task.unit.num_bytes for task in tasks)

    def report() -> None:
        records, bad = (sum(getattr(part, name) for part in done.values()) for name in ("num_records", "num_bad"))
        progress(
            Progress(
                num_units=len(tasks),
                units_done=len(done),
                num_bytes=total,
                bytes_done=sum(part.num_bytes for part in done.values()),
                num_records=records,
                num_bad=bad,
            )
        )
        check_rate(done.values(), len(tasks), max_bad_frac, where=f"{folder}/*/{BAD}")

    report()
    for part in run([task for task in tasks if task.number not in done]):
        done[part.number] = part
        report()


def _is_published(have: Manifest | None, parts: Iterable[Converted]) -> bool:
    """Return True if a version already contains these parts."""
    names = {shard["name"] for part in parts for shard in part.written.shards}
    return have is not None and bool(names) and names <= {shard.name for shard in have.shards}


def _first_shard(parts: Sequence[Converted]) -> str:
    """Return a name that is unique to this conversion and stays the same when it is resumed."""
    names = (str(shard["name"]) for part in parts for shard in part.written.shards)
    return next(names, "nothing")


def _provenance(
    path: Path, reader: type[Reader], parts: Sequence[Converted], quarantine: str | None, remarks: Sequence[str]
) -> dict[str, Any]:
    """Describe what the rows are made from, and which file contains the rejected records."""
    return {
        "source": path.name.encode("utf-8", "backslashreplace").decode(),
        "format": reader.name,
        "units": len(parts),
        "records": sum(part.num_records for part in parts),
        "bad_records": sum(part.num_bad for part in parts),
        "hasten": version("hasten"),
        **({"remarks": "; ".join(remarks)} if remarks else {}),
        **({QUARANTINE: quarantine} if quarantine else {}),
    }
