"""`hasten explain`: all about one optimization: what it does, when it is refused, what was hoped, what was measured."""

from __future__ import annotations

import difflib
import json as json_module
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.cli.say import console, errors
from hasten.cli.tune import DEFAULT_OUT
from hasten.optimizations import catalogue, measured
from hasten.report import evidence
from hasten.report.catalogue import (
    claim_words,
    compared_words,
    explanation,
    gain_words,
    is_made_for_it,
    measurement,
    memory_words,
    place_words,
    tone,
)
from hasten.report.terminal import STYLES

UNKNOWN = 2
Row = dict[str, Any]
Line = Text | Table | Padding


def explain(
    name: Annotated[str, typer.Argument(help="An optimization, as `hasten doctor --catalogue` lists them.")],
    out: Annotated[Path, typer.Option(help="Folder of a tuning of yours, whose evidence.json is read.")] = DEFAULT_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell all about one optimization: when it helps, when it is refused, what was hoped and what was measured."""
    kinds = catalogue()
    if name not in kinds:
        errors.print(f"hasten: {_unknown(name, list(kinds))}", markup=False, soft_wrap=True)
        raise typer.Exit(UNKNOWN)
    path = out / "evidence.json"
    found = {
        **explanation(kinds[name], kinds, measured()),
        "evidence": str(path),
        "measured_here": measured_here(path, name),
    }
    if json:
        typer.echo(json_module.dumps(found, indent=2))
    else:
        _show(found)


def measured_here(path: Path, name: str) -> list[Row] | None:
    """What the tuning in that evidence file measured of an optimization, a row a candidate; None without a file.

    Raises:
        HastenError: The file is no sound evidence.
    """
    if not path.is_file():
        return None
    tuned = evidence.load(path)
    return [measurement(candidate, tuned) for candidate in tuned.rungs if candidate.name == name]


def _unknown(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [known for known in names if name and name in known and known not in near]
    hint = f"Did you mean {' or '.join(f'`{known}`' for known in near)}? " if near else ""
    return f"There is no optimization `{name}`. {hint}`hasten doctor --catalogue` lists all {len(names)}."


def _show(found: Row) -> None:
    console.print(Text.assemble((found["name"], "bold"), f"  {found['summary']}"))
    console.print()
    about = Table.grid(padding=(0, 2))
    about.add_column(style="dim", no_wrap=True)
    about.add_column()
    for label, words in _about(found):
        about.add_row(label, Text(words))
    console.print(_indented(about))
    _section("Settings", _settings(found["settings"]))
    _section("It does not fit, and says so, where", [Text(f"- {words}") for words in found["refused_when"]])
    claim, address = claim_words(found["hoped_gain"])
    hoped = [Text(claim), Text(address, style="dim")] if claim else [Text("no figure is known", style="dim")]
    _section("Hoped for: what others promise", hoped)
    why = Text(str(found["why_not_measured"]), style="dim")
    _section("Measured: recorded runs of this project", list(_measured(found["measured"] or ())) or [why])
    _section(f"Measured here: {found['evidence']}", _here(found))


def _about(found: Row) -> Iterator[tuple[str, str]]:
    yield "relieves", found["relieves_words"] or found["relieves"]
    yield "numerics", found["numerics_words"] or found["numerics"]
    yield "", f"A tuning keeps it only where {found['kept_where']}."
    if found["limits_words"]:
        yield "limits", found["limits_words"]
    if found["memory_technique"]:
        yield "", "It buys memory with time: tried only where memory is short."
    if found["setup_seconds"]:
        yield "", f"It costs about {found['setup_seconds']:.0f} s once, before it pays."
    yield "acts on", f"the seam `{found['seam']}`" + (f", after {', '.join(found['follows'])}" if found["follows"] else "")
    if found["conflicts"]:
        yield "not with", "\n".join(found["conflicts"])
    yield "source", found["source"]


def _settings(settings: list[Row]) -> list[Line]:
    if not settings:
        return [Text("none: it is on or off", style="dim")]
    grid = Table.grid(padding=(0, 2))
    for row in settings:
        untold = any(str(choice) not in row["words"] for choice in row["choices"] or ())
        choices = f"One of {', '.join(map(str, row['choices']))}. " if untold else ""
        grid.add_row(Text(f"{row['name']} = {row['default']}", style="bold"), Text(choices + row["words"]))
    return [grid]


def _measured(rows: Sequence[Row]) -> Iterator[Line]:
    for row in rows:
        chosen = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        gain = gain_words(row)
        gained = (f"{gain}  " if gain else "", STYLES[tone(row)])
        where = f"{row['outcome']} on {place_words(row)}"
        if is_made_for_it(row):
            where = f"{row['verdict']} {place_words(row)}{compared_words(row)}"
        yield Text.assemble(gained, where, (f"  {chosen}" if chosen else "", "dim"))
        fresh = row["how"] == "confirmation" or (is_made_for_it(row) and "epoch" not in row["compared"])
        runs = f"{row['pairs']} pairs, {'fresh processes' if fresh else 'in turns'}; " if gain else ""
        day = str(row["created"] or "")[:10]
        yield _indented(Text("; ".join(filter(None, (memory_words(row), row["reason"])))))
        yield _indented(Text(f"{runs}{row['machine']}; {day}, {row['commit'] or 'no commit'}", style="dim"))


def _here(found: Row) -> list[Line]:
    if found["measured_here"] is None:
        return [Text(f"nothing yet: hasten tune TARGET --out {Path(found['evidence']).parent}", style="dim")]
    return list(_measured(found["measured_here"])) or [Text("that tuning did not come to it", style="dim")]


def _section(title: str, lines: Sequence[Line]) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(_indented(line))


def _indented(line: Line) -> Padding:
    return Padding(line, (0, 0, 0, 2))
