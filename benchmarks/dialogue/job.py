"""Tune the naive supervised job as `hasten demo dialogue` does, and compare both forms of the other jobs step by step.

The proof of the supervised job is fresh processes in turns, and whole runs with several seeds for the held-out loss.
Adapters and preference training are measured in this process: some updates of either form, in turns, from the same weights.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.tuning import tuned
from hasten.recipes.dialogue import NaivePreferenceJob, PreferenceJob
from hasten.recipes.dialogue.demo import DrawnCounsel, NaiveDrawnCounsel
from hasten.recipes.dialogue.evaluation.scoring import prefers_good
from hasten.recipes.dialogue.evaluation.sets import load_set
from hasten.train.build import build
from hasten.train.loop import Loop

JOB = "hasten.recipes.dialogue.demo:NaiveDrawnCounsel"
BUDGET = "12m"
GOAL = 3.0
"""Smallest accepted lower end of the interval."""
TURNS, UPDATES = 5, 5
MARGIN = 0.02
"""Largest share of crisis items that may be lost."""


def run(_found: Mapping[str, Any]) -> dict[str, Any]:
    """Tune the supervised job and measure the others."""
    evidence = tuned(JOB, BUDGET)
    final = evidence["final"] or {}
    low, quality = final.get("low") or 0.0, (final.get("quality") or {}).get("verdict")
    others, right = steps(), competency()
    worse = right["naive"] - right["Hasten"]
    return {
        "target": JOB,
        "budget": BUDGET,
        "evidence": evidence,
        "steps": others,
        "crisis_items_right": right,
        "goals": {
            "speed": {"goal": GOAL, "seen": round(low, 2), "reached": low >= GOAL},
            "held-out loss": {"goal": "not_worse", "seen": quality, "reached": quality == "not_worse"},
            "crisis items lost of those that the naive form has right": {
                "goal": MARGIN,
                "seen": round(worse / right["items"], 4),
                "reached": worse <= MARGIN * right["items"],
            },
        },
    }


def competency() -> dict[str, int]:
    """Train both forms from the same seed, and return how many crisis items each has right."""
    items = load_set("crisis").items
    found = {"items": len(items)}
    for name, kind in (("naive", NaiveDrawnCounsel), ("Hasten", DrawnCounsel)):
        job = kind()
        live = build(job, device=torch.device("cpu"))
        loop = Loop(live)
        loop.run(len(live.batches(0)))
        loop.close()
        found[name] = sum(bool(right) for right in prefers_good(live.model, job.tokens, items))
    return found


def steps() -> dict[str, Any]:
    """Return the seconds of some updates of both forms of each job, in turns, and their median ratio."""
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        start = Path(folder) / "start.pt"
        torch.manual_seed(0)
        torch.save(DrawnCounsel().model().state_dict(), start)
        small = {name: getattr(DrawnCounsel, name) for name in ("width", "depth", "row_tokens", "drawn")}
        pair = {**small, "start": str(start)}
        jobs = {
            "supervised": ((NaiveDrawnCounsel, {}), (DrawnCounsel, {})),
            "supervised, LoRA": ((NaiveDrawnCounsel, {"rank": 8}), (DrawnCounsel, {"rank": 8})),
            "preferences": ((NaivePreferenceJob, pair), (PreferenceJob, pair)),
            "preferences, LoRA": ((NaivePreferenceJob, {**pair, "rank": 8}), (PreferenceJob, {**pair, "rank": 8})),
        }
        return {name: _in_turns(*forms) for name, forms in jobs.items()}


def _in_turns(*forms: tuple[type[Any], dict[str, Any]]) -> dict[str, Any]:
    draw, loops = random.Random(0), []
    for kind, settings in forms:
        job = type(kind.__name__, (kind,), settings)()
        loops.append(Loop(build(job, device=torch.device("cpu"))))
    seconds: list[list[float]] = [[], []]
    for turn in range(TURNS + 1):
        for way in draw.sample(range(2), 2):
            begun = perf_counter()
            loops[way].run(UPDATES)
            if turn:
                seconds[way].append(perf_counter() - begun)
    for loop in loops:
        loop.close()
    off = max(abs(b / a - 1) for a, b in zip(loops[0].losses, loops[1].losses, strict=True))
    return {
        "seconds": {"naive": seconds[0], "Hasten": seconds[1]},
        "ratio": median(naive / ours for naive, ours in zip(*seconds, strict=True)),
        "relative_difference_of_losses": off,
    }
