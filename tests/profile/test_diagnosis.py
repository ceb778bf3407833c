"""The diagnosis: pure rules that name each bottleneck from phases and ceilings alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.core.card import Bottleneck
from hasten.profile.diagnosis import THRESHOLDS, diagnose, recoverable

NONE: dict[str, float] = {}


@pytest.mark.parametrize(
    ("phases", "ceilings", "name", "share"),
    [
        ({"data": 0.70, "forward": 0.15, "backward": 0.15}, {"input": 3.0}, Bottleneck.INPUT, 0.70),
        ({"forward": 0.5, "backward": 0.5}, {"padding": 4.0}, Bottleneck.PADDING, 0.75),
        ({"logging": 0.6, "forward": 0.2, "backward": 0.2}, NONE, Bottleneck.LOGGING, 0.6),
        ({"validation": 0.55, "forward": 0.2, "backward": 0.2}, NONE, Bottleneck.VALIDATION, 0.55),
        ({"checkpoint": 0.5, "forward": 0.2, "backward": 0.2}, NONE, Bottleneck.CHECKPOINT, 0.5),
        ({"optimizer": 0.5, "forward": 0.2, "backward": 0.2}, NONE, Bottleneck.OPTIMIZER, 0.5),
        ({"transfer": 0.5, "forward": 0.2, "backward": 0.2}, NONE, Bottleneck.TRANSFER, 0.5),
        ({"sync": 0.5, "forward": 0.2, "backward": 0.2}, NONE, Bottleneck.COMMUNICATION, 0.5),
        ({"other": 0.8, "forward": 0.1, "backward": 0.1}, NONE, Bottleneck.OTHER, 0.8),
        ({"data": 0.01, "forward": 0.4, "backward": 0.55}, {"input": 1.01}, Bottleneck.COMPUTE, 0.95),
    ],
)
def test_the_largest_share_is_named(phases: Any, ceilings: Any, name: Any, share: Any) -> None:
    found = diagnose(phases, ceilings)
    assert found.name is name
    assert found.share == pytest.approx(share)
    assert f"{share:.0%}" in found.words


@pytest.mark.parametrize("name", [item for item in THRESHOLDS if item is not Bottleneck.PADDING])
def test_a_share_below_its_threshold_is_not_mentioned(name: Any) -> None:
    phase = {Bottleneck.INPUT: "data", Bottleneck.COMMUNICATION: "sync"}.get(name, str(name))
    below, above = THRESHOLDS[name] - 0.01, THRESHOLDS[name] + 0.01
    assert "Also: " not in diagnose({"forward": 1 - below, phase: below}, NONE).words
    alone = diagnose({phase: above}, NONE).words
    assert f"Also: {alone[:8]}" in diagnose({"forward": 1 - above, phase: above}, NONE).words


def test_secondary_causes_follow_largest_first() -> None:
    found = diagnose({"data": 0.2, "logging": 0.1, "validation": 0.3, "forward": 0.2, "backward": 0.2}, NONE)
    assert found.name is Bottleneck.COMPUTE
    assert found.words.count("Also: ") == 3
    places = [found.words.index(word) for word in ("Validation takes", "waits for data", "Reading, printing")]
    assert places == sorted(places)


@pytest.mark.parametrize(("wait_frac", "words"), [(0.9, "mostly waits"), (0.1, "is CPU-bound")])
def test_input_states_whether_fetching_waits_or_computes(wait_frac: float, words: Any) -> None:
    phases = {"data": 0.8, "forward": 0.2}
    assert words in diagnose(phases, NONE, wait_frac=wait_frac).words
    assert words not in diagnose({"forward": 1.0}, NONE, wait_frac=wait_frac).words


@pytest.mark.parametrize(("straggler", "said"), [(1.0, False), (1.05, False), (1.4, True)])
def test_communication_names_a_slow_rank(straggler: float, said: bool) -> None:
    found = diagnose({"sync": 0.6, "forward": 0.2, "backward": 0.2}, NONE, straggler=straggler)
    assert ("slowest rank computes 1.40 times" in found.words) is said
    assert "slowest rank" not in diagnose({"forward": 1.0}, NONE, straggler=straggler).words


@pytest.mark.parametrize("phases", [{"logging": 0.6, "forward": 0.4}, {"logging": 0.2, "forward": 0.8}])
def test_logging_states_whether_values_are_read_or_written(phases: Any) -> None:
    read, written = (diagnose(phases, NONE, logging_writes=writes).words for writes in (False, True))
    assert "Reading metrics takes" in read
    assert "Printing, logging and reporting metrics take" in written
    assert "Reading metrics" not in written
    assert f"{phases['logging']:.0%}" in written


def test_the_share_of_the_model_is_always_stated() -> None:
    phases = {"data": 0.7, "forward": 0.1, "backward": 0.2}
    assert "forward and backward passes take 30% of the time" in diagnose(phases, NONE).words
    assert "forward and backward passes on real data take 20%" in diagnose(phases, {"padding": 1 / 0.9}).words


PHASE_NAMES = (
    "data",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "logging",
    "validation",
    "checkpoint",
    "other",
    "sync",
)
SHARES = st.dictionaries(st.sampled_from(PHASE_NAMES), st.sampled_from([0.0, 0.04, 0.12, 0.3, 0.6, 0.9]))
MEASURED = st.fixed_dictionaries({
    "wait_frac": st.sampled_from([None, 0.0, 0.5, 0.9]),
    "straggler": st.sampled_from([None, 1.0, 1.4]),
    "logging_writes": st.sampled_from([None, False, True]),
})  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(phases=SHARES, padding=st.sampled_from([None, 1.0, 1.5, 4.0]), more=MEASURED)
def test_every_sentence_needs_its_measurements(
    phases: dict[str, float], padding: float | None, more: dict[str, Any]
) -> None:
    ceilings = {"input": 2.0} | ({"padding": padding} if padding else {})
    found = diagnose(phases, ceilings, **more)
    assert found.words == (" ".join(sentence.words for sentence in found.sentences) or "No phase was measured.")
    given = {f"phases.{name}": share for name, share in phases.items()} | {f"ceilings.{name}": 0 for name in ceilings}
    given |= {name: value for name, value in more.items() if value is not None}
    for sentence in found.sentences:
        assert sentence.measured
        assert set(sentence.measured) <= set(given), sentence
        for name in sentence.measured:
            where, _, key = name.rpartition(".")
            less: dict[str, Any] = {"phases": dict(phases), "ceilings": dict(ceilings), "": dict(more)}
            less[where].pop(key)
            without = diagnose(less["phases"], less["ceilings"], **less[""])
            assert (sentence.words, sentence.measured) not in [(item.words, item.measured) for item in without.sentences]


def test_fetch_waiting_is_not_stated_unless_measured() -> None:
    words = diagnose({"data": 0.9, "forward": 0.1}, NONE).words
    assert (
        words
        == "Training waits for data 90% of the time. The model itself: forward and backward passes take 10% of the time."
    )


def test_padding_is_subtracted_from_compute_and_never_exceeds_it() -> None:
    half = recoverable({"forward": 0.4, "backward": 0.4}, {"padding": 2.0})
    assert half[Bottleneck.PADDING] == pytest.approx(0.5)
    assert half[Bottleneck.COMPUTE] == pytest.approx(0.3)
    capped = recoverable({"forward": 0.1, "backward": 0.1, "data": 0.8}, {"padding": 10.0})
    assert capped[Bottleneck.PADDING] == pytest.approx(0.2)
    assert capped[Bottleneck.COMPUTE] == 0.0


def test_shares_stay_between_zero_and_one() -> None:
    shares = recoverable({"data": 1.4, "forward": -0.1}, {"padding": 0.5})
    assert set(shares) == set(Bottleneck) - {Bottleneck.MEMORY}
    assert all(0.0 <= share <= 1.0 for share in shares.values())
    assert shares[Bottleneck.PADDING] == 0.0


def test_without_measurements_the_answer_is_compute() -> None:
    assert diagnose({}, {}).name is not Bottleneck.MEMORY
    assert diagnose({}, {}).share == 0.0
    assert diagnose({}, {}).words == "No phase was measured."
