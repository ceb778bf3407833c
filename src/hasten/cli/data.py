"""`hasten data`: to and from the streaming store."""

from __future__ import annotations

import json as json_module
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.data_cache import cache
from hasten.cli.say import console, progress_bar, progress_on
from hasten.core.errors import CorruptError, DataError, HastenError
from hasten.report.words import bytes_words

data = typer.Typer(
    help="Convert datasets to stores, and look into them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data.command()(cache)

MIB = 2**20
SHOWN_CHARACTERS = 300


@data.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A file or a folder.")],
    destination: Annotated[Path, typer.Argument(help="The folder of the store.")],
    kind: Annotated[str | None, typer.Option("--format", help="Kind of source; found from its files unless given.")] = None,
    columns: Annotated[str, typer.Option(help="Columns to keep, separated by commas; all unless given.")] = "",
    tokenizer: Annotated[
        str | None, typer.Option(help="Make tokens on the way: a tokenizer.json, or the word bytes.")
    ] = None,
    text: Annotated[str, typer.Option(help="Column that tokens are made of.")] = "text",
    flat: Annotated[bool, typer.Option("--flat", help="Keep one long row of tokens, to cut windows from.")] = False,
    end_token: Annotated[int | None, typer.Option(help="Token put after each row; flat bytes take 256.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode images, instead of keeping their files' bytes.")] = False,
    size: Annotated[str | None, typer.Option(help="Resize decoded images: WIDTHxHEIGHT.")] = None,
    encoding: Annotated[
        str, typer.Option(help="Encoding of CSV or JSON, such as cp1252; UTF-8 and UTF-16 are detected.")
    ] = "",
    delimiter: Annotated[str, typer.Option(help="Delimiter of CSV files, or the word tab; detected unless given.")] = "",
    append: Annotated[bool, typer.Option("--append", help="Add the rows to the store that is there.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put the rows in place of those that are there.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="That work at once; the cores there are unless given.")
    ] = None,
    max_bad: Annotated[float, typer.Option(help="Share of bad records beyond which to fail.")] = 0.01,
    ray: Annotated[
        bool, typer.Option("--ray", help="Convert on a Ray cluster; a local one unless RAY_ADDRESS is set.")
    ] = False,
    block_rows: Annotated[int | None, typer.Option(min=8, help="Rows of a block, a multiple of 8.")] = None,
    shard_mib: Annotated[int, typer.Option(min=1, help="Mebibytes after which a new shard is begun.")] = 256,
    json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Convert a dataset to a store. Started again after any end, it goes on where it was."""
    from hasten.data.convert.job import Progress as Step  # noqa: PLC0415  only this verb pays for its imports
    from hasten.data.convert.job import convert as run  # noqa: PLC0415
    from hasten.data.convert.tokenizing import Tokenizing  # noqa: PLC0415

    if append and replace:
        raise HastenError("--append and --replace exclude each other: rows are added, or take the place of those there are.")
    tokenizing = None
    if tokenizer is not None:
        tokenizing = Tokenizing(tokenizer=tokenizer, column=text, flat=flat, end=end_token)
    elif flat or end_token is not None:
        raise HastenError("--flat and --end-token say how tokens are kept: give a --tokenizer too.")
    runner = None
    if ray:
        from hasten.data.convert.cluster import RayRunner  # noqa: PLC0415

        runner = RayRunner()
    with progress_on("converting") as update:

        def tell(step: Step) -> None:
            bad = f", {step.num_bad:,} set aside" if step.num_bad else ""
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
            tokenizing=tokenizing,
            mode="append" if append else "replace" if replace else "create",
            processes=processes,
            max_bad_frac=max_bad,
            block_rows=block_rows,
            shard_bytes=shard_mib * MIB,
            progress=tell,
            runner=runner,
        )
    manifest = made.manifest
    if json:
        typer.echo(
            json_module.dumps(
                {
                    "store": str(destination),
                    "version": manifest.version,
                    "num_rows": manifest.num_rows,
                    "num_bytes": manifest.num_bytes,
                    "num_records": made.num_records,
                    "num_bad": made.num_bad,
                    "num_units_resumed": made.num_resumed,
                    "quarantine": str(made.quarantine) if made.quarantine else None,
                }
            )
        )
        return
    console.print(
        f"[bold]{manifest.num_rows:,} rows[/bold], {bytes_words(manifest.num_bytes)}, version {manifest.version} of "
        f"{destination}",
        soft_wrap=True,
    )
    for remark in made.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    if made.num_resumed:
        console.print(f"{made.num_resumed} parts had been converted by an earlier run.")
    if made.quarantine:
        console.print(f"{made.num_bad:,} bad records were set aside: {made.quarantine} says which and why.", soft_wrap=True)


@data.command()
def info(
    store: Annotated[str, typer.Argument(help="Folder or URL of the store.")],
    version: Annotated[int | None, typer.Option(help="Which version; the newest unless given.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows to show. They are content: mind who reads along.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page with the plots of the lengths here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a store holds: columns, sizes, lengths, where it came from."""
    from hasten.data.store.info import describe, samples  # noqa: PLC0415  as above
    from hasten.data.store.store import Store  # noqa: PLC0415

    opened = Store(store, version=version)
    facts = describe(opened)
    shown = samples(opened, rows)
    if html is not None:
        from hasten.report.store import write_store_page  # noqa: PLC0415

        write_store_page(facts, html)
    if json:
        typer.echo(json_module.dumps({**facts, "samples": shown}, indent=2, default=str))
        return
    _show(facts, shown)
    if html is not None:
        console.print(f"\n{html}  the same with plots", soft_wrap=True)


@data.command()
def verify(
    store: Annotated[str, typer.Argument(help="Folder or URL of the store.")],
    version: Annotated[int | None, typer.Option(help="Which version; the newest unless given.")] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Also remove what killed writers and unfinished conversions left.")
    ] = False,
) -> None:
    """Read every byte again, and say which shard is not what was written. Exit 1 if any is."""
    from hasten.data.store.publish import clean as remove  # noqa: PLC0415  as above
    from hasten.data.store.store import Store  # noqa: PLC0415
    from hasten.data.store.verify import verify as check  # noqa: PLC0415

    opened = Store(store, version=version)
    with progress_bar("verifying", max(opened.manifest.num_bytes, 1)) as advance:
        damages = check(opened, progress=advance)
    for damage in damages:
        last = damage.first_row + damage.num_rows - 1
        console.print(
            f"[red]damaged[/red] shard {damage.shard} (rows {damage.first_row:,} to {last:,}) {damage.path}: "
            f"{damage.problem}",
            soft_wrap=True,
        )
    if clean:
        if "://" in store:
            raise DataError("--clean removes files of a folder; this is a URL.")
        for name in remove(Path(store)):
            console.print(f"removed {name}", soft_wrap=True)
    if damages:
        raise CorruptError(
            f"{len(damages)} of the files of {store} are not what was written: restore them from a copy, or convert the "
            f"source again."
        )
    console.print(f"sound: {len(opened):,} rows, {bytes_words(opened.manifest.num_bytes)}, every byte as it was written")


def _show(facts: dict[str, Any], shown: list[dict[str, Any]]) -> None:
    console.print(
        f"[bold]{facts['num_rows']:,} rows[/bold], {bytes_words(facts['num_bytes'])} in {facts['num_shards']:,} shards, "
        f"blocks of {facts['block_rows']:,} rows, version {facts['version']}\n",
        soft_wrap=True,
    )
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


def _size(text: str | None) -> tuple[int, int] | None:
    """Height and width from `WIDTHxHEIGHT`."""
    if text is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise HastenError(f"--size {text!r} is no size: write WIDTHxHEIGHT, such as 320x240.")
    return int(found[2]), int(found[1])
