"""A private conversion writes tokens and ciphers only, and each role reads its own columns."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.data import Store
from hasten.data.convert.job import Result, convert
from hasten.data.convert.readers import jsonl
from hasten.data.convert.tokenizing import Tokenizing
from hasten.data.convert.unit import Converted, Task, convert_unit
from hasten.data.private.plan import SECRETS, PrivatePlan

WORDS = ("xyzzy", "Anna", "555-010-9988", "warm-voice", "clinic-9", "talk-7")
"""Occur in every conversation, and must occur in no file of a private conversion."""


def talk(number: int, **metadata: Any) -> str:
    messages = [
        {"role": "user", "content": f"xyzzy {number}: I am Anna, call 555-010-9988", "timestamp": 1.5e9 + number},
        {"role": "assistant", "content": "How are you?"},
    ]
    labels = {"persona_id": f"who-{number % 3}", "voice_signature": "warm-voice", "stage": "first", **metadata}
    record = {
        "id": f"talk-7-{number}",
        "source": "www.clinic-9.org/a",
        "messages": messages,
        "metadata": labels,
        "note": "xyzzy",
    }
    return json.dumps(record) + "\n"


@pytest.fixture
def plan(tmp_path: Path) -> PrivatePlan:
    return PrivatePlan.create(tmp_path / "private")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(map(talk, range(40))))
    return path


def converted(source: Path, store: Path, plan: PrivatePlan, **more: Any) -> Result:
    return convert(source, store, format="conversations", private=plan, processes=1, **more)


def bytes_in(*folders: Path) -> bytes:
    return b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())


def edited(plan: PrivatePlan, *changes: tuple[str, str]) -> PrivatePlan:
    path = Path(plan.folder) / "plan.toml"
    text = path.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    return PrivatePlan.load(plan.folder)


def test_identifiers_and_people_are_replaced_and_texts_encrypted(source: Path, plan: PrivatePlan, tmp_path: Path) -> None:
    with source.open("a") as file:
        file.write('{"id": "talk-7", "messages": "xyzzy\n' + talk(50, persona_id=None) + talk(51, stage="xyzzy warm-voice"))
    made = converted(source, tmp_path / "s", plan, max_bad_frac=0.5)
    assert (made.num_records, made.num_bad) == (40, 3)
    assert sorted(made.remarks) == [
        "identifiers replaced, name: 40", "identifiers replaced, phone: 40", "identifiers replaced, url: 40",
    ]  # fmt: skip
    store = Store(tmp_path / "s")
    assert store.manifest.provenance["remarks"] == "; ".join(made.remarks)
    everything = bytes_in(tmp_path / "s", tmp_path / "private")
    assert not [word for word in (*WORDS, "who-1") if word.encode() in everything]
    assert made.quarantine is not None
    entries = [json.loads(line) for line in made.quarantine.read_text().splitlines()]
    assert {*entries[0]} == {"source", "position", "reason"}
    assert [entry["reason"].partition(":")[0] for entry in entries] == [
        "invalid JSON",
        "there is no persona_id, so no key could erase the conversation",
        "the stage is not a name of at most 64 letters, digits, '_' and '-'",
    ]

    rows = plan.open(store, role="owner")
    taken = rows.take(np.arange(6))
    assert taken == rows.take(range(6))
    assert all(text[0].startswith(f"xyzzy {number}: I am [name:") for number, text in enumerate(taken["contents"]))
    assert taken["timestamps"][2] == [1_500_000_002_000_000, None]
    assert taken["voice_signature"] == ["warm-voice"] * 6
    assert taken["rejected"] == [None] * 6
    assert json.loads(taken["other"][0]) == {"note": "xyzzy"}
    assert taken["persona_id"][0] == taken["persona_id"][3] == plan.vault().name_of("who-0")
    assert len(set(taken["conversation_id"])) == 6
    plan.vault().erase("who-1")
    assert [text is None for text in rows.take(range(6), ["contents"])["contents"]] == [False, True, False] * 2
    assert [row["contents"] is None for row in pickle.loads(pickle.dumps(rows)).__getitems__([0, 4])] == [False, True]
    again = converted(source, tmp_path / "again", plan, max_bad_frac=0.5)
    assert (again.num_records, len(Store(tmp_path / "again"))) == (27, 27)
    assert "rows of erased persons left out: 13" in again.remarks


class Stopped(Exception):  # noqa: N818  not an error
    pass


def stops_after(count: int, seen: list[Task]) -> Callable[[Sequence[Task]], Iterator[Converted]]:
    def run(tasks: Sequence[Task]) -> Iterator[Converted]:
        seen.extend(tasks)
        for number, task in enumerate(tasks):
            if number == count:
                raise Stopped
            yield convert_unit(task)

    return run


def test_an_interrupted_conversion_continues_with_the_same_tokens_and_no_key_is_written(
    source: Path, plan: PrivatePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", source.stat().st_size // 4)
    plan = edited(plan, ('encrypted = ["contents"', 'encrypted = []\nclear = ["contents"'), ('clear = ["stage"', '#"'))
    plan = edited(plan, ('"other"]', '"other", "stage", "quality_profile", "crisis_intensity", "roles"]'))
    tasks: list[Task] = []
    with pytest.raises(Stopped):
        converted(source, tmp_path / "s", plan, runner=stops_after(2, tasks))
    made = converted(source, tmp_path / "s", plan)
    assert made.num_resumed == 2
    rows = Store(tmp_path / "s").take(range(40))
    (token,) = {contents[0].partition("I am ")[2] for contents in rows["contents"].to_pylist()}
    assert token.startswith("[name:")
    assert len(set(rows["persona_id"].to_pylist())) == 3
    assert not [word for word in (*WORDS[1:3], *WORDS[4:], "who-1") if word.encode() in bytes_in(tmp_path / "s")]
    everything = bytes_in(tmp_path / "s") + pickle.dumps(tasks) + repr(tasks).encode()
    for name in SECRETS:
        secret = plan.secret(name)
        assert not [form for form in (secret, secret.hex().encode(), base64.b64encode(secret)) if form in everything]

    with pytest.raises(Stopped):
        converted(source, tmp_path / "t", plan, runner=stops_after(2, tasks))
    (Path(plan.folder) / "keys" / "salt").write_text("ab" * 32)
    assert converted(source, tmp_path / "t", plan).num_resumed == 0


def test_a_column_that_the_plan_does_not_name_is_refused(source: Path, plan: PrivatePlan, tmp_path: Path) -> None:
    pq.write_table(pa.table({"persona_id": ["a", "b"], "voice": [[1.5, 2.5], [3.5, 4.5]]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match=r"the column 'voice' is in no list of .*plan\.toml"):
        convert(tmp_path / "v.parquet", tmp_path / "s", private=plan, processes=1)
    assert not (tmp_path / "s" / "manifest.json").exists()
    plan = edited(plan, ('"voice_signature"', '"voice_signature", "voice"'))
    convert(tmp_path / "v.parquet", tmp_path / "s", private=plan, processes=1)
    assert plan.open(Store(tmp_path / "s"), role="owner").take([1], ["voice"]) == {"voice": [[3.5, 4.5]]}
    plan.vault().erase("b")
    assert plan.open(Store(tmp_path / "s"), role="owner")[1]["voice"] is None
    pq.write_table(pa.table({"persona_id": ["a", None], "voice": [[1.5], [3.5]]}), tmp_path / "w.parquet")
    with pytest.raises(DataError, match="record 2 of the part from 0 has no persona_id"):
        convert(tmp_path / "w.parquet", tmp_path / "t", private=plan, processes=1)
    with pytest.raises(DataError, match="does not tokenize"):
        convert(source, tmp_path / "t", private=plan, tokenizing=Tokenizing(tokenizer="bytes", column="voice"))
    with pytest.raises(DataError, match="the column voice is list"):
        convert(tmp_path / "v.parquet", tmp_path / "t", private=replace(plan, identifiers=("voice",)), processes=1)


def test_rows_are_added_to_a_private_store_by_private_conversions_only(
    source: Path, plan: PrivatePlan, tmp_path: Path
) -> None:
    converted(source, tmp_path / "s", plan)
    with pytest.raises(DataError):
        convert(source, tmp_path / "s", format="conversations", mode="append", processes=1)
    (tmp_path / "more.jsonl").write_text(talk(90))
    converted(tmp_path / "more.jsonl", tmp_path / "s", plan, mode="append")
    assert plan.open(Store(tmp_path / "s"), role="owner")[40]["contents"][0].startswith("xyzzy 90")


def test_a_role_reads_its_columns_and_each_opening_is_in_the_log(source: Path, plan: PrivatePlan, tmp_path: Path) -> None:
    converted(source, tmp_path / "s", plan)
    store = Store(tmp_path / "s")
    trainer = plan.open(store, role="trainer")
    assert trainer.take([0]) == {"stage": ["first"]}
    with pytest.raises(DataError, match="'contents' was not opened"):
        trainer.take([0], ["contents"])
    for role, columns, reason in (
        ("trainer", ["stage", "contents"], "the role 'trainer' may not read contents of "),
        ("auditor", None, "the role 'auditor' may not read any column of "),
        ("stranger", ["stage"], "the role 'stranger' is not in the plan"),
    ):
        with pytest.raises(DataError, match=reason):
            plan.open(store, role=role, columns=columns)
    with pytest.raises(DataError, match="'trainer' may not read audit-log"):
        plan.audit(role="trainer")
    log = plan.audit(role="auditor")
    assert log.verify() == 7
    entries = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(entry["action"], entry["details"].get("columns")) for entry in entries] == [
        ("convert", None),
        ("read", "stage"),
        ("read refused", "contents"),
        ("read refused", ""),
        ("read refused", "stage"),
        ("audit refused", "audit-log"),
        ("audit", "audit-log"),
    ]
    log.path.write_bytes(log.path.read_bytes().replace(b"audit refused", b"audit granted"))
    with pytest.raises(CorruptError, match="line 6"):
        plan.audit(role="auditor").verify()
    log.path.write_bytes(log.path.read_bytes().replace(b"read", b"need"))
    (Path(plan.folder) / "keys" / "audit").write_text("00" * 32)
    with pytest.raises(CorruptError):
        plan.open(store, role="owner")
    with pytest.raises(CorruptError):
        converted(source, tmp_path / "t", plan)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", SECRETS)
def test_a_key_must_be_whole_and_private(name: str, source: Path, plan: PrivatePlan, tmp_path: Path) -> None:
    path = Path(plan.folder) / "keys" / name
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    path.chmod(0o640)
    with pytest.raises(DataError, match="other users can read the key"):
        converted(source, tmp_path / "s", plan)
    path.chmod(0o600)
    for wrong in (text[:-3], "secret", "\udcff" + text):
        path.write_text(wrong, errors="surrogateescape")
        with pytest.raises(DataError, match="is not 64 hexadecimal digits") as raised:
            converted(source, tmp_path / "s", plan)
        assert wrong[:6] not in str(raised.value)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        converted(source, tmp_path / "s", plan)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[roles]", "[roles", "is not valid TOML"),
        ('person = "persona_id"', "person = 3", "person must be text"),
        ('trainer = ["tokens"', 'trainer = [3, "tokens"', r"roles\.trainer must be a list of names"),
        ("pseudonyms =", "pseudonym =", "unknown setting 'pseudonym'"),
        ('clear = ["stage"', 'clear = "stage" #', "clear must be a list of names"),
    ],
)
def test_a_wrong_plan_is_refused(before: str, after: str, message: str, plan: PrivatePlan) -> None:
    with pytest.raises(DataError, match=message):
        edited(plan, (before, after))


def test_a_plan_is_created_once(plan: PrivatePlan, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exists already"):
        PrivatePlan.create(plan.folder)
    with pytest.raises(DataError, match=r"is missing: create it with `hasten data private"):
        PrivatePlan.load(tmp_path / "none")


def test_nothing_is_written_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MachineError, match=r"pip install 'hasten\[private\]'"):
        PrivatePlan.create(tmp_path / "private")
    assert not (tmp_path / "private").exists()
