"""Evidence of four tunings: a full one, one with an empty plan, an interrupted one, and a minimal one.

All random numbers are seeded, so tests are reproducible.
"""

from __future__ import annotations

import copy
import math
import random
from typing import Any

Evidence = dict[str, Any]

T = 2.776  # t for 5 pairs at 95 %


def comparison(ratio: float, verdict: str, *, seed: int, kind: str = "screening", noise: float = 0.02) -> Evidence:
    """Return a comparison of five pairs whose interval follows from its samples."""
    chance = random.Random(seed)
    samples, logs = [], []
    for pair in range(5):
        pace = 0.021 * math.exp(chance.gauss(0, 0.01))
        gain = ratio * math.exp(chance.gauss(0, noise))
        logs.append(math.log(gain))
        for arm, seconds_per_item in (("A", pace), ("B", pace / gain)):
            samples.append(
                {
                    "arm": arm,
                    "pair": pair,
                    "seconds_per_item": seconds_per_item,
                    "seconds": seconds_per_item * 1280,
                    "items": 1280,
                    "cpu_seconds": seconds_per_item * 1280 * 1.9,
                    "foreign_cpu_frac": abs(chance.gauss(0.004, 0.004)),
                    "major_faults": 0,
                    "minor_faults": chance.randrange(9000),
                    "spoilt": False,
                }
            )
    mean = sum(logs) / 5
    half = T * math.sqrt(sum((log - mean) ** 2 for log in logs) / 4 / 5)
    return {
        "ratio": math.exp(mean),
        "low": math.exp(mean - half),
        "high": math.exp(mean + half),
        "pairs": 5,
        "verdict": verdict,
        "samples": samples,
        "floor": 0.03,
        "confidence": 0.95,
        "kind": kind,
    }


def rung(name: str, outcome: str, reason: str, **more: Any) -> Evidence:
    """Return a candidate with all required keys."""
    plain: Evidence = {"settings": {}, "predicted_max_gain": None, "comparison": None, "numerics": None}
    return {"name": name, "outcome": outcome, "reason": reason, **plain, **more}


def losses(num: int, start: float, end: float, seed: int) -> list[float]:
    """Return a falling loss curve with noise."""
    chance = random.Random(seed)
    return [end + (start - end) * math.exp(-3.2 * step / num) + chance.gauss(0, 0.05) for step in range(num)]


def _applied() -> list[Evidence]:
    bucket = comparison(3.4, "faster", seed=1, kind="confirmation", noise=0.04)
    return [
        rung(
            "length_bucketing",
            "applied",
            "3.4x faster; held-out loss is not worse over 3 seeds",
            settings={"num_buckets": 16, "shuffle_within": 50},
            predicted_max_gain=3.9,
            comparison=bucket,
            numerics={
                "class": "training",
                "verdict": "not_worse",
                "why": "held-out loss 1.934 against 1.941, margin 0.02, 3 seeds",
            },
            evidence=[
                {"name": "Batches are shorter than before", "passed": True, "seen": "mean padded length 118, was 402"},
                {"name": "Every sample is visited once an epoch", "passed": True, "seen": "20,480 of 20,480 indices"},
            ],
        ),
        rung(
            "trim_padding",
            "applied",
            "1.5x faster; positions past the longest sample were computed for nothing",
            predicted_max_gain=1.62,
            comparison=comparison(1.5, "faster", seed=2, kind="confirmation"),
            numerics={"class": "rounding", "verdict": "same", "why": "difference 2e-6, seeds differ by 3e-2"},
            evidence=[
                {"name": "No batch is longer than its longest sample", "passed": True, "seen": "excess 0.0 %, was 31.4 %"}
            ],
        ),
        rung(
            "precision",
            "applied",
            "1.5x faster in bfloat16; matrix products run 2.7 times as fast on this processor",
            settings={"dtype": "bfloat16"},
            predicted_max_gain=1.8,
            comparison=comparison(1.5, "faster", seed=3, kind="confirmation"),
            numerics={
                "class": "rounding",
                "verdict": "same",
                "why": "difference 4.1e-3, seeds differ by 3.0e-2; cosine 0.9996",
            },
            evidence=[
                {"name": "Matrix products run in bfloat16", "passed": True, "seen": "96 of 96 addmm"},
                {"name": "Softmax stays in float32", "passed": True, "seen": "12 of 12 _softmax"},
            ],
            setup_seconds=0.4,
            break_even_updates=3,
        ),
    ]


