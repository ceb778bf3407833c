"""Valid evidence passes, every planted mistake is reported, and a file is written as it was read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import HastenError
from hasten.report import load, parse, save, validate
from tests.report.sample import SAMPLES, full


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_valid(name: str) -> None:
    assert validate(SAMPLES[name]()) == []


MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing key": (lambda e: e.pop("rungs"), "`rungs` is missing"),
    "missing nested key": (lambda e: e["rungs"][2].pop("reason"), "`rungs[2].reason` is missing"),
    "unknown outcome": (lambda e: e["rungs"][0].update(outcome="accepted"), "`rungs[0].outcome` must be one of 'applied'"),
    "text for a number": (lambda e: e["final"].update(ratio="4.9"), "`final.ratio` must be a finite number, not '4.9'"),
    "true for a number": (lambda e: e["final"].update(pairs=True), "`final.pairs` must be a whole number, not True"),
    "not a number": (lambda e: e["ceilings"].update(data=math.nan), "`ceilings.data` must be a finite number"),
    "wrong container": (lambda e: e.update(phases=[0.1]), "`phases` must be a table"),
    "null where none may be": (lambda e: e.update(seconds=None), "`seconds` must be a finite number, not None"),
    "bad sample": (lambda e: e["final"]["samples"][3].update(arm="C"), "`final.samples[3].arm` must be one of 'A', 'B'"),
    "bad numerics": (lambda e: e["rungs"][1]["numerics"].update({"class": "close"}), "`rungs[1].numerics.class` must be"),
    "other schema": (lambda e: e.update(schema=2), "`schema` must be 1"),
    "no summary": (lambda e: e["machine"].pop("summary"), "`machine.summary` is missing"),
    "share below 0": (lambda e: e["phases"].update(data=-0.1), "`phases.data` must be a share from 0 to 1"),
    "shares above the whole": (lambda e: e["phases"].update(data=0.9), "`phases` adds up to"),
    "unknown phase": (lambda e: e["phases"].update(io=0.0), "`phases.io` is not a phase"),
    "ceiling below 1": (lambda e: e["ceilings"].update(data=0.9), "`ceilings.data` must be at least 1"),
    "candidate without a reason": (lambda e: e["rungs"][4].update(reason=" "), "`rungs[4].reason` is empty"),
    "gain without a measurement": (lambda e: e["rungs"][0].update(comparison=None), "`rungs[0].comparison` is null"),
    "verdict without an interval": (lambda e: e["final"].update(ratio=None), "`final` has no interval, but its verdict is"),
    "ratio outside its interval": (lambda e: e["final"].update(low=9.0), "`final` needs 0 < low <= ratio <= high"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_named(name: str) -> None:
    plant, words = MISTAKES[name]
    evidence = full()
    plant(evidence)
    problems = validate(evidence)
    assert len(problems) == 1, problems
    assert words in problems[0]


def test_a_disturbed_proof_is_valid_and_undecided() -> None:
    evidence = full()
    evidence["final"] |= {"ratio": None, "low": None, "high": None, "pairs": 0, "verdict": "undecided"}
    assert validate(evidence) == []


def test_more_keys_may_be_present() -> None:
    assert validate({**full(), "note": "mine"}) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    evidence = {**SAMPLES[name](), "note": {"mine": None}}
    path = tmp_path / "deep" / "evidence.json"
    save(parse(evidence), path)
    assert json.loads(path.read_text(encoding="utf-8")) == evidence
    assert load(path) == parse(evidence)


def recorded(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all evidence in a recorded result."""
    if isinstance(value, dict) and "rungs" in value and "final" in value:
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from recorded(item)


@pytest.mark.parametrize("name", ["tune_text", "tune_image", "tune_diagnosis"])
def test_the_evidence_of_a_real_tuning_is_written_as_it_was_read(name: str, tmp_path: Path) -> None:
    result = json.loads((Path("benchmarks/results") / f"{name}.json").read_text(encoding="utf-8"))
    tunings = list(recorded(result))
    assert tunings
    for data in tunings:
        save(parse(data), tmp_path / "evidence.json")
        assert json.loads((tmp_path / "evidence.json").read_text(encoding="utf-8")) == data


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    evidence = parse(full())
    assert evidence.losses is not None
    broken = replace(evidence.losses, tuned=(math.nan, 1.0))
    save(replace(evidence, losses=broken), tmp_path / "evidence.json")
    read = load(tmp_path / "evidence.json").losses
    assert read is not None
    assert read.tuned == (None, 1.0)


def test_save_refuses_values_that_json_cannot_represent(tmp_path: Path) -> None:
    with pytest.raises(HastenError, match="cannot be written as JSON"):
        save(parse({**full(), "model": object()}), tmp_path / "evidence.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Cannot read"),
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        (json.dumps({"schema": 9}), "`schema` is 9; this Hasten reads schema 1"),
        (json.dumps({"schema": 1}), "`job` is missing"),
    ],
)
def test_load_reports_the_mistake_and_the_next_step(content: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(HastenError) as caught:
        load(path)
    assert words in str(caught.value)
    assert "hasten tune" in str(caught.value)
