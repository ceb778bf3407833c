"""Measure counting all patterns in 50,000 conversations against loops of Python's `re`, in turns.

Conversations are generated, and a sentence with words of the patterns is planted in each third one. The rivals look for the
same words in lower-cased text and return the same counts:

loop of re       one compiled pattern after another
alternation      one pattern that is the alternation of all words; matches that overlap others are missed, as is reported

The loop is slow, so that each round measures all ways on one part of the conversations. Hasten is also measured on all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.turns import goal, in_turns, times
from hasten.recipes.dialogue.bias.patterns import Patterns, load_patterns
from hasten.recipes.dialogue.bias.scan import Counts, Scanner
from hasten.recipes.dialogue.synth import DrawnTalks, conversations

TALKS, SLICE, ROUNDS = 50_000, 1_500, 5
GOAL = 100.0
Counting = Callable[[Sequence[str]], Counts]


def run(_found: Mapping[str, Any], talks: int = TALKS, part: int = SLICE, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure all ways.

    Args:
        talks: Number of conversations.
        part: Number of conversations in the part that the rivals are measured on.
        rounds: Number of rounds.
    """
    texts = drawn_texts(talks)
    few = texts[:: max(talks // part, 1)][:part]
    patterns = load_patterns()
    ways: dict[str, Counting] = {
        "Hasten": Scanner(patterns).count, "loop of re": loop(patterns), "alternation": alternation(patterns)
    }  # fmt: skip
    counts = {name: way(few) for name, way in ways.items()}
    if counts["loop of re"] != counts["Hasten"]:
        raise AssertionError("the loop of re counts otherwise")
    mentions = {name: sum(found.mentions.values()) for name, found in counts.items()}
    seconds = in_turns({name: lambda way=way: way(few) for name, way in ways.items()}, rounds)  # type: ignore[misc]
    whole = in_turns({"Hasten": lambda: ways["Hasten"](texts)}, rounds)["Hasten"]
    speed = times(seconds["loop of re"], seconds["Hasten"])
    return {
        "patterns": len(patterns.patterns),
        "conversations": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "part": len(few),
        "mentions_of_part": mentions,
        "over_alternation": times(seconds["alternation"], seconds["Hasten"]),
        "median_s_of_all": {"Hasten": round(median(whole), 3)},
        "seconds_of_all": {"Hasten": whole},
        "seconds": seconds,
        "goals": {"speed over a loop of re": goal(GOAL, speed)},
    }


def drawn_texts(count: int, seed: int = 0) -> list[str]:
    """Return generated conversations, a third of them with words of the patterns."""
    draw, patterns = random.Random(seed), load_patterns().patterns
    texts = []
    for talk in conversations(DrawnTalks(count=count, seed=seed)):
        said = [message["content"] for message in talk["messages"]]
        if draw.random() < 1 / 3:
            words = (draw.choice(one.words) for one in draw.choices(patterns, k=3))
            said.insert(draw.randrange(len(said)), "I often think: " + "; ".join(words) + ".")
        texts.append("\n".join(said))
    return texts


def loop(patterns: Patterns) -> Counting:
    """Return the usual way: one compiled pattern after another."""
    compiled = [(one.id, one.group, _compiled(one.words)) for one in patterns.patterns]

    def count(texts: Sequence[str]) -> Counts:
        mentions, with_pattern = dict[str, int](), dict[str, int]()
        groups = dict.fromkeys(patterns.groups, 0)
        for text in map(str.lower, texts):
            seen = set()
            for name, group, pattern in compiled:
                if found := len(pattern.findall(text)):
                    mentions[name] = mentions.get(name, 0) + found
                    with_pattern[name] = with_pattern.get(name, 0) + 1
                    seen.add(group)
            for group in seen:
                groups[group] += 1
        return _counts(patterns, len(texts), mentions, with_pattern, groups)

    return count


def alternation(patterns: Patterns) -> Counting:
    """Return one pass of an alternation of all words, the longest first."""
    of_word = {_plain(word): one for one in patterns.patterns for word in one.words}
    compiled = _compiled(tuple(sorted(of_word, key=len, reverse=True)))

    def count(texts: Sequence[str]) -> Counts:
        mentions, with_pattern = dict[str, int](), dict[str, int]()
        groups = dict.fromkeys(patterns.groups, 0)
        for text in map(str.lower, texts):
            found = [of_word[word.replace("-", " ")] for word in compiled.findall(text)]
            for one in found:
                mentions[one.id] = mentions.get(one.id, 0) + 1
            for name in {one.id for one in found}:
                with_pattern[name] = with_pattern.get(name, 0) + 1
            for group in {one.group for one in found}:
                groups[group] += 1
        return _counts(patterns, len(texts), mentions, with_pattern, groups)

    return count


def _compiled(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(re.escape(_plain(word)).replace("\\ ", "[ -]") for word in words) + r")\b")


def _plain(word: str) -> str:
    return word.lower().replace("-", " ")


def _counts(patterns: Patterns, size: int, mentions: Any, texts: Any, groups: Any) -> Counts:
    seen = {name: number for name, number in groups.items() if number}
    return Counts(patterns.digest, size, mentions, texts, seen)