def _left_out() -> list[Evidence]:
    return [
        rung(
            "compile",
            "refused",
            "slower: 0.96x, and compilation would have taken 74 s",
            settings={"mode": "default"},
            predicted_max_gain=2.6,
            comparison=comparison(0.96, "slower", seed=4, noise=0.008),
            numerics={"class": "rounding", "verdict": "same", "why": "difference 1.2e-5, seeds differ by 3.0e-2"},
            setup_seconds=74.0,
        ),
        rung("loader_workers", "refused", "both cores are busy computing (97 %), so workers would take time from the model"),
        rung("channels_last", "refused", "the model has no convolutions"),
        rung(
            "sample_cache",
            "refused",
            "making batches takes 1.1 % of an update: a cache could save no more",
            predicted_max_gain=1.01,
        ),
        rung(
            "fused_optimizer",
            "undecided",
            "1.02x (0.99x to 1.05x) after 10 pairs: within the noise floor of 3 %",
            predicted_max_gain=1.09,
            comparison=comparison(1.02, "undecided", seed=5, noise=0.025),
            numerics={"class": "rounding", "verdict": "same", "why": "difference 8e-7, seeds differ by 3.0e-2"},
        ),
        rung("cpu_threads", "refused", "already 2 threads, which is what this machine may use (quota 2.0)"),
        rung(
            "zero_grad_to_none",
            "refused",
            "no difference: 1.00x, the job frees its gradients already",
            predicted_max_gain=1.03,
            comparison=comparison(1.0, "same", seed=6, noise=0.006),
            numerics={"class": "exact", "verdict": "equal", "why": "40 of 40 losses equal to the last bit"},
        ),
        rung(
            "attention_backend",
            "refused",
            "attention already runs through scaled_dot_product_attention with the flash kernel",
        ),
        rung(
            "activation_checkpointing",
            "refused",
            "a memory technique: it buys memory with time, and memory is not short (11 % used)",
        ),
        rung("metric_reading", "refused", "the loss is read every 20 updates already", predicted_max_gain=1.0),
    ]


def full() -> Evidence:
    """Return the evidence of a successful tuning: 13 candidates, of which 3 are kept."""
    final = {**comparison(7.0, "faster", seed=7, kind="confirmation", noise=0.045), "confidence": 0.95}
    final["quality"] = {
        "metric": "loss",
        "baseline": 1.941,
        "tuned": 1.934,
        "margin": 0.02,
        "verdict": "not_worse",
        "direction": "min",
        "why": "mean over 3 seeds; the upper end of the difference, +0.006, is below the margin",
    }
    step = 694.0
    return {
        "schema": 1,
        "created": "2026-03-11T14:02:51+00:00",
        "job": {
            "target": "examples/dialogue.py:Dialogue",
            "name": "Dialogue, stage 1",
            "batch_size": 32,
            "num_params": 18_874_368,
        },
        "machine": {
            "summary": "2 cores, AMD EPYC 9R14, 24 GiB, no accelerator, torch 2.13.0",
            "cores": {"value": 2, "reason": "affinity 4, cgroup quota 2.0: the smaller counts"},
            "memory_bytes": {"value": 25_769_803_776, "reason": "cgroup memory.max"},
            "bf16_matmul_gain": {"value": 2.71, "reason": "measured: 1024 x 1024 matrix product, median of 9"},
            "accelerator": {"value": None, "reason": "torch.cuda.is_available() is false"},
            "instruction_sets": ["avx512f", "avx512_bf16", "amx_bf16"],
        },
        "commit": "8f2c1d07a9be6634d1e0c5b7f00c1b6f7e2a9d34",
        "bottleneck": {
            "name": "padding",
            "share": 0.71,
            "words": "71 % of the positions the model computes are padding. Samples of very different length share a batch, "
            "and each batch is padded to a fixed 402 positions.",
        },
        "phases": {"data": 0.011, "forward": 0.329, "backward": 0.578, "optimizer": 0.062, "logging": 0.004, "other": 0.016},
        "phases_after": {
            "data": 0.058,
            "forward": 0.262,
            "backward": 0.283,
            "optimizer": 0.331,
            "logging": 0.021,
            "other": 0.045,
        },
        "ceilings": {"padding": 3.9, "data": 1.01, "logging": 1.004, "optimizer": 1.09},
        "rungs": [*_applied(), *_left_out()],
        "final": final,
        "step_ms": {"baseline": step, "tuned": step / final["ratio"]},
        "memory": {"baseline_peak_bytes": 2_841_000_000, "tuned_peak_bytes": 1_530_000_000, "limit_bytes": 25_769_803_776},
        "own_cost_frac": 0.0021,
        "seconds": 1742.0,
        "budget_seconds": 3600.0,
        "finished": True,
        "ended": "done",
        "noise": {
            "floor_frac": 0.03,
            "reason": "A/A runs on this machine support 1.9 %, so the usual 3 % stands",
            "retaken": 2,
        },
        "losses": {"baseline": losses(120, 6.1, 2.1, 11), "tuned": losses(120, 6.1, 2.09, 12)},
        "plan_toml": PLAN,
        "commands": [
            "git checkout 8f2c1d07a9",
            "hasten tune examples/dialogue.py:Dialogue --budget 1h --seed 0 --out hasten-out",
            "hasten run examples/dialogue.py:Dialogue --plan hasten-out/hasten.toml",
        ],
        "versions": {"hasten": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "numpy": "2.3.1"},
    }


