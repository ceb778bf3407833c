"""Measure what `hasten run --plan` adds to the time from start to end of a script that trains for a few milliseconds.

Whole processes take turns: the script alone, under an empty plan, under a plan that preloads an allocator (if this machine
has one), and under a plan that makes it load torch's compiler, as it does alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.record import record
from hasten.core.stats import paired_interval

TURNS = 11
SCRIPT = """
import sys
import torch

if "compiler" in sys.argv:
    import torch._dynamo.config
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()
print("trained")
"""
PLAN = "schema = 1\n"
ALLOCATOR = f'{PLAN}[optimizations.allocator]\nkind = "glibc_tuned"\n'


def run_start(turns: int = TURNS) -> Path:
    """Measure all arms in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("train.py", SCRIPT), ("plan.toml", PLAN), ("allocator.toml", ALLOCATOR)):
            (folder / file).write_text(text, encoding="utf-8")
        arms = {
            "alone": ["train.py"],
            "empty plan": _under("plan.toml"),
            "allocator": _under("allocator.toml"),
            "empty plan, compiler loaded": [*_under("plan.toml"), "--", "compiler"],
        }
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        for turn in range(turns + 1):  # the first fills the caches of files, and does not count
            for arm in arms if turn % 2 else reversed(arms):
                began = perf_counter()
                done = subprocess.run([sys.executable, *arms[arm]], cwd=folder, capture_output=True, text=True, check=True)
                if turn:
                    seconds[arm].append(perf_counter() - began)
                if done.stdout != "trained\n" or done.stderr:
                    raise RuntimeError(f"{arm}: {done.stdout}{done.stderr}")
    result = {"seconds": seconds, "arms": {arm: _against(seconds["alone"], seconds[arm]) for arm in arms if arm != "alone"}}
    return record("run_start", result, f"python -m benchmarks run-start --count {turns}")


def _under(plan: str) -> list[str]:
    return ["-m", "hasten", "run", "--plan", plan, "train.py"]


def _against(alone: list[float], other: list[float]) -> dict[str, Any]:
    ratio = paired_interval(alone, other, 0.95)
    added = [b - a for a, b in zip(alone, other, strict=True)]
    return {"added_s": median(added), "ratio": ratio.ratio, "interval": [ratio.low, ratio.high]}
