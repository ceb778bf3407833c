"""What is wrong with somebody's data: each fault with its file, its line and its reason, collected while reading goes on.

One bad file of ten thousand must not end a run, and must not vanish either. Readers put what they leave out into
`Findings`; at the end a person gets a few lines, a file with all of it, or a refusal where too much is bad.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hasten.core.errors import DataError
from hasten.core.files import write_atomically

Lost: TypeAlias = Literal["picture", "label", "nothing"]
"""What a fault costs: a whole picture with its labels, one label of it, or nothing, where it is only worth knowing."""

_SHOWN = 5
"""Findings that `words` spells out."""


class BadFileError(DataError):
    """A file that cannot be used as it is.

    Args:
        path: The file.
        reason: What is wrong with it and what to do, as a sentence without its end.
        line: Where, counted from 1; None where the whole file is meant.
    """

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        super().__init__(f"{_place(path, line)}: {reason}.")
        self.path, self.reason, self.line = path, reason, line


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        path: The file in which it stands.
        line: Where, counted from 1; None where the whole file is meant, or where its format has no lines.
        reason: What is wrong, without the file's name.
        lost: What is left out because of it.
        about: The picture (or the file that stands for it) that lost something; the same as `path` for most.
    """

    path: Path
    line: int | None
    reason: str
    lost: Lost
    about: Path

    def __str__(self) -> str:
        return f"{_place(self.path, self.line)}: {self.reason}"


class Findings:
    """A list of faults, and what is said of them."""

    def __init__(self) -> None:
        self._items: list[Finding] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[Finding, ...]:
        """All findings, in the order in which they were added."""
        return tuple(self._items)

    def add(self, path: Path, line: int | None, reason: str, *, lost: Lost, about: Path | None = None) -> None:
        """Put a fault on the list.

        Args:
            path: The file in which it stands.
            line: Where, counted from 1; None where the whole file is meant.
            reason: What is wrong, without the file's name.
            lost: `picture` where the whole picture is left out, `label` where one label of it is, `nothing` for a remark.
            about: The picture that loses something, where one file tells of many; None means `path`.
        """
        self._items.append(Finding(Path(path), line, reason, lost, Path(path if about is None else about)))

    def add_error(self, error: BadFileError, *, lost: Lost, about: Path | None = None) -> None:
        """Put a file that could not be used on the list."""
        self.add(error.path, error.line, error.reason, lost=lost, about=about)

    def take(self, others: Findings) -> None:
        """Put all findings of another list at the end of this one."""
        self._items.extend(others.items)

    def counts(self) -> dict[str, int]:
        """How many pictures and how many labels were left out."""
        pictures = {item.about for item in self._items if item.lost == "picture"}
        return {"picture": len(pictures), "label": sum(item.lost == "label" for item in self._items)}

    def words(self) -> str:
        """A few lines for a person: how much was left out, and the first findings; empty where nothing is wrong."""
        if not self._items:
            return ""
        counts = self.counts()
        lines = [f"Left out: {_many(counts['picture'], 'picture')} and {_many(counts['label'], 'label')}."]
        lines += [f"  {item}" for item in self._items[:_SHOWN]]
        if len(self._items) > _SHOWN:
            lines.append(f"  ... and {len(self._items) - _SHOWN} more")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write all findings, one JSON object a line: path, line, reason, lost, about.

        Raises:
            OSError: The file cannot be written.
        """
        told = [
            {
                "path": str(item.path),
                "line": item.line,
                "reason": item.reason,
                "lost": item.lost,
                "about": str(item.about),
            }
            for item in self._items
        ]
        write_atomically(Path(path), "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in told))

    def check(self, num_pictures: int, max_bad_frac: float = 0.1) -> None:
        """Refuse data of which too much is bad.

        Args:
            num_pictures: How many pictures there were, the bad ones included.
            max_bad_frac: The largest share of pictures that may be left out or have lost a label, 0 to 1; above 0 it allows
                one at least.

        Raises:
            DataError: More is bad, or no picture is left; shows the first findings.
        """
        touched = {item.about for item in self._items if item.lost != "nothing"}
        lost = self.counts()["picture"]
        if num_pictures - lost < 1:
            raise DataError(f"No picture of {num_pictures} can be used.\n{self.words()}".rstrip())
        if len(touched) > max(max_bad_frac * num_pictures, 1 if max_bad_frac else 0):
            raise DataError(
                f"{len(touched)} of {num_pictures} pictures have faults, more than the {max_bad_frac:.0%} that are allowed: "
                f"something is wrong with the whole, such as a format, a folder or an order of classes.\n{self.words()}\n"
                f"Mend the files, or allow a larger share."
            )


def _place(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}, line {line}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
