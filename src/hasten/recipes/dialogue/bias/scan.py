"""Count the mentions of demographic groups in texts: exact, mergeable, with intervals.

All patterns are found in one pass over a batch of texts by an Aho-Corasick automaton (ahocorasick_rs). Hyperscan is as fast,
but calls Python for each match. Sets of RE2 tell which patterns occur, not how often. Patterns overlap freely: "old woman"
counts as the phrase and as the word "woman". A mention is not bias; see `fairness.py` for measures of bias.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from hasten.core.errors import CorruptError, DataError
from hasten.core.gates import Share
from hasten.recipes.dialogue.bias.patterns import Patterns, folded, load_patterns
from hasten.recipes.needed import needed

MIN_TEXTS = 30
"""Smallest number of texts from which a share is reported."""
_BATCH_BYTES = 1 << 20
_Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Counts:
    """Mentions in a set of texts. `a + b` are the counts of both sets together.

    Attributes:
        digest: Digest of the patterns, see `Patterns.digest`.
        num_texts: Number of texts scanned.
        mentions: Pattern -> number of mentions; patterns without mentions are left out.
        texts: Pattern -> number of texts with at least one mention.
        group_texts: Group -> number of texts that mention at least one of its patterns.
    """

    digest: str
    num_texts: int
    mentions: Mapping[str, int]
    texts: Mapping[str, int]
    group_texts: Mapping[str, int]

    def __add__(self, other: Counts) -> Counts:
        """Return the counts of both sets of texts.

        Raises:
            DataError: They were counted with different patterns.
        """
        if self.digest != other.digest:
            raise DataError(f"counts of different patterns cannot be merged ({self.digest}, {other.digest}): scan again.")
        return Counts(
            self.digest,
            self.num_texts + other.num_texts,
            _merged(self.mentions, other.mentions),
            _merged(self.texts, other.texts),
            _merged(self.group_texts, other.group_texts),
        )

    def share(self, group: str, *, min_texts: int = MIN_TEXTS) -> Share | None:
        """Return the share of texts that mention a group; None if there are fewer than `min_texts`: too few to say."""
        return Share(self.group_texts.get(group, 0), self.num_texts) if self.num_texts >= min_texts else None

    def to_json(self) -> str:
        """Return the counts as JSON; see `from_json`."""
        return json.dumps(vars(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Counts:
        """Read counts written by `to_json`.

        Raises:
            CorruptError: They are not such counts.
        """
        try:
            data = json.loads(text)
            tables = [data["mentions"], data["texts"], data["group_texts"]]
            whole = all(type(number) is int and number >= 0 for table in tables for number in table.values())
            fits = set(data) == set(cls.__dataclass_fields__) and type(data["num_texts"]) is int
            fits = fits and type(data["digest"]) is str and set(tables[0]) == set(tables[1])
            most = max((*tables[1].values(), *tables[2].values()), default=0)
            if not whole or not fits or most > data["num_texts"]:
                raise ValueError  # noqa: TRY301 - told below
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptError("these are not counts of patterns, or they were modified: scan the texts again.") from error


class Scanner:
    """Finds all patterns in texts.

    Args:
        patterns: The patterns; None uses those shipped with Hasten.

    Raises:
        MachineError: The package ahocorasick_rs is not installed.
    """

    def __init__(self, patterns: Patterns | None = None) -> None:
        self.patterns = patterns or load_patterns()
        words = [(b" %b " % folded(word), number) for number, one in enumerate(self.patterns.patterns) for word in one.words]
        self._automaton = needed("ahocorasick_rs", extra="dialogue").BytesAhoCorasick([word for word, _ in words])
        self._of_word = np.array([number for _, number in words])
        groups = self.patterns.groups
        self._of_pattern = np.array([groups.index(one.group) for one in self.patterns.patterns])

    def count(self, texts: Iterable[str]) -> Counts:
        """Count the mentions in texts. Memory does not grow with their number."""
        mentions = np.zeros(len(self._of_pattern), np.int64)
        with_pattern, with_group = mentions.copy(), np.zeros(len(self.patterns.groups), np.int64)
        num_texts = 0
        for size, found, where in self._matches(texts):
            num_texts += size
            mentions += np.bincount(found, minlength=len(mentions))
            with_pattern += _distinct(found, where, len(mentions))
            with_group += _distinct(self._of_pattern[found], where, len(with_group))
        ids = [pattern.id for pattern in self.patterns.patterns]
        return Counts(
            self.patterns.digest,
            num_texts,
            _named(ids, mentions),
            _named(ids, with_pattern),
            _named(self.patterns.groups, with_group),
        )

    def labels(self, texts: Sequence[str], dimension: str) -> list[str | None]:
        """Return the group of a dimension that each text mentions. None, unknown: it mentions none, or several.

        Raises:
            DataError: There is no such dimension.
        """
        inside = np.array([group.startswith(f"{dimension}.") for group in self.patterns.groups])
        if not inside.any():
            known = ", ".join(dict.fromkeys(group.partition(".")[0] for group in self.patterns.groups))
            raise DataError(f"there is no dimension {dimension!r}. Choose from: {known}.")
        labels: list[str | None] = []
        for size, found, where in self._matches(texts):
            sets: list[set[int]] = [set() for _ in range(size)]
            for group, text in zip(self._of_pattern[found].tolist(), where.tolist(), strict=True):
                if inside[group]:
                    sets[text].add(group)
            labels += [self.patterns.groups[min(one)] if len(one) == 1 else None for one in sets]
        return labels

    def _matches(self, texts: Iterable[str]) -> Iterator[tuple[int, _Ints, _Ints]]:
        """Yield for batches of texts: their number, and the pattern and text of each match."""
        parts: list[bytes] = []
        size = 0
        for text in texts:
            parts.append(folded(text))
            size += len(parts[-1])
            if size >= _BATCH_BYTES:
                yield self._found(parts)
                parts, size = [], 0
        if parts:
            yield self._found(parts)

    def _found(self, parts: Sequence[bytes]) -> tuple[int, _Ints, _Ints]:
        matches = self._automaton.find_matches_as_indexes(b" %b " % b" \n ".join(parts), overlapping=True)
        table = np.fromiter(chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
        ends = np.cumsum([len(part) + 3 for part in parts])  # text, and the line break between spaces
        return len(parts), self._of_word[table[:, 0]], np.searchsorted(ends, table[:, 1], side="right")


class Ledger:
    """Counts of blocks of texts, kept by a 64-bit hash of their content. A report scans only what is new or changed.

    Args:
        scanner: Finds the patterns.
        block_texts: Number of texts per block.

    Attributes:
        num_scanned: Number of texts scanned so far.
    """

    def __init__(self, scanner: Scanner, *, block_texts: int = 256) -> None:
        self._scanner, self._block = scanner, block_texts
        self._known: dict[int, Counts] = {}
        self.num_scanned = 0

    def report(self, texts: Sequence[str]) -> Counts:
        """Return the counts of these texts. Blocks that an earlier report has counted are not scanned again."""
        total = self._scanner.count(())
        for start in range(0, len(texts), self._block):
            block = texts[start : start + self._block]
            key = hash(tuple(block))  # Python keeps the hash of a str, so a text seen before costs almost nothing
            if key not in self._known:
                self._known[key] = self._scanner.count(block)
                self.num_scanned += len(block)
            total += self._known[key]
        return total


def _distinct(found: _Ints, where: _Ints, width: int) -> _Ints:
    """Return for each pattern or group the number of texts in which it was found."""
    return np.bincount(np.unique(where * width + found) % width, minlength=width)


def _named(names: Sequence[str], numbers: _Ints) -> dict[str, int]:
    return {name: number for name, number in zip(names, numbers.tolist(), strict=True) if number}


def _merged(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *(name for name in other if name not in one))}
