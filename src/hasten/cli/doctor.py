"""`hasten doctor`: what this machine can do, what is misconfigured, with the fix, and what Hasten can try."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.say import console
from hasten.core.card import Bottleneck
from hasten.core.machine import Machine, read_machine
from hasten.optimizations import catalogue, measured
from hasten.report.catalogue import claim_words, entry, gain_words, job_words, memory_words, tone
from hasten.report.terminal import STYLES

SMALL_SHARED_MEMORY = 1 << 30
NAME_CELLS = 24
GAIN_CELLS = 38
"""As wide as `12.34x (11.09 to 13.38) CancellationJob`."""


@dataclass(frozen=True)
class Advice:
    """Something misconfigured, and how to mend it."""

    problem: str
    fix: str


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    catalogued: Annotated[
        bool, typer.Option("--catalogue", help="Show every optimization: what is hoped of it, and what was measured.")
    ] = False,
) -> None:
    """Show what this machine can do, each value with its reason, and what to mend; or the catalogue."""
    if catalogued:
        _show_catalogue(json=json)
        return
    machine = read_machine()
    found = advise(machine)
    if json:
        names = [
            {"name": name, "numerics": kind.card.numerics, "relieves": kind.card.relieves, "summary": kind.card.summary}
            for name, kind in catalogue().items()
        ]
        result = {"machine": machine.to_dict(), "summary": machine.summary(), "advice": [asdict(item) for item in found]}
        typer.echo(json_module.dumps({**result, "optimizations": names}, indent=2))
        return
    console.print(f"[bold]{machine.summary()}[/bold]\n")
    table = Table("", "value", "why", box=None)
    for name, value in machine.to_dict().items():
        if isinstance(value, dict):
            table.add_row(name, _words(value["value"]), str(value["reason"]))
        else:
            table.add_row(name, _words(value), "")
    console.print(table)
    console.print()
    for item in found:
        console.print(f"[yellow]![/yellow] {item.problem}\n  {item.fix}")
    if not found:
        console.print("[green]Nothing to mend.[/green]")


def _show_catalogue(*, json: bool) -> None:
    entries = [entry(kind, measured()) for kind in catalogue().values()]
    if json:
        typer.echo(json_module.dumps(entries, indent=2))
        return
    console.print(f"[bold]{len(entries)} optimizations.[/bold] A ratio above 1 is faster; in brackets its interval.")
    console.print(
        "[dim]Measured: in recorded tunings of this project, or alone on a small job made for it. "
        "Hoped for: as others promise, on their machines.[/dim]"
    )
    for bottleneck in Bottleneck:
        rows = [row for row in entries if row["relieves"] == bottleneck]
        if rows:
            console.print()
            console.print(_catalogue_table(bottleneck, rows))
    console.print(
        "\nAll about one: [bold]hasten explain NAME[/bold]. What pays on your job: [bold]hasten tune TARGET[/bold]."
    )


def _catalogue_table(bottleneck: str, rows: list[dict[str, Any]]) -> Table:
    grid = Table(box=None, padding=(0, 2, 1, 0), header_style="dim", expand=True)
    grid.add_column(Text(bottleneck, style="bold not dim"), width=NAME_CELLS)
    grid.add_column("numerics", width=8)
    grid.add_column("measured", width=GAIN_CELLS)
    grid.add_column("hoped for", ratio=1)
    for row in rows:
        seen = Text("\n").join(
            Text.assemble((gain_words(found), STYLES[tone(found)]), (f" {job_words(found)}{_memory(found)}", "dim"))
            for found in row["measured"] or ()
        )
        why = str(row["why_not_measured"]).partition(": ")[0]
        claim, _ = claim_words(row["hoped_gain"])
        grid.add_row(
            Text.assemble((row["name"], "bold"), "\n", row["summary"]),
            row["numerics"],
            seen if row["measured"] else Text(why, style="dim"),
            Text(claim or "-", style="" if claim else "dim"),
        )
    return grid


def _memory(found: dict[str, Any]) -> str:
    words = memory_words(found)
    return f"\n{words}" if words else ""


def advise(machine: Machine) -> list[Advice]:
    """What is misconfigured: a pure function of the machine."""
    found = []
    cores, threads = machine.cores.value, machine.threads.value
    if threads > cores:
        found.append(
            Advice(f"PyTorch uses {threads} threads on {cores} cores.", f"Set OMP_NUM_THREADS={cores} before the start.")
        )
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


def _words(value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(sorted(map(str, value))) or "none"
    return str(value)
