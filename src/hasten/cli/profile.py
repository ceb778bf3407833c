"""`hasten profile`: run a job a little, and say where its time goes and what each remedy could gain at most."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hasten.cli.say import (
    Narrator,
    RanksOption,
    console,
    narrated,
    refuse_of_a_script,
    script_command,
    write_json,
)
from hasten.core.facts import Facts, JobFacts
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.watch.profile import Study, profile_script
from hasten.train.process_group import read_shared_machine
from hasten.tune.scripts.subject import check_command
from hasten.tune.trials.trial import Trial, TrialSetting

BAR = 40
SCRIPT_SLICES = 8
"""A script is observed for so many times the length of a job's measured run: it is run as it comes, with its pauses."""


def profile(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script, after --.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the profile here as JSON.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    seconds: Annotated[float, typer.Option(help="About how long each measured run may take.", min=0.1)] = 2.5,
    ranks: RanksOption = 1,
) -> None:
    """Show phases, ceilings and the bottleneck of a job, and what each remedy could gain at most; or of a script."""
    if command := script_command(target, arguments, module=module):
        refuse_of_a_script(ranks=ranks > 1)
        of_script(command, json, seconds)
        return
    with narrated() as say, tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), progress=say, ranks=ranks)
        with Trial(setting, Plan()) as trial:
            answer = trial.call("profile", slice_s=seconds, quick=False)
    found = answer["profile"]
    found["remedies"] = remedies(answer, ranks)
    show(found)
    if json is not None:
        write_json(json, found)


def of_script(command: tuple[str, ...], json: Path | None, seconds: float) -> None:
    """Profile an unmodified script. `seconds`: about how long each run is observed."""
    check_command(command)
    say = Narrator(None)
    found = profile_script(command, Study(seconds=SCRIPT_SLICES * seconds), progress=say)
    show_phases(found)
    if found["where"]:
        console.print("\nWhere, as a share of the time:")
    for line in found["where"]:
        console.print(f"  {line['share']:6.1%}  {line['what']}  {line['file']}:{line['line']}", markup=False, soft_wrap=True)
    console.print(f"\n{found['steps']} steps were counted. Watching adds {found['own_cost_frac']:.3%} to a step.")
    if json is not None:
        write_json(json, found)


def remedies(answer: dict[str, Any], ranks: int = 1) -> list[dict[str, Any]]:
    """Every optimization with the most it could bring, or why it does not fit; best first."""
    job = JobFacts(**answer["profile"]["job"])
    facts = Facts(machine=read_shared_machine(ranks), job=job, **answer["facts"])
    found = []
    for name, kind in catalogue().items():
        fit = kind.fit(facts)
        memory = "buys memory with time" if fit.fits and kind.card.memory_technique else ""
        found.append({
            "name": name,
            "predicted_max_gain": fit.max_gain if fit.fits else None,
            "numerics": str(kind.card.numerics),
            "reason": fit.reason or memory,
        })  # fmt: skip
    return sorted(found, key=lambda item: -(item["predicted_max_gain"] or 0.0))


def show_phases(found: dict[str, Any]) -> None:
    """Print the bottleneck, the phases and the ceilings."""
    console.print(f"\n[bold]{found['bottleneck']['words']}[/bold]\n", soft_wrap=True)
    script = "ran" in found
    whole = "the time that was watched" if script else "the wall time of an epoch"
    console.print(f"One update takes {found['step_ms']:.1f} ms. Of {whole}:")
    for name, share in sorted(found["phases"].items(), key=lambda item: -item[1]):
        console.print(f"  {name:<11}{share:6.1%}  {'█' * round(share * BAR)}")
    console.print(f"\nIf one thing were free{'' if script else ', measured by running the job without it'}:")
    for name, gain in sorted(found["ceilings"].items(), key=lambda item: -item[1]):
        by = "" if not script else "  measured" if name in found["ran"] else "  estimated from its share of the time"
        console.print((f"  {name:<11}{gain:6.2f}x" if gain < 1000 else f"  {name:<11}> 1000x") + by)


def show(found: dict[str, Any]) -> None:
    """Print the profile of a job."""
    show_phases(found)
    table = Table(
        "remedy", "at most", "numerics", "", title="\nWhat each remedy could bring", title_justify="left", box=None
    )
    for item in found["remedies"]:
        gain = item["predicted_max_gain"]
        table.add_row(item["name"], f"{gain:.2f}x" if gain else "-", item["numerics"], item["reason"])
    console.print(table)
    peak, limit = found["memory"]["peak_bytes"] / 2**30, found["memory"]["limit_bytes"] / 2**30
    console.print(f"\nPeak memory {peak:.2f} of {limit:.1f} GiB. Measuring adds {found['own_cost_frac']:.3%} to an update.")
