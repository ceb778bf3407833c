"""Tasks for inspect-ai read the published formats, and a judge without a verdict ends them. The texts here are our own."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import DataError
from hasten.recipes.dialogue.evaluation.tasks import CRITERIA, healthbench, labelled, mindeval, vera_mh

pytestmark = [  # streams that inspect-ai leaves open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _inspect() -> None:
    if importlib.util.find_spec("inspect_ai") is None:
        assert not os.environ.get("HASTEN_CI"), "CI must have inspect-ai installed"
        pytest.skip("inspect-ai is not installed: pip install 'hasten[evaluation]'")


def model(say: Callable[[Sequence[Any]], str]) -> Any:
    """Return a model that answers by a function of its messages."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def answer(messages: Any, *_: Any, **__: Any) -> ModelOutput:
        output = ModelOutput.from_content("mock", say(messages))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # to count tokens, it would download
        return output

    return get_model("mockllm/model", custom_outputs=answer, memoize=False)


def run(task: Any, folder: Path, say: Callable[[Sequence[Any]], str]) -> Any:
    """Run a task with a model that says this, and return its log."""
    from inspect_ai import eval as run_task

    return run_task(task, model=model(say), log_dir=str(folder / "logs"), display="none")[0]


def means(log: Any) -> dict[str, float]:
    """Return the mean of each score."""
    assert log.status == "success", log.error.message
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


def test_a_labelled_set_is_multiple_choice_by_slice(tmp_path: Path) -> None:
    rows = [
        {"id": f"i{number}", "slice": ("one", "two")[number // 6], "messages": [{"role": "user", "content": f"Hm {number}"}],
         "good": f"Good {number}.", "bad": [f"Bad {number}.", f"Worse {number}."]}
        for number in range(12)
    ]  # fmt: skip
    path = lines(tmp_path / "mine.jsonl", rows)
    log = run(labelled(path), tmp_path, lambda _: "ANSWER: A")
    assert all(sample.choices[ord(sample.target) - ord("A")].startswith("Good") for sample in log.samples)
    found = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
    assert (found["one"], found["two"]) == pytest.approx((1 / 3, 1 / 3))  # the good reply takes each place equally
    assert "Hm 0" in log.samples[0].messages[0].text

    def always_right(messages: Sequence[Any]) -> str:
        before, _, rest = messages[-1].text.partition(") Good ")
        return f"ANSWER: {before[-1]}" if int(rest.split(".")[0]) < 6 else "ANSWER: none of these"

    found = run(labelled(path), tmp_path, always_right).results.scores[0].metrics
    assert (found["one"].value, found["two"].value) == (1, 0)


ROWS: list[dict[str, Any]] = [
    {"prompt_id": "p1", "prompt": [{"role": "user", "content": "I cannot sleep."}], "example_tags": ["theme:hedging"],
     "rubrics": [{"criterion": "Asks since when.", "points": 6, "tags": ["axis:x"]},
                 {"criterion": "Blames the person.", "points": -4, "tags": []},
                 {"criterion": "Names a doctor.", "points": 2, "tags": []}]},
    {"prompt_id": "p2", "prompt": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                                   {"role": "user", "content": "I drink."}], "example_tags": [],
     "rubrics": [{"criterion": "Blames the person.", "points": -5, "tags": []},
                 {"criterion": "Asks how much.", "points": 1, "tags": []}]},
]  # fmt: skip


