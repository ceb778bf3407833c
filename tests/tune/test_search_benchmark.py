"""The searches that `python -m benchmarks search` compares: the declared candidates, and the verdict."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rows as rows_module
from benchmarks.packing import goal_verdict
from benchmarks.rows import Rows
from benchmarks.search import keep_exhaustive
from benchmarks.search_space import MAX_SECONDS, MAX_SUBSETS, declare, declared_seconds, subsets
from benchmarks.search_verdict import arms_of, best_plans, judge_search, latest, summary
from benchmarks.tables.method import search
from benchmarks.tables.techniques import packing
from hasten.core.card import Judge
from hasten.core.errors import HastenError
from hasten.core.machine import read_machine
from hasten.core.optimization import Optimization, clash
from tests.optimizations.contract import facts
from tests.tune.test_search import technique

KINDS = {
    kind.card.name: kind
    for kind in [
        technique("large", gain=0.6, prior=0.9),
        technique("middle", gain=0.4, prior=0.9),
        technique("small", gain=0.2, prior=0.9, conflicts=("large",)),
        technique("kept", gain=0.01, prior=0.1),
        technique("nothing", gain=0.0, prior=0.9),
    ]
}


def test_kept_candidates_come_first_then_ceiling_and_prior() -> None:
    space = declare(facts(), KINDS, {"kept": {}}, limit=7)
    assert [item.name for item in space.chosen] == ["kept", "large", "middle"]
    assert [item.recorded for item in space.chosen] == [True, False, False]
    assert [item.name for item in space.left_out] == ["small"]  # `nothing` cannot gain anything, so it is not a candidate
    assert space.most_subsets_of_all == 15
    assert [item.name for item in declare(facts(), KINDS, {}, limit=7).chosen] == ["large", "middle", "small"]


def test_kept_candidates_are_included_even_if_they_no_longer_fit() -> None:
    kinds = {**KINDS, "later": technique("later", refuses="not yet")}
    chosen = {item.name: item for item in declare(facts(), kinds, {"later": {}}).chosen}
    assert chosen["later"].recorded
    assert len(chosen["later"].settings) == 1


def test_techniques_not_judged_by_update_time_are_not_candidates() -> None:
    kinds = {
        "learns": technique("learns", judged_by=Judge.TIME_TO_TARGET),
        "saves": technique("saves", event="checkpoint"),
        "forgets": technique("forgets", memory_technique=True),
        "large": KINDS["large"],
    }
    space = declare(facts(), kinds, {"learns": {}})
    assert [item.name for item in (*space.chosen, *space.left_out)] == ["large"]


def test_the_declared_candidates_have_no_more_subsets_than_are_allowed() -> None:
    kinds = {f"t{number}": technique(f"t{number}", gain=0.5, prior=0.5) for number in range(9)}
    space = declare(facts(), kinds, {})
    assert len(space.chosen) == 8
    assert len(subsets([item.settings for item in space.chosen])) == 255 <= MAX_SUBSETS


@pytest.mark.parametrize(("others", "left_out"), [(5, []), (7, ["compiles"])])
def test_candidates_beyond_the_exhaustive_limit_are_left_out(others: int, left_out: list[str]) -> None:
    kinds = {f"t{number}": technique(f"t{number}", gain=0.5, prior=0.5) for number in range(others)}
    kinds |= {"compiles": technique("compiles", gain=0.1, prior=0.1, setup_s=45.0)}
    space = declare(facts(), kinds, {})
    assert [item.name for item in space.left_out] == left_out
    assert len(subsets([item.settings for item in (*space.chosen, *space.left_out)])) <= MAX_SUBSETS
    assert declared_seconds(subsets([item.settings for item in space.chosen])) <= MAX_SECONDS


def test_subsets_are_complete() -> None:
    offers = [(KINDS["large"](),), (KINDS["middle"](),), (KINDS["small"](),)]
    found = {tuple(item.card.name for item in plan) for plan in subsets(offers)}
    assert found == {("large",), ("middle",), ("small",), ("large", "middle"), ("middle", "small")}


def test_a_plan_has_at_most_one_setting_of_a_technique() -> None:
    allocator = two_settings()
    found = subsets([allocator, (KINDS["large"](),)])
    assert len(found) == 2 + 1 + 2
    assert all(not clash(*both) for plan in found for both in itertools.combinations(plan, 2))


def two_settings() -> tuple[Optimization, ...]:
    """Return two settings of one technique."""
    from hasten.optimizations.trim_padding import TrimPadding

    return TrimPadding(multiple=1), TrimPadding(multiple=32)


def climbed(**changes: Any) -> dict[str, Any]:
    """Return a row of the greedy search."""
    rungs = [{"name": "barred", "settings": {}, "numerics": "failed"}, {"name": "one", "settings": {}, "numerics": "passed"}]
    space: dict[str, Any] = {"chosen": [{"name": "one", "settings": [{}]}], "left_out": [], "most_subsets_of_all": 5}
    row = {"seconds": 10.0, "plan": {"one": {}}, "rungs": rungs, "floor_frac": 0.03, "space": space, "max_subsets": 64}
    return {**row, **changes}


def subset(plan: dict[str, Any], ratio: float | None, seconds: float = 20.0) -> dict[str, Any]:
    """Return a row of a subset."""
    return {"plan": plan, "ratio": ratio, "seconds": seconds}


MEASURED = [
    subset({"one": {}}, 1.9),
    subset({"one": {}, "two": {}}, 2.0),
    subset({"two": {}}, 1.2),
    subset({"barred": {}}, 3.0),
    subset({"broken": {}}, None),
    subset({"slow": {}}, 0.7),
]


def rounds(one: float, both: float, num: int = 5) -> list[dict[str, Any]]:
    """Return rounds side by side with these seconds per item and a little noise."""
    arms: dict[str, dict[str, Any]] = {"1": {"one": {}, "two": {}}, "2": {"one": {}}, "3": {"two": {}}}
    times = [{"1": both, "2": one * (1 + 0.001 * number), "3": 2.0} for number in range(num)]
    return [{"plans": arms, "seconds_per_item": time, "spoilt": False} for time in times]


def test_the_best_are_the_fastest_that_a_tuner_may_keep() -> None:
    assert best_plans(MEASURED, climbed()) == [{"one": {}, "two": {}}, {"one": {}}, {"two": {}}]
    assert set(arms_of(climbed(), MEASURED)) == {"1", "2", "3"}  # the greedy search's plan is the second of them
    assert arms_of(climbed(plan={"slow": {}}), MEASURED)["L"] == {"slow": {}}


@pytest.mark.parametrize(
    ("one", "seconds", "verdict"), [(1.0, 10.0, "met"), (1.2, 10.0, "missed"), (1.0, 30.0, "missed"), (0.8, 10.0, "met")]
)
def test_the_verdict_needs_throughput_and_time(one: float, seconds: float, verdict: str) -> None:
    found = summary(climbed(seconds=seconds), MEASURED, rounds(one, 1.0), len(MEASURED))
    assert found["verdict"] == verdict
    assert found["exhaustive_seconds"] == 120.0
    assert found["time_frac"] == pytest.approx(seconds / 120.0)
    assert found["failed"] == 1
    # A plan that is one of the best reaches exactly its own throughput.
    assert found["share_of_best"]["share"] == pytest.approx(min(1.0 / one, 1.0), rel=0.01)


def test_a_search_that_was_cut_short_proves_nothing() -> None:
    found = summary(climbed(), MEASURED, rounds(1.0, 1.0), 2 * len(MEASURED))
    assert found["exhaustive_seconds"] == 240.0  # projected
    assert not found["complete"]
    assert (found["verdict"], "not every subset" in found["why"]) == ("undecided", True)


def test_a_repeated_subset_counts_by_its_last_row() -> None:
    again = [*MEASURED, subset({"broken": {}}, 1.5, 5.0)]
    assert len(latest(again)) == len(MEASURED)
    found = summary(climbed(), latest(again), rounds(1.0, 1.0), len(MEASURED))
    assert (found["failed"], found["measured_seconds"], found["complete"]) == (0, 105.0, True)


def test_rounds_of_other_plans_do_not_count() -> None:
    others = [{**row, "plans": {"1": {"slow": {}}, "2": {"one": {}}}} for row in rounds(1.0, 1.0)]
    found = summary(climbed(), MEASURED, others, len(MEASURED))
    assert found["rounds"] == 0
    assert found["verdict"] == "undecided"


def test_an_interval_around_the_goal_is_undecided() -> None:
    share = {"share": 0.97, "low": 0.93, "high": 1.01}
    assert judge_search(share, 0.1, complete=True)[0] == "undecided"
    assert judge_search({**share, "low": 0.951}, 0.1, complete=True)[0] == "met"
    assert judge_search({**share, "high": 0.949}, 0.1, complete=True)[0] == "missed"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.25, 1.4, "met"), (0.9, 1.19, "missed"), (1.1, 1.3, "undecided"), (None, None, "undecided")],
)
def test_packing_reaches_its_goal_only_with_the_whole_interval(low: float | None, high: float | None, verdict: str) -> None:
    assert goal_verdict(low, high)[0] == verdict


def test_rows_are_resumed_only_by_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "ROOT", tmp_path)
    monkeypatch.setattr(rows_module, "measured_commit", lambda: "abc")
    first = Rows("some")
    assert first.once("ladder", lambda: {"plan": {"one": {}}})["plan"] == {"one": {}}
    first.add("subset", {"ratio": 1.5})
    again = Rows("some")
    assert again.once("ladder", lambda: pytest.fail("it exists already"))["plan"] == {"one": {}}
    assert [row["ratio"] for row in again.of("subset")] == [1.5]
    monkeypatch.setattr(rows_module, "measured_commit", lambda: "def")
    assert Rows("some").of("subset") == []
    monkeypatch.setattr(rows_module, "measured_commit", lambda: "abc+changes")
    Rows("some").add("subset", {"ratio": 1.0})
    assert Rows("some").of("subset") == []
    again.finish()
    assert not again.path.exists()


def test_an_exhaustive_search_is_kept_from_this_machine_alone_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "ROOT", tmp_path)
    monkeypatch.setattr(rows_module, "measured_commit", lambda: "abc")
    subset = {"kind": "subset", "plan": {"one": {}}, "ratio": 1.5}
    job = {"complete": True, "commit": "old", "candidates": {"chosen": []}, "rows": {"subset": [subset], "side": []}}
    last: dict[str, Any] = {"machine_fingerprint": read_machine().fingerprint(), "jobs": {"image": job}}
    kept = Rows("search-image")
    assert keep_exhaustive(kept, last, "image") == ("old", {"chosen": []})
    assert keep_exhaustive(kept, last, "image") == ("old", {"chosen": []})
    assert kept.of("subset") == [subset]
    elsewhere = {**last, "machine_fingerprint": "another"}
    part = {**last, "jobs": {"image": {**job, "complete": False}}}
    for wrong, name in ((elsewhere, "image"), (part, "image"), (last, "text")):
        with pytest.raises(HastenError, match=f"No complete exhaustive search of {name} was recorded on this machine"):
            keep_exhaustive(Rows("other"), wrong, name)


def test_the_tables_show_what_was_measured_and_what_was_not() -> None:
    job = {"target": "x.py:J", "commit": "abc", **summary(climbed(), MEASURED, rounds(1.0, 1.0), len(MEASURED))}
    text = "\n".join(search({"command": "do it", "jobs": {"x": job}}))
    assert "| one, two | 2.00x |" in text
    assert "6 subsets in 120 s" in text
    assert "The search: 10 s" in text
    several = climbed(plan={"one": {"size": 2}})
    several["space"]["chosen"] = [{"name": "one", "settings": [{"size": 1}, {"size": 2}]}]
    job = {"target": "x.py:J", "commit": "def", "exhaustive_commit": "abc", **summary(several, MEASURED, [], len(MEASURED))}
    lines = search({"command": "do it", "jobs": {"x": job}})
    assert "The search's plan: one (size=2)." in lines
    assert "The subsets were measured at commit abc, the search ran at def." in lines
    assert "The subsets were measured at" not in text
    compared = {"ratio": 2.0, "low": 1.9, "high": 2.1}
    padding = {"padded": 0.8, "cut": 0.5, "like_length": 0.1}
    against = {"against_rival": compared, "against_cut": {"ratio": None}, "against_padded": compared}
    row = {"target": "x.py:J", "data": {"padding_frac": padding}, **against, "verdict": "met", "why": ""}
    skipped = {"target": "y.py:J", "skipped": "not measured: no data"}
    text = "\n".join(packing({"command": "do it", "goal": 1.2, "jobs": {"x": row, "y": skipped}}))
    assert "| `x.py:J` | 80% | 50% | 10% | 2.00x (1.90 to 2.10) | - | 2.00x (1.90 to 2.10) | met |" in text
    assert "not measured: no data" in text
