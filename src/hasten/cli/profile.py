"""`hasten profile`: run a job briefly, and show where its time goes and what each remedy could gain at most."""

from __future__ import annotations

import shlex
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption
from hasten.cli.say import (
    STDOUT,
    Narrator,
    RanksOption,
    console,
    give_json,
    narrated,
    refuse_of_a_script,
    say,
    say_error,
    script_command,
    stdout_to_stderr,
)
from hasten.cli.tune import AllOption

BAR = 40
"""Width of the bar of the whole, in characters."""
SCRIPT_SLICES = 8
"""A script is observed for this many times the length of a job's measured run, because it runs at its own pace."""
FAILED = 4
"""Exit status if the script failed while it was watched. What was measured until then is shown."""
ONE_PROCESS_WORDS = (
    "Only scripts in one process can be tuned. If this one can train in one process, tune it without torch.distributed.run."
)
ANCHOR_WORDS = {
    "parameters": " by changes of the parameters, because no optimizer of torch.optim steps",
    "passes": " by gradient computations, because neither an optimizer of torch.optim nor the parameters showed any",
    "marks": " by hasten.step()",
}
"""How steps were counted, after the number of steps."""
INTERRUPTED = 130
"""Exit status if the script was interrupted by Ctrl-C."""


def profile(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script, after --.")] = None,
    json: JsonOption = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    seconds: Annotated[float, typer.Option(help="Approximate length of each measured run, in seconds.", min=0.1)] = 2.5,
    ranks: RanksOption = 1,
    every: AllOption = False,
) -> None:
    """Show phases, measured ceilings and the bottleneck of a job or script, and what each remedy could gain at most.

    Exits with 4 if a script failed after its second step: what was measured until then is shown.
    """
    if command := script_command(target, arguments, module=module):
        refuse_of_a_script(ranks=ranks > 1)
        of_script(command, json, seconds)
        return
    from hasten.core.plan import Plan
    from hasten.tune.trials.trial import Trial, TrialSetting

    with narrated() as step, tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), progress=step, ranks=ranks)
        with Trial(setting, Plan()) as trial:
            answer = trial.call("profile", slice_s=seconds, quick=False)
    found = answer["profile"]
    found["remedies"] = remedies(answer, ranks)
    if not give_json(json, found):
        show(found, f"hasten tune {shlex.quote(target)}{f' --ranks {ranks}' if ranks > 1 else ''}", every=every)


def of_script(command: tuple[str, ...], json: Path | None, seconds: float) -> None:
    """Profile an unmodified script.

    Args:
        command: The script, or `-m` and a module, and its arguments.
        json: Where to write the profile.
        seconds: Approximate length of each measured run.
    """
    from hasten.script.entry.command import check_command
    from hasten.script.watch.profile import Study, failure_words, profile_script

    check_command(command)
    with stdout_to_stderr(where=json == STDOUT):
        found = profile_script(command, Study(seconds=SCRIPT_SLICES * seconds), progress=Narrator(None))
    failed = found["failed"]
    if not give_json(json, found):
        show_script(found, command)
    if failed:
        say_error(f"{failure_words(failed)} The profile covers {found['steps']} steps until then.")
        raise typer.Exit(INTERRUPTED if failed["exit_code"] == -signal.SIGINT else FAILED)


def show_script(found: dict[str, Any], command: tuple[str, ...]) -> None:
    """Print the profile of a script, and the next command unless the script failed."""
    from hasten.script.entry.hooks import is_agent
    from hasten.script.watch.losses import not_finite_words

    show_phases(found)
    if found["where"]:
        say("\nWhere, as a share of the time:")
    for line in found["where"]:
        say(f"  {line['share']:6.1%}  {line['what']}  {line['file']}:{line['line']}")
    cost = "" if found["own_cost_frac"] is None else f" Watching adds {found['own_cost_frac']:.3%} to a step."
    say(f"\n{found['steps']} steps were counted{ANCHOR_WORDS.get(found['anchor'], '')}.{cost}")
    if found["not_finite"]:
        say(f"\n{not_finite_words(found['not_finite'])}", "bold")
    if found["failed"]:
        say(f"\n{found['bottleneck']['words']}", "bold")
        return
    if is_agent(("python", *command)):
        show_end(found, "", ONE_PROCESS_WORDS)
        return
    begin = 2 if command[0] == "-m" else 1
    options = f" -- {shlex.join(command[begin:])}" if command[begin:] else ""
    show_end(found, f"hasten tune {shlex.join(command[:begin])}{options}")


