"""The numerics gate: pure functions of losses and gradients."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hasten.tune.proof.numerics import (
    MIN_UPDATES,
    GateVerdict,
    Rows,
    Settled,
    UpdateSample,
    gradient_error,
    judge_exact,
    judge_other_draws,
    judge_rounding,
    judge_training,
    loss_shift,
    recipe_change,
    skipping,
)

CURVE = [2.0, 1.8, 1.6, 1.5, 1.4, 1.3]
OTHER = [2.1, 1.7, 1.7, 1.4, 1.5, 1.2]


def gradients(seed: int = 0) -> Rows:
    """Return three batches: a shared direction plus independent noise."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=400)
    return (shared + generator.normal(size=(3, 400))).astype(np.float32)


def test_exact_means_bit_equal() -> None:
    verdict = judge_exact(CURVE, list(CURVE))
    assert (verdict.verdict, verdict.numerics) == ("passed", "exact")
    assert f"{len(CURVE)} losses bit-equal" in verdict.why


@pytest.mark.parametrize("update", [0, 3, 5])
def test_exact_names_the_first_update_that_differs_even_by_one_bit(update: Any) -> None:
    other = list(CURVE)
    for position in range(update, len(other)):
        other[position] = math.nextafter(other[position], 10.0)
    verdict = judge_exact(CURVE, other)
    assert verdict.verdict == "failed"
    assert f"from update {update} on" in verdict.why


def test_exact_compares_only_common_updates() -> None:
    assert judge_exact(CURVE, CURVE[:MIN_UPDATES]).verdict == "passed"


def test_a_nan_equals_nothing() -> None:
    broken = [*CURVE[:-1], math.nan]
    assert judge_exact(broken, broken).verdict == "failed"


@pytest.mark.parametrize("count", [0, MIN_UPDATES - 1])
def test_too_few_losses_prove_nothing(count: Any) -> None:
    few = CURVE[:count]
    for verdict in (
        judge_exact(few, CURVE),
        judge_exact(CURVE, few),
        judge_rounding(CURVE, few, [OTHER], gradients(), gradients()),
        judge_rounding(CURVE, CURVE, [few], gradients(), gradients()),
        judge_training(CURVE, few),
        judge_other_draws("other masks", CURVE, few, [OTHER]),
        judge_other_draws("other masks", CURVE, CURVE, []),
    ):
        assert verdict.verdict == "failed"
        assert "not proved" in verdict.why


@pytest.mark.parametrize(("times", "verdict"), [(0.0, "passed"), (1.9, "passed"), (2.1, "failed"), (math.nan, "failed")])
def test_other_draws_may_move_the_losses_like_another_seed(times: float, verdict: str) -> None:
    moved = [loss + times * (other - loss) for loss, other in zip(CURVE, OTHER, strict=True)]
    judged = judge_other_draws("other masks", CURVE, moved, [OTHER])
    assert judged.verdict == verdict
    assert judged.why.startswith("other masks: the loss moved")


def test_rounding_without_another_seed_is_not_proved() -> None:
    assert judge_rounding(CURVE, CURVE, [], gradients(), gradients()).verdict == "failed"


def test_rounding_passes_for_tiny_noise() -> None:
    base = gradients()
    noisy = base * (1 + 1e-3 * np.random.default_rng(1).normal(size=base.shape).astype(np.float32))
    verdict = judge_rounding(CURVE, [loss + 1e-3 for loss in CURVE], [OTHER], base, noisy)
    assert verdict.verdict == "passed"
    assert "cosine 1.0" in verdict.why


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: gradients(seed=9),
        lambda rows: -rows,
        lambda rows: rows * 2,
        np.zeros_like,
        lambda rows: rows[::-1],
    ],
    ids=["random", "reversed", "doubled", "zero", "of other batches"],
)
def test_rounding_fails_for_garbage_gradients_though_the_losses_agree(spoil: Any) -> None:
    base = gradients()
    assert judge_rounding(CURVE, CURVE, [OTHER], base, spoil(base)).verdict == "failed"