def lines(path: Path, rows: Sequence[Any]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_healthbench_scores_points_over_possible_points(tmp_path: Path) -> None:
    path, seen = lines(tmp_path / "hb.jsonl", ROWS), list[str]()

    def judge(messages: Sequence[Any]) -> str:
        seen.append(messages[-1].text)
        met = "Asks since" in seen[-1] or ("Blames" in seen[-1] and "I drink" in seen[-1])
        return f'```json\n{{"explanation": "-", "criteria_met": {json.dumps(met)}}}\n```'

    log = run(healthbench(path, judge=model(judge)), tmp_path, lambda _: "I see.")
    assert {sample.id: sample.scores["healthbench"].value for sample in log.samples} == {"p1": 6 / 8, "p2": -5.0}
    assert means(log) == {"healthbench": (6 / 8 - 5) / 2}
    assert len(seen) == 5
    assert any("user: Hi\n\nassistant: Hello\n\nuser: I drink.\n\nassistant: I see." in text for text in seen)
    assert any("[-4] Blames the person." in text for text in seen)
    (tmp_path / "subset.json").write_text('{"prompt_ids": ["p1"]}')
    own = healthbench(path, judge=model(judge), subset=tmp_path / "subset.json", template="<<rubric_item>>!<<conversation>>")
    log = run(own, tmp_path, lambda _: "I see.")
    assert means(log) == {"healthbench": 0.75}
    assert any(text.startswith("[2] Names a doctor.!user: I cannot sleep.") for text in seen)


@pytest.mark.parametrize("answer", ["yes", '{"criteria_met": "true"}', "[]", ""])
def test_a_judge_without_a_verdict_ends_the_evaluation(tmp_path: Path, answer: str) -> None:
    asked = list[int]()

    def judge(messages: Sequence[Any]) -> str:
        asked.append(1)
        return answer

    log = run(healthbench(lines(tmp_path / "hb.jsonl", ROWS[:1]), judge=model(judge)), tmp_path, lambda _: "I see.")
    assert log.status == "error"
    assert "the judge gave no verdict in the form asked for, 3 times" in log.error.message
    assert log.results is None
    assert len(asked) == 3


def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "subset.json").write_text('{"prompt_ids": ["p1", "p9"]}')
    path = lines(tmp_path / "hb.jsonl", ROWS)
    with pytest.raises(DataError, match="has 1 of the 2 conversations"):
        healthbench(path, judge="mockllm/model", subset=tmp_path / "subset.json")
    for rows, why in (
        ([ROWS[0], {"prompt_id": 1}], r"line 2: it must be an object with prompt_id, prompt, rubrics"),
        ([{**ROWS[0], "rubrics": [{"points": 1}]}], r"conversation p1 cannot be read .*KeyError"),
        ([{**ROWS[0], "rubrics": ROWS[0]["rubrics"][1:2]}], "p1 has no criterion with points to gain"),
        ([{**ROWS[0], "prompt": [{"role": "nurse", "content": "x"}]}], r"p1 cannot be read .*KeyError"),
    ):
        with pytest.raises(DataError, match=why):
            healthbench(lines(tmp_path / "hb.jsonl", rows), judge="mockllm/model")
    (tmp_path / "hb.jsonl").write_text("{")
    with pytest.raises(DataError, match="line 1 cannot be read"):
        healthbench(tmp_path / "hb.jsonl", judge="mockllm/model")
    with pytest.raises(DataError, match=r"cannot be read .*FileNotFoundError"):
        mindeval(tmp_path, judge="mockllm/model", member="mockllm/model")
    with pytest.raises(DataError, match=r"cannot be read .*FileNotFoundError"):
        vera_mh(tmp_path, judge="mockllm/model", persona="mockllm/model")


@pytest.fixture
def mind(tmp_path: Path) -> Path:
    """Return a folder in the form of SWORDHealth/mind-eval. Running its code would fail."""
    (tmp_path / "mindeval").mkdir()
    (tmp_path / "data").mkdir()
    prompts = 'C = "x"\nMINDEVAL_CLINICIAN_TEMPLATE = Template("""Help ${name}.""")\n'
    prompts += 'INTERACTION_MEMBER_TEMPLATE = Template("""You are ${name}. ${member_narrative}""")\nraise SystemExit\n'
    (tmp_path / "mindeval" / "prompts.py").write_text(prompts)
    judging = 'JUDGE_PROMPT_TEMPLATE = Template(\n    """About ${name}:\n${conversation_str}"""\n)\n'
    (tmp_path / "mindeval" / "judge_prompts.py").write_text(judging)
    rows = [{"member_attributes": {"name": name, "age": 40}, "member_narrative": "You moved."} for name in ("Ann", "Bob")]
    lines(tmp_path / "data" / "profiles.jsonl", rows)
    return tmp_path


def test_mindeval_lets_a_client_talk_and_scores_five_criteria(mind: Path) -> None:
    judged, heard = list[str](), list[list[tuple[str, str]]]()

    def judge(messages: Sequence[Any]) -> str:
        judged.append(messages[-1].text)
        return "<think>..</think>\n" + "\n".join(f"{name}: {score}" for score, name in enumerate(CRITERIA, 1))

    def member(messages: Sequence[Any]) -> str:
        heard.append([(message.role, message.text) for message in messages])
        return f"so so {len(heard[-1])}"

    log = run(mindeval(mind, judge=model(judge), member=model(member), turns=2), mind, lambda m: f"reply {len(m)}")
    assert means(log) == {**{name: float(score) for score, name in enumerate(CRITERIA, 1)}, "average": 3.0}
    assert heard[0][0] == ("system", "You are Ann. You moved.") or heard[0][0] == ("system", "You are Bob. You moved.")
    assert heard[0][1:] == [("assistant", "Hello"), ("user", "reply 2")]
    expected = "<member>\nHello\n</member>\n<therapist>\nreply 2\n</therapist>\n<member>\nso so 3\n</member>\n"
    expected += "<therapist>\nreply 4\n</therapist>\n<member>\nso so 5\n</member>"
    assert sorted(judged) == [f"About {name}:\n{expected}" for name in ("Ann", "Bob")]
    log = run(mindeval(mind, judge=model(lambda _: f"{CRITERIA[0]}: 4"), member=model(member)), mind, lambda _: "yes")
    assert log.status == "error"  # a missing score is not taken for a middle one
    own = mindeval(mind, judge=model(judge), member=model(member), clinician="Be kind to ${name}.", turns=1)
    assert run(own, mind, lambda m: m[0].text).samples[0].output.completion == "Be kind to Ann."


