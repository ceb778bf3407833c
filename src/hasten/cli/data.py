"""`hasten data`: convert datasets to streaming stores, and inspect stores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption, Verbs
from hasten.cli.data_cache import cache
from hasten.cli.data_private import private
from hasten.cli.recipes import synth
from hasten.cli.say import console, give_json, progress_bar, progress_on, say
from hasten.core.errors import CorruptError, DataError, HastenError
from hasten.report.words import bytes_words

data = Verbs(help="Convert datasets to stores, and inspect stores and caches.")
data.command()(cache)
data.command()(private)
data.command()(synth)

MIB = 2**20
SHOWN_CHARACTERS = 300
"""Longest text of a sample that is shown."""
SHOWN_REASONS = 5
"""Number of reasons of bad records that are shown."""


@data.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A file or a folder.")],
    destination: Annotated[Path, typer.Argument(help="The folder of the store.")],
    kind: Annotated[str | None, typer.Option("--format", help="Kind of source. Default: found from its files.")] = None,
    columns: Annotated[str, typer.Option(help="Columns to keep, separated by commas. Default: all.")] = "",
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenize text while converting: a tokenizer.json, or `bytes`.")
    ] = None,
    text: Annotated[str, typer.Option(help="Column to tokenize.")] = "text",
    flat: Annotated[bool, typer.Option("--flat", help="Store one long row of tokens, to read windows from.")] = False,
    end_token: Annotated[int | None, typer.Option(help="Token appended to each row. Default with flat bytes: 256.")] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Store decoded images instead of the bytes of their files.")
    ] = False,
    size: Annotated[str | None, typer.Option(help="Resize decoded images: WIDTHxHEIGHT.")] = None,
    encoding: Annotated[
        str, typer.Option(help="Encoding of CSV or JSON, such as cp1252. UTF-8 and UTF-16 are detected.")
    ] = "",
    delimiter: Annotated[str, typer.Option(help="Delimiter of CSV files, or `tab`. Default: detected.")] = "",
    grid: Annotated[
        str | None, typer.Option(help="Regrid fields of NetCDF, Zarr or GRIB to equal cells: ROWSxCOLUMNS, such as 64x64.")
    ] = None,
    private: Annotated[
        Path | None,
        typer.Option(
            help="Replace identifiers and encrypt columns by the plan in this folder, made by `hasten data private`."
        ),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to the existing store.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the rows of the existing store.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of worker processes. Default: number of cores.")
    ] = None,
    max_bad: Annotated[
        float, typer.Option(help="Largest share of bad records, from 0 to 1. More is an error. Only 0 refuses a single one.")
    ] = 0.01,
    ray: Annotated[
        bool, typer.Option("--ray", help="Convert on a Ray cluster: that of RAY_ADDRESS, or a local one.")
    ] = False,
    block_rows: Annotated[int | None, typer.Option(min=8, help="Rows per block, a multiple of 8.")] = None,
    shard_mib: Annotated[int, typer.Option(min=1, help="Size of a shard, in MiB.")] = 256,
    json: JsonOption = None,
) -> None:
    """Convert a dataset to a store. If interrupted, run the same command again to continue.

    Exits with 1 if nothing was published: the source cannot be read, none of its records can be used, or more records are
    bad than --max-bad allows. Fewer bad records are left out, and the reasons are printed.
    """
    from hasten.data.convert.job import Progress as Step
    from hasten.data.convert.job import convert as run
    from hasten.data.convert.tokenizing import Tokenizing
    from hasten.data.private.plan import PrivatePlan

    if append and replace:
        raise HastenError("--append and --replace exclude each other: one adds rows, the other replaces them.")
    tokenizing = None
    if tokenizer is not None:
        tokenizing = Tokenizing(tokenizer=tokenizer, column=text, flat=flat, end=end_token)
    elif flat or end_token is not None:
        raise HastenError("--flat and --end-token apply to tokens: give a --tokenizer too.")
    plan = PrivatePlan.load(private) if private else None
    with _in_words("the conversion", is_private=plan is not None), progress_on("converting") as update:

        def report(step: Step) -> None:
            bad = f", {step.num_bad:,} quarantined" if step.num_bad else ""
            update(f"{step.num_records:,} records{bad}", step.bytes_done, max(step.num_bytes, 1))

        made = run(
            source,
            destination,
            format=kind,
            columns=[name for name in columns.split(",") if name],
            pixels="decoded" if decode or size else "bytes",
            size=_size(size),
            encoding=encoding,
            delimiter="\t" if delimiter == "tab" else delimiter,
            grid=_pair(grid, "--grid", "ROWSxCOLUMNS, such as 64x64"),
            tokenizing=tokenizing,
            private=plan,
            mode="append" if append else "replace" if replace else "create",
            processes=processes,
            max_bad_frac=max_bad,
            block_rows=block_rows,
            shard_bytes=shard_mib * MIB,
            progress=report,
            runner=_ray() if ray else None,
        )
    manifest = made.manifest
    facts = {
        "store": str(destination),
        "version": manifest.version,
        "num_rows": manifest.num_rows,
        "num_bytes": manifest.num_bytes,
        "num_records": made.num_records,
        "num_bad": made.num_bad,
        "num_units_resumed": made.num_resumed,
        "quarantine": str(made.quarantine) if made.quarantine else None,
        "reasons": dict(made.reasons),
        "remarks": list(made.remarks),
    }
    if give_json(json, facts):
        return
    size = f", {bytes_words(manifest.num_bytes)}, version {manifest.version} of {destination}"
    say(Text.assemble((f"{manifest.num_rows:,} rows", "bold"), size))
    for remark in made.remarks:
        say(remark)
    if made.num_resumed:
        say(f"{made.num_resumed} parts were already converted by an earlier run.")
    if made.quarantine:
        left_out = "1 bad record was" if made.num_bad == 1 else f"{made.num_bad:,} bad records were"
        say(f"{left_out} left out. {made.quarantine} lists them:")
        _say_reasons(made.reasons)


@data.command()
def info(
    store: Annotated[str, typer.Argument(help="Folder or URL of the store.")],
    version: Annotated[int | None, typer.Option(help="Version of the store. Default: the newest.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of rows to show. They may contain private data.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page with plots of the lengths to this file.")] = None,
    json: JsonOption = None,
) -> None:
    """Show what a store contains: columns, sizes, lengths, and its source."""
    from hasten.data.store.info import describe, samples
    from hasten.data.store.store import Store

    with _in_words("reading the store"):
        opened = Store(store, version=version)
        facts = describe(opened)
        shown = samples(opened, rows)
    if html is not None:
        from hasten.report.store import write_store_page

        write_store_page(facts, html)
    if json is not None and give_json(json, {**facts, "samples": [_plain(row) for row in shown]}):
        return
    _show(facts, shown)
    if html is not None:
        say(f"\nWrote the same with plots to {html}.")


@data.command()
def verify(
    store: Annotated[str, typer.Argument(help="Folder or URL of the store.")],
    version: Annotated[int | None, typer.Option(help="Version of the store. Default: the newest.")] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Also remove files left by killed writers and unfinished conversions.")
    ] = False,
) -> None:
    """Verify the checksums of all shards. Exits with 1 if any is corrupt."""
    from hasten.data.store.publish import clean as remove
    from hasten.data.store.store import Store
    from hasten.data.store.verify import verify as check

    with _in_words("reading the store"):
        opened = Store(store, version=version)
        with progress_bar("verifying", max(opened.manifest.num_bytes, 1)) as advance:
            damages = check(opened, progress=advance)
    for damage in damages:
        last = damage.first_row + damage.num_rows - 1
        shard = f" shard {damage.shard} (rows {damage.first_row:,} to {last:,}) {damage.path}: {damage.problem}"
        say(Text.assemble(("corrupt", "red"), shard))
    if clean:
        if "://" in store:
            raise DataError("--clean removes files from a folder, and this is a URL.")
        for name in remove(Path(store)):
            say(f"removed {name}")
    if damages:
        raise CorruptError(
            f"{len(damages)} files of {store} are corrupt: restore them from a copy, or convert the source again."
        )
    say(f"intact: {len(opened):,} rows, {bytes_words(opened.manifest.num_bytes)}, all checksums match")


def _ray() -> Any:
    from hasten.data.convert.cluster import RayRunner

    return RayRunner()


def _say_reasons(reasons: Mapping[str, int]) -> None:
    """Print the commonest reasons with their counts."""
    for reason, count in list(reasons.items())[:SHOWN_REASONS]:
        say(f"{count:8,}  {reason}")
    rest = list(reasons.values())[SHOWN_REASONS:]
    if rest:
        say(f"{sum(rest):8,}  {len(rest):,} other reasons")


@contextmanager
def _in_words(what: str, *, is_private: bool = False) -> Iterator[None]:
    """Report exceptions of the machine and of libraries in a line. Their messages may contain private text."""
    try:
        yield
    except HastenError as error:
        if is_private:
            raise error from None
        raise
    except Exception as error:
        if is_private and not isinstance(error, OSError):
            raise DataError(
                f"{what} failed: {type(error).__name__}. Try it on a part of the source, to find where."
            ) from None
        words = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{what} failed: {words}. --traceback shows where.") from error


def _show(facts: dict[str, Any], shown: list[dict[str, Any]]) -> None:
    size = f", {bytes_words(facts['num_bytes'])} in {facts['num_shards']:,} shards, "
    blocks = f"blocks of {facts['block_rows']:,} rows, version {facts['version']}\n"
    say(Text.assemble((f"{facts['num_rows']:,} rows", "bold"), size, blocks))
    table = Table("column", "type", "bytes a row", "length: median, 95 %, longest", box=None, padding=(0, 2, 0, 0))
    for column in facts["columns"]:
        length = facts["lengths"].get(column["name"])
        words = f"{length['median']:,.0f}, {length['p95']:,.0f}, {length['max']:,} {length['unit']}" if length else ""
        size = column["bytes_per_row"]
        table.add_row(Text(column["name"]), Text(column["type"]), f"{size:,.0f}" if size is not None else "", words)
    console.print(table)
    if facts["provenance"]:
        console.print()
        for name, value in facts["provenance"].items():
            console.print(Text(f"{name.replace('_', ' ')}: {value}", "dim"))
    for row in shown:
        console.print()
        for name, value in row.items():
            words = str(value)
            cut = words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}... ({len(words):,} characters)"
            console.print(Text(f"{name}: {cut}"))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with values that JSON cannot carry as text."""
    return {name: value if isinstance(value, str | int | float | bool | None) else str(value) for name, value in row.items()}


def _size(text: str | None) -> tuple[int, int] | None:
    """Return height and width from `WIDTHxHEIGHT`."""
    pair = _pair(text, "--size", "WIDTHxHEIGHT, such as 320x240")
    return None if pair is None else (pair[1], pair[0])


def _pair(text: str | None, option: str, form: str) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text)
    if found is None:
        raise HastenError(f"{option} {text!r} is not a size: write {form}.")
    return int(found[1]), int(found[2])
