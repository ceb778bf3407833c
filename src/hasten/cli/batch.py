"""`hasten batch`: find how many samples to compute at once, without a change of the optimizer's batch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption
from hasten.cli.say import console, give_json, narrated, parse_duration, say
from hasten.core.errors import HastenError

if TYPE_CHECKING:
    from hasten.tune.batch.choice import MeasuredSize
    from hasten.tune.batch.search import Finding

SCAN_FRAC, MAX_SCAN_S = 0.1, 10.0
"""Time limit of the search for the longest samples: a share of the budget, and seconds."""
GIB = 2**30


def batch(
    target: Annotated[str, typer.Argument(help="package.module:Job or path/file.py:Job")],
    head_room: Annotated[float, typer.Option(help="Share of the memory to keep free.")] = 0.1,
    json: JsonOption = None,
    budget: Annotated[str, typer.Option(help="Approximate time limit: 90s, 5m.")] = "2m",
    plan: Annotated[Path | None, typer.Option(help="The plan that the job will train under. Default: none.")] = None,
) -> None:
    """Find how many samples to compute at once. The batch that the optimizer sees stays the same."""
    from hasten.core.plan import Plan
    from hasten.optimizations import catalogue
    from hasten.tune.batch.measure import TrialLab
    from hasten.tune.batch.search import search_batch
    from hasten.tune.budget import Budget
    from hasten.tune.trials.trial import TrialSetting

    if not 0.0 <= head_room < 1.0:
        raise HastenError(f"--head-room {head_room:g} is not a share: give 0 or more and less than 1. 0.1 keeps 10 % free.")
    seconds = parse_duration(budget)
    base = Plan.load(plan, catalogue()) if plan else Plan()
    with narrated(seconds) as step, tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), progress=lambda words: step(f"  {words}"))
        lab = TrialLab(setting=setting, base=base, scan_s=min(SCAN_FRAC * seconds, MAX_SCAN_S))
        found = search_batch(lab, head_room_frac=head_room, budget=Budget.begin(seconds), say=step)
    if not give_json(json, found.to_dict()):
        show(found)
    if found.chosen is None:
        raise HastenError(nothing_fits(found))


def show(found: Finding) -> None:
    """Print every size that was tried, the chosen one, and how to use it."""
    survey = found.survey
    scanned = "all" if survey.scanned == survey.num_samples else f"{survey.scanned} of the"
    say(
        f"\nLongest of {scanned} {survey.num_samples} samples: {survey.longest} {survey.unit}. "
        f"Memory limit {found.limit_bytes / GIB:.2f} GiB, of which {found.head_room_frac:.0%} stays free."
    )
    table = Table("at once", "samples/s", "interval", "peak memory", "", box=None)
    for column in table.columns[:4]:
        column.justify, column.no_wrap = "right", True
    for item in found.candidates:
        table.add_row(*_row(item, found))
    console.print(table)
    if found.chosen is not None:
        console.print()
        for line in advice(found):
            say(line)


def _row(item: MeasuredSize, found: Finding) -> list[Text]:
    chosen = found.chosen is not None and item.size == found.chosen.samples
    notes = ["chosen" if chosen else "", "current" if item.size == found.survey.batch_size else "", item.why]
    cells = [
        str(item.size),
        "-" if item.samples_per_s is None else f"{item.samples_per_s:.1f}",
        "-" if item.low is None or item.high is None else f"{item.low:.1f} to {item.high:.1f}",
        "-" if item.peak_bytes is None else f"{item.peak_bytes / GIB:.2f} GiB",
        "; ".join(note for note in notes if note),
    ]
    style = "bold green" if chosen else "" if item.fits else "dim"
    return [Text(cell, style=style) for cell in cells]


def advice(found: Finding) -> list[str]:
    """Return how to use the chosen size, in lines."""
    from hasten.tune.batch.choice import techniques

    survey, chosen = found.survey, found.chosen
    if chosen is None:
        return []
    lines = [f"Compute {chosen.samples} sample{'s' if chosen.samples > 1 else ''} at once."]
    if settings := chosen.settings():
        ((name, values),) = settings.items()
        lines += ["Put this into the plan (hasten.toml):", "", f"    [optimizations.{name}]"]
        lines += [f"    {key} = {value}" for key, value in values.items()]
        others = " and ".join(f"`{other}`" for other in techniques() if other != name)
        lines += ["", f"Do not combine it with {others}."]
    else:
        names = " nor ".join(f"`{name}`" for name in techniques())
        lines.append(f"The job already does: the plan needs neither {names}.")
    made_of = f"batch_size {survey.batch_size} x accumulation {survey.accumulation}"
    stays = f"The optimizer batch stays {found.optimizer_batch} ({made_of}): every update sees the samples it sees today."
    another_batch = (
        "Another optimizer batch would change what is learned. `hasten tune` judges that by the time to a target."
    )
    return [*lines, "", stays, another_batch]


def nothing_fits(found: Finding) -> str:
    """Explain on one line why there is no choice."""
    tried = (item for item in found.candidates if not item.why.startswith(("not tried", "not applicable")))
    smallest = next(tried, found.candidates[0])
    need = f" with a peak of {smallest.peak_bytes / GIB:.2f} GiB" if smallest.peak_bytes is not None else ""
    return (
        f"No size fits: even {smallest.size} at once{need} ({smallest.why}). Lower --head-room, shorten the longest sample "
        f"({found.survey.longest} {found.survey.unit}), or save memory: `hasten tune --objective memory`."
    )
