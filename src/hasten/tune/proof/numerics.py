"""The numerics gate: decide whether the numbers may move as far as they did. Pure functions of losses and gradients.

    exact      every loss and every sampled gradient is bit-equal
    rounding   the change is small compared to the effect of chance. The gradient's error is compared to the differences
               between gradients of different batches (at the initial weights or, if a fresh network is chaotic, a little
               later), and the loss curve to those of other seeds and orders. The recipe is unchanged: each parameter is
               trained with the same settings, the same randomness and in every update
    training   judged at the end, by non-inferiority on held-out data; here only that nothing broke

There is no fixed tolerance: the baseline itself defines what is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from hasten.core.card import Numerics
from hasten.core.optimization import Optimization

Rows = npt.NDArray[np.float32]

MAX_GRADIENT_ERROR = 0.10
"""Largest allowed energy of the gradient's error, relative to the energy of the differences between batches' gradients."""

MAX_LOSS_SHIFT = 1.0
"""Largest allowed root-mean-square shift of the loss curve, relative to the shift between baselines with other seeds."""

MAX_DRAWS_SHIFT = 2.0
"""The same, where the candidate draws other random numbers for samples or dropout."""

SETTLED_FRAC = 1e-3
"""A loss curve that moves by less than this share of the loss counts as unmoved."""

MIN_UPDATES = 4
"""Minimum number of losses for a verdict."""

MAX_SKIPPED_FRAC = 0.02
"""Largest share of updates that a settled gradient scaler may skip. By default it tries a larger scale, and may skip an
update for it, once in 2000 updates (PyTorch documentation, torch.amp.GradScaler, `growth_interval`)."""

NEGLIGIBLE_FRAC = 1e-3
"""A parameter that moves by less than this share of the others' movement may also stop moving."""


@dataclass(frozen=True, kw_only=True)
class UpdateSample:
    """What the first updates of a run did, starting at the first one that moved anything.

    Attributes:
        names: Names of the parameters.
        sizes: Number of elements of each parameter.
        moved: Root-mean-square change of each parameter, `[updates, parameters]`, in units of the parameter.
        settings: Numbers in each parameter's optimizer group at each update; empty if the optimizer does not have it.
        draws: Whether the loss depends on random numbers; None if it is not reproducible.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    moved: Sequence[Sequence[float]]
    settings: Sequence[Sequence[Mapping[str, float]]]
    draws: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Restore a sample from the result of `to_dict`."""
        return cls(**{**data, "names": tuple(data["names"]), "sizes": tuple(data["sizes"])})


@dataclass(frozen=True)
class Settled:
    """Gradients later in the run, of both processes at the same weights.

    Attributes:
        baseline: `[batches, coordinates]`.
        candidate: The same.
        updates: Number of the baseline's updates that led to these weights.
    """

    baseline: Rows
    candidate: Rows
    updates: int


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The verdict of the gate.

    Attributes:
        numerics: The class by which the change was judged.
        verdict: `passed`, `failed`, or `pending` (held-out quality decides at the end).
        why: The reason, with the measured values.
    """

    numerics: Numerics
    verdict: Literal["passed", "failed", "pending"]
    why: str


def numerics_of(added: Sequence[Optimization]) -> Numerics:
    """Return the class by which techniques are judged together: the most permissive one."""
    return max((item.numerics for item in added), key=list(Numerics).index, default=Numerics.EXACT)


def judge_exact(
    baseline: Sequence[float],
    candidate: Sequence[float],
    baseline_gradients: Rows | None = None,
    candidate_gradients: Rows | None = None,
) -> GateVerdict:
    """Require bit-equal losses at every update and, if sampled, bit-equal gradients, including the next epoch's."""
    compared = min(len(baseline), len(candidate))
    if compared < MIN_UPDATES:
        return _verdict(Numerics.EXACT, ok=False, why=f"not proved: only {compared} losses were captured")
    for update in range(compared):
        if baseline[update] != candidate[update]:
            difference = candidate[update] - baseline[update]
            why = f"losses differ from update {update} on (by {difference:.3g}), but the technique claims to be exact"
            return _verdict(Numerics.EXACT, ok=False, why=why)
    message = f"{compared} losses bit-equal"
    if baseline_gradients is not None and candidate_gradients is not None:
        if not np.array_equal(baseline_gradients, candidate_gradients):
            why = f"{message}, but not all sampled gradients (the first batches, the epoch's last, one of the next epoch)"
            return _verdict(Numerics.EXACT, ok=False, why=why)
        message += f", and the gradients of {len(baseline_gradients)} batches, including one of the next epoch"
    return _verdict(Numerics.EXACT, ok=True, why=message)


