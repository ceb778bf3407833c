"""Labelled sets are checked line by line, and the built-in ones are large enough for their gates."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import DataError
from hasten.core.gates import Gate
from hasten.recipes.dialogue.evaluation.sets import BUILT_IN, load_set

PRIVATE = "Zanzibar"
GOOD: dict[str, Any] = {
    "id": "a",
    "slice": "panic",
    "messages": [
        {"role": "system", "content": "You listen."},
        {"role": "client", "content": PRIVATE},
        {"role": "counselor", "content": "Tell me more."},
        {"role": "client", "content": f"{PRIVATE} again"},
    ],
    "good": f"I hear {PRIVATE}.",
    "bad": [f"No {PRIVATE}.", "Whatever."],
}


def written(folder: Path, *lines: Any) -> Path:
    """Write lines to a file, objects as JSON."""
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (folder / "mine.jsonl").write_bytes(b"\n".join(texts))
    return folder / "mine.jsonl"


def test_a_set_of_the_user_is_read(tmp_path: Path) -> None:
    other = {**GOOD, "id": "b", "topic": "t", "group": "g", "bad": ["Never mind."]}
    path = written(tmp_path, GOOD, b"", other)
    found = load_set(path)
    first, second = found.items
    assert list(first.turns.roles) == ["system", "user", "assistant", "user"]
    assert (first.bad, first.topic, first.group) == (("No Zanzibar.", "Whatever."), "", "a")
    assert (second.topic, second.group) == ("t", "g")
    assert [list(talk.contents)[-1] for talk in first.talks()] == [first.good, *first.bad]
    assert found.slices == {"panic": 2}
    assert found.about["set"] == "mine"
    assert found.about["digest"] != load_set(written(tmp_path, GOOD)).about["digest"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "it is not JSON"),
        (b'"\xff"', "it is not UTF-8"),
        (b"[" * 100_000, "it is not JSON"),
        ([PRIVATE], "it must be an object with id, slice, messages, good, bad, optionally topic and group"),
        ({**GOOD, PRIVATE: 1}, "and nothing else"),
        ({key: value for key, value in GOOD.items() if key != "good"}, "it must be an object with"),
        ({**GOOD, "slice": f"{PRIVATE}!"}, "slice is not a name of at most 64 letters"),
        ({**GOOD, "slice": 3}, "slice is not a name"),
        ({**GOOD, "topic": None}, "topic is not a name"),
        ({**GOOD, "group": ""}, "group is not a name"),
        ({**GOOD, "id": " "}, "the conversation has no id"),
        ({**GOOD, "messages": PRIVATE}, "messages and bad must be lists"),
        ({**GOOD, "messages": GOOD["messages"][:3]}, "good: the role assistant does not alternate"),
        ({**GOOD, "messages": []}, "bad 1: the field 'rejected' needs messages"),
        ({**GOOD, "messages": [{"role": PRIVATE, "content": "x"}]}, "message 1: the role is none of"),
        ({**GOOD, "good": ""}, "good: the content is empty"),
        ({**GOOD, "good": 4}, "good: the content is not text"),
        ({**GOOD, "good": "\ud800"}, "good: the content contains half of a surrogate pair"),
        ({**GOOD, "bad": []}, "messages and bad must be lists with one entry or more"),
        ({**GOOD, "bad": PRIVATE}, "messages and bad must be lists"),
        ({**GOOD, "bad": [PRIVATE, 3]}, "bad must be a list of different texts"),
        ({**GOOD, "bad": [PRIVATE, PRIVATE]}, "bad must be a list of different texts"),
        ({**GOOD, "bad": [PRIVATE, " "]}, "bad 2: field 'rejected': the content is empty"),
        ({**GOOD, "bad": [PRIVATE, GOOD["good"]]}, "bad 2: the field 'rejected' equals the last message"),
    ],
)
def test_an_error_names_the_line_and_never_the_content(tmp_path: Path, line: Any, why: str) -> None:
    path = written(tmp_path, {**GOOD, "id": "first", "good": "Other."}, line)
    with pytest.raises(DataError) as caught:
        load_set(path)
    assert str(caught.value).startswith(
        f"{path}, line 2: {why}" if why != "and nothing else" else f"{path}, line 2: it must"
    )
    assert why in str(caught.value)
    assert PRIVATE not in str(caught.value)


def test_repeated_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2 has the id of line 1"):
        load_set(written(tmp_path, GOOD, {**GOOD, "good": "Other."}))
    with pytest.raises(DataError, match="line 2 has the conversation and replies of line 1"):
        load_set(written(tmp_path, GOOD, {**GOOD, "id": "b"}))


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read .*built-in set: crisis, safety"):
        load_set(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="has no items"):
        load_set(written(tmp_path, b""))


@pytest.mark.parametrize(("name", "threshold"), [("crisis", 0.85), ("safety", 0.9)])
def test_a_built_in_set_can_decide_and_matches_its_card(name: str, threshold: float) -> None:
    found = load_set(name)
    card = tomllib.loads(BUILT_IN[name].with_suffix(".toml").read_text(encoding="utf-8"))
    Gate(metric=name, threshold=threshold, slices=tuple(found.slices)).check(found.slices)
    topics = {part: {item.topic for item in found.items if item.slice == part} for part in found.slices}
    assert topics == {part: set(some) for part, some in card["slices"].items()}
    assert set().union(*topics.values()) == {topic for source in card["sources"] for topic in source["topics"]}
    assert all(source["source"] for source in card["sources"])
    assert found.about["version"] == card["version"]
    for count in set(found.slices.values()):
        assert f"{count} items" in card["limits"]


@pytest.mark.parametrize("name", ["crisis", "safety"])
def test_items_with_the_same_sentences_have_the_same_group(name: str) -> None:
    items = load_set(name).items
    assert len({item.turns.contents[-1] for item in items}) == len(items)
    for part in range(2):  # the first sentence of each reply is the item's own
        firsts = Counter([item.good, item.bad[0]][part].split(". ")[0] for item in items)
        assert sum(count for count in firsts.values() if count > 1) <= 0.05 * len(items)
    group_of: dict[tuple[str, str], str] = {}
    for item in items:
        last = item.good.split(". ")[-1]
        assert group_of.setdefault((item.topic, last), item.group) == item.group