def test_chaotic_gradients_of_a_fresh_network_are_compared_again_later() -> None:
    base, chaos = gradients(), gradients(seed=9)
    near = base * np.float32(1.001)

    def judged(*later: Any) -> GateVerdict:
        points = [Settled(base, rows, 16 * 2**number) for number, rows in enumerate(later)]
        return judge_rounding(CURVE, CURVE, [OTHER], base, chaos, settled=lambda: points)

    calm = judged(chaos, near)
    assert calm.verdict == "passed"
    assert "at the initial weights" in calm.why
    assert "after 16 updates" in calm.why
    assert "after 32 updates" in calm.why
    assert "after 32 updates" not in judged(near, chaos).why  # one point is enough
    broken = np.full_like(base, math.nan)
    for later in (chaos, -base, np.zeros_like(base), broken):
        assert judged(later, later, later).verdict == "failed"
    assert judged(broken, near).verdict == "failed"
    assert judged().verdict == "failed"


def test_clear_verdicts_need_no_further_training() -> None:
    def settled() -> list[Settled]:
        raise AssertionError("asked for")

    base, moved = gradients(), [loss + 0.5 for loss in CURVE]
    assert judge_rounding(CURVE, moved, [OTHER], base, gradients(seed=9), settled=settled).verdict == "failed"
    assert judge_rounding(CURVE, CURVE, [OTHER], base, base, settled=settled).verdict == "passed"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rounding_fails_for_gradients_that_are_not_finite(value: Any) -> None:
    broken = gradients()
    broken[1, 7] = value
    verdict = judge_rounding(CURVE, CURVE, [OTHER], gradients(), broken)
    assert verdict.verdict == "failed"
    assert "NaN or infinity" in verdict.why


def test_rounding_fails_when_the_loss_moves_more_than_another_seed_moves_it() -> None:
    moved = [loss + 0.5 for loss in CURVE]
    assert judge_rounding(CURVE, moved, [OTHER], gradients(), gradients()).verdict == "failed"
    assert judge_rounding(CURVE, [loss + 0.05 for loss in CURVE], [OTHER], gradients(), gradients()).verdict == "passed"


def test_the_size_of_the_loss_does_not_matter() -> None:
    """A gate with a fixed tolerance would decide differently for a loss in the millions."""
    for scale in (1e-6, 1e6):
        base, other = ([loss * scale for loss in curve] for curve in (CURVE, OTHER))
        near, far = ([(loss + by) * scale for loss in CURVE] for by in (0.05, 0.5))
        assert judge_rounding(base, near, [other], gradients(), gradients()).verdict == "passed"
        assert judge_rounding(base, far, [other], gradients(), gradients()).verdict == "failed"


def test_training_is_pending_unless_the_loss_breaks() -> None:
    assert judge_training(CURVE, OTHER).verdict == "pending"
    assert judge_training(CURVE, [*CURVE[:-1], math.inf]).verdict == "failed"
    rising = judge_training([1.0] * 8, [1.0] * 4 + [100.0] * 4)
    assert rising.verdict == "pending"  # within three standard deviations
    assert judge_training([1.0] * 8, [1.0] * 8).verdict == "pending"


def test_gradient_error_is_a_share_of_the_difference_between_batches() -> None:
    base = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)  # they differ by energy 2: noise 1
    moved = base + np.array([[0.5, 0.0], [0.5, 0.0]], dtype=np.float32)
    error, cosine = gradient_error(base, moved)
    assert error == pytest.approx(0.25)
    assert cosine == pytest.approx((1 + 1 / math.hypot(0.5, 1)) / 2)
    assert gradient_error(base, base)[0] == 0.0


def test_gradients_without_noise_between_batches_must_be_equal() -> None:
    same = np.ones((2, 3), dtype=np.float32)
    assert gradient_error(same, same)[0] == 0.0
    assert gradient_error(same, same * 1.001)[0] == math.inf


