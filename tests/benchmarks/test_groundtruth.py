"""The scripts whose bottleneck is known: the truth agrees with them, they run, and the score counts what it should."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.groundtruth import check, score, truth
from benchmarks.groundtruth.check import Run, judged, run_script, summary
from benchmarks.groundtruth.truth import Case, load_truth, markers, read_case
from benchmarks.groundtruth.verdict import GOALS, judge_profile, judge_tuning, located, not_tuned, told_places
from benchmarks.groundtruth.verdict import score as scored
from benchmarks.more_tables import groundtruth_table
from upshift.core.errors import TrialError, UpshiftError
from upshift.core.optimization import Bottleneck

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
    assert not [module for module in imported if str(module).startswith(("upshift", "benchmarks"))]
    assert '"--mended"' in source
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
        ({"where": ["write"]}, r"points at \['write'\], the script marks \['read'\]"),
        ({"where": []}, r"the script marks \['read'\]"),
        ({"needs": "tpu"}, "unknown needs tpu"),
        ({"judged_by": "taste"}, "unknown judged_by taste"),
        ({"colour": "red"}, "unknown keys colour"),
        ({"remedy": []}, "needs `bottleneck` and `remedy`"),
        ({"bottleneck": []}, "needs `bottleneck` and `remedy`"),
    ],
)
def test_a_wrong_entry_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UpshiftError, match=words):
        case(**changes)


def test_a_script_without_default_steps_is_named() -> None:
    with pytest.raises(UpshiftError, match="reader: no default for --steps"):
        read_case("reader", ENTRY, SOURCE.partition("\n")[2])


def test_an_unknown_script_is_named() -> None:
    with pytest.raises(UpshiftError, match="There is no script nothing"):
        load_truth(["nothing"])


def test_a_script_without_an_entry_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "SCRIPTS", tmp_path)
    monkeypatch.setattr(truth, "TRUTH", tmp_path / "truth.toml")
    (tmp_path / "truth.toml").write_text("", encoding="utf-8")
    (tmp_path / "stray.py").touch()
    with pytest.raises(UpshiftError, match="differ in: stray"):
        load_truth()


def test_markers_stand_at_the_end_of_a_line() -> None:
    assert markers("a()  # truth: one\n# truth: one is told here\nb()  # truth: two\nc()  # truth: one\n") == {
        "one": [1, 4],
        "two": [3],
    }


# The scripts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["item_each_step", "clean_lstm"])
def test_a_script_and_its_twin_run(name: str) -> None:
    for mended in (False, True):
        run = run_script(CASES[name], 3, mended=mended)
        assert run.step_s > 0
        assert run.peak_bytes > 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words", "kind"),
    [
        ("raise SystemExit('no data')", "exit code 1.*no data", "raised"),
        ("print('2 steps in 1.0 s')", "did not finish 3 steps", "raised"),
        ("import time\ntime.sleep(60)", "no end after 1 s", "hung"),
    ],
)
def test_a_script_that_does_not_finish_is_an_error(
    source: str, words: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth, "SCRIPTS", tmp_path)
    monkeypatch.setattr(check, "LIMIT_S", 1.0)
    (tmp_path / "reader.py").write_text(source, encoding="utf-8")
    with pytest.raises(TrialError, match=words) as error:
        run_script(case(), 3, mended=False)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    ("changes", "naive", "mended", "ratio", "holds"),
    [
        ({}, Run(0.3, 100), Run(0.2, 100), 1.5, True),
        ({}, Run(0.25, 900), Run(0.2, 100), 1.25, False),
        ({"judged_by": "memory"}, Run(0.2, 300), Run(0.2, 200), 1.5, True),
        ({"judged_by": "memory"}, Run(0.9, 220), Run(0.2, 200), 1.1, False),
    ],
)
def test_a_bottleneck_must_cost_what_its_script_is_judged_by(
    changes: dict[str, Any], naive: Run, mended: Run, ratio: float, holds: bool
) -> None:
    row = judged(case(**changes), 10, [naive] * 3, [mended] * 3)
    assert row["ratio"] == pytest.approx(ratio)
    assert row["holds"] is holds


@pytest.mark.parametrize(("seconds", "holds"), [(0.21, True), (0.3, False)])
def test_a_clean_script_must_have_nothing_to_mend(seconds: float, holds: bool) -> None:
    clean = read_case("clean", {"about": "a net", "clean": True}, SOURCE.splitlines()[0])
    row = judged(clean, 10, [Run(seconds, 1)], [Run(0.2, 1)])
    assert row["holds"] is holds
    told = summary([row, {"name": "other", "clean": False, "skipped": "no GPU"}])
    assert (told["checked"], told["skipped"], told["holding"]) == (1, 1, int(holds))
    assert told["not_holding"] == ([] if holds else ["clean"])


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
    assert judge_profile(case(), profile("input"))["diagnosed"]
    assert not judge_profile(case(), profile("logging"))["diagnosed"]
    assert judge_profile(case(bottleneck=["input", "logging"]), profile("logging"))["diagnosed"]


def test_a_remedy_counts_where_it_was_kept() -> None:
    kept = [rung("sample_cache", "applied", gain=1.9, bound=2.0), rung("compile", "applied", gain=9.0, bound=1.1)]
    row = judge_tuning(case(), {"rungs": kept})
    assert row["remedied"]
    assert (row["gain"], row["bound"], row["within_bound"]) == (1.9, 2.0, True)


@pytest.mark.parametrize(
    ("gain", "bound", "within"), [(1.4, 2.0, False), (2.6, 2.0, False), (2.4, 2.0, True), (2.0, None, None)]
)
def test_a_gain_is_held_against_its_own_prediction(gain: float, bound: float | None, within: bool | None) -> None:
    row = judge_tuning(case(), {"rungs": [rung("sample_cache", "applied", gain=gain, bound=bound)]})
    assert row["within_bound"] is within


@pytest.mark.parametrize(
    ("rungs", "why"),
    [
        ([rung("sample_cache", "refused")], "sample_cache: why"),
        ([rung("compile", "applied", gain=2.0, bound=2.0)], "none of them was a candidate"),
    ],
)
def test_a_remedy_that_was_not_kept_does_not_count(rungs: list[dict[str, Any]], why: str) -> None:
    row = judge_tuning(case(), {"rungs": rungs})
    assert row["remedied"] is False
    assert row["remedied_why"] == why


def rows() -> list[dict[str, Any]]:
    clean = read_case("clean", {"about": "a net", "clean": True}, SOURCE.splitlines()[0])
    failed = {"outcome": "failed", "why": "it | fell", "diagnosed": False, "located": False}
    return [
        {
            **judge_profile(case(), profile("input", "reader.py:2")),
            **judge_tuning(case(), {"rungs": [rung("sample_cache", "refused")]}),
        },
        {**judge_profile(case(), profile("other")), **judge_tuning(case(remedy=["none"]), {"rungs": []})},
        {**judge_profile(clean, profile("compute")), **not_tuned(clean, "nothing to remedy")},
        {**judge_profile(clean, profile("input")), **not_tuned(clean, "nothing to remedy")},
        {**judge_profile(case(), profile()), **failed, **not_tuned(case(), "no profile")},
        {**judge_profile(case(), profile()), **failed, "outcome": "skipped", **not_tuned(case(), "no GPU")},
    ]


def test_the_score_counts_each_row_once() -> None:
    found = scored(rows())
    assert (found["scripts"], found["injected"], found["clean"], found["failed"], found["skipped"]) == (6, 3, 2, 1, 1)
    assert found["diagnosed_frac"] == pytest.approx(1 / 3)  # a failed profile is a wrong answer
    assert found["located_frac"] == pytest.approx(1 / 3)
    assert (found["clean_false_alarms"], found["clean_judged"]) == (1, 2)
    assert found["remedied_frac"] == 0.0  # one was judged; the others have no remedy or were not tuned
    assert found["within_bound_frac"] is None


def test_the_table_has_a_line_a_script() -> None:
    own = {"own_cost_frac_2ms": None, "own_cost_frac_100ms": 0.004}
    result = {**scored(rows()), **own, "goals": GOALS, "rows": rows(), "command": "score"}
    text = "\n".join(groundtruth_table(result))
    assert "| bottleneck named right | 33.3% | at least 90% |" in text
    assert "| own cost on steps of 2 ms | not measured | at most 3% |" in text
    assert "| own cost on steps of 100 ms | 0.4% | at most 1% |" in text
    assert "| false alarms on clean scripts | 1 of 2 judged | none |" in text
    assert "| `reader` | reads | input | other (wrong) | not named | not judged: the catalogue has no remedy |" in text
    assert text.count("| `") == 6


# The command


def play(monkeypatch: pytest.MonkeyPatch, profiled: dict[str, Any] | None, tuned: dict[str, Any] | None) -> list[list[str]]:
    """Put a played `upshift` in the place of the real one; gives the list that its calls are noted in."""
    called: list[list[str]] = []

    def command(arguments: list[str], case: Case, folder: Path, limit_s: float) -> str:
        called.append(arguments)
        answer = profiled if arguments[0] == "profile" else tuned
        if answer is None:
            return f"`upshift {arguments[0]}` ended with 2: no such thing"
        file = Path(arguments[arguments.index("--json") + 1]) if arguments[0] == "profile" else folder / "evidence.json"
        file.write_text(json.dumps(answer), encoding="utf-8")
        return ""

    monkeypatch.setattr(score, "_command", command)
    return called


def test_a_script_is_profiled_and_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, profile(), {"rungs": [rung("sample_cache", "applied", gain=2.0, bound=2.0)]})
    row = score.score_case(case(), "1m")
    assert (row["outcome"], row["diagnosed"], row["remedied"], row["within_bound"]) == ("profiled", True, True, True)


def test_what_cannot_be_tuned_yet_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, profile(), None)
    row = score.score_case(case(), "1m")
    assert row["diagnosed"]
    assert row["remedied"] is None
    assert row["remedied_why"] == "`upshift tune` ended with 2: no such thing"


def test_a_profile_that_fails_is_a_wrong_answer_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    called = play(monkeypatch, None, None)
    row = score.score_case(case(), "1m")
    assert (row["outcome"], row["diagnosed"], row["located"]) == ("failed", False, False)
    assert row["why"] == "`upshift profile` ended with 2: no such thing"
    assert len(called) == 1


@pytest.mark.parametrize("changes", [{"remedy": ["none"]}, {"clean": True}])
def test_what_has_no_remedy_is_not_tuned(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    called = play(monkeypatch, profile(), None)
    assert score.score_case(case(**changes), "1m")["remedied"] is None
    assert [arguments[0] for arguments in called] == ["profile"]


def test_what_this_machine_cannot_have_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    called = play(monkeypatch, profile(), None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    row = score.score_case(case(needs="cuda"), "1m")
    assert (row["outcome"], row["why"]) == ("skipped", "this machine has no NVIDIA GPU")
    assert not called


@pytest.mark.slow
def test_the_last_words_of_a_failed_command_are_kept(tmp_path: Path) -> None:
    why = score._command(["nothing"], case(), tmp_path, 60.0)
    assert why.startswith("`upshift nothing` ended with 2: ")
    assert "No such command" in why
