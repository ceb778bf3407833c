"""Compare schedules and batch sizes by time to target, in whole runs of the image example with an already fast plan.

Each candidate is compared with the same base in pairs of whole runs. The raw curves are recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.record import ROOT, record
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.tune.proof.time_to_target import TargetComparison, pair_words
from hasten.tune.proof.whole_runs import POINTS, TargetDesign, compare_to_target
from hasten.tune.search.verdict import decide_to_target
from hasten.tune.trials.trial import TrialSetting

TARGET = "examples/image.py:DigitsJob"
BASE: dict[str, dict[str, Any]] = {"sample_cache": {}, "channels_last": {}, "precision": {"dtype": "bfloat16"}}
"""The plan that tuning this job produces; it roughly halves the time of a whole run."""
CANDIDATES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one_cycle", {"max_lr_factor": 3.0}),
    ("one_cycle", {"max_lr_factor": 10.0}),
    ("warmup_cosine", {}),
    ("optimizer_batch", {"factor": 2.0, "scaling": "sqrt"}),
    ("optimizer_batch", {"factor": 0.5, "scaling": "sqrt"}),
)
PAIRS = 5


def run_goodput(pairs: int = PAIRS) -> Path:
    """Measure every candidate on the image example."""
    rows = measure(str(ROOT / TARGET), BASE, CANDIDATES, pairs=pairs)
    result = {"target": TARGET, "base": BASE, "pairs": pairs, "points": POINTS, "rows": rows}
    return record("goodput", result, f"python -m benchmarks goodput --count {pairs}")


def measure(
    target: str,
    base: dict[str, dict[str, Any]],
    candidates: Sequence[tuple[str, dict[str, Any]]],
    *,
    pairs: int,
    points: int = POINTS,
) -> list[dict[str, Any]]:
    """Compare the candidates with the base, one after another.

    Args:
        target: A job with `quality`.
        base: The plan of arm A, name -> settings.
        candidates: Name and settings of the addition in arm B.
        pairs: Number of pairs of whole runs for each candidate.
        points: Number of validation passes in a run.

    Returns:
        One row per candidate: `name` and `settings`, `outcome` and `reason` as in a tuning, `seconds`, `comparison`.
    """
    job, kinds = load_job(target), catalogue()
    if job.quality is None:
        raise ValueError(f"{target} defines no quality, so there is no target to reach.")
    design = TargetDesign(quality=job.quality, points=points, seed=job.seed, looks=(pairs,), side_by_side=True)
    plan, rows = Plan.from_dict(base, kinds), []
    for name, settings in candidates:
        started = monotonic()
        with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
            setting = TrialSetting(target=target, folder=Path(folder))
            candidate = plan.plus(kinds[name](**settings))
            found = compare_to_target(setting, plan, candidate, design, on_pair=_tell)
        outcome, reason = decide_to_target(found)
        seconds = monotonic() - started
        print(f"{name} {settings}: {outcome}: {reason}, {seconds:.0f} s", flush=True)
        rows.append(
            {
                "name": name,
                "settings": settings,
                "outcome": outcome,
                "reason": reason,
                "seconds": seconds,
                "comparison": found.to_dict(),
            }
        )
    return rows


def _tell(found: TargetComparison) -> None:
    print(f"  {pair_words(found)}", flush=True)
