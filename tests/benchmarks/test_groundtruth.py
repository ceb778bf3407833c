"""Scripts with a known bottleneck: they match truth.toml, they run, and results are judged correctly."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.groundtruth import check, score, truth
from benchmarks.groundtruth.check import Run, judged, near_bound, run_script, whole
from benchmarks.groundtruth.truth import Case, load_truth, markers, read_case
from benchmarks.groundtruth.verdict import failed_part, located, profile_part, reached, told_places, tune_part
from benchmarks.groundtruth.verdict import judged as judged_row
from benchmarks.groundtruth.verdict import score as scored
from hasten.core.card import Bottleneck
from hasten.core.errors import HastenError, TrialError
from hasten.optimizations.metric_reading import MetricReading
from hasten.script.plan.reach import why_beyond

CASES = load_truth()
SOURCE = 'p.add_argument("--steps", type=int, default=7)\nread()  # truth: read\nread()  # truth: read\n'
ENTRY = {"about": "reads", "bottleneck": ["input"], "where": ["read"], "remedy": ["sample_cache"]}


def case(**changes: Any) -> Case:
    return read_case("reader", {**ENTRY, **changes}, SOURCE)


def profile(name: str = "input", where: Any = None) -> dict[str, Any]:
    return {"bottleneck": {"name": name, "share": 0.5, "words": "It reads."}, "where": where, "ceilings": {"input": 2.0}}


def rung(name: str, outcome: str, *, gain: float | None = None, bound: float | None = None) -> dict[str, Any]:
    comparison = None if gain is None else {"ratio": gain}
    return {"name": name, "outcome": outcome, "reason": "why", "predicted_max_gain": bound, "comparison": comparison}


# The truth


def test_there_are_enough_scripts_of_each_kind() -> None:
    assert sum(not case.clean and not case.needs for case in CASES.values()) >= 24
    assert sum(case.clean for case in CASES.values()) == 6
    named = {item for case in CASES.values() if not case.clean for item in case.bottleneck}
    assert named == set(Bottleneck) - {Bottleneck.COMMUNICATION}  # the ranks of a group have benchmarks of their own


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_plain_pytorch_and_tells_where_to_look(name: str) -> None:
    found = CASES[name]
    source = found.script.read_text(encoding="utf-8")
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not [module for module in imported if str(module).startswith(("hasten", "benchmarks"))]
    assert '"--fixed"' in source
    assert found.about
    assert found.clean != bool(found.lines)


def test_an_entry_is_read_with_its_lines_and_steps() -> None:
    found = case()
    assert found.bottleneck == (Bottleneck.INPUT,)
    assert found.lines == (2, 3)
    assert found.steps == 7
    assert (found.judged_by, found.needs, found.clean) == ("time", "", False)


def test_no_remedy_is_written_out() -> None:
    assert case(remedy=["none"]).remedy == ()


def test_the_truth_of_a_clean_script_is_its_own_arithmetic() -> None:
    found = read_case("clean", {"about": "a net", "clean": True}, SOURCE.splitlines()[0])
    assert found.bottleneck == (Bottleneck.COMPUTE,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bottleneck": ["reading"]}, "unknown bottlenecks reading"),
        ({"remedy": ["magic"]}, "unknown techniques magic"),
        ({"where": ["write"]}, r"lists the markers \['write'\], the script has \['read'\]"),
        ({"where": []}, r"the script has \['read'\]"),
        ({"needs": "tpu"}, "unknown needs tpu"),
        ({"judged_by": "taste"}, "unknown judged_by taste"),
        ({"colour": "red"}, "unknown keys colour"),
        ({"remedy": []}, "needs `bottleneck` and `remedy`"),
        ({"bottleneck": []}, "needs `bottleneck` and `remedy`"),
    ],
)
def test_a_wrong_entry_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HastenError, match=words):
        case(**changes)


def test_a_script_without_default_steps_is_named() -> None:
    with pytest.raises(HastenError, match="reader: no default for --steps"):
        read_case("reader", ENTRY, SOURCE.partition("\n")[2])


def test_an_unknown_script_is_named() -> None:
    with pytest.raises(HastenError, match="There is no script nothing"):
        load_truth(["nothing"])


def test_a_script_without_an_entry_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "SCRIPTS", tmp_path)
    monkeypatch.setattr(truth, "TRUTH", tmp_path / "truth.toml")
    (tmp_path / "truth.toml").write_text("", encoding="utf-8")
    (tmp_path / "stray.py").touch()
    with pytest.raises(HastenError, match="differ in: stray"):
        load_truth()


def test_markers_stand_at_the_end_of_a_line() -> None:
    assert markers("a()  # truth: one\n# truth: one starts here\nb()  # truth: two\nc()  # truth: one\n") == {
        "one": [1, 4],
        "two": [3],
    }


# The scripts


@pytest.mark.long
@pytest.mark.parametrize("name", ["item_each_step", "clean_lstm"])
def test_a_script_and_its_twin_run(name: str) -> None:
    for fixed in (False, True):
        run = run_script(CASES[name], 3, fixed=fixed)
        assert run.step_s > 0
        assert run.peak_bytes > 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words", "kind"),
    [
        ("raise SystemExit('no data')", "exit code 1.*no data", "raised"),
        ("print('2 steps in 1.0 s')", "did not finish 3 steps", "raised"),
        ("import time\ntime.sleep(60)", "not finished after 1 s", "hung"),
    ],
)
def test_a_script_that_does_not_finish_is_an_error(
    source: str, words: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth, "SCRIPTS", tmp_path)
    monkeypatch.setattr(check, "LIMIT_S", 1.0)
    (tmp_path / "reader.py").write_text(source, encoding="utf-8")
    with pytest.raises(TrialError, match=words) as error:
        run_script(case(), 3, fixed=False)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    ("changes", "naive", "fixed", "ratio", "holds"),
    [
        ({}, Run(0.3, 100), Run(0.2, 100), 1.5, True),
        ({}, Run(0.25, 900), Run(0.2, 100), 1.25, False),
        ({"judged_by": "memory"}, Run(0.2, 300), Run(0.2, 200), 1.5, True),
        ({"judged_by": "memory"}, Run(0.9, 220), Run(0.2, 200), 1.1, False),
    ],
)
def test_a_bottleneck_must_cost_what_its_script_is_judged_by(
    changes: dict[str, Any], naive: Run, fixed: Run, ratio: float, holds: bool
) -> None:
    row = judged(case(**changes), 10, [naive] * 3, [fixed] * 3)
    assert row["ratio"] == pytest.approx(ratio)
    assert row["holds"] is holds


@pytest.mark.parametrize(("seconds", "holds"), [(0.21, True), (0.3, False)])
def test_a_clean_script_must_have_nothing_to_fix(seconds: float, holds: bool) -> None:
    clean = read_case("clean", {"about": "a net", "clean": True}, SOURCE.splitlines()[0])
    row = judged(clean, 10, [Run(seconds, 1)], [Run(0.2, 1)])
    assert row["holds"] is holds
    told = whole({"clean_mlp": {"check": row}}, {})
    assert (told["checked"], told["holding"]) == (1, int(holds))
    assert told["not_holding"] == ([] if holds else ["clean_mlp"])


@pytest.mark.parametrize(("seconds", "near"), [(1.15, False), (1.28, True), (1.32, True), (1.45, False)])
def test_a_ratio_near_its_bound_is_measured_more_often(seconds: float, near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert near_bound(judged(case(), 10, [Run(seconds, 1)], [Run(1.0, 1)])) is near
    monkeypatch.setattr(check, "run_script", lambda _case, _steps, *, fixed: Run(1.0 if fixed else seconds, 1))
    assert len(check.check_case(case())["naive_step_s"]) == (check.MOST_ROUNDS if near else check.ROUNDS)


# The verdict


@pytest.mark.parametrize(
    ("where", "places"),
    [
        (None, []),
        ("train.py:12 in read", [("train.py", 12)]),
        ({"file": "/a/train.py", "line": 3}, [("/a/train.py", 3)]),
        ({"input": {"file": "a.py", "line": 3, "seconds": 1}, "logging": "b.py:4"}, [("a.py", 3), ("b.py", 4)]),
        ([{"file": "a.py", "line": 3}, "b.py:4, c.py:5"], [("a.py", 3), ("b.py", 4), ("c.py", 5)]),
        ("nowhere", []),
    ],
)
def test_places_are_read_from_any_form(where: Any, places: list[tuple[str, int]]) -> None:
    assert list(told_places(where)) == places


@pytest.mark.parametrize(
    ("where", "right"),
    [("reader.py:3", True), ("reader.py:5", True), ("reader.py:6", False), ("other.py:3", False), (None, False)],
)
def test_a_place_is_right_at_a_marked_line_or_near_one(where: str | None, right: bool) -> None:
    assert located(case(), where) is right


def test_a_diagnosis_is_right_by_name() -> None:
    def diagnosed(case: Case, name: str) -> bool:
        return bool(judged_row(case, {"profile": profile_part(profile(name))})["profile"]["diagnosed"])

    assert diagnosed(case(), "input")
    assert not diagnosed(case(), "logging")
    assert diagnosed(case(bottleneck=["input", "logging"]), "logging")


def test_a_profile_that_failed_is_a_wrong_answer_with_its_reason() -> None:
    found = judged_row(case(), {"profile": failed_part("it fell")})["profile"]
    assert (found["diagnosed"], found["located"], found["why"]) == (False, False, "it fell")


def test_the_verdict_is_recomputed_from_stored_parts() -> None:
    kept = {"profile": profile_part(profile("logging", "reader.py:2"))}
    assert not judged_row(case(), kept)["profile"]["diagnosed"]
    assert judged_row(case(bottleneck=["logging"]), judged_row(case(), kept))["profile"]["diagnosed"]


def tuning(*rungs: dict[str, Any], final: dict[str, Any] | None = None, case: Case | None = None) -> dict[str, Any]:
    case = case or CASES["slow_decode"]
    found: dict[str, Any] = judged_row(case, {"tune": tune_part(case, {"rungs": list(rungs), "final": final})})["tune"]
    return found


def test_a_remedy_counts_where_it_was_kept() -> None:
    found = tuning(
        rung("sample_cache", "applied", gain=1.9, bound=2.0),
        rung("compile", "applied", gain=9.0, bound=1.1),
        rung("precision", "refused"),
        final={"ratio": 3.0, "low": 2.5, "high": 3.5, "pairs": 5, "samples": []},
    )
    assert found["remedied"]
    assert (found["gain"], found["bound"], found["within_bound"]) == (1.9, 2.0, True)
    assert [item["name"] for item in found["rungs"]] == ["sample_cache", "compile"]
    assert found["final"] == {"ratio": 3.0, "low": 2.5, "high": 3.5, "pairs": 5}


@pytest.mark.parametrize(
    ("gain", "bound", "within"), [(1.4, 2.0, False), (2.6, 2.0, False), (2.4, 2.0, True), (2.0, None, None)]
)
def test_a_gain_is_held_against_its_own_prediction(gain: float, bound: float | None, within: bool | None) -> None:
    assert tuning(rung("sample_cache", "applied", gain=gain, bound=bound))["within_bound"] is within


@pytest.mark.parametrize(
    ("rungs", "why"),
    [
        ([rung("sample_cache", "refused")], "sample_cache: why"),
        ([rung("compile", "applied", gain=2.0, bound=2.0)], "none of them was a candidate"),
    ],
)
def test_a_remedy_that_was_not_kept_does_not_count(rungs: list[dict[str, Any]], why: str) -> None:
    found = tuning(*rungs)
    assert found["remedied"] is False
    assert found["remedied_why"] == why


def test_a_remedy_without_a_seam_in_scripts_is_advice_where_it_is_told() -> None:
    case = CASES["item_each_step"]
    told = {**rung("metric_reading", "refused"), "reason": why_beyond(MetricReading.card)}
    found = tuning(told, case=case)
    assert (found["remedied"], found["advised"]) == (False, True)
    assert not tuning({**told, "reason": "it does not fit"}, case=case)["advised"]
    row = judged_row(case, {"tune": tune_part(case, {"rungs": [told]})})
    assert (scored([row])["remedied_frac"], scored([row])["remedied_or_advised_frac"]) == (0.0, 1.0)


def test_a_tuning_that_failed_found_nothing() -> None:
    found = judged_row(case(), {"tune": failed_part("it fell")})["tune"]
    assert (found["remedied"], found["remedied_why"], found["within_bound"]) == (False, "it fell", None)


def rows() -> list[dict[str, Any]]:
    """Return one right row, one wrong, a clean one, a false alarm, one with a failed profile, and one not measured."""
    clean = read_case("clean", {"about": "a net", "clean": True}, SOURCE.splitlines()[0])
    found = [
        (case(), {"profile": profile_part(profile("input", "reader.py:2")), "tune": tune_part(case(), {"rungs": []})}),
        (case(remedy=["none"]), {"profile": profile_part(profile("other"))}),
        (clean, {"profile": profile_part(profile("compute"))}),
        (clean, {"profile": profile_part(profile("input"))}),
        (case(), {"profile": failed_part("it | fell")}),
        (case(), {}),
    ]
    return [judged_row(case, row) for case, row in found]


def test_the_score_counts_each_row_once() -> None:
    found = scored(rows())
    assert (found["scripts"], found["injected"], found["clean"], found["failed"], found["tuned"]) == (6, 3, 2, 1, 1)
    assert found["diagnosed_frac"] == pytest.approx(1 / 3)  # a failed profile is a wrong answer
    assert found["located_frac"] == pytest.approx(1 / 3)
    assert found["clean_false_alarms"] == 1
    assert found["remedied_frac"] == 0.0  # one was tuned
    assert found["within_bound_frac"] is None


def test_nothing_measured_is_no_score() -> None:
    found = scored([judged_row(case(), {})])
    names = ("diagnosed_frac", "located_frac", "clean_false_alarms", "remedied_frac", "within_bound_frac")
    assert [found[name] for name in names] == [None] * 5


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("diagnosed_frac", 0.9, True),
        ("diagnosed_frac", 0.89, False),
        ("clean_false_alarms", 0, True),
        ("clean_false_alarms", 1, False),
        ("own_cost_frac_2ms", 0.031, False),
        ("own_cost_frac_2ms", -0.01, True),
        ("own_cost_frac_100ms", None, None),
    ],
)
def test_a_goal_is_reached_from_its_own_side(name: str, value: float | None, answer: bool | None) -> None:
    assert reached({name: value})[name] is answer


# The command


def play(monkeypatch: pytest.MonkeyPatch, answers: dict[str, dict[str, Any] | None]) -> list[tuple[str, int]]:
    """Replace `hasten` by a fake; return the list of its calls with their numbers of steps."""
    called: list[tuple[str, int]] = []

    def command(arguments: list[str], steps: int, folder: Path, limit_s: float) -> str:
        called.append((arguments[0], steps))
        answer = answers.get(arguments[0])
        if answer is None:
            return f"`hasten {arguments[0]}` ended with 2: no such thing"
        file = Path(arguments[arguments.index("--json") + 1]) if arguments[0] == "profile" else folder / "evidence.json"
        file.write_text(json.dumps(answer), encoding="utf-8")
        return ""

    monkeypatch.setattr(score, "_command", command)
    return called


def test_a_script_is_profiled_for_its_own_steps_and_tuned_for_as_many_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = [rung("sample_cache", "applied", gain=2.0, bound=2.0)]
    called = play(monkeypatch, {"profile": profile(), "tune": {"rungs": rungs, "final": None}})
    assert score.call_profile(case())["named"] == "input"
    assert score.call_tune(case())["rungs"][0]["ratio"] == 2.0
    assert called == [("profile", 7), ("tune", score.TUNE_STEPS)]


@pytest.mark.parametrize("call", [score.call_profile, score.call_tune])
def test_a_command_that_fails_is_kept_with_its_reason(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {})
    assert call(case())["outcome"] == "failed"
    assert call(case())["why"].endswith("ended with 2: no such thing")


def test_a_profile_without_a_bottleneck_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"profile": {"bottleneck": None}})
    assert score.call_profile(case()) == failed_part("the profile names no bottleneck")


@pytest.mark.parametrize(
    ("changes", "part", "why"),
    [
        ({}, "tune", ""),
        ({"remedy": ["none"]}, "tune", "the catalogue has no remedy"),
        ({"clean": True}, "tune", "nothing to remedy"),
        ({"clean": True}, "profile", ""),
        ({"needs": "cuda"}, "profile", "this machine has no NVIDIA GPU"),
    ],
)
def test_what_cannot_be_measured_says_why(
    changes: dict[str, Any], part: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = case(**changes)
    if changes.get("clean"):
        found = read_case("clean", {"about": "a net", "clean": True}, SOURCE.splitlines()[0])
    assert score.not_measured(found, part) == why


@pytest.mark.slow
def test_the_last_words_of_a_failed_command_are_kept(tmp_path: Path) -> None:
    why = score._command(["nothing"], 3, tmp_path, 60.0)
    assert why.startswith("`hasten nothing` ended with 2: ")
    assert "No such command" in why


@pytest.mark.long
def test_a_script_is_really_profiled() -> None:
    found = judged_row(CASES["per_sample_collate"], {"profile": score.call_profile(CASES["per_sample_collate"], 0.1)})
    assert found["profile"]["outcome"] == "profiled"
    assert found["profile"]["steps"] > 2
    assert sum(found["profile"]["phases"].values()) == pytest.approx(1.0)
