"""Measure replacing identifiers in drawn conversations against one pass of Python's `re` for each pattern, in turns.

Sentences without identifiers are drawn from words, and sentences with one are planted among them, in formats that a
person might use. `recall` is the share of planted identifiers of which nothing is left; `precision` is the share of all
replacements that meet one. Names without a cue, of no list of common names, are planted too and counted by themselves:
no pattern can find them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.turns import goal, in_turns, times
from hasten.data.private import identifiers
from hasten.data.private.identifiers import Identifiers

TURNS, TALKS, SENTENCES = 5, 2000, 12
GOALS = {"speed": 10.0, "recall": 0.95}
SALT = bytes(range(32))
WORDS = re.findall(
    r"\S+",
    "since then i feel tired and alone most evenings but my sleep was never good when work got harder we talked about it "
    "again last week they said it takes time maybe 3 or 4 months and $200 of savings is all that is left 24/7 at 10:30 "
    "every 2 days around 50% of it helps a little more than before",
)
FIRST = ("Zoltan", "Oluwaseun", "Thandiwe", "Ximena", "Bjarne", "Saoirse", "Nguyen", "Ottoline")
LAST = ("Szabo", "Okonkwo", "Fitzwilliam", "Rasmussen", "Delacroix-Mendes", "O'Malley", "Papadopoulos")
COMMON = ("James", "Mary", "Jennifer", "Robert", "Laura", "Daniel", "Fatima")
PLACES = ("Wichita Falls", "Aberystwyth", "Oshkosh", "Tallahassee")
HARD = "name without a cue"


def run(_found: Mapping[str, Any]) -> dict[str, Any]:
    """Measure speed, recall and precision."""
    draw = random.Random(0)
    talks = [_talk(draw) for _ in range(TALKS)]
    texts = [text for text, _ in talks]
    fast, slow = Identifiers(SALT), _loop()
    ways: dict[str, Callable[[], object]] = {
        "Hasten": lambda: [fast.replaced(text) for text in texts],
        "loop of re": lambda: [slow(text) for text in texts],
    }
    seconds = in_turns(ways, TURNS)
    found = _found_in(fast, talks)
    num_bytes = sum(len(text.encode()) for text in texts)
    seen = {"speed": times(seconds["loop of re"], seconds["Hasten"]), "recall": found["recall"]}
    return {
        "bytes": num_bytes,
        "bytes_per_s": {name: num_bytes / median(values) for name, values in seconds.items()},
        **found,
        "seconds": seconds,
        "goals": {name: goal(least, seen[name]) for name, least in GOALS.items()},
    }


def _found_in(fast: Identifiers, talks: list[tuple[str, list[tuple[str, str]]]]) -> dict[str, Any]:
    planted: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    replaced = 0
    for text, plants in talks:
        new, counts = fast.replaced(text)
        new = re.sub(r"\[\w+:\w+\]", "", new)  # the tokens themselves
        replaced += counts.total()
        for kind, identifier in plants:
            planted[kind] += 1
            gone[kind] += not any(re.search(rf"\b{part}\b", new) for part in re.findall(r"\w{3,}", identifier))
    wanted, hard = planted.total() - planted[HARD], planted.pop(HARD)
    hard_gone = gone.pop(HARD)
    return {
        "planted": dict(planted),
        "recall_of_kinds": {kind: round(gone[kind] / count, 4) for kind, count in planted.items()},
        "recall": round(gone.total() / wanted, 4),
        "precision": round(min((gone.total() + hard_gone) / replaced, 1.0), 4),
        "recall_of_names_without_a_cue": round(hard_gone / hard, 4),
    }


def _loop() -> Callable[[str], str]:
    """Return the usual way: the same patterns, one after the other, by Python's `re`."""
    patterns = []
    for kind, forms in identifiers._PATTERNS.items():  # noqa: SLF001  the same patterns are the point
        for before, found, *after in forms:
            form = f"({before})(?:{found})(?={''.join(after)})" if after else f"({before})(?:{found})"
            form = form.replace("\\p{Lu}", "[A-ZÀ-Þ]").replace("[\\p{L}", "[a-zA-ZÀ-ÿ").replace("\\p{L}", "[a-zA-ZÀ-ÿ]")
            patterns.append((kind, re.compile(form)))

    def replaced(text: str) -> str:
        for kind, pattern in patterns:
            text = pattern.sub(rf"\1[{kind}]", text)
        return text

    return replaced


def _talk(draw: random.Random) -> tuple[str, list[tuple[str, str]]]:
    sentences, plants = [], []
    for _ in range(SENTENCES):
        words = " ".join(draw.choices(WORDS, k=draw.randint(8, 20)))
        if draw.random() < 0.25:
            kind, sentence, identifier = _planted(draw)
            plants.append((kind, identifier))
            words = f"{words}. {sentence}"
        sentences.append(words)
    return ". ".join(sentences) + ".", plants


def _planted(draw: random.Random) -> tuple[str, str, str]:
    def digits(count: int) -> str:
        return "".join(draw.choices("123456789", k=count))

    first, last, common, place = (draw.choice(names) for names in (FIRST, LAST, COMMON, PLACES))
    month = draw.choice(("January", "Sept.", "May", "october"))
    day, year = draw.randint(10, 28), draw.randint(1950, 2024)
    phone = f"{digits(3)}-{digits(3)}-{digits(4)}"
    kind, sentence, identifier = draw.choice([
        ("name", "My name is {}", f"{first} {last}"), ("name", "I saw Dr. {} today", last),
        ("name", "my sister {} called", first), ("name", "then {} came by", f"{common} {last}"),
        (HARD, "so {} told me", first),
        ("phone", "my cell is {}", phone), ("phone", "call {} after six", f"({digits(3)}) {digits(3)}-{digits(4)}"),
        ("phone", "reach me at {}", f"+49 {digits(3)} {digits(4)} {digits(3)}"), ("phone", "text {}", digits(10)),
        ("email", "write to {}", f"{first.lower()}.{digits(2)}@mail.example.org"),
        ("url", "see {}", f"www.{last.lower()[-4:]}x.example"),
        ("date", "it was {}", f"{month} {day}, {year}"), ("date", "since {}", f"{draw.randint(10, 12)}/{day}/{year}"),
        ("date", "on the {} it began", f"{day}th of {month}"), ("date", "born {}", f"{year}-{draw.randint(10, 12)}-{day}"),
        ("place", "I live in {}", place), ("place", "we met at {}", f"{digits(3)} {last.replace(chr(39), '')} Street"),
        ("place", "back in {}", f"{place}, TX {digits(5)}"), ("age", "she is a {}", "93-year-old"),
        ("ssn", "ssn {}", f"{digits(3)}-{digits(2)}-{digits(4)}"), ("record", "my MRN is {}", digits(8)),
        ("plan", "member id {}", f"XB{digits(7)}"), ("account", "the account number is {}", digits(11)),
        ("account", "card {}", " ".join(digits(4) for _ in range(4))), ("licence", "passport no. {}", digits(9)),
        ("vehicle", "license plate {}", f"KLM {digits(4)}"), ("device", "serial number {}", f"SN-{digits(8)}"),
        ("ip", "from {}", f"10.{draw.randint(10, 99)}.{draw.randint(100, 199)}.{draw.randint(100, 199)}"),
        ("fax", "fax {}", phone), ("other", "employee id {}", f"E{digits(6)}"),
    ])  # fmt: skip
    return kind, sentence.format(identifier), identifier
