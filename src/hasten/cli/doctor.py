"""`hasten doctor`: report what this machine can do, what is misconfigured with the fix, and what Hasten can try."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption
from hasten.cli.say import console, give_json, say
from hasten.core.card import Bottleneck

if TYPE_CHECKING:
    from hasten.core.machine import Machine

SMALL_SHARED_MEMORY = 1 << 30
"""Bytes of shared memory below which loader workers may fail."""
NAME_CELLS = 24
GAIN_CELLS = 38
"""Width of `9.93x (8.48 to 9.99) NaiveDrawnWeather`."""
WIDE_CELLS = 100
"""Narrower terminals get an entry of the catalogue on lines of its own instead of in columns."""


@dataclass(frozen=True)
class Advice:
    """A misconfiguration, and how to fix it."""

    problem: str
    fix: str


def doctor(
    json: JsonOption = None,
    catalogued: Annotated[
        bool, typer.Option("--catalogue", help="List every technique, with its expected and its measured gain.")
    ] = False,
) -> None:
    """Report this machine's capabilities, each with its reason, and any problems with fixes; or the catalogue."""
    if catalogued:
        _show_catalogue(json)
        return
    from hasten.core.machine import read_machine
    from hasten.report.words import key_words, value_words

    machine = read_machine()
    problems = advise(machine)
    if json is not None and give_json(json, _report(machine, problems)):
        return
    say(f"{machine.summary()}\n", "bold")
    for name, reading in machine.to_dict().items():
        value, reason = (reading["value"], reading["reason"]) if isinstance(reading, dict) else (reading, "")
        say(Text.assemble((f"{key_words(name)}: ", "bold"), value_words(name, value)))
        if reason:
            console.print(Padding(Text(str(reason), "dim"), (0, 0, 0, 2)))
    console.print()
    for item in problems:
        say(Text.assemble(("! ", "yellow"), f"{item.problem}\n  {item.fix}"))
    if not problems:
        say("No problems found.", "green")


def _report(machine: Machine, problems: list[Advice]) -> dict[str, Any]:
    """Return the report as plain data, with the names of all techniques."""
    from hasten.optimizations import catalogue

    names = [
        {"name": name, "numerics": kind.card.numerics, "relieves": kind.card.relieves, "summary": kind.card.summary}
        for name, kind in catalogue().items()
    ]
    advice = [asdict(item) for item in problems]
    return {"machine": machine.to_dict(), "summary": machine.summary(), "advice": advice, "optimizations": names}


def _show_catalogue(json: Any) -> None:
    from hasten.optimizations import catalogue, measured
    from hasten.report.catalogue import entry

    entries = [entry(kind, measured()) for kind in catalogue().values()]
    if give_json(json, entries):
        return
    say(Text.assemble((f"{len(entries)} techniques.", "bold"), " A ratio above 1 is faster; its interval is in brackets."))
    say(
        "Measured: in recorded tunings of this project, or alone on a small job made for it. "
        "Expected: as others report it for their machines.",
        "dim",
    )
    for bottleneck in Bottleneck:
        rows = [row for row in entries if row["relieves"] == bottleneck]
        if rows:
            console.print()
            if console.width >= WIDE_CELLS:
                console.print(_catalogue_table(bottleneck, rows))
            else:
                _print_entries(bottleneck, rows)
    say(
        Text.assemble(
            "\nEverything about one: ", ("hasten explain NAME", "bold"), ". What pays on your job: ",
            ("hasten tune TARGET", "bold"), ".",
        )
    )  # fmt: skip


def _catalogue_table(bottleneck: str, rows: list[dict[str, Any]]) -> Table:
    grid = Table(box=None, padding=(0, 2, 1, 0), header_style="dim", expand=True)
    grid.add_column(Text(bottleneck, style="bold not dim"), width=NAME_CELLS)
    grid.add_column("numerics", width=8)
    grid.add_column("measured", width=GAIN_CELLS)
    grid.add_column("expected", ratio=1)
    for row in rows:
        grid.add_row(
            Text.assemble((row["name"], "bold"), "\n", row["summary"]), row["numerics"], _measured(row), _expected(row)
        )
    return grid


def _print_entries(bottleneck: str, rows: list[dict[str, Any]]) -> None:
    """Print each entry on two lines: name and range of the measured gains, then the summary."""
    say(bottleneck, "bold underline")
    for row in rows:
        say(Text.assemble((row["name"], "bold"), (f"  {row['numerics']}", "dim"), f"  {_range(row)}"))
        console.print(Padding(Text(row["summary"], "dim"), (0, 0, 0, 2)))


def _range(row: dict[str, Any]) -> str:
    """The range of the measured gains in tunings, and on jobs made for the technique; or why there is none."""
    from hasten.report.catalogue import is_made_for_it
    from hasten.report.words import ratio_words

    if not row["measured"]:
        return str(row["why_not_measured"]).partition(": ")[0]
    parts = []
    for made, words in ((False, "in tunings"), (True, "on a job made for it")):
        ratios = [item["ratio"] for item in row["measured"] if is_made_for_it(item) == made and item["ratio"] is not None]
        ends = dict.fromkeys(map(ratio_words, (min(ratios), max(ratios)))) if ratios else {}
        parts += [f"{' to '.join(ends)} {words}"] if ends else []
    return ", ".join(parts)


def _measured(row: dict[str, Any]) -> Text:
    """The measured gains, a line each, or why there is none."""
    from hasten.report.catalogue import gain_words, job_words, memory_words, tone
    from hasten.report.terminal import STYLES

    if not row["measured"]:
        return Text(str(row["why_not_measured"]).partition(": ")[0], style="dim")
    lines = []
    for found in row["measured"]:
        memory = memory_words(found)
        words = f" {job_words(found)}" + (f"\n{memory}" if memory else "")
        lines.append(Text.assemble((gain_words(found), STYLES[tone(found)]), (words, "dim")))
    return Text("\n").join(lines)


def _expected(row: dict[str, Any]) -> Text:
    """The gain that others report."""
    from hasten.report.catalogue import claim_words

    claim, _ = claim_words(row["hoped_gain"])
    return Text(claim or "-", style="" if claim else "dim")


def advise(machine: Machine) -> list[Advice]:
    """Return what is misconfigured: a pure function of the machine."""
    found = []
    cores, threads = machine.cores.value, machine.threads.value
    if threads > cores:
        found.append(Advice(f"PyTorch uses {threads} threads on {cores} cores.", f"Set OMP_NUM_THREADS={cores}."))
    if machine.cxx_compiler.value is None:
        found.append(Advice(f"torch.compile cannot build CPU code: {machine.cxx_compiler.reason}", "Install g++."))
    if machine.accelerators.value and machine.torch_build.value == "cpu":
        found.append(
            Advice("There is an accelerator, but this PyTorch is built for the CPU.", "Install a CUDA or ROCm build.")
        )
    if 0 < machine.shared_memory_bytes.value < SMALL_SHARED_MEMORY:
        size = f"Shared memory has {machine.shared_memory_bytes.value / 2**20:.0f} MiB"
        found.append(Advice(f"{size}: loader workers may die of bus errors.", "Run the container with --shm-size=2g."))
    return found
