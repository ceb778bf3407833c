"""The gate judged by seeded defects and innocent changes. `python -m benchmarks gate` judges all of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from benchmarks.gate import cases, judge_cases
from benchmarks.jobs.gate_jobs import SentencesJob, ShapesJob
from hasten.core.card import Numerics
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.tune.proof.numerics import recipe_change
from hasten.tune.trials.gradients import SAMPLED_UPDATES, gradient_batches, update_sample

ALL = cases()
SOME = {
    "fused_without_groups": "weight_decay",
    "frozen_worker_seeds": "one of the next",
    "fixed_batch_loss": "gradient error",
    "sample_cache": "including one of the next epoch",
    "foreach_optimizer": "cosine 1.0",
    "channels_last": "cosine",
}
"""Cases of one job, which share a base process, with the expected part of the reason."""


QUICK = {"fused_without_groups", "fixed_batch_loss", "foreach_optimizer"}
"""Cases of `make test`."""


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    tests = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    wanted = {test.callspec.params["name"] for test in tests if "rows" in test.fixturenames}
    chosen = [case for case in ALL if case.name in wanted and case.job == "ShapesJob"]
    return {row["name"]: row for row in judge_cases(chosen)}


def test_there_are_at_least_a_dozen_of_each_kind_in_all_classes() -> None:
    kinds = Counter(case.kind for case in ALL)
    assert kinds["defect"] >= 12
    assert kinds["innocent"] >= 12
    for kind in kinds:
        assert {case.optimization.card.numerics for case in ALL if case.kind == kind} == set(Numerics)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SOME])
def test_the_gate_refuses_a_defect_and_lets_an_innocent_change_through(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["caught"] == (row["kind"] == "defect"), row["why"]
    assert row["by"] == ("gate" if row["caught"] else "")
    assert SOME[name] in row["why"]


def test_gradients_are_sampled_past_the_first_epoch() -> None:
    loop = Loop(build(ShapesJob()))
    batches = gradient_batches(loop, 3)
    assert [size for _, size in batches] == [32, 32, 32, 6, 32]
    (first, labels), (later, same_labels) = batches[0][0], batches[-1][0]
    assert torch.equal(labels, same_labels)
    assert not torch.equal(first, later)  # the same samples, augmented differently


def test_updates_are_sampled_without_side_effects() -> None:
    loop = Loop(build(SentencesJob()))
    loop.run(2)
    losses = list(loop.losses)
    found = update_sample(loop)
    assert found.draws  # dropout
    assert len(found.moved) == len(found.settings) == SAMPLED_UPDATES
    assert recipe_change(found, update_sample(loop)) == ""
    assert loop.position.update == 0
    loop.run(2)
    assert loop.losses == losses
