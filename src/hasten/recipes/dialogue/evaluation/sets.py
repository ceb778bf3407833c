"""Read labelled sets: conversations, each with a reply that handles it well and replies that do not.

A set is a file with one JSON object per line::

    {"id": "panic-1", "slice": "panic", "messages": [{"role": "user", "content": "..."}], "good": "...", "bad": ["..."]}

`messages` is as in `hasten.data.conversation` and ends with the client. A gate judges each slice by itself. Two keys are
optional: `topic`, which is reported but does not gate, and `group`, the same for items that share sentences, so that they do
not count as independent. Errors name the line and the reason, never any text of the file.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_hexdigest

from hasten.core.errors import DataError
from hasten.data.conversation import STAGE_NAME, Refusal, row_of
from hasten.recipes.dialogue.tokens import Turns

BUILT_IN = {path.stem: path for path in sorted((Path(__file__).parent / "data").glob("*.jsonl"))}
"""The sets shipped with Hasten. A file `NAME.toml` beside each says what it measures, its sources and its limits."""
_OPTIONAL = ("topic", "group")
_KEYS = dict.fromkeys(("id", "slice", "messages", "good", "bad")).keys()


@dataclass(frozen=True)
class Item:
    """One labelled item.

    Attributes:
        id: Its name.
        slice: The slice that it belongs to.
        topic: What it is about within the slice; empty if the file does not say.
        group: The same for items that share sentences; by default, its id.
        turns: The conversation; the client speaks last.
        good: The reply that handles it well.
        bad: Replies that do not, at least one.
    """

    id: str
    slice: str
    topic: str
    group: str
    turns: Turns
    good: str
    bad: tuple[str, ...]

    def talks(self) -> Iterator[Turns]:
        """Return the conversation with each reply, the good one first."""
        for reply in (self.good, *self.bad):
            yield Turns([*self.turns.roles, "assistant"], [*self.turns.contents, reply])


@dataclass(frozen=True)
class LabelledSet:
    """A labelled set.

    Attributes:
        name: Name of the set: that of its file.
        items: The items.
        about: Name, digest of the file, and version of a built-in set; for results.
    """

    name: str
    items: tuple[Item, ...]
    about: Mapping[str, Any]

    @property
    def slices(self) -> Mapping[str, int]:
        """Number of items of each slice, in the order of the file."""
        return Counter(item.slice for item in self.items)


def load_set(source: str | os.PathLike[str]) -> LabelledSet:
    """Read a labelled set.

    Args:
        source: Name of a built-in set, or a file.

    Raises:
        DataError: The file cannot be read, or a line is not an item, or repeats one.
    """
    path = BUILT_IN.get(str(source), Path(source))
    try:
        data = path.read_bytes()
    except OSError as error:
        known = ", ".join(BUILT_IN)
        raise DataError(f"{path} cannot be read ({error.strerror}): give a file, or a built-in set: {known}.") from error
    items, seen = list[Item](), dict[Any, int]()
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        item = _item(line)
        if isinstance(item, str):
            raise DataError(f"{path}, line {number}: {item}.")
        for key in (item.id, (*item.turns.contents, item.good, *item.bad)):
            if (first := seen.setdefault(key, number)) != number:
                what = "id" if key == item.id else "conversation and replies"
                raise DataError(f"{path}, line {number} has the {what} of line {first}: every item must be different.")
        items.append(item)
    if not items:
        raise DataError(f"{path} has no items: give one JSON object per line.")
    about = {"set": path.stem, "digest": xxh3_128_hexdigest(data)}
    if path in BUILT_IN.values():
        about["version"] = tomllib.loads(path.with_suffix(".toml").read_text(encoding="utf-8"))["version"]
    return LabelledSet(path.stem, tuple(items), about)


def _item(line: bytes) -> Item | str:
    """Return the item of a line, or why it is none."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "it is not JSON"
    if not isinstance(record, dict) or not _KEYS <= record.keys() <= {*_KEYS, *_OPTIONAL}:
        return f"it must be an object with {', '.join(_KEYS)}, optionally {' and '.join(_OPTIONAL)}, and nothing else"
    messages, bad = record["messages"], record["bad"]
    for key in ("slice", *_OPTIONAL):
        if not isinstance(name := record.get(key, "none"), str) or not STAGE_NAME.fullmatch(name):
            return f"{key} is not a name of at most 64 letters, digits, '_' and '-'"
    if not isinstance(messages, list) or not isinstance(bad, list) or not bad:
        return "messages and bad must be lists with one entry or more"
    if not all(isinstance(reply, str) for reply in bad) or len(set(bad)) < len(bad):
        return "bad must be a list of different texts"
    row: Any = None
    for place, reply in enumerate(bad, 1):  # checked as a conversation with a rejected answer
        talk = [*messages, {"role": "assistant", "content": record["good"]}]
        row = row_of({"id": record["id"], "messages": talk, "rejected": reply})
        if isinstance(row, Refusal):
            where = f"message {row.message}: " if row.message else f"bad {place}: " if "'rejected'" in row.reason else ""
            return f"{'good: ' if row.message == len(talk) else where}{row.reason}"
    turns = Turns(row["roles"][:-1], row["contents"][:-1])
    name, topic = str(row["conversation_id"]), record.get("topic", "")
    return Item(name, record["slice"], topic, str(record.get("group", name)), turns, record["good"], tuple(bad))
