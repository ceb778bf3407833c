"""Conversations are checked on the way into a store; refusals say where and why, never what was said."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.public_data import CONVERSATIONS
from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.conversation import MAX_MESSAGE_BYTES, MAX_MESSAGES, SCHEMA, Refusal, row_of
from hasten.data.convert.choose import reader_for
from hasten.data.convert.job import convert
from hasten.data.convert.readers import jsonl

WORD = "xyzzy"
"""Occurs in every message and value of the bad input, and must occur in no reason."""


def said(*roles: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": role, "content": f"{WORD} {number} é"} for number, role in enumerate(roles)]
    return {"conversation_id": "c-1", "messages": messages, **more}


def with_message(**changes: Any) -> str:
    record = said("user", "assistant", "user")
    record["messages"][1].update(changes)
    return json.dumps(record)


BAD = {
    "broken JSON": ('{"conversation_id": "c", "messages": [{"role": "user", "content": "xyzzy', "invalid JSON", ""),
    "not an object": (f'["{WORD}"]', "not a record", ""),
    "no id": (json.dumps({"messages": said("user")["messages"]}), "the conversation has no id", ""),
    "blank id": (json.dumps(said("user", conversation_id=" ")), "the conversation has no id", ""),
    "no messages": (json.dumps({"id": WORD}), "the conversation has no messages", ""),
    "messages of text": (json.dumps({"id": "c", "messages": WORD}), "the conversation has no messages", ""),
    "too many messages": (
        json.dumps(said(*["user", "assistant"] * (MAX_MESSAGES // 2 + 1))),
        "more than 10,000 messages",
        "",
    ),
    "only a system message": (json.dumps(said("system")), "only a system message", ""),
    "source": (json.dumps(said("user", source=[WORD])), "field 'source' is not text", ""),
    "metadata": (json.dumps(said("user", metadata=WORD)), "field 'metadata' is not an object", ""),
    "stage": (json.dumps(said("user", metadata={"stage": f"../{WORD}"})), "the stage is not a name", ""),
    "half a surrogate in a label": (
        json.dumps(said("user", metadata={"persona_id": f"{WORD}\ud800"})),
        "'persona_id' contains half of a surrogate pair",
        "",
    ),
    "message of text": (json.dumps({"id": "c", "messages": [WORD]}), "the message is not an object", ", message 1"),
    "wrong role": (with_message(role=WORD), "the role is none of", ", message 2"),
    "role of a list": (with_message(role=[WORD]), "the role is none of", ", message 2"),
    "late system": (with_message(role="system"), "a system message is not the first message", ", message 2"),
    "twice the same role": (with_message(role="client"), "the role user does not alternate", ", message 2"),
    "empty": (with_message(content=""), "the content is empty", ", message 2"),
    "blank": (with_message(content=" \n\u00a0"), "the content is empty", ", message 2"),
    "not text": (with_message(content={"text": WORD}), "the content is not text", ", message 2"),
    "half a surrogate": (with_message(content=f"{WORD}\ud800"), "half of a surrogate pair", ", message 2"),
    "huge": (with_message(content=WORD * MAX_MESSAGE_BYTES), "larger than 1,048,576 bytes", ", message 2"),
    "huge in UTF-8": (with_message(content="é" * (MAX_MESSAGE_BYTES // 2 + 1)), "larger than", ", message 2"),
    "time in words": (with_message(timestamp=WORD), "the timestamp is neither ISO 8601", ", message 2"),
    "time of a list": (with_message(timestamp=[1]), "the timestamp is neither ISO 8601", ", message 2"),
    "time in milliseconds": (with_message(timestamp=1.7e15), "the timestamp is neither ISO 8601", ", message 2"),
}


@pytest.mark.parametrize(("line", "reason", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_conversation_is_quarantined_with_its_position_and_reason(
    tmp_path: Path, line: str, reason: str, message: str
) -> None:
    good = json.dumps(said("user", "assistant")) + "\n"
    (tmp_path / "a.jsonl").write_text(good + line + "\n" + good, encoding="utf-8")
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", format="conversations", max_bad_frac=0.5, processes=1)
    assert (made.num_records, made.num_bad, len(Store(tmp_path / "s"))) == (2, 1, 2)
    assert made.quarantine is not None
    entry = json.loads(made.quarantine.read_text())
    assert entry.pop("record_base64")
    assert entry["source"] == str(tmp_path / "a.jsonl")
    assert entry["position"] == f"byte {len(good.encode())}{message}"
    assert reason in entry["reason"]
    assert WORD not in json.dumps(entry) + json.dumps(dict(made.reasons))
    with pytest.raises(DataError) as raised:
        convert(tmp_path / "a.jsonl", tmp_path / "none", format="conversations", max_bad_frac=0, processes=1)
    assert WORD not in str(raised.value)
    assert not (tmp_path / "none" / "manifest.json").exists()


def test_timestamps_that_go_backwards_are_refused() -> None:
    record = said("user", "assistant", "user", "assistant")
    for message, time in zip(
        record["messages"], ("2024-05-01T10:00:00Z", None, "2024-05-01T12:00:00+02:00", 0), strict=True
    ):
        message["timestamp"] = time
    assert row_of(record) == Refusal("the timestamp is earlier than that of a message before", 4)
    del record["messages"][3]
    row = row_of(record)
    assert isinstance(row, dict)
    at_ten = datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert row["timestamps"] == [at_ten, None, at_ten]


def test_every_field_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 500)
    metadata = {
        "stage": "foundation",
        "quality_profile": {"empathy": 0.5},
        "voice_signature": "warm",
        "crisis_intensity": 0.7,
        "persona_id": 3,
        "is_training_edge_case": False,
    }
    full = said("System", "client", "Therapist", source="a", metadata=metadata, topic="sleep", id="other")
    full["messages"][1] |= {"timestamp": 1.5, "mood": "low"}
    plain = {"id": 7, "messages": said("assistant", "user")["messages"]}
    text = "".join(json.dumps(record) + "\n" for record in (full, plain)) * 5
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.jsonl").write_text(text)
    for name in ("a.jsonl.gz", "b.jsonl"):
        convert(tmp_path / name, tmp_path / f"{name}.s", format="conversations", max_bad_frac=0, processes=1)
        store = Store(tmp_path / f"{name}.s")
        rows = store.__getitems__(range(10))
        assert rows[:2] * 5 == rows
        assert rows[0] == {
            "conversation_id": "c-1",
            "source": "a",
            "stage": "foundation",
            "quality_profile": '{"empathy": 0.5}',
            "voice_signature": "warm",
            "crisis_intensity": "0.7",
            "persona_id": "3",
            "roles": ["system", "user", "assistant"],
            "contents": [message["content"] for message in full["messages"]],
            "rejected": None,
            "timestamps": [None, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), None],
            "other": rows[0]["other"],
        }
        assert json.loads(rows[0]["other"]) == {
            "topic": "sleep",
            "id": "other",
            "metadata": {"is_training_edge_case": False},
            "messages": [{}, {"mood": "low"}, {}],
        }
        assert rows[1]["conversation_id"] == "7"
        assert rows[1]["roles"] == ["assistant", "user"]
        assert {name for name, value in rows[1].items() if value is None} == {
            *SCHEMA.names[1:7],
            "rejected",
            "timestamps",
            "other",
        }


def test_columns_can_be_chosen_and_plain_lines_stay_plain(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(said("user", "assistant")) + "\n")
    assert reader_for(tmp_path / "a.jsonl").name == "jsonl"
    convert(tmp_path / "a.jsonl", tmp_path / "s", format="conversations", columns=["roles", "stage"], processes=1)
    assert Store(tmp_path / "s").columns == ("roles", "stage")
    with pytest.raises(DataError, match="has no column 'text'; its columns are conversation_id, source, stage"):
        convert(tmp_path / "a.jsonl", tmp_path / "t", format="conversations", columns=["text"], processes=1)


@pytest.mark.skipif(not CONVERSATIONS.is_file(), reason=f"the public dialogues are not in {CONVERSATIONS.parent}")
def test_the_public_dialogues_are_accepted(tmp_path: Path) -> None:
    made = convert(CONVERSATIONS, tmp_path / "s", format="conversations", max_bad_frac=0, processes=1)
    assert (made.num_records, made.num_bad) == (2_129, 0)
    row = Store(tmp_path / "s")[0]
    assert (row["conversation_id"], row["roles"]) == ("cc-00000", ["user", "assistant"])
    assert json.loads(row["other"])["split"] in {"train", "valid", "test"}
