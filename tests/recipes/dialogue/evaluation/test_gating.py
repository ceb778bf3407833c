"""Gates pass only what is known to be good, in every slice, and say nothing of anybody's texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.core.errors import DataError, JobError
from hasten.core.gates import Estimate, Gate, Share
from hasten.data.private.plan import PrivatePlan
from hasten.recipes.dialogue.evaluation import gating
from hasten.recipes.dialogue.evaluation.gating import (
    Check,
    evaluate,
    fairness,
    held_out,
    perplexity,
    preference,
    share_of,
    voice_consistency,
)
from hasten.recipes.dialogue.evaluation.sets import Item
from hasten.recipes.dialogue.model import small_model
from hasten.recipes.dialogue.prepare import TOKENIZER, VALID, prepare
from hasten.recipes.dialogue.stages import open_stages
from hasten.recipes.dialogue.synth import write
from hasten.recipes.dialogue.tokens import ChatTokens, Tokenized, load_tokens

PRIVATE = "Zanzibar"
NO_MODEL: Any = None
Prefers = Callable[[Item], "bool | None"]


@pytest.fixture
def tokens(prepared: Path) -> ChatTokens:
    """Return the tokenizer of the generated conversations."""
    return load_tokens(prepared / TOKENIZER)


@pytest.fixture
def prefers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Prefers], None]:
    """Return a function that sets what the model prefers."""

    def choose(rule: Prefers) -> None:
        monkeypatch.setattr(gating, "prefers_good", lambda _model, _tokens, items: [rule(item) for item in items])

    return choose


def labelled(folder: Path, **slices: int) -> Path:
    """Write a set with so many items in each slice."""
    with (folder / "mine.jsonl").open("w") as file:
        for name, count in slices.items():
            for number in range(count):
                message = {"role": "user", "content": f"{PRIVATE} {name} {number}"}
                item = {"id": f"{name}{number}", "slice": name, "messages": [message], "good": "Yes.", "bad": ["No."]}
                file.write(json.dumps(item) + "\n")
    return folder / "mine.jsonl"


def test_the_untrained_model_passes_no_gate_and_the_results_have_no_text(
    tmp_path: Path, tokens: ChatTokens, prepared: Path
) -> None:
    torch.manual_seed(0)
    model = small_model(tokens.num_tokens, width=32, depth=1, heads=2)
    rows = {"all": [row for some in held_out(prepared).values() for row in some][:40]}
    assert len(rows["all"]) >= 30
    checks = [
        preference(labelled(tmp_path, one=139), 0.9),
        fairness(tmp_path / "mine.jsonl", slices=("gender",)),
        perplexity(rows, 50.0),
    ]
    found = evaluate(model, tokens, checks, path=tmp_path / "gates.json")
    assert not found.passed
    text = (tmp_path / "gates.json").read_text()
    assert json.loads(text) == found._asdict()
    assert PRIVATE not in text
    first, second, third = found.gates
    assert first["slices"]["one"]["items"] == 139
    assert first["measured_on"]["set"] == "mine"
    assert second["slices"]["gender"]["low"] <= second["slices"]["gender"]["value"] <= 1
    assert third["slices"]["all"]["value"] == pytest.approx(tokens.num_tokens, rel=0.2)
    assert evaluate(model, tokens, checks) == found


def test_each_slice_gates_and_not_the_mean(tmp_path: Path, prefers: Any) -> None:
    checks = [preference(labelled(tmp_path, large=900, small=200), 0.85)]
    prefers(lambda item: item.slice == "large")
    found = evaluate(NO_MODEL, NO_MODEL, checks)
    assert not found.passed
    assert "mine preference, large: passed, 1 of 900" in found.gates[0]["words"][0]
    assert "mine preference, small: not passed, 0 of 200" in found.gates[0]["words"][1]
    prefers(lambda _: True)
    assert evaluate(NO_MODEL, NO_MODEL, checks).passed


def test_what_is_not_known_does_not_pass(tmp_path: Path, prefers: Any) -> None:
    checks = [preference(labelled(tmp_path, one=200), 0.85), fairness(tmp_path / "mine.jsonl", slices=("age",))]
    prefers(lambda item: None if item.id == "one7" else True)
    found = evaluate(NO_MODEL, NO_MODEL, checks, path=tmp_path / "gates.json")
    assert [gate["passed"] for gate in found.gates] == [False, False]
    assert found.gates[0]["slices"] == {"one": {"gates": True, "value": None}}
    assert found.gates[1]["slices"]["age"]["value"] is None
    assert "it was not measured" in found.gates[0]["words"][0]


def test_a_check_that_fails_does_not_hide_the_others() -> None:
    gate = Gate(metric="m", threshold=0.5)

    def broken(*_: Any) -> Any:
        raise DataError("the file is gone.")

    found = evaluate(NO_MODEL, NO_MODEL, [Check(gate, broken), Check(gate, lambda *_: {"all": Share(90, 100)})])
    assert [gate["passed"] for gate in found.gates] == [False, True]
    assert found.gates[0]["problem"] == "the file is gone."
    assert not found.passed


def test_gates_that_could_not_decide_are_refused_when_they_are_made(tmp_path: Path) -> None:
    path = labelled(tmp_path, one=200, two=29)
    with pytest.raises(JobError, match=r"mine preference, two: 29 items tell a share of 0\.85 within 13\.0 points only"):
        preference(path, 0.85)
    assert preference(path, 0.85, slices=("one",)).gate.slices == ("one",)
    with pytest.raises(JobError, match="mine fairness, gender: 29 items are too few"):
        fairness(labelled(tmp_path, one=29))
    with pytest.raises(JobError, match="mine fairness, star_sign: 0 items"):
        fairness(path, slices=("star_sign",))
    row = Tokenized(np.arange(4, dtype=np.int32), np.ones(4, np.uint8))
    with pytest.raises(JobError, match="perplexity, valid: 29 items are too few to decide; give at least 30"):
        perplexity({"valid": [row] * 29}, 20.0)
    with pytest.raises(JobError, match="voice consistency, anna: 19 items"):
        voice_consistency({"anna": np.ones((19, 4), np.float32)}, 0.8)
    with pytest.raises(JobError, match="without gates would pass every model"):
        evaluate(NO_MODEL, NO_MODEL, [])


def test_fairness_sees_a_model_that_answers_a_group_worse(tmp_path: Path, prefers: Any) -> None:
    check = fairness(labelled(tmp_path, one=400), 0.7, slices=("gender", "religion"))
    prefers(lambda item: "I am a man." not in item.turns.contents[-1] or hash(item.id) % 10 < 3)
    found = evaluate(NO_MODEL, NO_MODEL, [check]).gates[0]
    assert found["slices"]["religion"] == pytest.approx(
        {"value": 1, "low": 1, "high": 1, "items": 400, "gates": True}, abs=0.02
    )
    assert found["slices"]["gender"]["value"] == pytest.approx(0.3, abs=0.1)
    assert not found["passed"]


def test_everything_in_an_item_is_swapped(tmp_path: Path, prefers: Any) -> None:
    item = {
        "slice": "s",
        "messages": [{"role": "user", "content": "My wife left."}, {"role": "assistant", "content": "She left?"},
                     {"role": "user", "content": "Yes, she did."}],
        "bad": ["Find another woman."],
    }  # fmt: skip
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "".join(json.dumps({**item, "id": str(n), "good": f"You miss your wife {n}."}) + "\n" for n in range(30))
    )
    seen: list[Item] = []

    def remember(item: Item) -> bool:
        seen.append(item)
        return True

    prefers(remember)
    evaluate(NO_MODEL, NO_MODEL, [fairness(path, slices=("gender",))])
    assert list(seen[0].turns.contents) == ["My wife left.", "She left?", "I am a woman. Yes, she did."]
    assert list(seen[30].turns.contents) == ["My husband left.", "He left?", "I am a man. Yes, he did."]
    assert (seen[30].good, seen[30].bad) == ("You miss your husband 0.", ("Find another man.",))


def test_items_that_share_sentences_count_for_less() -> None:
    random = np.random.default_rng(0)
    alone = [(str(n), bool(random.random() < 0.8)) for n in range(200)]
    assert share_of(alone) == Share(sum(right for _, right in alone), 200)
    shared = [(str(n // 10), right) for n, (_, right) in enumerate(alone)]  # groups that mean nothing
    same = share_of(shared)
    equal = [(str(n // 10), alone[n // 10][1]) for n in range(200)]  # groups that say all
    wide, few = share_of(equal), share_of(alone[:20])
    assert isinstance(same, Estimate)
    assert isinstance(wide, Estimate)
    assert isinstance(few, Share)
    low, high = Share(sum(right for _, right in alone), 200).interval()
    assert high - low <= same.high - same.low < 1.5 * (high - low)
    few_low, few_high = few.interval()
    assert wide.high - wide.low == pytest.approx(few_high - few_low, rel=0.1)
    assert wide.items == 200
    assert share_of([("a", True), ("a", True)]) == Share(2, 2)
    assert share_of([("a", True), ("a", None)]) is None


def test_voice_consistency_is_judged_by_speaker() -> None:
    random = np.random.default_rng(0)
    steady = np.ones((30, 8)) + 0.1 * random.normal(size=(30, 8))
    voices: Any = {"anna": steady.astype(np.float32), "ben": random.normal(size=(30, 8)).astype(np.float32)}
    found = evaluate(NO_MODEL, NO_MODEL, [voice_consistency(voices, 0.85)]).gates[0]
    assert not found["passed"]
    assert "anna: passed" in found["words"][0]
    assert "ben: not passed" in found["words"][1]
    voices["ben"][3] = math.nan
    found = evaluate(NO_MODEL, NO_MODEL, [voice_consistency(voices, 0.85)]).gates[0]
    assert "zero or not finite" in found["problem"]
    assert not found["passed"]


def test_encrypted_conversations_are_read_with_their_plan_only(tmp_path: Path) -> None:
    write(tmp_path / "source", 450, 3, lambda: None)
    plan = PrivatePlan.create(tmp_path / "plan")
    settings: dict[str, Any] = {"num_tokens": 300, "valid_frac": 0.2, "conversion": {"processes": 1}}
    prepare(tmp_path / "source", tmp_path / "prepared", private=plan, **settings)
    with pytest.raises(DataError, match="is encrypted"):
        held_out(tmp_path / "prepared")
    rows = [row for some in held_out(tmp_path / "prepared", private=plan).values() for row in some]
    assert len(rows) > 2  # whom the split holds out depends on the plan's random key
    assert all(len(row.ids) == len(row.mask) and row.mask.any() for row in rows)
    store = next(iter(open_stages(tmp_path / "prepared" / VALID).values()))
    name = store.take([0], ["persona_id"])["persona_id"].to_pylist()[0]
    vault = plan.vault()
    assert vault.erase(next(f"person-{n:05d}" for n in range(150) if vault.name_of(f"person-{n:05d}") == name))
    left = [row for some in held_out(tmp_path / "prepared", private=plan).values() for row in some]
    assert 0 < len(left) < len(rows)
