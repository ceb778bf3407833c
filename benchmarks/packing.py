"""Measure packing against batches of similar length trimmed to their longest sample, trimmed batches, and full padding.

Batches of similar length are the usual answer to padding, and the rival. Both arms train the same samples for a whole epoch,
in fresh processes that take turns. The rival trims to the longest sample or to a multiple of 32, whichever is faster in a
short run beforehand. In comparisons with padded or only trimmed batches, both arms see the same batches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.public_data import CONVERSATIONS, NOT_THERE
from benchmarks.record import ROOT, record
from hasten.core.batch import padded_length
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations.length_bucketing import LengthBucketing
from hasten.optimizations.sequence_packing import SequencePacking
from hasten.optimizations.trim_padding import TrimPadding
from hasten.train.build import build
from hasten.tune.proof.compare import Comparison, compare
from hasten.tune.trials.pair import TURNS, Design, run_in_turns
from hasten.tune.trials.trial import TrialSetting

GOAL = 1.2
"""Speed that packing must reach relative to its rival."""
JOBS = {"text": f"{ROOT / 'examples/text.py'}:TextJob", "dialogues": "benchmarks.jobs.dialogues:DialoguesJob"}
PADDED_UPDATES, CUT_UPDATES, PICK_UPDATES = 12, 24, 20
CUTS = (1, 32)
PACKED = Plan(optimizations=(SequencePacking(),))


def run_packing(budget_s: float = 180.0) -> Path:
    """Measure both jobs; `budget_s` limits each of the three comparisons of a job."""
    jobs: dict[str, Any] = {}
    for name, target in JOBS.items():
        if name == "dialogues" and not CONVERSATIONS.is_file():
            jobs[name] = {"target": target, "skipped": f"not measured: {NOT_THERE}"}
            print(f"{name}: not measured: {NOT_THERE}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
            jobs[name] = _measure(name, TrialSetting(target=target, folder=Path(folder)), budget_s)
        print(f"{name}: {jobs[name]['verdict']}: {jobs[name]['why']}", flush=True)
    return record("packing", {"goal": GOAL, "jobs": jobs}, f"python -m benchmarks packing --budget {budget_s:.0f}s")


def goal_verdict(low: float | None, high: float | None, goal: float = GOAL) -> tuple[str, str]:
    """Return `met`, `missed` or `undecided`, and why, for an interval of packing over its rival."""
    if low is None or high is None:
        return "undecided", "too few clean pairs"
    seen = f"packing runs at {low:.2f} to {high:.2f} times the speed of its rival; the goal is {goal}"
    if low >= goal:
        return "met", seen
    return ("missed", seen) if high < goal else ("undecided", f"{seen}, which the interval includes")


def _measure(name: str, setting: TrialSetting, budget_s: float) -> dict[str, Any]:
    data = describe(setting.target)
    cut, picked = _faster_cut(setting)
    rival = _buckets(cut)
    print(f"{name}: {data['padding_frac']['padded']:.0%} padding; the rival cuts to multiples of {cut}", flush=True)
    against_rival = _compare(name, setting, rival, data["updates_per_epoch"], budget_s)
    against_cut = _compare(name, setting, Plan(optimizations=(TrimPadding(multiple=cut),)), CUT_UPDATES, budget_s)
    against_padded = _compare(name, setting, Plan(), PADDED_UPDATES, budget_s)
    interval = against_rival.interval
    verdict, why = goal_verdict(interval.low if interval else None, interval.high if interval else None)
    return {
        "target": setting.target.replace(f"{ROOT}/", ""),
        "data": data,
        "rival": rival.to_dict(),
        "rival_seconds_per_item": picked,
        "against_rival": against_rival.to_dict(),
        "against_cut": against_cut.to_dict(),
        "against_padded": against_padded.to_dict(),
        "verdict": verdict,
        "why": why,
    }


def describe(target: str) -> dict[str, Any]:
    """Return the fraction of padding in a job's batches: original, trimmed, and of similar length and trimmed."""
    plans = {"padded": Plan(), "cut": Plan(optimizations=(TrimPadding(),)), "like_length": _buckets(1)}
    padding: dict[str, float] = {}
    for name, plan in plans.items():
        live = build(load_job(target), plan)
        batches = live.order(0) if live.order else []
        lengths = [[live.job.length(sample) for sample in live.pipeline.read(indices)] for indices in batches]
        real = sum(map(sum, lengths))
        fetched = (padded_length(live.pipeline.fetch(0, indices), len(indices)) for indices in batches)
        positions = sum((longest or 0) * len(row) for longest, row in zip(fetched, lengths, strict=True))
        padding[name] = 1.0 - real / positions
    return {"updates_per_epoch": len(batches), "length_per_sample": real / sum(map(len, lengths)), "padding_frac": padding}


def _buckets(cut: int) -> Plan:
    return Plan(optimizations=(LengthBucketing(), TrimPadding(multiple=cut)))


def _faster_cut(setting: TrialSetting) -> tuple[int, dict[str, float]]:
    """Return the faster way to trim, from one pair of processes on the same batches; and the seconds of both."""
    plans = {arm: (setting, _buckets(cut)) for arm, cut in zip("AB", CUTS, strict=True)}
    found = run_in_turns(plans, "AB", 0, Design(updates=PICK_UPDATES, uneven=True, seed=1, turns=TURNS))
    seconds = {str(cut): found[arm].sample.seconds_per_item for arm, cut in zip("AB", CUTS, strict=True)}
    return int(min(seconds, key=lambda cut: seconds[cut])), seconds


def _compare(name: str, setting: TrialSetting, base: Plan, updates: int, budget_s: float) -> Comparison:
    started = monotonic()
    design = Design(updates=updates, uneven=True, seed=10, turns=TURNS, deadline=started + budget_s)

    def say(so_far: Comparison) -> None:
        slow, fast = so_far.samples[-2:]
        ratio = slow.seconds_per_item / fast.seconds_per_item
        words = f"pair {len(so_far.metrics['A'])} against [{', '.join(base.names) or 'padded'}]: {ratio:.2f}x"
        print(
            f"{name}: {words}{' (disturbed)' if slow.spoilt or fast.spoilt else ''}, {monotonic() - started:.0f} s",
            flush=True,
        )

    return compare(setting, base, PACKED, design, on_pair=say)
