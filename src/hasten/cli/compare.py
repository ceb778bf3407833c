"""`hasten compare`: two plans of one job, in fresh interleaved processes, with a verdict."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.command import JsonOption
from hasten.cli.say import RanksOption, give_json, narrated, parse_duration, say
from hasten.core.errors import PlanError

if TYPE_CHECKING:
    from hasten.core.plan import Plan
    from hasten.tune.proof.compare import Comparison
    from hasten.tune.trials.trial import TrialSetting

TWO = 2
COUNTED_S = 2.5
"""Seconds that the counted updates of a process take, unless `--updates` says how many there are."""
MIN_UPDATES, MAX_UPDATES = 8, 1000
BELOW, NOT_MEASURED = 1, 2
"""Exit statuses of `--fail-below`."""


def compare(
    target: Annotated[str, typer.Argument(help="package.module:Job or path/file.py:Job")],
    plan: Annotated[list[Path], typer.Option(help="A plan file. Give it twice, base first; '-' is the empty plan.")],
    json: JsonOption = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates counted in each process. Default: as many as take a few seconds.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Start no further pair after this time: 90s, 5m.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the experiment.")] = None,
    sequential: Annotated[bool, typer.Option("--sequential", help="Run one process at a time, to save memory.")] = False,
    quality: Annotated[bool, typer.Option("--quality", help="Compare the held-out quality as well.")] = False,
    fail_below: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="RATIO", help="For CI: exit with 1 if the second plan is slower than RATIO times the first."
        ),
    ] = None,
    ranks: RanksOption = 1,
) -> None:
    """Compare two plans in paired, interleaved, fresh processes. A ratio above 1 means that the second is faster.

    With --fail-below RATIO, exits with 1 if the whole interval of the ratio is below RATIO, and with 2 if nothing could be
    measured. To fail on a certain slowdown of more than 5 %: --fail-below 0.95.
    """
    if len(plan) != TWO:
        raise PlanError(
            f"compare needs --plan twice, base first, and got it {len(plan)} time(s). `--plan -` is the empty plan."
        )
    from hasten.core.plan import Plan
    from hasten.core.target import load_job
    from hasten.optimizations import catalogue
    from hasten.tune.proof.compare import compare as compare_plans
    from hasten.tune.proof.compare import held_out_verdict
    from hasten.tune.trials.pair import TURNS, Design
    from hasten.tune.trials.trial import TrialSetting

    deadline = monotonic() + parse_duration(budget) if budget else None
    base, candidate = (Plan() if str(path) == "-" else Plan.load(path, catalogue()) for path in plan)
    job = load_job(target)
    with narrated() as step, tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), progress=lambda words: step(f"  {words}"), ranks=ranks)
        step("comparing in fresh processes")
        design = Design(
            updates=updates or count_updates(setting, base),
            uneven=job.overrides("length"),
            seed=job.seed if seed is None else seed,
            quality=job.quality if quality else None,
            deadline=deadline,
            turns=1 if sequential else TURNS,
        )

        def on_pair(so_far: Comparison) -> None:
            step(f"pair {len(so_far.metrics['A'])} of at most {design.looks[-1]}")

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
    if not give_json(json, result):
        show(result, base, candidate)
    if fail_below is not None and (status := status_below(result, fail_below)):
        raise typer.Exit(status)


def status_below(result: dict[str, Any], least: float) -> int:
    """Return the exit status of `--fail-below`: 1 if the whole interval is below `least`, 2 if there is no interval."""
    if result["high"] is None:
        return NOT_MEASURED
    return BELOW if result["high"] < least else 0


def count_updates(setting: TrialSetting, plan: Plan) -> int:
    """Return how many updates take a few seconds under `plan`."""
    from hasten.tune.trials.trial import Trial

    with Trial(setting, plan) as trial:
        trial.call("warm", updates=2)
        times = trial.call("run", updates=3)["times"]
    return int(min(max(COUNTED_S * len(times) / sum(times), MIN_UPDATES), MAX_UPDATES))


def show(result: dict[str, Any], base: Plan, candidate: Plan) -> None:
    """Print a comparison."""
    names = f"[{', '.join(candidate.names) or 'empty'}] against [{', '.join(base.names) or 'empty'}]"
    if result["ratio"] is None:
        say(f"{names}: undecided: {result['why']}")
        return
    interval = f"{result['ratio']:.3f}x ({result['low']:.3f} to {result['high']:.3f}, {result['pairs']} pairs)"
    say(f"{names}: {result['verdict']}: {interval}; {result['why']}")
    if "quality" in result:
        say(f"held-out {result['quality']['metric']}: {result['quality']['verdict']}: {result['quality']['why']}")
