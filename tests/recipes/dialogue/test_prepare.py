"""Preparing conversations: stages, tokens and a part held out by person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten.core.errors import DataError
from hasten.recipes.dialogue.prepare import TEXT, TOKENIZER, TRAIN, VALID, prepare
from hasten.recipes.dialogue.stages import open_stages
from hasten.recipes.dialogue.tokens import load_tokens


def rows_of(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of all stages that have these columns."""
    rows: list[tuple[Any, ...]] = []
    for store in open_stages(folder).values():
        if set(columns) <= set(store.columns):
            taken = store.take(range(len(store)), list(columns))
            rows += zip(*(taken[name].to_pylist() for name in columns), strict=True)
    return rows


def test_each_person_is_in_one_part_and_each_conversation_once(prepared: Path) -> None:
    persons = dict(rows_of(prepared / TEXT, "conversation_id", "persona_id"))
    parts = [[name for (name,) in rows_of(prepared / part, "conversation_id")] for part in (TRAIN, VALID)]
    assert sorted(parts[0] + parts[1]) == sorted(persons)
    assert not {persons[name] for name in parts[0]} & {persons[name] for name in parts[1]}
    assert 0.1 < len(parts[1]) / len(persons) < 0.3


def test_a_pair_has_the_same_prompt_and_two_answers(prepared: Path) -> None:
    tokens = load_tokens(prepared / TOKENIZER)
    texts = {row[0]: row[1:] for row in rows_of(prepared / TEXT, "conversation_id", "contents", "rejected")}
    pairs = [
        row
        for row in rows_of(prepared / TRAIN, "conversation_id", "tokens", "rejected_tokens", "prompt", "loss_mask")
        if row[2]
    ]
    assert len(pairs) > 5
    for name, chosen, rejected, prompt, mask in pairs:
        contents, worse = texts[name]
        assert chosen[:prompt] == rejected[:prompt]
        answers = tokens.decode([chosen[prompt:], rejected[prompt:]])
        assert answers == [f"{contents[-1]}<|end|>", f"{worse}<|end|>"]
        assert np.all(mask[prompt:])
        assert not mask[prompt - 1]


def test_what_cannot_be_prepared_leaves_nothing_behind(tmp_path: Path, prepared: Path) -> None:
    turns = [{"role": "client", "content": "Hello."}, {"role": "counselor", "content": "Good morning."}]
    source = tmp_path / "one.jsonl"
    source.write_text(json.dumps({"id": "a", "messages": turns, "metadata": {"stage": "foundation"}}) + "\n")
    with pytest.raises(DataError, match="prepared already"):
        prepare(source, prepared)
    with pytest.raises(DataError, match="valid_frac must be between 0 and 1, not 1"):
        prepare(source, tmp_path / "out", valid_frac=1)
    with pytest.raises(DataError, match="of so few conversations, none is"):
        prepare(source, tmp_path / "out", num_tokens=300)
    assert not list((tmp_path / "out").iterdir())
    source.write_text(source.read_text() * 40)
    with pytest.raises(DataError, match="of so few conversations, none is"):
        prepare(source, tmp_path / "out", num_tokens=300)  # all of them are one conversation


def test_a_rejected_answer_needs_an_answer_to_compare_with(tmp_path: Path) -> None:
    turns = [{"role": "client", "content": "Hello."}, {"role": "counselor", "content": "Good morning."}]
    good = [{"id": str(n), "messages": turns, "metadata": {"stage": "foundation"}} for n in range(60)]
    bad = [
        {"id": "b1", "messages": turns[:1], "rejected": "No."},
        {"id": "b2", "messages": turns, "rejected": " "},
        {"id": "b3", "messages": turns, "rejected": "Good morning."},
        {"id": "b4", "messages": turns, "rejected": ["No."]},
    ]
    source = tmp_path / "some.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in good + bad))
    result = prepare(source, tmp_path / "out", num_tokens=300, conversion={"max_bad_frac": 0.1, "processes": 1})
    assert sorted(result.reasons) == sorted(
        [
            "the field 'rejected' needs messages that end with an answer of the assistant",
            "field 'rejected': the content is empty",
            "the field 'rejected' equals the last message",
            "field 'rejected': the content is not text",
        ]
    )


@pytest.mark.parametrize("where", ["tokenize_stages", "_tokenizer"])
def test_what_was_stopped_is_prepared_by_the_same_call(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    source = prepared.parent / "source"
    settings: Any = {"num_tokens": 400, "valid_frac": 0.2, "conversion": {"processes": 1}}
    monkeypatch.setattr(f"hasten.recipes.dialogue.prepare.{where}", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(source, tmp_path / "out", **settings)
    monkeypatch.undo()
    assert (tmp_path / "out" / TEXT).exists()
    (tmp_path / "out" / VALID).mkdir()  # as if it was killed between two parts
    prepare(source, tmp_path / "out", **settings)
    for part in (TRAIN, VALID):
        assert rows_of(tmp_path / "out" / part, "conversation_id") == rows_of(prepared / part, "conversation_id")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([TEXT, TOKENIZER, TRAIN, VALID])


def test_texts_of_someone_else_are_not_touched(tmp_path: Path, prepared: Path) -> None:
    (tmp_path / "out" / TEXT / "mine").mkdir(parents=True)
    with pytest.raises(DataError, match="exists already: use another folder"):
        prepare(prepared.parent / "source", tmp_path / "out")
    assert (tmp_path / "out" / TEXT / "mine").exists()
