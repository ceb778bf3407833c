"""A gate passes only what is known to be good enough, in every slice."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from hasten.core.errors import JobError
from hasten.core.gates import Estimate, Gate, Share

CRISIS = Gate(metric="crisis competency", threshold=0.85, slices=("teens", "adults"))


@pytest.mark.parametrize(("hits", "items"), [(0, 7), (1, 7), (7, 7), (221, 240), (150, 200)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_share(hits: int, items: int, confidence: float) -> None:
    right = binomtest(hits, items).proportion_ci(confidence, method="wilson")
    assert Share(hits, items).interval(confidence) == pytest.approx((right.low, right.high), abs=1e-9)
    assert Share(0, 0).interval() == (0.0, 1.0)
    assert (Share(0, 50).interval()[0], Share(50, 50).interval()[1]) == (0.0, 1.0)


def test_every_slice_must_pass() -> None:
    good = {"teens": Share(221, 240), "adults": Share(840, 900)}
    assert CRISIS.decide(good).passed
    passed, words = CRISIS.decide({**good, "teens": Share(205, 240)})  # 0.854, and at least 0.80 is known
    assert not passed
    assert words[0].startswith("crisis competency, teens: not passed, 0.854 of 240 (0.804 to 0.893), at least 0.85")
    assert "adults: passed" in words[1]


@pytest.mark.parametrize(
    "result",
    [None, Share(0, 0), Share(5, 4), Share(-1, 4), Estimate(math.nan, 0.9, 1.0), Estimate(0.9, math.nan, 1.0),
     Estimate(0.99, 0.98, math.inf), Estimate(0.5, 0.9, 0.95)],
)  # fmt: skip
def test_what_is_not_known_does_not_pass(result: Share | Estimate | None) -> None:
    gate = Gate(metric="m", threshold=0.0)
    assert not gate.decide({"all": result}).passed
    assert not Gate(metric="m", threshold=1e9, at_most=True).decide({"all": result}).passed
    assert not gate.decide({}).passed
    assert gate.decide({"all": Estimate(0.5, 0.1, 0.9)}).passed


def test_at_most() -> None:
    gate = Gate(metric="perplexity", threshold=20.0, at_most=True)
    assert gate.decide({"all": Estimate(18.0, 17.0, 20.0)}).passed
    assert not gate.decide({"all": Estimate(18.0, 17.0, 20.1)}).passed


def test_a_gate_that_could_not_decide_is_refused() -> None:
    gate = Gate(metric="crisis competency", threshold=0.75)
    assert gate.needed == 289
    gate.check({"all": 289})
    with pytest.raises(JobError, match=r"all: 200 items tell a share of 0\.75 within 6\.0 points only\. Give at least 289"):
        gate.check({"all": 200})
    with pytest.raises(JobError, match="0 items"):
        gate.check({})
    with pytest.raises(JobError, match="must be between 0 and 1, not 20"):
        Gate(metric="perplexity", threshold=20.0).check({"all": 1000})


@pytest.mark.parametrize(
    "wrong", [{"threshold": math.nan}, {"slices": ()}, {"slices": ("a", "a")}, {"margin": 0}, {"confidence": 1}]
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(JobError, match="the gate of m needs"):
        Gate(metric="m", **{"threshold": 0.5, **wrong})  # type: ignore[arg-type]