def judge_rounding(
    baseline: Sequence[float],
    candidate: Sequence[float],
    others: Sequence[Sequence[float]],
    baseline_gradients: Rows,
    candidate_gradients: Rows,
    *,
    settled: Callable[[], Iterable[Settled]] = tuple,
) -> GateVerdict:
    """Require changes that are small compared to the effect of chance.

    Args:
        baseline: Losses of the baseline.
        candidate: Losses of the candidate, same seed, same batches.
        others: Losses of the baseline with other seeds, at least one.
        baseline_gradients: `[batches, coordinates]` at the initial weights.
        candidate_gradients: The same for the candidate.
        settled: Returns the gradients of both at later points in the run; used one after the other while only the gradients
            fail the test.
    """
    compared = min([len(baseline), len(candidate), *(len(other) for other in others)])
    if compared < MIN_UPDATES or not others:
        return _verdict(Numerics.ROUNDING, ok=False, why=f"not proved: only {compared} losses were captured")
    if baseline_gradients.shape != candidate_gradients.shape:
        shapes = f"{list(candidate_gradients.shape)} instead of {list(baseline_gradients.shape)}"
        return _verdict(Numerics.ROUNDING, ok=False, why=f"the gradients have another shape: {shapes}")
    if not np.isfinite(candidate_gradients).all():
        return _verdict(Numerics.ROUNDING, ok=False, why="the gradient contains NaN or infinity")
    error, cosine = gradient_error(baseline_gradients, candidate_gradients)
    shift = loss_shift(baseline[:compared], candidate[:compared], [other[:compared] for other in others])
    errors = f"gradient error {error:.2g} times the difference between batches"
    if error > MAX_GRADIENT_ERROR and shift <= MAX_LOSS_SHIFT:
        for later in settled():
            errors += " at the initial weights" if "at the" not in errors else ""
            error, cosine = gradient_error(later.baseline, later.candidate)
            errors += f", {error:.2g} after {later.updates} updates"
            if error <= MAX_GRADIENT_ERROR or not math.isfinite(error):
                break
    message = (
        f"{errors} (limit {MAX_GRADIENT_ERROR}), cosine {cosine:.5f}; "
        f"the loss moved {shift:.2g} times as far as another seed moves it (limit {MAX_LOSS_SHIFT}), over {compared} updates"
    )
    return _verdict(Numerics.ROUNDING, ok=error <= MAX_GRADIENT_ERROR and shift <= MAX_LOSS_SHIFT, why=message)


def judge_other_draws(
    reason: str, baseline: Sequence[float], candidate: Sequence[float], others: Sequence[Sequence[float]]
) -> GateVerdict:
    """Require that other random numbers move the losses no further than about as far as another seed does.

    Args:
        reason: Why the candidate draws other random numbers.
        baseline: Losses of the baseline.
        candidate: Losses of the candidate.
        others: Losses of the baseline with other seeds, at least one.
    """
    compared = min(map(len, (baseline, candidate, *others)))
    if compared < MIN_UPDATES or not others:
        return _verdict(Numerics.ROUNDING, ok=False, why=f"not proved: only {compared} losses were captured")
    shift = loss_shift(baseline[:compared], candidate[:compared], [other[:compared] for other in others])
    why = (
        f"{reason}: the loss moved {shift:.2g} times as far as another seed moves it (limit {MAX_DRAWS_SHIFT}), over "
        f"{compared} steps"
    )
    return _verdict(Numerics.ROUNDING, ok=shift <= MAX_DRAWS_SHIFT, why=why)


def judge_training(baseline: Sequence[float], candidate: Sequence[float]) -> GateVerdict:
    """Check that nothing broke at once. The proof is held-out quality at the end."""
    if len(candidate) < MIN_UPDATES or not all(math.isfinite(loss) for loss in candidate):
        return _verdict(Numerics.TRAINING, ok=False, why="not proved: no finite loss curve was captured")
    half = len(candidate) // 2
    start, end = float(np.mean(candidate[:half])), float(np.mean(candidate[half:]))
    spread = float(np.std(candidate)) + float(np.std(baseline)) + 1e-12
    if end - start > 3 * spread:
        why = f"the loss rose from {start:.4g} to {end:.4g} within {len(candidate)} updates"
        return _verdict(Numerics.TRAINING, ok=False, why=why)
    return GateVerdict(numerics=Numerics.TRAINING, verdict="pending", why="the held-out quality of the whole plan decides")


