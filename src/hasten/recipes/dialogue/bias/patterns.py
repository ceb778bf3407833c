"""Load and check the patterns that name demographic groups, and the tables of terms swapped between groups."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

from xxhash import xxh3_128_hexdigest

from hasten.core.errors import DataError

BUILT_IN = Path(__file__).parent / "patterns.toml"
"""The patterns shipped with Hasten."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SPACES = b"\t\n\v\f\r\x1c\x1d\x1e\x1f -"
_KEYS = {"groups": {"id", "source", "patterns"}, "swaps": {"id", "groups", "source", "pairs", "ambiguous"}}


@dataclass(frozen=True)
class Pattern:
    """One pattern.

    Attributes:
        id: `DIMENSION.GROUP.NAME`.
        group: `DIMENSION.GROUP`.
        words: Words and phrases, as written in the file.
        source: The classification that the group follows.
    """

    id: str
    group: str
    words: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Swaps:
    """A table of terms to swap between two groups.

    Attributes:
        id: Its name.
        groups: The two groups.
        pairs: Terms of the first group and their counterparts in the second.
        ambiguous: Term -> counterpart before a noun, and counterpart elsewhere.
        source: The publication whose manner the table follows.
    """

    id: str
    groups: tuple[str, str]
    pairs: tuple[tuple[str, str], ...]
    ambiguous: Mapping[str, tuple[str, str]]
    source: str


@dataclass(frozen=True)
class Patterns:
    """All patterns and swap tables of a file.

    Attributes:
        version: Version of the file.
        patterns: The patterns, in the order of the file.
        swaps: Name -> table.
    """

    version: int
    patterns: tuple[Pattern, ...]
    swaps: Mapping[str, Swaps]

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups, in the order of the file."""
        return tuple(dict.fromkeys(pattern.group for pattern in self.patterns))

    @cached_property
    def digest(self) -> str:
        """A digest of the patterns. Counts with different digests cannot be merged."""
        rows = "\n".join(f"{pattern.id}\t{'|'.join(pattern.words)}" for pattern in self.patterns)
        return f"{self.version}-{xxh3_128_hexdigest(rows.encode())}"


def folded(text: str) -> bytes:
    """Return the words of a text in the form in which patterns are compared.

    Words are case-folded (Unicode default folding, NFKC), encoded as UTF-8, and separated by one space. A hyphen separates
    like a space. Other punctuation becomes the word `.`, so that no phrase matches across it. Letters, digits, underscores
    and combining marks belong to words. Default folding is not Turkish: dotted capital I and dotless i differ from i.
    """
    if not text.isascii():
        for typographic, plain in _COMMON.items():
            text = text.replace(typographic, plain)
    if text.isascii():
        words = text.encode().translate(_ASCII).replace(b".", b" . ")
    else:
        words = normalize("NFKC", normalize("NFKC", text).casefold()).translate(_UNICODE).encode("utf-8", "replace")
    return b" ".join(words.split())


class _Folding(dict[int, str]):
    """Replacement of each character, computed on first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = category(char)
        if char.isalnum() or char == "_" or kind[0] == "M":
            new = char
        elif kind == "Cf":  # soft hyphens and joiners are invisible within words
            new = ""
        else:
            new = " " if char.isspace() or kind == "Pd" else " . "
        self[code] = new
        return new


_UNICODE = _Folding()
_COMMON = {
    "\u2019": "'",
    "\u2018": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\xa0": " ",
    "\u2013": "-",
    "\u2014": "-",
    "\u2026": ".",
}
"""Typographic characters of most texts: without them these take the path of ASCII, which is ten times as fast."""
_ASCII = bytes(
    ord(chr(code).lower()) if chr(code).isalnum() or code == ord("_") else ord(" " if code in _SPACES else ".")
    for code in range(128)
) + bytes(128)