def test_loss_shift_is_relative_to_chance() -> None:
    base, other = [1.0] * 4, [1.2] * 4
    assert loss_shift(base, [1.1] * 4, [other]) == pytest.approx(0.5)
    assert loss_shift(base, [1.0001] * 4, [base]) == 0.0
    assert loss_shift(base, [1.1] * 4, [base]) == math.inf


def test_exact_means_equal_gradients_too_where_they_were_sampled() -> None:
    base, other = gradients(), gradients()
    assert judge_exact(CURVE, CURVE, base, other).verdict == "passed"
    other[-1, 3] = np.nextafter(other[-1, 3], np.float32(9.0))
    verdict = judge_exact(CURVE, CURVE, base, other)
    assert verdict.verdict == "failed"
    assert "not all sampled gradients" in verdict.why


def test_one_wrong_batch_is_not_averaged_away() -> None:
    base = gradients()
    wrong = base.copy()
    wrong[2] *= 1.6
    error, _ = gradient_error(base, wrong)
    alone, _ = gradient_error(np.concatenate([base] * 9), np.concatenate([*[base] * 8, wrong]))
    assert alone == pytest.approx(error, rel=0.5)
    assert judge_rounding(CURVE, CURVE, [OTHER], base, wrong).verdict == "failed"


def test_gradients_of_another_model_are_not_compared() -> None:
    verdict = judge_rounding(CURVE, CURVE, [OTHER], gradients(), gradients()[:, :7])
    assert verdict.verdict == "failed"
    assert "another shape" in verdict.why


def sample(**changes: Any) -> UpdateSample:
    rate = {"lr": 0.1, "weight_decay": 0.01}
    usual = UpdateSample(
        names=("weight", "bias"), sizes=(8, 2), moved=[[0.1, 0.1]] * 3, settings=[[rate, rate]] * 3, draws=True
    )
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draws": False}, "random numbers"),
        ({"sizes": (8, 3)}, "other sizes"),
        ({"moved": []}, "no update moved"),
        ({"moved": [[0.1, 0.1], [0.0, 0.0], [0.1, 0.1]]}, "update 1 moved no parameter"),
        ({"moved": [[0.1, 0.0]] * 3}, "bias no longer moves"),
        ({"settings": [[{"lr": 0.1, "weight_decay": 0.0}] * 2] * 3}, "weight_decay is 0 instead of 0.01"),
        ({"settings": [[{"lr": 0.1}, {}]] * 3}, "bias at update 0: the optimizer no longer has it"),
        ({"settings": [[{"lr": 0.1}] * 2, [{"lr": 0.2}] * 2]}, "at update 1: lr is 0.2"),
    ],
)
def test_another_recipe_is_not_rounding(changes: Any, words: str) -> None:
    assert words in recipe_change(sample(), sample(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draws": None},
        {"moved": [[0.11, 0.09]] * 3},
        {"settings": [[{"lr": 0.1 + 1e-9, "momentum": 0.9}] * 2] * 3},
    ],
    ids=["equal", "does not repeat", "moved by rounding", "a setting of its own"],
)
def test_the_same_recipe_may_be_implemented_differently(changes: Any) -> None:
    assert recipe_change(sample(), sample(**changes)) == ""


def test_a_parameter_that_hardly_moved_may_stop() -> None:
    assert recipe_change(sample(moved=[[0.1, 1e-9]] * 3), sample(moved=[[0.1, 0.0]] * 3)) == ""


def test_a_sample_of_updates_survives_json() -> None:
    told = json.loads(json.dumps(sample().to_dict()))
    assert UpdateSample.from_dict(told) == sample()


@pytest.mark.parametrize(("updates", "skipped", "habit"), [(100, 1, False), (100, 3, True), (4, 1, False), (200, 4, False)])
def test_a_scaler_may_skip_rarely_but_not_often(updates: int, skipped: int, habit: Any) -> None:
    assert bool(skipping(updates, 0, skipped)) == habit
    assert skipping(updates, skipped, skipped) == ""
