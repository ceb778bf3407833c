"""The summary in the terminal gives the right answer on any console, from any evidence."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hasten.core.stats import TRAINING_LOSS
from hasten.report import parse, print_summary
from hasten.report.html import render
from hasten.report.words import IN_GOOD_SHAPE, command_words, headline, outcome_words
from hasten.tune.search.candidate import no_time
from tests.report.sample import SAMPLES, comparison, empty_plan, full, interrupted, rung


def summary(evidence: dict[str, Any], *, width: int = 100, encoding: str = "utf-8", every: bool = False) -> str:
    buffer = io.BytesIO()
    console = Console(file=io.TextIOWrapper(buffer, encoding=encoding, write_through=True), width=width, no_color=True)
    print_summary(parse(evidence), console, Path("out"), every=every)
    return buffer.getvalue().decode(encoding)


def flat(words: str) -> str:
    return " ".join(words.split())


def test_headline_of_a_proved_gain() -> None:
    evidence = full()
    evidence["final"].update(ratio=4.9, low=4.5, high=5.4)
    assert headline(parse(evidence)).line == "4.9x faster, proved (4.5x to 5.4x, 5 pairs); held-out loss not worse"
    assert headline(parse(evidence)).tone == "good"


@pytest.mark.parametrize("verdict", ["worse", "undecided", "no idea"])
def test_a_gain_that_may_harm_is_not_called_good(verdict: str) -> None:
    evidence = full()
    evidence["final"]["quality"]["verdict"] = verdict
    found = headline(parse(evidence))
    assert found.tone != "good"
    assert "do not adopt" in found.line
    assert verdict in found.line


@pytest.mark.parametrize(("verdict", "words"), [("slower", "No gain"), ("same", "Not proved"), ("undecided", "Not proved")])
def test_headline_without_a_gain(verdict: str, words: str) -> None:
    evidence = full()
    evidence["final"]["verdict"] = verdict
    assert headline(parse(evidence)).line.startswith(words)
    assert "faster, proved" not in headline(parse(evidence)).line


def test_headline_of_an_empty_plan_is_kind() -> None:
    assert headline(parse(empty_plan())).line == IN_GOOD_SHAPE


def test_failures_are_not_called_good_shape() -> None:
    evidence = empty_plan()
    for candidate in evidence["rungs"]:
        candidate["outcome"] = "failed"
    assert "every candidate failed" in headline(parse(evidence)).line


def test_runs_that_do_not_repeat_are_not_called_good_shape() -> None:
    evidence = empty_plan()
    tried = [candidate for candidate in evidence["rungs"] if candidate.get("numerics")]
    for candidate in tried:
        candidate["numerics"]["verdict"] = "failed"
    evidence["noise"]["repeats"] = False
    found = headline(parse(evidence))
    assert "two plain runs with the same seed gave different losses" in found.line
    assert f"harm in {len(tried)} of " in found.line
    evidence["noise"]["repeats"] = True
    assert headline(parse(evidence)).line == IN_GOOD_SHAPE


def test_a_job_is_called_in_good_shape_only_if_measured() -> None:
    evidence = empty_plan()
    tried = [candidate for candidate in evidence["rungs"] if candidate.get("comparison")]
    undecided = next(candidate for candidate in tried if candidate["outcome"] == "undecided")
    undecided["comparison"]["high"] = 1.34
    found = headline(parse(evidence))
    assert f"of {len(tried)} candidates 1 left undecided" in found.line
    tried[0]["outcome"] = "failed"
    assert f"of {len(tried)} candidates 1 failed and 1 left undecided" in headline(parse(evidence)).line
    evidence["rungs"] = [candidate for candidate in evidence["rungs"] if candidate not in tried]
    found = headline(parse(evidence))
    assert found.line.startswith("Nothing tried: no technique could be tried")
    assert found.tone == "bad"
    failed = {**evidence, "ended": "trial failures", "failure": "the script has gone"}
    assert "the script has gone" in headline(parse(failed)).line


def test_headline_of_an_interrupted_tuning() -> None:
    assert "interrupted" in headline(parse(interrupted())).line
    assert "1 candidate looked good" in headline(parse(interrupted())).line


def test_the_summary_names_everything() -> None:
    evidence = full()
    shown = summary(evidence, every=True)
    assert headline(parse(evidence)).line in flat(shown)
    assert evidence["bottleneck"]["words"] in flat(shown)
    for candidate in evidence["rungs"]:
        assert candidate["name"] in shown
        assert candidate["reason"][:40] in flat(shown)
    for words in ("numerics training: not worse", "694 ms", "out/report.html", "out/hasten.toml", "out/evidence.json", "█"):
        assert words in flat(shown)


def test_what_does_not_apply_is_one_line_with_a_count() -> None:
    evidence = full()
    unfit = [item for item in evidence["rungs"] if item["outcome"] == "refused" and not item["comparison"]]
    assert unfit
    shown = flat(summary(evidence))
    assert f"{len(unfit)} technique" in shown
    assert unfit[0]["reason"] not in shown
    unfit[0]["reason"] = "excluded by the request: not named in --only"
    assert "1 technique excluded by the request" in flat(summary(evidence))


def test_the_last_lines_are_the_answer_and_the_next_command() -> None:
    evidence = full()
    assert summary(evidence).splitlines()[-2].strip() == evidence["commands"][-1]
    assert flat(summary(evidence)).split(" Next: ")[0].endswith(headline(parse(evidence)).line)
    stopped = {**interrupted(), "commands": ["hasten tune train.py --budget 60s -- --lr 1", "hasten run train.py"]}
    stopped["ended"] = "interrupted"
    assert flat(summary(stopped)).endswith("Next: hasten tune train.py --budget 60s --resume -- --lr 1")
    assert "Next:" not in summary(empty_plan())


def test_a_command_can_be_copied_from_a_narrow_terminal() -> None:
    command = "hasten run 'my job.py:J' --plan out/hasten.toml"
    assert command_words(command, 100) == command
    narrow = command_words(command, 24)
    assert max(map(len, narrow.splitlines())) <= 24
    assert shlex.split(narrow.replace("\\\n", "")) == shlex.split(command)


def test_a_refusal_says_which_kind_it_is() -> None:
    slower = rung("a", "refused", "slower", comparison=comparison(0.5, "slower", seed=1))
    same = rung("b", "refused", "same", comparison=comparison(1.0, "same", seed=2))
    harmful = rung("c", "refused", "changes losses", comparison=comparison(2.0, "faster", seed=3))
    unfit = rung("d", "refused", "no GPU")
    found = parse({**full(), "rungs": [slower, same, harmful, unfit]})
    assert [outcome_words(item) for item in found.rungs] == ["slower", "no gain", "rejected", "not applicable"]


def test_no_word_is_broken_at_80_columns() -> None:
    evidence = full()
    words = set(summary(evidence, width=400, every=True).split())
    shown = set(summary(evidence, width=80, every=True).split())
    assert {word for word in shown - words if "█" not in word} == set()


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [20, 60, 100])
def test_no_line_is_wider_than_the_console(name: str, width: int) -> None:
    shown = summary(SAMPLES[name](), width=width)
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= width


def test_phases_that_were_not_measured_again_are_in_neither_bar() -> None:
    evidence = full()
    evidence["phases"].update(validation=0.2, backward=0.378)
    lines = summary(evidence).splitlines()
    assert not any(line.split()[:1] == ["validation"] for line in lines)
    assert any("Not measured again under the plan" in line and "validation" in line for line in lines)


@pytest.mark.parametrize("width", [72, 80, 100])
def test_phases_keep_their_names_beside_two_bars(width: int) -> None:
    evidence = full()
    assert evidence["phases_after"]
    shown = summary(evidence, width=width)
    for name, share in evidence["phases"].items():
        assert share < 0.005 or any(line.split()[:1] == [name] for line in shown.splitlines())


def test_candidates_without_time_are_one_list() -> None:
    evidence = full()
    why = no_time(18.0)
    evidence["rungs"] += [rung("knob", "undecided", why, settings={"size": size}) for size in (1, 2)]
    evidence["rungs"].append(rung("lever", "undecided", why))
    shown = flat(summary(evidence))
    assert "Not tried for lack of time (3); a larger --budget reaches them: knob (2 settings), lever" in shown
    assert why not in shown


def test_an_ascii_console_gets_ascii() -> None:
    shown = summary(full(), encoding="ascii")
    assert "+ applied" in shown
    assert "###" in shown


def test_markup_in_names_is_printed_verbatim() -> None:
    evidence = full()
    evidence["rungs"][0]["reason"] = "[red]not markup[/red] [/oops]"
    assert "[red]not markup[/red] [/oops]" in summary(evidence)


def test_the_patch_of_a_script_is_listed_if_there_is_one() -> None:
    assert "hasten.patch" not in summary(full())
    patch = {"written": {"precision": "autocast"}, "left": {}}
    assert "apply it" not in summary({**full(), "patch": patch})
    assert "a patch of the script; apply it in ../.." in summary({**full(), "patch": {**patch, "folder": "../.."}})


def test_a_script_is_judged_by_its_training_loss() -> None:
    evidence = full()
    evidence["final"].update(ratio=4.9, low=4.5, high=5.4)
    evidence["final"]["quality"]["metric"] = TRAINING_LOSS
    assert headline(parse(evidence)).line == "4.9x faster, proved (4.5x to 5.4x, 5 pairs); training loss not worse"
    page = render(parse(evidence))
    assert "eld-out quality" not in page
    assert "held-out training" not in page
