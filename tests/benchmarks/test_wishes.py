"""The fifteen requested features: each has an implementation, and a tuning is reported feature by feature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recipes.wishes import WISHES, Wish, report, table
from hasten.core.job import Job
from hasten.optimizations import catalogue
from hasten.recipes.detection.job import DetectionJob

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "tune_image.json"
NAMES = (
    "dynamic workers", "prefetching", "mixed precision", "gradient accumulation", "compile", "channels_last",
    "light training predictions", "clipping", "efficient zero_grad", "fewer progress updates", "asynchronous progress",
    "CUDA settings", "CPU threads", "preprocessing cache", "batch-size search",
)  # fmt: skip


def rung(name: str, outcome: str, ratio: float | None = None, **more: Any) -> dict[str, Any]:
    comparison = None if ratio is None else {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    return {
        "name": name,
        "settings": {},
        "outcome": outcome,
        "reason": f"{name} was {outcome}",
        "comparison": comparison,
        **more,
    }


def row_of(name: str, *rungs: dict[str, Any]) -> Any:
    return next(row for row in report({"rungs": list(rungs)}) if row.wish.name == name)


def test_there_are_fifteen_in_their_owners_order() -> None:
    assert tuple(wish.name for wish in WISHES) == NAMES


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: wish.name)
def test_what_delivers_a_wish_exists(wish: Wish) -> None:
    assert wish.techniques or wish.attributes
    assert [name for name in wish.techniques if name not in catalogue()] == []
    assert [name for name in wish.attributes if not hasattr(DetectionJob, name)] == []
    assert all(name in wish.switch for name in (*wish.techniques, *wish.attributes))


def test_the_claimed_gain_is_that_of_a_card() -> None:
    hopes = {wish.name: wish.hoped for wish in WISHES}
    assert catalogue()["channels_last"].card.hoped_gain in hopes["channels_last"]
    assert hopes["clipping"] == ""


def test_the_real_job_has_what_its_attributes_deliver() -> None:
    assert DetectionJob.light_predictions
    assert DetectionJob.clip_norm
    assert DetectionJob.zero_grad_to_none
    assert DetectionJob.read_every > Job.read_every


def test_a_technique_in_the_plan_is_reported_with_its_gain() -> None:
    row = row_of("CPU threads", rung("cpu_threads", "applied", 1.2))
    assert row.state == "applied"
    assert row.tried[0].technique == "cpu_threads"
    assert row.tried[0].brought == "1.20x (1.10 to 1.30)"
    assert row.words == "cpu_threads: cpu_threads was applied"


def test_of_several_settings_the_one_that_was_kept_is_reported() -> None:
    row = row_of("compile", rung("compile", "refused", 1.5), rung("compile", "applied", 1.3), rung("compile", "failed"))
    assert [one.outcome for one in row.tried] == ["applied"]


@pytest.mark.parametrize(
    ("outcome", "ratio", "state"),
    [
        ("pruned", 1.01, "tried"),
        ("refused", 0.8, "tried"),
        ("refused", None, "refused"),
        ("failed", None, "failed"),
        ("undecided", None, "not tried"),
    ],
)
def test_what_came_of_a_wish_is_one_word(outcome: str, ratio: float | None, state: str) -> None:
    assert row_of("channels_last", rung("channels_last", outcome, ratio)).state == state


def test_a_wish_that_the_job_itself_grants_is_marked() -> None:
    row = row_of("light training predictions", rung("compile", "applied", 2.0))
    assert row.state == "of the job"
    assert row.tried == ()


def test_a_part_of_the_real_form_is_reported_with_the_gain_of_the_whole_form() -> None:
    row = row_of("light training predictions", rung("job_form", "applied", 2.0))
    assert row.state == "of the job"
    assert row.tried[0].brought == "2.00x (1.90 to 2.10)"
    assert "tried as a whole" in row.words
    assert row_of("clipping", rung("job_form", "applied", 2.0)).tried == ()


def test_a_tuning_that_says_nothing_of_a_wish_leaves_it_untried() -> None:
    assert {row.state for row in report({"rungs": []})} == {"not tried", "of the job"}


def test_a_recorded_tuning_is_reported_wish_by_wish() -> None:
    evidence = json.loads(RECORDED.read_text(encoding="utf-8"))["evidence"]
    rows = {row.wish.name: row for row in report(evidence)}
    assert len(rows) == 15
    ratio = next(
        r["comparison"]["ratio"] for r in evidence["rungs"] if r["name"] == "precision" and r["outcome"] == "applied"
    )
    assert rows["mixed precision"].state == "applied"
    assert rows["mixed precision"].tried[0].ratio == ratio
    assert rows["CUDA settings"].state == "refused"


def test_the_table_has_a_line_for_each_wish() -> None:
    lines = table(report({"rungs": [rung("precision", "applied", 1.5, reason="a | b")]})).splitlines()
    assert len(lines) == 2 + 15
    assert "1.50x (1.40 to 1.60)" in lines[4]
    assert "a \\| b" in lines[4]
