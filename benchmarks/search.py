"""Compare the ladder with an exhaustive search over the same candidates: by the result and by the time.

The exhaustive search measures every subset of the candidates against the plain job, in a few short turns each. It has no
gate and checks no evidence, so its time is a lower bound for such a search. The ladder's time includes everything up to its
proof, with the profile and the comparison of the job with itself. The three best subsets and the ladder's plan are then
measured again, side by side in fresh processes. `--kept` runs the ladder again over the candidates of the exhaustive search
recorded on this machine, without repeating that search.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.record import RESULTS, ROOT, measured_commit, record
from benchmarks.rows import Row, Rows
from benchmarks.search_space import MAX_SUBSETS, Settings, declare, subsets
from benchmarks.search_verdict import arms_of, latest, summary
from benchmarks.tuning import EXAMPLES
from hasten.core.errors import HastenError
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report.evidence import Candidate
from hasten.tune.request import TuneRequest
from hasten.tune.search.job_processes import JobProcesses
from hasten.tune.search.screening import FUTILE_TURNS, Screen
from hasten.tune.session import Session
from hasten.tune.trials.pair import Design, run_in_turns
from hasten.tune.trials.trial import TrialSetting

LADDER_BUDGET_S = 900.0
"""Budget in seconds. Half is reserved for the omitted proof, so the search may take 450 s, less than a fifth of 2,400 s."""
SIDE_S = 3.0
"""Seconds that are counted for each plan in a side-by-side round."""
TRIES = 2
SIDE_TURNS, ROUNDS, MAX_ROUNDS = 20, 5, 9


def run_search(only: Sequence[str] = (), budget_s: float = 3000.0, *, kept: bool = False) -> Path:
    """Search the example jobs both ways; jobs that are not in `only` keep their last result.

    Args:
        only: Names of examples; defaults to all.
        budget_s: Time limit of the exhaustive search in seconds.
        kept: Keep the recorded exhaustive search, and run the ladder again over its candidates.

    Raises:
        HastenError: `only` has an unknown example, or there is no complete exhaustive search from this machine to keep.
    """
    if unknown := sorted(set(only) - set(EXAMPLES)):
        raise HastenError(f"There is no example {', '.join(unknown)}. Choose from {', '.join(EXAMPLES)}.")
    path = RESULTS / "search.json"
    last: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"jobs": {}}
    jobs: dict[str, Any] = last["jobs"]
    for name in only or EXAMPLES:
        rows, space = Rows(f"search-{name}"), None
        exhausted: str | None = measured_commit()
        if kept:
            exhausted, space = keep_exhaustive(rows, last, name)
        measure(name, rows, budget_s, space)
        head = {"target": EXAMPLES[name], "commit": measured_commit(), "exhaustive_commit": exhausted, "created": _now()}
        found = {**head, **summary(*_parts(rows))}
        jobs[name] = {**found, "rows": {kind: rows.of(kind) for kind in ("subset", "side")}}
        print(f"{name}: {found['verdict']}: {found['why']}", flush=True)
        path = record("search", {"jobs": jobs}, f"python -m benchmarks search --budget {budget_s:.0f}s")
        if found["complete"]:
            rows.finish()
    return path


def keep_exhaustive(rows: Rows, last: Row, name: str) -> tuple[str | None, Row]:
    """Copy the subsets of a recorded exhaustive search into `rows`; return their commit and their candidates.

    Raises:
        HastenError: There is no such search, it is incomplete, or it was measured on another machine.
    """
    job = last["jobs"].get(name)
    if job is None or not job["complete"] or last["machine_fingerprint"] != read_machine().fingerprint():
        raise HastenError(
            f"No complete exhaustive search of {name} was recorded on this machine. Measure it first, without --kept."
        )
    if not rows.of("subset"):
        for row in job["rows"]["subset"]:
            rows.add("subset", {key: value for key, value in row.items() if key != "kind"})
    return job.get("exhaustive_commit", job["commit"]), job["candidates"]


def measure(name: str, rows: Rows, budget_s: float, space: Row | None = None) -> None:
    """Measure one job: the ladder, every subset, and the best side by side. Existing entries of `rows` are not repeated.

    Args:
        name: The example.
        rows: Storage of the rows.
        budget_s: Time limit of the exhaustive search in seconds.
        space: The candidates; by default declared from the plain job's facts.
    """
    target = f"{ROOT / EXAMPLES[name]}"
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        climbed = rows.once("ladder", lambda: _climb(target, name, Path(folder) / "ladder", space))
        print(f"the ladder: [{', '.join(climbed['plan']) or 'empty'}] in {climbed['seconds']:.0f} s", flush=True)
        setting = TrialSetting(target=target, folder=Path(folder) / "exhaustive")
        _exhaust(rows, setting, climbed, budget_s)
        _side_by_side(rows, setting, climbed)


def _climb(target: str, name: str, out: Path, space: Row | None) -> Row:
    """Tune up to the proof. The candidates are declared once the plain job is known, before anything else is tried."""
    session = Session(
        TuneRequest(target=target, out=out, budget_s=LADDER_BUDGET_S), lambda words: print(f"  {words}", flush=True)
    )  # fmt: skip
    try:
        search = session.prepare()
        config, facts = search.state.config, search.state.facts
        space = space or declare(facts, catalogue(), recorded_plan(name)).to_dict()
        chosen = {item["name"]: catalogue()[item["name"]] for item in space["chosen"]}
        search.state.config = replace(config, catalogue=chosen)
        search.run()
        search.prune()
    finally:
        session.close("done")
    return {
        "seconds": session.budget.spent,
        "updates": config.updates,
        "update_s": search.state.update_s,
        "floor_frac": config.floor_frac,
        "uneven": config.design.uneven,
        "seed": session.seed,
        "budget_s": LADDER_BUDGET_S,
        "plan": session.record.applied_plan().to_dict(),
        "rungs": [_brief(candidate) for candidate in session.record.candidates],
        "space": space,
        "max_subsets": MAX_SUBSETS,
    }


def _brief(candidate: Candidate) -> Row:
    """Return a candidate without its samples."""
    comparison, numerics = candidate.comparison, candidate.numerics
    return {
        **{key: getattr(candidate, key) for key in ("name", "settings", "outcome", "reason")},
        "ratio": comparison.ratio if comparison else None,
        "numerics": numerics.verdict if numerics else None,
    }


def recorded_plan(name: str) -> dict[str, Any]:
    """Return the plan of an example's recorded tuning, name -> settings; empty if none was recorded."""
    path = RESULTS / f"tune_{name}.json"
    rungs = json.loads(path.read_text(encoding="utf-8"))["evidence"]["rungs"] if path.exists() else []
    return {rung["name"]: rung["settings"] for rung in rungs if rung["outcome"] == "applied"}