def remedies(answer: dict[str, Any], ranks: int = 1) -> list[dict[str, Any]]:
    """Return every technique with the most it could gain, or why it does not apply; best first."""
    from hasten.core.facts import Facts, JobFacts
    from hasten.optimizations import catalogue
    from hasten.train.process_group import read_shared_machine

    job = JobFacts(**answer["profile"]["job"])
    facts = Facts(machine=read_shared_machine(ranks), job=job, **answer["facts"])
    found = []
    for name, kind in catalogue().items():
        fit = kind.fit(facts)
        memory = "trades time for memory" if fit.fits and kind.card.memory_technique else ""
        found.append({
            "name": name,
            "predicted_max_gain": fit.max_gain if fit.fits else None,
            "numerics": str(kind.card.numerics),
            "reason": fit.reason or memory,
        })  # fmt: skip
    return sorted(found, key=lambda item: -(item["predicted_max_gain"] or 0.0))


def show_phases(found: dict[str, Any]) -> None:
    """Print the phases and the ceilings."""
    script = "ran" in found
    whole = "the time that was watched" if script else "the wall time of an epoch"
    say(f"\nOne update takes {found['step_ms']:.1f} ms. Of {whole}:")
    for name, share in sorted(found["phases"].items(), key=lambda item: -item[1]):
        console.print(f"  {name:<11}{share:6.1%}  {'█' * round(share * BAR)}")
    say(f"\nIf one thing were free{'' if script else ', measured by running the job without it'}:")
    for name, gain in sorted(found["ceilings"].items(), key=lambda item: -item[1]):
        source = "" if not script else "  measured" if name in found["ran"] else "  estimated from its share of the time"
        console.print((f"  {name:<11}{gain:6.2f}x" if gain < 1000 else f"  {name:<11}> 1000x") + source)


def show(found: dict[str, Any], command: str, *, every: bool = False) -> None:
    """Print the profile of a job.

    Args:
        found: The profile, with its remedies.
        command: What to run next.
        every: List the techniques that do not apply.
    """
    show_phases(found)
    applicable = [item for item in found["remedies"] if item["predicted_max_gain"]]
    others = [item for item in found["remedies"] if not item["predicted_max_gain"]]
    say("\nWhat each remedy could gain at most:")
    table = Table("  remedy", "at most", "numerics", "", box=None, pad_edge=False)
    for item in applicable:
        table.add_row(f"  {item['name']}", f"{item['predicted_max_gain']:.2f}x", item["numerics"], item["reason"])
    console.print(table)
    if every:
        say(f"\nDo not apply ({len(others)}):")
        for item in others:
            say(Text.assemble(f"  {item['name']}  ", (item["reason"], "dim")))
    elif others:
        say(f"  {len(others)} techniques do not apply; --all lists them with the reasons.", "dim")
    peak, limit = found["memory"]["peak_bytes"] / 2**30, found["memory"]["limit_bytes"] / 2**30
    say(f"\nPeak memory {peak:.2f} of {limit:.1f} GiB. Measuring adds {found['own_cost_frac']:.3%} to an update.")
    show_end(found, command)


def show_end(found: dict[str, Any], command: str, instead: str = "") -> None:
    """Print the bottleneck and the next command: the last lines, which stay on the screen.

    Args:
        found: The profile.
        command: What to run next.
        instead: Text to print instead of the command.
    """
    from hasten.report.words import command_words

    say(f"\n{found['bottleneck']['words']}", "bold")
    if instead:
        say(instead)
        return
    say("Next:")
    say(command_words(command, console.width if console.is_terminal else len(command) + 4), "bold")
