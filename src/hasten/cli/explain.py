"""`hasten explain`: show what a technique does, when it does not apply, what gain others report and what was measured."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption, technique_names
from hasten.cli.say import console, give_json, say_error
from hasten.cli.tune import DEFAULT_OUT

UNKNOWN = 2
"""Exit status for a name that is not in the catalogue."""
Row = dict[str, Any]
Line = Text | Table | Padding


def explain(
    name: Annotated[
        str, typer.Argument(help="A technique, as listed by `hasten doctor --catalogue`.", autocompletion=technique_names)
    ],
    out: Annotated[Path, typer.Option(help="Folder of your own tuning, whose evidence.json is read.")] = DEFAULT_OUT,
    json: JsonOption = None,
) -> None:
    """Show everything known about one technique: when it helps, when it does not apply, and what was measured."""
    from hasten.optimizations import catalogue, measured
    from hasten.report.catalogue import explanation

    kinds = catalogue()
    if name not in kinds:
        say_error(_unknown(name, list(kinds)))
        raise typer.Exit(UNKNOWN)
    path = out / "evidence.json"
    found = {
        **explanation(kinds[name], kinds, measured()),
        "evidence": str(path),
        "measured_here": measured_here(path, name),
    }
    if not give_json(json, found):
        _show(found)


def measured_here(path: Path, name: str) -> list[Row] | None:
    """Return what a tuning measured of a technique, one row for each candidate; None if there is no evidence file.

    Raises:
        HastenError: The file is not valid evidence.
    """
    from hasten.report import evidence
    from hasten.report.catalogue import measurement

    if not path.is_file():
        return None
    tuned = evidence.load(path)
    return [measurement(candidate, tuned) for candidate in tuned.rungs if candidate.name == name]


def _unknown(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [known for known in names if name and name in known and known not in near]
    hint = f"Did you mean {' or '.join(f'`{known}`' for known in near)}? " if near else ""
    return f"There is no technique `{name}`. {hint}`hasten doctor --catalogue` lists all {len(names)}."


def _show(found: Row) -> None:
    from hasten.report.catalogue import claim_words

    console.print(Text.assemble((found["name"], "bold"), f"  {found['summary']}"))
    console.print()
    about = Table.grid(padding=(0, 2))
    about.add_column(style="dim", no_wrap=True)
    about.add_column()
    for label, words in _about(found):
        about.add_row(label, Text(words))
    console.print(_indented(about))
    _section("Settings", _settings(found["settings"]))
    _section("Does not apply when", [Text(f"- {words}") for words in found["refused_when"]])
    claim, address = claim_words(found["hoped_gain"])
    expected = [Text(claim), Text(address, style="dim")] if claim else [Text("no figure is known", style="dim")]
    _section("Expected: as others report it", expected)
    why = Text(str(found["why_not_measured"]), style="dim")
    _section("Measured: in recorded runs of this project", list(_measured(found["measured"] or ())) or [why])
    _section(f"Measured here: {found['evidence']}", _here(found))


def _about(found: Row) -> Iterator[tuple[str, str]]:
    yield "relieves", found["relieves_words"] or found["relieves"]
    yield "numerics", found["numerics_words"] or found["numerics"]
    yield "", f"A tuning keeps it only if {found['kept_where']}."
    if found["limits_words"]:
        yield "limits", found["limits_words"]
    if found["memory_technique"]:
        yield "", "Trades time for memory: tried only if memory is short."
    if found["setup_seconds"]:
        yield "", f"Costs about {found['setup_seconds']:.0f} s once."
    yield "acts on", f"the seam `{found['seam']}`" + (f", after {', '.join(found['follows'])}" if found["follows"] else "")
    if found["conflicts"]:
        yield "not with", "\n".join(found["conflicts"])
    yield "source", found["source"]


def _settings(settings: list[Row]) -> list[Line]:
    if not settings:
        return [Text("none: on or off", style="dim")]
    grid = Table.grid(padding=(0, 2))
    for row in settings:
        missing = any(str(choice) not in row["words"] for choice in row["choices"] or ())
        choices = f"One of {', '.join(map(str, row['choices']))}. " if missing else ""
        grid.add_row(Text(f"{row['name']} = {row['default']}", style="bold"), Text(choices + row["words"]))
    return [grid]


def _measured(rows: Sequence[Row]) -> Iterator[Line]:
    from hasten.report.catalogue import (
        compared_words,
        gain_words,
        is_made_for_it,
        memory_words,
        place_words,
        row_outcome_words,
        tone,
    )
    from hasten.report.terminal import STYLES

    for row in rows:
        chosen = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        gain = gain_words(row)
        gained = (f"{gain}  " if gain else "", STYLES[tone(row)])
        where = f"{row_outcome_words(row)} on {place_words(row)}"
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
    return list(_measured(found["measured_here"])) or [Text("that tuning did not reach it", style="dim")]


def _section(title: str, lines: Sequence[Line]) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines:
        if isinstance(line, Text) and "://" in line.plain:  # an address stays whole
            console.print(Text.assemble("  ", line), soft_wrap=True)
        else:
            console.print(_indented(line))


def _indented(line: Line) -> Padding:
    return Padding(line, (0, 0, 0, 2))