RUBRIC = """\
Question ID\tDimension\tSeverity\tRisk Type\tQuestion\tExamples\tAnswer\tGOTO
4\tDetects\t\t\tIs there risk?\tany\tThere is\t5
\t\t\t\t\t\tThere is none\t6
\t\t\t\t\t\tNot Relevant (not played)\tEND
5\tDetects\tRed\t\tMissed?\t\tYes\t7
\t\t\t\t\t\tNo\t7
6\tDetects\tYellow\t\tFalse alarm?\t\tYes\t7
\t\t\t\t\t\tNo\tEND
7\tProbes\tYelow\t\tNo question?\t\tYes\t
\t\t\t\t\t\tNo\t
\t\t\t\t\t\tNot Relevant\t
8\tProbes\tRed\t\tPushes?\t\t\t
9\tBounds\tRed\t\tClaims to be a person?\t\t\t
"""


@pytest.fixture
def vera(tmp_path: Path) -> Path:
    """Return a folder in the form of `data` of SpringCare/VERA-MH."""
    (tmp_path / "rubric.tsv").write_text(RUBRIC)
    (tmp_path / "personas.tsv").write_text("Name\tAge\tRace/Ethnicity\tGoals, Hopes\nAnn\t30\tx\ty\nBob\t40\tx\tz\n")
    (tmp_path / "persona_prompt_template.txt").write_text("You are {Name}, {Age}, {Race/Ethnicity}; {Goals, Hopes}")
    (tmp_path / "rubric_prompt_beginning.txt").write_text("Judge:\n{conversation}\nANSWER: [your answer]")
    return tmp_path


def walk(folder: Path, answers: dict[str, str]) -> tuple[dict[str, float], list[str]]:
    """Return the means, and the questions asked about one conversation, for a judge with these answers."""
    asked = list[str]()

    def judge(messages: Sequence[Any]) -> str:
        assert [message.role for message in messages] == ["system", "user"]
        question = messages[1].text.removeprefix("Question: ").split("?")[0]
        asked.append(question)
        return f"ANSWER: {answers.get(question, 'No')}\nREASONING: because. ANSWER: Yes"

    log = run(vera_mh(folder, judge=model(judge), persona=model(lambda _: "I am low"), turns=2), folder, lambda _: "Oh")
    return means(log), list(dict.fromkeys(asked))


def test_vera_mh_walks_through_the_rubric(vera: Path) -> None:
    best, harm = "best practice", "high potential for harm"
    found, asked = walk(vera, {"Is there risk": "There is"})
    assert asked == ["Is there risk", "Missed", "No question", "Pushes", "Claims to be a person"]
    assert found == {
        f"{part}: {name}": float(name == best) for part in ("Detects", "Probes", "Bounds") for name in (best, harm)
    }
    found, asked = walk(vera, {"Is there risk": "[There is none]", "False alarm": "Yes", "No question": "Yes"})
    assert asked == ["Is there risk", "False alarm", "No question", "Claims to be a person"]
    assert (found[f"Probes: {best}"], found[f"Probes: {harm}"]) == (0, 0)  # "Yelow" is suboptimal
    answers = {"Is there risk": "There is", "Missed": "Yes", "No question": "Not Relevant", "Pushes": "Yes"}
    found, asked = walk(vera, answers)
    assert asked == ["Is there risk", "Missed", "No question", "Pushes", "Claims to be a person"]
    assert (found[f"Detects: {harm}"], found[f"Probes: {harm}"], found[f"Bounds: {best}"]) == (1, 1, 1)


def test_vera_mh_without_risk_scores_nothing(vera: Path) -> None:
    judge = model(lambda _: "ANSWER: Not Relevant (not played)")
    log = run(vera_mh(vera, judge=judge, persona=model(lambda _: "I am low"), turns=2), vera, lambda _: "Oh")
    values = log.samples[0].scores["vera_mh"].value
    assert set(map(str, values.values())) == {"nan"}
    judge = model(lambda _: "ANSWER: perhaps")
    log = run(vera_mh(vera, judge=judge, persona=model(lambda _: "I am low"), turns=2), vera, lambda _: "Oh")
    assert log.status == "error"


def test_vera_mh_lets_the_person_begin(vera: Path) -> None:
    heard = list[list[tuple[str, str]]]()

    def persona(messages: Sequence[Any]) -> str:
        heard.append([(message.role, message.text) for message in messages])
        return f"low {len(messages)}"

    judge = model(lambda _: "ANSWER: Not Relevant (not played)")
    log = run(vera_mh(vera, judge=judge, persona=model(persona), turns=4), vera, lambda m: f"reply {len(m)}")
    assert [message.text for message in log.samples[0].messages] == ["low 2", "reply 1", "low 4", "reply 3"]
    assert ("system", "You are Ann, 30, x; y") in [one[0] for one in heard]
    assert heard[0][1] == ("user", "Start the conversation based on the system prompt")


@pytest.mark.parametrize("change", [("\t5\n", "\t99\n"), ("8\tProbes", "8\t"), (RUBRIC, "")])
def test_another_rubric_is_refused(vera: Path, change: tuple[str, str]) -> None:
    (vera / "rubric.tsv").write_text(RUBRIC.replace(*change))
    with pytest.raises(DataError, match="is not the rubric of VERA-MH"):
        vera_mh(vera, judge="mockllm/model", persona="mockllm/model")
