"""`upshift doctor`: what this machine can do, and what is misconfigured, with the fix."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from upshift.cli.say import console
from upshift.core.machine import Machine, read_machine
from upshift.optimizations import catalogue

SMALL_SHARED_MEMORY = 1 << 30


@dataclass(frozen=True)
class Advice:
    """Something misconfigured, and how to mend it."""

    problem: str
    fix: str


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what this machine can do, each value with its reason, and what to mend."""
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
