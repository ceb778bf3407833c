"""`hasten batch`: how many samples to compute at once, while the optimizer goes on to see the batch it sees today."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.say import console, narrated, parse_duration, write_json
from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.tune.batch.choice import MeasuredSize, techniques
from hasten.tune.batch.measure import TrialLab
from hasten.tune.batch.search import Finding, search_batch
from hasten.tune.budget import Budget
from hasten.tune.trials.trial import TrialSetting

SCAN_FRAC, MAX_SCAN_S = 0.1, 10.0
"""Looking for the longest samples may take this share of the budget, and no longer than that."""
GIB = 2**30


def batch(
    target: Annotated[str, typer.Argument(help="package.module:Job or path/file.py:Job")],
    head_room: Annotated[float, typer.Option(help="Share of the memory that stays free.")] = 0.1,
    json: Annotated[Path | None, typer.Option(help="Write what was found here as JSON.")] = None,
    budget: Annotated[str, typer.Option(help="About how long it may take: 90s, 5m.")] = "2m",
    plan: Annotated[Path | None, typer.Option(help="The plan the job will train under; none is the job as it is.")] = None,
) -> None:
    """Find how many samples to compute at once; the batch that the optimizer sees stays as it is."""
    if not 0.0 <= head_room < 1.0:
        raise HastenError(f"--head-room {head_room:g} is no share: give 0 or more and less than 1; 0.1 keeps 10 % free.")
    seconds = parse_duration(budget)
    base = Plan.load(plan, catalogue()) if plan else Plan()
    with narrated() as say, tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), progress=lambda words: say(f"  {words}"))
        lab = TrialLab(setting=setting, base=base, scan_s=min(SCAN_FRAC * seconds, MAX_SCAN_S))
        found = search_batch(lab, head_room_frac=head_room, budget=Budget.begin(seconds), say=say)
    if json is not None:
        write_json(json, found.to_dict())
    show(found)
    if found.chosen is None:
        raise HastenError(nothing_fits(found))


def show(found: Finding) -> None:
    """Print what was found: every size, the chosen one, and what to do with it."""
    survey = found.survey
    seen = "all" if survey.scanned == survey.num_samples else f"{survey.scanned} of the"
    console.print(
        f"\nLongest of {seen} {survey.num_samples} samples: {survey.longest} {survey.unit}. "
        f"Memory limit {found.limit_bytes / GIB:.2f} GiB, of which {found.head_room_frac:.0%} stays free.",
        soft_wrap=True,
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
            console.print(line, markup=False, soft_wrap=True)


def _row(item: MeasuredSize, found: Finding) -> list[Text]:
    chosen = found.chosen is not None and item.size == found.chosen.samples
    notes = ["chosen" if chosen else "", "as it is" if item.size == found.survey.batch_size else "", item.why]
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
    """What to do with the chosen size, in lines."""
    survey, chosen = found.survey, found.chosen
    if chosen is None:
        return []
    lines = [f"Compute {chosen.samples} sample{'s' if chosen.samples > 1 else ''} at once."]
    if settings := chosen.settings():
        ((name, values),) = settings.items()
        lines += ["Put this into the plan (hasten.toml):", "", f"    [optimizations.{name}]"]
        lines += [f"    {key} = {value}" for key, value in values.items()]
        others = " and ".join(f"`{other}`" for other in techniques() if other != name)
        lines += ["", f"{others} must not stand beside it."]
    else:
        names = " nor ".join(f"`{name}`" for name in techniques())
        lines.append(f"The job does so by itself: neither {names} belongs in the plan.")
    made_of = f"batch_size {survey.batch_size} x accumulation {survey.accumulation}"
    stays = f"The optimizer batch stays {found.optimizer_batch} ({made_of}): every update sees the samples it sees today."
    other_question = (
        "Another optimizer batch is another question, since it changes what is learned: `hasten tune` judges it by the time "
        "to a target."
    )
    return [*lines, "", stays, other_question]


def nothing_fits(found: Finding) -> str:
    """Why there is no choice, in a line."""
    tried = (item for item in found.candidates if not item.why.startswith(("not tried", "not applicable")))
    smallest = next(tried, found.candidates[0])
    need = f" with a peak of {smallest.peak_bytes / GIB:.2f} GiB" if smallest.peak_bytes is not None else ""
    return (
        f"No size fits: even {smallest.size} at once{need} ({smallest.why}). Lower --head-room, shorten the longest sample "
        f"({found.survey.longest} {found.survey.unit}), or save memory: `hasten tune --objective memory`."
    )
