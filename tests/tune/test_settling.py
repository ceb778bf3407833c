"""What a proof that left the held-out metric open says of the budget that would settle it."""

from __future__ import annotations

import pytest

from hasten.core.stats import LOOKS, non_inferior
from hasten.tune.proof.settling import what_would_settle


def said(tuned: list[float], *, whole_runs: bool = True) -> str:
    found = non_inferior([0.0] * len(tuned), tuned, direction="min", margin=0.02)
    return what_would_settle(found, 0.02, whole_runs=whole_runs, budget_of=lambda pairs: f"--budget {pairs}h")


def test_a_proof_of_beginnings_is_sent_to_whole_runs() -> None:
    assert said([0.5, 0.6, 0.4], whole_runs=False) == f". Whole runs would say more: --budget {LOOKS[0]}h"


def test_a_few_pairs_more_are_named_with_the_budget_of_the_next_look() -> None:
    words = said([-0.04, 0.03, 0.0, -0.02, 0.02])
    assert words.endswith(f"About {LOOKS[1]} pairs of whole runs would settle it: --budget {LOOKS[1]}h")


def test_a_metric_that_no_proof_can_hold_is_told_so() -> None:
    words = said([-0.4, 0.3, 0.0, -0.2, 0.2])
    assert "would steady the metric" in words
    assert "--budget" not in words


@pytest.mark.parametrize(
    "tuned",
    [[0.5, 0.5, 0.6], [0.019, 0.03, 0.02, 0.025], [0.01]],
    ids=["it is worse", "its mean is beyond the margin", "one seed"],
)
def test_nothing_is_promised_where_more_pairs_would_not_help(tuned: list[float]) -> None:
    assert said(tuned) == ""