def plans_of(climbed: Row) -> list[Plan]:
    """Return every subset of the candidates as a plan, in a fixed random order, so that a prefix is a fair sample."""
    kinds = catalogue()
    offers: list[Settings] = [
        tuple(kinds[item["name"]](**settings) for settings in item["settings"]) for item in climbed["space"]["chosen"]
    ]
    plans = [Plan(optimizations=chosen) for chosen in subsets(offers)]
    random.Random("hasten-search").shuffle(plans)
    return plans


def _exhaust(rows: Rows, setting: TrialSetting, climbed: Row, budget_s: float) -> None:
    """Measure every subset against the plain job until all are done or the time is up."""
    plans = plans_of(climbed)
    todo = [plan for _ in range(TRIES) for plan in plans]
    spent = sum(row["seconds"] for row in rows.of("subset"))
    if all(_is_settled(rows, plan) for plan in plans):
        return
    processes = JobProcesses(setting=setting, seed=climbed["seed"])
    with closing(Screen(processes, Plan(), uneven=climbed["uneven"], others=[])) as screen:
        for plan in todo:
            if _is_settled(rows, plan):
                continue
            if spent > budget_s:
                print("the time is up; run the same command with a larger --budget to continue", flush=True)
                return
            row = rows.add("subset", _measure(screen, plan, climbed["updates"]))
            spent += row["seconds"]
            seen = f"{row['ratio']:.2f}x" if row["ratio"] else row["failure"]
            number = len(latest(rows.of("subset")))
            print(f"{number}/{len(plans)} [{', '.join(plan.names)}]: {seen}, {spent:.0f} s", flush=True)


def _is_settled(rows: Rows, plan: Plan) -> bool:
    """Return whether a subset needs no further turn: it has a ratio or failed. A disturbed measurement is repeated once."""
    mine = [row for row in rows.of("subset") if row["plan"] == plan.to_dict()]
    return bool(mine) and (len(mine) >= TRIES or not mine[-1]["spoilt"])


def _measure(screen: Screen, plan: Plan, updates: int) -> Row:
    """Screen one subset in the fewest turns that give an interval; a failure is recorded as a row too."""
    started = monotonic()
    row: Row = {"plan": plan.to_dict(), "ratio": None, "low": None, "high": None, "failure": None, "spoilt": False}
    try:
        found = screen.screen(None, plan, updates, most_turns=FUTILE_TURNS).comparison
    except HastenError as error:
        return {**row, "failure": str(error), "seconds": monotonic() - started}
    if found.interval is None:
        row |= {"failure": found.why, "spoilt": True}
    else:
        row |= {"ratio": found.interval.ratio, "low": found.interval.low, "high": found.interval.high}
    times = {arm: found.times(arm) for arm in "AB"}
    return {**row, "seconds_per_item": times, "retaken": found.retaken, "seconds": monotonic() - started}


def _side_by_side(rows: Rows, setting: TrialSetting, climbed: Row) -> None:
    """Measure the best subsets and the ladder's plan again, with all alive in turns and fresh processes in every round."""
    arms = arms_of(climbed, latest(rows.of("subset")))
    if len(arms) < 2:
        return
    plans = {arm: (setting, Plan.from_dict(plan, catalogue())) for arm, plan in arms.items()}
    updates = min(max(int(SIDE_S / climbed["update_s"]), 2 * SIDE_TURNS), 400)
    design = Design(updates=updates, uneven=climbed["uneven"], seed=climbed["seed"], turns=SIDE_TURNS)
    done = [row for row in rows.of("side") if row["plans"] == arms]
    clean = sum(not row["spoilt"] for row in done)
    for number in range(len(done), MAX_ROUNDS):
        if clean >= ROUNDS:
            break
        order = "".join(random.Random(f"hasten-{number}").sample(sorted(arms), len(arms)))
        found = run_in_turns(plans, order, number, design)
        times = {arm: outcome.sample.seconds_per_item for arm, outcome in sorted(found.items())}
        spoilt = any(outcome.sample.spoilt for outcome in found.values())
        clean += not spoilt
        rows.add("side", {"plans": arms, "seconds_per_item": times, "spoilt": spoilt, "updates": updates})
        print(f"round {number + 1}: {', '.join(f'{arm} {1 / time:.1f}/s' for arm, time in times.items())}", flush=True)


def _parts(rows: Rows) -> tuple[Row, list[Row], list[Row], int]:
    (climbed,) = rows.of("ladder")
    return climbed, latest(rows.of("subset")), rows.of("side"), len(plans_of(climbed))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
