"""What a proof says about a run under the plan: the terms of the gain contract, as scalars of the plan's `[proved]`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from hasten.core.stats import t_quantile
from hasten.report.evidence import QualityResult
from hasten.train.clock import PHASES
from hasten.tune.trials.samples import Sample

_CONFIDENCE = 0.99
"""Confidence that the update time of one more process falls into the interval."""


def contract_terms(
    tuned: Sequence[Sample], phases: Mapping[str, float], quality: QualityResult | None
) -> dict[str, float | int | str]:
    """Return the terms of a plan.

    Args:
        tuned: The samples of the plan, one per process.
        phases: Phase -> share of the time under the plan; empty if unknown.
        quality: The verdict on the held-out metric.

    Returns:
        `update_s` with `update_low_s` and `update_high_s`, an interval for one more process; `phase_NAME_s`; `peak_bytes`;
        the metric and the margin. Empty with fewer than two samples.
    """
    times = [sample.seconds / sample.updates for sample in tuned if sample.updates]
    if len(times) < 2:
        return {}
    mean = fmean(times)
    half = t_quantile(0.5 + _CONFIDENCE / 2, len(times) - 1) * stdev(times) * math.sqrt(1.0 + 1.0 / len(times))
    terms: dict[str, float | int | str] = {
        "update_s": _short(mean), "update_low_s": _short(max(mean - half, 0.0)), "update_high_s": _short(mean + half)
    }  # fmt: skip
    shares = {name: share for name, share in phases.items() if name in PHASES}
    whole = sum(shares.values())
    if whole:
        terms |= {f"phase_{name}_s": _short(mean * share / whole) for name, share in shares.items()}
    if peaks := [sample.peak_bytes for sample in tuned if sample.peak_bytes]:
        terms["peak_bytes"] = max(peaks)
    if quality is not None and quality.margin is not None:
        terms |= {"quality_metric": quality.metric, "quality_margin": quality.margin}
    return terms


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")