def recipe_change(base: UpdateSample, candidate: UpdateSample) -> str:
    """Return which part of the recipe changed; empty if none did. Neither `exact` nor `rounding` may change the recipe.

    Size does not matter here: a lost weight decay or an untrained bias is small in every single update, but changes the
    training.
    """
    if base.sizes != candidate.sizes:
        return f"the model has {len(candidate.sizes)} parameters with other sizes than the original {len(base.sizes)}"
    if base.draws and candidate.draws is False:
        return "the loss no longer depends on random numbers: dropout or another random operation was lost"
    if not candidate.moved:
        return "no update moved any parameter"
    for update, (old, new) in enumerate(zip(base.settings, candidate.settings, strict=False)):
        for name, before, now in zip(base.names, old, new, strict=True):
            if why := _other_setting(before, now):
                return f"{name} at update {update}: {why}"
    for update, (old_moves, new_moves) in enumerate(zip(base.moved, candidate.moved, strict=False)):
        if any(old_moves) and not any(new_moves):
            return f"update {update} moved no parameter"
    return _stopped_moving(base, candidate)


def _other_setting(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    if before and not now:
        return "the optimizer no longer has it"
    for key in sorted(before.keys() & now.keys()):
        if not math.isclose(before[key], now[key], rel_tol=1e-6):
            return f"{key} is {now[key]:g} instead of {before[key]:g}"
    return ""


def skipping(updates: int, baseline: int, candidate: int) -> str:
    """Return why too many updates are skipped; empty if they are not.

    Args:
        updates: Number of updates after a gradient scaler had found its scale.
        baseline: How many of them the baseline skipped.
        candidate: How many of them the candidate skipped.
    """
    more = candidate - baseline
    if more < 2 or more <= MAX_SKIPPED_FRAC * updates:
        return ""
    return (
        f"{candidate} of {updates} updates were skipped, {baseline} without the change (limit: {MAX_SKIPPED_FRAC:.0%} more)"
    )


def _stopped_moving(base: UpdateSample, candidate: UpdateSample) -> str:
    old, new = (np.sqrt(np.mean(np.square(sample.moved), axis=0)) for sample in (base, candidate))
    usual = float(np.sqrt(np.average(np.square(old), weights=base.sizes)))
    for name, before, now in zip(base.names, old, new, strict=True):
        if now == 0.0 and before > NEGLIGIBLE_FRAC * usual:
            return f"{name} no longer moves"
    return ""


def gradient_error(baseline: Rows, candidate: Rows) -> tuple[float, float]:
    """Return the candidate's worst gradient error relative to the differences between batches, and the mean cosine.

    A batch's gradient is the true one plus sampling noise; two batches differ by twice the noise's energy. An error that
    is small compared to that disappears in the noise of every step of stochastic gradient descent. The median pair
    represents the noise, because a short batch has more of it than the others. The worst batch represents the error,
    because one wrong batch is a bug and must not be averaged away.
    """
    base, cand = baseline.astype(np.float64), candidate.astype(np.float64)
    error = float(np.max(np.sum((cand - base) ** 2, axis=1)))
    pairs = [(i, j) for i in range(len(base)) for j in range(i)]
    noise = float(np.median([np.sum((base[i] - base[j]) ** 2) for i, j in pairs])) / 2 if pairs else 0.0
    norms = np.linalg.norm(base, axis=1) * np.linalg.norm(cand, axis=1)
    cosine = float(np.mean(np.sum(base * cand, axis=1) / np.maximum(norms, 1e-30)))
    if noise == 0.0:
        return (0.0 if error == 0.0 else math.inf), cosine
    return error / noise, cosine


def loss_shift(baseline: Sequence[float], candidate: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Return the root-mean-square distance of the candidate's curve relative to that of baselines with other seeds."""
    base = np.asarray(baseline, dtype=np.float64)
    moved = float(np.sqrt(np.mean((np.asarray(candidate) - base) ** 2)))
    chance = float(np.mean([np.sqrt(np.mean((np.asarray(other) - base) ** 2)) for other in others]))
    if moved <= SETTLED_FRAC * float(np.mean(np.abs(base))):
        return 0.0 if chance == 0.0 else min(moved / chance, MAX_LOSS_SHIFT)
    return moved / chance if chance else math.inf


def _verdict(numerics: Numerics, *, ok: bool, why: str) -> GateVerdict:
    return GateVerdict(numerics=numerics, verdict="passed" if ok else "failed", why=why)
