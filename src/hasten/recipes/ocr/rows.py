"""Decide what the rows of ICDAR text files mean: over all files of a folder, never from one row.

| kind | a row | written by |
|---|---|---|
| box | left, top, right, bottom, text | ICDAR 2011 and 2013 |
| box-size | left, top, width, height, text | |
| quad | x and y of four corners, text | ICDAR 2015, SROIE |
| quad-script | four corners, script, text | ICDAR MLT 2017 and 2019 |
| quad-score | four corners, confidence, text | detectors |
| quad-difficult | four corners, 0 or 1 for hard to read, text | RCTW-17 |
| polygon | x and y of three or more corners, text | CTW1500, converted Total-Text and ArT |

Commas, tabs, semicolons or spaces separate the numbers: whichever reads the most rows. The text may contain more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError

Kind: TypeAlias = Literal["box", "box-size", "quad", "quad-script", "quad-score", "quad-difficult", "polygon"]
KINDS: dict[Kind, str] = {
    "box": "left, top, right, bottom and text",
    "box-size": "left, top, width, height and text",
    "quad": "four corners and text",
    "quad-script": "four corners, script and text",
    "quad-score": "four corners, confidence and text; the confidence is not used",
    "quad-difficult": "four corners, 1 if hard to read, and text",
    "polygon": "corners and text",
}
ILLEGIBLE = frozenset({"###", "*", "#"})
"""Transcripts that mark illegible text: those of ICDAR, ArT and Total-Text."""
LARGEST = 1e7
"""Largest valid coordinate in pixels."""
_SCRIPTS = frozenset({
    "arabic", "bangla", "chinese", "hindi", "japanese", "korean", "latin", "mixed", "none", "symbols",
})  # fmt: skip
"""The scripts of ICDAR MLT 2017 and 2019."""
_DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "spaces"}
"""Tabs come first: if both read all rows, commas belong to the text."""
_QUAD = 8
"""Coordinates of a quadrilateral."""
_FRACTION = 2.0
"""Coordinates of which none is larger are fractions instead of pixels."""
_CTW = 32
"""Numbers of a row of CTW1500: a box, and 14 corners relative to it."""
_MOST = 0.9
"""Fraction of the rows that decides for all."""
_FEW = 0.02
"""Fraction of rows with more than four corners that may be chance: texts of numbers."""


class RowError(ValueError):
    """A row that cannot be read; its message is the reason, without a full stop."""


@dataclass(frozen=True)
class RowFormat:
    """The meaning of the rows of a folder.

    Attributes:
        kind: The kind of row.
        delimiter: What separates the fields; a space stands for any white space.
        has_polygons: Whether quads may have more corners.
    """

    kind: Kind
    delimiter: str
    has_polygons: bool = False

    @property
    def words(self) -> str:
        """The meaning as a sentence."""
        more = ", or more corners" if self.has_polygons else ""
        return f"Labels are ICDAR text: {KINDS[self.kind]}{more}, separated by {_DELIMITERS[self.delimiter]}."

    def num_leading(self, row: str) -> int:
        """Return how many numbers a row begins with."""
        return len(leading_numbers(_split(row, self.delimiter)))

    def read(self, row: str, *, more_corners: bool = True) -> tuple[list[float], bool]:
        """Return the coordinates of the corners of a row, and whether its text is illegible.

        Args:
            row: The row.
            more_corners: Whether numbers after the eighth may be corners; otherwise they belong to the text.

        Raises:
            RowError: The row has too few numbers.
        """
        fields = _split(row, self.delimiter)
        numbers = leading_numbers(fields)
        count = self._num_coordinates(fields, numbers, more_corners=more_corners)
        least = {"box": 4, "box-size": 4, "polygon": 6}.get(self.kind, _QUAD)
        if count < least or len(numbers) < count:
            wanted = f"{least} numbers, separated by {_DELIMITERS[self.delimiter]},"
            raise RowError(f"a row needs {wanted} and a text, but this starts with {len(numbers)}: {row.strip()[:60]!r}")
        corners, rest = numbers[:count], fields[count:]
        ignored = False
        if self.kind in {"box", "box-size"}:
            left, top, right, bottom = corners
            if self.kind == "box-size":
                right, bottom = left + right, top + bottom
            if right <= left or bottom <= top:
                raise RowError(f"its box has no area: ({left:g}, {top:g}) to ({right:g}, {bottom:g})")
            corners = [left, top, right, top, right, bottom, left, bottom]
        elif self.kind == "quad-difficult":
            ignored, rest = _field(rest, 0) == "1", rest[1:]
        elif self.kind == "quad-score" or (self.kind == "quad-script" and _field(rest, 0).casefold() in _SCRIPTS):
            rest = rest[1:]
        text = self.delimiter.join(rest).strip().strip('"').strip()
        if self.kind == "polygon":
            text = text.removeprefix("####") or text  # CTW1500 marks the text so
        return corners, ignored or text in ILLEGIBLE

    def _num_coordinates(self, fields: list[str], numbers: list[float], *, more_corners: bool) -> int:
        """Return how many fields of a row are coordinates. The rest may contain numbers too."""
        if self.kind in {"box", "box-size"}:
            return 4
        if self.kind != "polygon" and not (self.has_polygons and more_corners):
            return _QUAD
        polygon = _even(fields, numbers)
        if self.kind == "polygon":
            return polygon
        return polygon if polygon >= _QUAD + 4 and _continues_outline(numbers[:polygon]) else _QUAD


def decide(rows: Sequence[str], place: Path, kind: str | None) -> RowFormat:
    """Return the meaning of the rows of a folder.

    Args:
        rows: All rows that are not empty.
        place: The folder, for errors.
        kind: The kind that the user gives; None decides by the rows.

    Raises:
        DataError: The kind is unknown, or the rows can be read in two ways, or are of a form that is not supported.
    """
    given = next((known for known in KINDS if known == kind), None)
    if kind is not None and given is None:
        raise DataError(f"{kind!r} is not a kind of row of ICDAR text: use one of {', '.join(KINDS)}.")
    if sum(row.lstrip().startswith("x:") for row in rows) > len(rows) / 4:
        raise DataError(
            f"{place}: the rows are Total-Text's (x: [[...]], y: [[...]]): convert them to x1,y1,x2,y2,...,text."
        )
    read = {sign: sum(len(leading_numbers(_split(row, sign))) >= 4 for row in rows) for sign in _DELIMITERS}
    delimiter = max(read, key=lambda sign: read[sign])
    if not read[delimiter]:
        return RowFormat(given or "quad", ",")
    fields = [_split(row, delimiter) for row in rows]
    usable = [(some, numbers) for some in fields if len(numbers := leading_numbers(some)) >= 4]
    first = np.asarray([numbers[:4] for _, numbers in usable])
    if (largest := np.abs(first).max()) <= _FRACTION:
        raise DataError(f"{place}: all coordinates are at most {largest:g}: are they fractions? Convert them to pixels.")
    longer = [(some, numbers) for some, numbers in usable if len(numbers) >= 6]
    if given is not None:
        return RowFormat(given, delimiter)
    num_quads = sum(_QUAD <= len(numbers) <= _QUAD + 1 for _, numbers in longer)
    if sum(len(numbers) <= 5 for _, numbers in usable) > len(usable) / 2:
        return RowFormat(_box_kind(usable, first, place), delimiter)
    if 2 * num_quads < len(longer):
        _refuse_few_corners(longer, place)
        _refuse_ctw(longer, place)
        return RowFormat("polygon", delimiter)
    kind_of_quad = _quad_kind(longer, place)
    outlines = sum(_is_outline(some, numbers) for some, numbers in longer)
    return RowFormat(kind_of_quad, delimiter, kind_of_quad == "quad" and outlines > _FEW * len(longer))


def leading_numbers(fields: list[str]) -> list[float]:
    """Return the numbers at the start of a row; `nan`, `inf` and `1_000` are not accepted."""
    numbers: list[float] = []
    for field in fields:
        try:
            number = float(field)
        except ValueError:
            return numbers
        if not abs(number) <= LARGEST or "_" in field:
            return numbers
        numbers.append(number)
    return numbers


def _split(row: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return row.split()
    return (row if delimiter == "\t" else row.replace("\t", delimiter)).strip().split(delimiter)


def _field(fields: list[str], index: int) -> str:
    return fields[index].strip().strip('"') if index < len(fields) else ""


def _even(fields: list[str], numbers: list[float]) -> int:
    """Return how many of the leading numbers can be pairs of x and y, if the last number of a row may be the text."""
    all_numbers = len(numbers) == len(fields) and len(numbers) % 2 == 1
    return len(numbers) - 1 if all_numbers else len(numbers) - len(numbers) % 2


def _is_outline(fields: list[str], numbers: list[float]) -> bool:
    count = _even(fields, numbers)
    return count >= _QUAD + 4 and _continues_outline(numbers[:count])


def _continues_outline(numbers: list[float]) -> bool:
    """Return whether the numbers after the first eight are corners too: none is far from the first four."""
    corners = np.asarray(numbers, dtype=np.float64).reshape(-1, 2)
    low, high = corners[:4].min(axis=0), corners[:4].max(axis=0)
    far = 2 * float((high - low).max())
    return bool((corners >= low - far).all() and (corners <= high + far).all())


def _box_kind(usable: list[tuple[list[str], list[float]]], first: npt.NDArray[np.float64], place: Path) -> Kind:
    if sum(len(numbers) == 5 for _, numbers in usable) > len(usable) / 2:
        raise DataError(
            f"{place}: most rows begin with five numbers, but a box has four. If those are the first four, give --rows box; "
            f"otherwise remove the column that is not a coordinate."
        )
    is_box = ((first[:, 2] > first[:, 0]) & (first[:, 3] > first[:, 1])).mean()
    if is_box < _MOST:
        raise DataError(
            f"{place}: the four numbers of a row are not left, top, right and bottom in {1 - is_box:.0%} of the rows. "
            f"If they are left, top, width and height, give --rows box-size."
        )
    return "box"


def _quad_kind(longer: list[tuple[list[str], list[float]]], place: Path) -> Kind:
    """Return what stands between the corners and the text: the ninth field of all rows."""
    rows = [(fields, numbers) for fields, numbers in longer if len(numbers) >= _QUAD]
    with_more = [(fields, numbers) for fields, numbers in rows if len(fields) >= _QUAD + 2]
    scripts = sum(_field(fields, _QUAD).casefold() in _SCRIPTS for fields, _ in with_more)
    if scripts >= _MOST * len(rows):
        return "quad-script"
    if scripts > (1 - _MOST) * len(rows):
        raise DataError(
            f"{place}: {scripts} of {len(rows)} rows have a script such as Latin before the text, the others do not. Give "
            f"--rows quad-script, or --rows quad if it belongs to the text."
        )
    ninths = [numbers[_QUAD] for _, numbers in with_more if len(numbers) > _QUAD]
    if len(ninths) < _MOST * len(rows):
        return "quad"
    values = Counter(ninths)
    if all(0 <= value <= 1 for value in values) and not values.keys() <= {0, 1}:
        return "quad-score"
    raise DataError(
        f"{place}: the rows have a ninth number before the text, such as {values.most_common(1)[0][0]:g}. Say what it is: "
        f"--rows quad-difficult (1 if hard to read), --rows quad-score (a confidence), or --rows quad (part of the text)."
    )


def _refuse_few_corners(longer: list[tuple[list[str], list[float]]], place: Path) -> None:
    """Refuse rows whose last numbers may be corners or a text of numbers, such as 1,000, or whose last corner is missing."""
    counts = Counter(len(numbers) for _, numbers in longer)
    without_text = sum(len(numbers) == len(fields) and len(numbers) < _QUAD + 6 for fields, numbers in longer)
    if counts[_QUAD + 2] + counts[_QUAD + 3] > len(longer) / 2 or without_text > len(longer) / 2:
        raise DataError(
            f"{place}: most rows have a few numbers more than the eight of four corners. If they belong to the text, give "
            f"--rows quad; if they are corners, give --rows polygon."
        )
    odd = sum(len(numbers) % 2 and len(numbers) < len(fields) for fields, numbers in longer)
    if odd > len(longer) / 2:
        raise DataError(
            f"{place}: {odd} of {len(longer)} rows have an odd count of numbers before the text: one is missing, or one too "
            f"many. If a kind of row fits nevertheless, give it with --rows."
        )


def _refuse_ctw(longer: list[tuple[list[str], list[float]]], place: Path) -> None:
    """Refuse CTW1500's own rows, whose corners are relative to a box: as corners in pixels they would be misplaced."""
    rows = np.asarray([numbers for _, numbers in longer if len(numbers) == _CTW], dtype=np.float64).reshape(-1, 16, 2)
    if len(rows) <= len(longer) / 2:
        return
    side = rows[:, 1] - rows[:, 0]
    inside = (rows[:, 2:] >= 0) & (rows[:, 2:] <= side[:, None] + 1)
    if inside.all(axis=(1, 2)).mean() >= _MOST:
        raise DataError(
            f"{place}: the rows are CTW1500's (a box, and 14 corners relative to it): convert them to x1,y1,...,text."
        )
