"""The numerics gate: may the numbers move as far as they did? Pure functions of losses and gradients.

    exact      every loss is bit-equal
    rounding   the change is small against what chance does anyway: the gradient's error against the differences between
               gradients of different batches, the loss curve against the curves of other seeds and orders
    training   judged at the end, by non-inferiority on held-out data; here only that nothing broke

No fixed tolerance anywhere: what is small is said by the baseline itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from upshift.core.optimization import Numerics

Rows = npt.NDArray[np.float32]

MAX_GRADIENT_ERROR = 0.10
"""The largest energy of the gradient's error, as a share of the energy by which gradients of different batches differ."""

MAX_LOSS_SHIFT = 1.0
"""The largest root-mean-square shift of the loss curve, as a share of the shift between baselines of other seeds."""

SETTLED_FRAC = 1e-3
"""A loss curve that moves by less than this share of the loss itself is held to be unmoved."""

MIN_UPDATES = 4


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """What the gate says.

    Attributes:
        numerics: The class the change was judged as.
        verdict: `passed`, `failed`, or `pending` (held-out quality decides at the end).
        why: In words, with the numbers.
    """

    numerics: Numerics
    verdict: Literal["passed", "failed", "pending"]
    why: str


def judge_exact(baseline: Sequence[float], candidate: Sequence[float]) -> GateVerdict:
    """Bit-equal losses, update by update."""
    compared = min(len(baseline), len(candidate))
    if compared < MIN_UPDATES:
        return _verdict(Numerics.EXACT, ok=False, why=f"only {compared} losses were captured: not proved")
    for update in range(compared):
        if baseline[update] != candidate[update]:
            difference = candidate[update] - baseline[update]
            why = f"losses differ from update {update} on (by {difference:.3g}), though the technique claims to be exact"
            return _verdict(Numerics.EXACT, ok=False, why=why)
    return _verdict(Numerics.EXACT, ok=True, why=f"{compared} losses bit-equal")


def judge_rounding(
    baseline: Sequence[float],
    candidate: Sequence[float],
    others: Sequence[Sequence[float]],
    baseline_gradients: Rows,
    candidate_gradients: Rows,
) -> GateVerdict:
    """Small against chance.

    Args:
        baseline: Losses of the baseline.
        candidate: Losses of the candidate, same seed, same batches.
        others: Losses of the baseline with other seeds, at least one.
        baseline_gradients: `[batches, coordinates]` at the initial weights.
        candidate_gradients: The same for the candidate.
    """
    compared = min([len(baseline), len(candidate), *(len(other) for other in others)])
    if compared < MIN_UPDATES or not others:
        return _verdict(Numerics.ROUNDING, ok=False, why=f"only {compared} losses were captured: not proved")
    if not np.isfinite(candidate_gradients).all():
        return _verdict(Numerics.ROUNDING, ok=False, why="the gradient holds NaN or infinity")
    error, cosine = gradient_error(baseline_gradients, candidate_gradients)
    shift = loss_shift(baseline[:compared], candidate[:compared], [other[:compared] for other in others])
    words = (
        f"gradient error {error:.2g} of the difference between batches (at most {MAX_GRADIENT_ERROR}), cosine {cosine:.5f}; "
        f"loss moved {shift:.2g} of what another seed moves it (at most {MAX_LOSS_SHIFT}), over {compared} updates"
    )
    return _verdict(Numerics.ROUNDING, ok=error <= MAX_GRADIENT_ERROR and shift <= MAX_LOSS_SHIFT, why=words)


def judge_training(baseline: Sequence[float], candidate: Sequence[float]) -> GateVerdict:
    """Nothing broke at once; the proof is held-out quality at the end."""
    if len(candidate) < MIN_UPDATES or not all(math.isfinite(loss) for loss in candidate):
        return _verdict(Numerics.TRAINING, ok=False, why="no finite loss curve was captured: not proved")
    half = len(candidate) // 2
    start, end = float(np.mean(candidate[:half])), float(np.mean(candidate[half:]))
    spread = float(np.std(candidate)) + float(np.std(baseline)) + 1e-12
    if end - start > 3 * spread:
        why = f"the loss rose from {start:.4g} to {end:.4g} within {len(candidate)} updates"
        return _verdict(Numerics.TRAINING, ok=False, why=why)
    return GateVerdict(numerics=Numerics.TRAINING, verdict="pending", why="held-out quality of the whole plan decides")


def gradient_error(baseline: Rows, candidate: Rows) -> tuple[float, float]:
    """Energy of the candidate's gradient error over the energy of differences between batches, and the mean cosine.

    A batch's gradient is the true one plus sampling noise; two batches differ by twice the noise's energy. An error that
    is small against that is lost in what every step of stochastic gradient descent does anyway.
    """
    base, cand = baseline.astype(np.float64), candidate.astype(np.float64)
    error = float(np.mean(np.sum((cand - base) ** 2, axis=1)))
    pairs = [(i, j) for i in range(len(base)) for j in range(i)]
    noise = float(np.mean([np.sum((base[i] - base[j]) ** 2) for i, j in pairs])) / 2 if pairs else 0.0
    norms = np.linalg.norm(base, axis=1) * np.linalg.norm(cand, axis=1)
    cosine = float(np.mean(np.sum(base * cand, axis=1) / np.maximum(norms, 1e-30)))
    if noise == 0.0:
        return (0.0 if error == 0.0 else math.inf), cosine
    return error / noise, cosine


def loss_shift(baseline: Sequence[float], candidate: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Root-mean-square distance of the candidate's curve over that of the baselines with other seeds."""
    base = np.asarray(baseline, dtype=np.float64)
    moved = float(np.sqrt(np.mean((np.asarray(candidate) - base) ** 2)))
    chance = float(np.mean([np.sqrt(np.mean((np.asarray(other) - base) ** 2)) for other in others]))
    if moved <= SETTLED_FRAC * float(np.mean(np.abs(base))):
        return 0.0 if chance == 0.0 else min(moved / chance, MAX_LOSS_SHIFT)
    return moved / chance if chance else math.inf


def _verdict(numerics: Numerics, *, ok: bool, why: str) -> GateVerdict:
    return GateVerdict(numerics=numerics, verdict="passed" if ok else "failed", why=why)