PLAN = """# Hasten plan: 3 optimization(s). Order does not matter.
# Train under it with: hasten run examples/dialogue.py:Dialogue --plan hasten.toml

schema = 1
target = "examples/dialogue.py:Dialogue"

[optimizations.length_bucketing]  # training: batches of samples of like length
num_buckets = 16
shuffle_within = 50

[optimizations.trim_padding]  # rounding: cut what no sample of the batch reaches

[optimizations.precision]  # rounding: bfloat16 where it is safe
dtype = "bfloat16"
"""


def empty_plan() -> Evidence:
    """Return the evidence of a tuning that kept nothing."""
    evidence = copy.deepcopy(full())
    left_out = _left_out()
    evidence.update(
        job={"target": "train.py", "name": "Ridge regression", "batch_size": 4096, "num_params": 130},
        bottleneck={
            "name": "compute",
            "share": 0.88,
            "words": "The model computes nearly all the time (88 %): nothing waits.",
        },
        phases={"data": 0.03, "forward": 0.4, "backward": 0.48, "optimizer": 0.07, "other": 0.02},
        phases_after=None,
        ceilings={"data": 1.02, "logging": 1.0},
        rungs=left_out,
        final=None,
        losses=None,
        commit=None,
        step_ms={"baseline": 1.84, "tuned": None},
        memory={"baseline_peak_bytes": 312_000_000, "tuned_peak_bytes": None, "limit_bytes": 25_769_803_776},
        plan_toml="# Empty: no optimization was proved to make this job faster without harm.\n[optimizations]\n",
    )
    return evidence


def interrupted() -> Evidence:
    """Return the evidence of a tuning interrupted after three candidates: one kept, one removed, one failed."""
    evidence = copy.deepcopy(full())
    rungs = _applied()[:2]
    rungs[1] = {**rungs[1], "outcome": "pruned", "reason": "no longer pays with length_bucketing: 1.01x when removed"}
    rungs.append(rung("compile", "failed", "the trial ran out of memory: killed after 41 s", predicted_max_gain=2.6))
    evidence.update(
        rungs=rungs, final=None, finished=False, ended="interrupted", losses=None, phases_after=None, own_cost_frac=None
    )
    evidence["step_ms"] = {"baseline": 694.0, "tuned": None}
    return evidence


def bare() -> Evidence:
    """Return minimal evidence: the tuning was interrupted before anything was measured."""
    return {
        "schema": 1,
        "job": {"target": "job.py:Job"},
        "machine": {"summary": "2 cores"},
        "commit": None,
        "bottleneck": None,
        "phases": {},
        "ceilings": {},
        "rungs": [],
        "final": None,
        "memory": None,
        "own_cost_frac": None,
        "seconds": 3.0,
        "finished": False,
        "ended": "interrupted",
    }


SAMPLES = {"full": full, "empty_plan": empty_plan, "interrupted": interrupted, "bare": bare}
