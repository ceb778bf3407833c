"""Say in words why records cannot be used, and count similar reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from hasten.core.errors import BrokenFileError, HastenError

_LONGEST = 200
"""Maximum number of characters of a library's message that are kept."""
_WITHOUT_CONTENT = frozenset({"PIL", "_soundfile", "gzip", "lzma", "soundfile", "tarfile", "wave", "zipfile", "zlib"})
"""Modules whose messages describe the format of a file. Messages of other libraries can contain values."""
_NUMBER = re.compile(r"(?<![\w'.])-?[0-9][0-9,]*(?![\w'])")
"""Numbers by which otherwise equal reasons differ."""
_MAX_KINDS = 1_000
"""Maximum number of reasons that are counted apart."""
OTHERS = "other reasons"


def reason_of(error: Exception) -> str:
    """Return why a file or a record cannot be read, in words without content.

    Raises:
        HastenError: The error concerns the whole conversion.
    """
    if isinstance(error, BrokenFileError):
        return error.reason
    if isinstance(error, HastenError):
        raise error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, EOFError):
        return "the file is truncated"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeError):
        return "invalid UTF-8"
    first = next(iter(str(error).splitlines()), "")[:_LONGEST]
    if first and (type(error) in {OSError, ValueError} or type(error).__module__.partition(".")[0] in _WITHOUT_CONTENT):
        return first
    return f"it cannot be read ({type(error).__name__})"


def tallied(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Count reasons, the commonest first. Reasons that differ only in numbers are counted together, with N for the number.

    Args:
        counts: Reasons with their counts; a reason may occur repeatedly.
    """
    kinds = Counter[str]()
    first: dict[str, str] = {}
    for reason, count in counts:
        kind = _NUMBER.sub("N", reason)
        if kind not in kinds and len(kinds) >= _MAX_KINDS:
            kind = OTHERS
        is_alone = kind not in first or first[kind] == reason
        first[kind] = reason if is_alone and kind != OTHERS else kind
        kinds[kind] += count
    return {first[kind]: count for kind, count in kinds.most_common()}


def in_words(reasons: Mapping[str, int], shown: int = 3) -> str:
    """Return the commonest reasons as text: `12 x invalid JSON; 1 x ...`."""
    if sum(reasons.values()) == 1:
        return next(iter(reasons)).rstrip(".")
    words = [f"{count:,} x {reason.rstrip('.')}" for reason, count in list(reasons.items())[:shown]]
    rest = sum(list(reasons.values())[shown:])
    return "; ".join([*words, *([f"{rest:,} x {OTHERS}"] if rest else [])])
