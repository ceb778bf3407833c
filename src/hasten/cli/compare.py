"""`hasten compare`: two plans of one job, in fresh interleaved processes, with a verdict."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from hasten.cli.say import RanksOption, console, narrated, parse_duration, write_json
from hasten.core.errors import PlanError
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.tune.proof.compare import Comparison, held_out_verdict
from hasten.tune.proof.compare import compare as compare_plans
from hasten.tune.trials.pair import TURNS, Design
from hasten.tune.trials.trial import Trial, TrialSetting

TWO = 2
COUNTED_S = 2.5
MIN_UPDATES, MAX_UPDATES = 8, 1000


def compare(
    target: Annotated[str, typer.Argument(help="package.module:Job or path/file.py:Job")],
    plan: Annotated[
        list[Path], typer.Option(help="A plan file; give it twice, base first. An empty file name '-' is no plan.")
    ],
    json: Annotated[Path | None, typer.Option(help="Write the comparison here as JSON.")] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates counted in each process; chosen by time unless given.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Start no further pair after this time: 90s, 5m.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the experiment.")] = None,
    sequential: Annotated[bool, typer.Option("--sequential", help="One process at a time, to save memory.")] = False,
    quality: Annotated[bool, typer.Option("--quality", help="Compare the held-out quality as well.")] = False,
    ranks: RanksOption = 1,
) -> None:
    """Compare two plans in paired, interleaved, fresh processes; a ratio above 1 means the second is faster."""
    if len(plan) != TWO:
        raise PlanError(
            f"compare needs --plan twice, base first; it was given {len(plan)} time(s). `--plan -` is the empty plan."
        )
    deadline = monotonic() + parse_duration(budget) if budget else None
    base, candidate = (Plan() if str(path) == "-" else Plan.load(path, catalogue()) for path in plan)
    job = load_job(target)
    with narrated() as say, tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), progress=lambda words: say(f"  {words}"), ranks=ranks)
        say("comparing in fresh processes")
        design = Design(
            updates=updates or count_updates(setting, base),
            uneven=job.overrides("length"),
            seed=job.seed if seed is None else seed,
            quality=job.quality if quality else None,
            deadline=deadline,
            turns=1 if sequential else TURNS,
        )

        def on_pair(so_far: Comparison) -> None:
            say(f"pair {len(so_far.metrics['A'])} of at most {design.looks[-1]}")

        found = compare_plans(setting, base, candidate, design, on_pair=on_pair)
    result = {**found.to_dict(), "ranks": ranks}
    if quality and job.quality is not None:
        judged = held_out_verdict(found, job.quality)
        result["quality"] = {
            "metric": job.quality.metric,
            "verdict": judged.verdict,
            "why": judged.why,
            "seeds": found.metrics,
        }
    show(result, base, candidate)
    if json is not None:
        write_json(json, result)


def count_updates(setting: TrialSetting, plan: Plan) -> int:
    """Updates that take a few seconds under `plan`."""
    with Trial(setting, plan) as trial:
        trial.call("warm", updates=2)
        times = trial.call("run", updates=3)["times"]
    return int(min(max(COUNTED_S * len(times) / sum(times), MIN_UPDATES), MAX_UPDATES))


def show(result: dict[str, Any], base: Plan, candidate: Plan) -> None:
    """Print a comparison."""
    names = f"[{', '.join(candidate.names) or 'empty'}] against [{', '.join(base.names) or 'empty'}]"
    if result["ratio"] is None:
        console.print(f"{names}: undecided: {result['why']}", markup=False)
        return
    interval = f"{result['ratio']:.3f}x ({result['low']:.3f} to {result['high']:.3f}, {result['pairs']} pairs)"
    console.print(f"{names}: {result['verdict']}: {interval}; {result['why']}", markup=False, soft_wrap=True)
    if "quality" in result:
        console.print(f"held-out {result['quality']['metric']}: {result['quality']['verdict']}: {result['quality']['why']}")