@lru_cache(maxsize=8)
def load_patterns(path: Path = BUILT_IN) -> Patterns:
    """Read a file of patterns.

    Raises:
        DataError: The file cannot be read, or an entry is wrong.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{path}: version = {version!r} is not valid. Expected: a whole number, 1 or more.")
    patterns: dict[str, Pattern] = {}
    for table in _tables(data, "groups", path):
        _add_group(table, patterns, path)
    if not patterns:
        raise DataError(f"{path} has no patterns: add [[groups]] with an id, a source and patterns.")
    known = {pattern.group for pattern in patterns.values()}
    swaps = {table["id"]: _swaps(table, known, path) for table in _tables(data, "swaps", path)}
    return Patterns(version=version, patterns=tuple(patterns.values()), swaps=swaps)


def _tables(data: Mapping[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    tables = data.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"`{key}` of {path} must be written as [[{key}]].")
    seen = set()
    for number, table in enumerate(tables, 1):
        where = f"Entry {number} of [[{key}]] in {path}"
        for name in ("id", "source"):
            if not isinstance(table.get(name), str) or not table[name].strip():
                raise DataError(f'{where} has no {name}: add {name} = "...".')
        if unknown := sorted(set(table) - _KEYS[key]):
            raise DataError(f"{where} ({table['id']}) has an unknown key `{unknown[0]}`.")
        if table["id"] in seen:
            raise DataError(f"{where} repeats the id {table['id']!r}: join the two entries or rename one.")
        seen.add(table["id"])
    return tables


def _add_group(table: Mapping[str, Any], patterns: dict[str, Pattern], path: Path) -> None:
    group, listed = table["id"], table.get("patterns")
    where = f"The group {group!r} of {path}"
    parts = group.split(".")
    if len(parts) != 2 or not all(map(_NAME.fullmatch, parts)):
        raise DataError(f"{where}: the id must be DIMENSION.GROUP in lower-case letters, digits and underscores.")
    if not isinstance(listed, dict) or not listed:
        raise DataError(f'{where} has no patterns: add [groups.patterns] with name = ["word"].')
    for name, words in listed.items():
        here = f"{where}: pattern {name!r}"
        if not _NAME.fullmatch(name):
            raise DataError(f"{here}: a name has lower-case letters, digits and underscores.")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise DataError(f"{here} must be a list of words, not {words!r}.")
        full = [one for word in words for one in ((word[:-3], word[:-3] + "s") if word.endswith("(s)") else (word,))]
        forms = [folded(word) for word in full]
        for word, form in zip(full, forms, strict=True):
            if not form.replace(b".", b"").strip() or "(" in word:
                raise DataError(f"{here}: {word!r} is not a word. Only an ending `(s)` may stand in parentheses.")
            if sum(b" %b " % form in b" %b " % other for other in forms) > 1:
                raise DataError(f"{here}: {word!r} is repeated or part of another word, and would be counted twice.")
        patterns[f"{group}.{name}"] = Pattern(f"{group}.{name}", group, tuple(full), table["source"])


def _swaps(table: Mapping[str, Any], known: set[str], path: Path) -> Swaps:
    where = f"The swap table {table['id']!r} of {path}"
    groups, pairs, ambiguous = table.get("groups"), table.get("pairs", []), table.get("ambiguous", [])
    if not isinstance(groups, list) or len(groups) != 2 or not set(groups) <= known:
        raise DataError(f"{where}: groups must name two groups of the file, not {groups!r}.")
    for rows, length in ((pairs, 2), (ambiguous, 3)):
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, list) or len(row) != length or not all(isinstance(word, str) and word for word in row):
                raise DataError(f"{where}: {row!r} is not a list of {length} words.")
    terms = [word.casefold() for row in pairs for word in row] + [row[0].casefold() for row in ambiguous]
    if repeated := next((term for term in terms if terms.count(term) > 1), None):
        raise DataError(f"{where}: {repeated!r} has more than one counterpart; keep one of them.")
    return Swaps(
        id=table["id"],
        groups=(groups[0], groups[1]),
        pairs=tuple((row[0], row[1]) for row in pairs),
        ambiguous={row[0].casefold(): (row[1], row[2]) for row in ambiguous},
        source=table["source"],
    )
