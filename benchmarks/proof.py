"""Compare the plans of the example jobs with the unchanged jobs in ten fresh pairs, five more than in a tuning's proof.

The number of pairs is fixed in advance, and results are not inspected in between.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.record import RESULTS, ROOT, record
from benchmarks.tuning import EXAMPLES, GOALS
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.tune.proof.compare import Comparison, compare, held_out_verdict
from hasten.tune.trials.pair import TURNS, Design
from hasten.tune.trials.trial import TrialSetting

PAIRS = 10
UPDATES = {"text": 60, "image": 150}
"""Duration of each process in seconds of the unchanged job: about ten."""


def run_proof(names: list[str] | None = None, pairs: int = PAIRS) -> Path:
    """Compare the recorded plan of each example with no plan; other rows stay."""
    path = RESULTS / "proof.json"
    jobs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["jobs"] if path.exists() else {}
    for name in names or EXAMPLES:
        jobs[name] = _proved(name, pairs)
    return record("proof", {"pairs": pairs, "jobs": jobs}, "python -m benchmarks proof")


def _proved(name: str, pairs: int) -> dict[str, Any]:
    target = f"{ROOT / EXAMPLES[name]}"
    tuned = json.loads((RESULTS / f"tune_{name}.json").read_text(encoding="utf-8"))
    plan = Plan.from_toml(tuned["evidence"]["plan_toml"], catalogue())
    job = load_job(target)
    design = Design(
        updates=UPDATES[name], uneven=job.overrides("length"), seed=1000, quality=job.quality, looks=(pairs,), turns=TURNS
    )
    started = monotonic()

    def say(so_far: Comparison) -> None:
        slow, fast = so_far.samples[-2:]
        slow, fast = (slow, fast) if slow.arm == "A" else (fast, slow)
        ratio = slow.seconds_per_item / fast.seconds_per_item
        print(f"{name}, pair {len(so_far.metrics['A'])}: {ratio:.2f}x, {monotonic() - started:.0f} s", flush=True)

    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder))
        comparison = compare(setting, Plan(), plan, design, on_pair=say)
    quality = None if job.quality is None else held_out_verdict(comparison, job.quality)
    low = comparison.interval.low if comparison.interval else 0.0
    return {
        "target": EXAMPLES[name],
        "plan": plan.to_dict(),
        "goal_low": GOALS[name],
        "reached": low >= GOALS[name] and (quality is None or quality.verdict == "not_worse"),
        "comparison": comparison.to_dict(),
        "quality": None if quality is None else {"verdict": quality.verdict, "why": quality.why},
    }
