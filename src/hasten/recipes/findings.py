"""Collect problems in a user's data, each with its file, line and reason, while reading continues.

One bad file in ten thousand must neither end a run nor go unreported. Readers add what they skip to `Findings`. The user
then gets a short summary, a file with all findings, or an error if too much is bad.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hasten.core.errors import DataError
from hasten.core.files import write_atomically

Lost: TypeAlias = Literal["picture", "label", "nothing"]
"""What a problem costs: a whole image with its labels, one label, or nothing if it is only worth reporting."""

_SHOWN = 5
"""Number of findings that `Findings.words` lists."""


class BadFileError(DataError):
    """A file that cannot be used.

    Args:
        path: The file.
        reason: What is wrong and what to do, as a sentence without its final full stop.
        line: Line number, counted from 1; None if the whole file is meant.
    """

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        super().__init__(f"{_place(path, line)}: {reason}.")
        self.path, self.reason, self.line = path, reason, line


@dataclass(frozen=True)
class Finding:
    """One problem.

    Attributes:
        path: The file that contains the problem.
        line: Line number, counted from 1; None if the whole file is meant or its format has no lines.
        reason: What is wrong, without the file name.
        lost: What is skipped because of the problem.
        about: The image (or the file that represents it) that is affected; usually the same as `path`.
    """

    path: Path
    line: int | None
    reason: str
    lost: Lost
    about: Path

    def __str__(self) -> str:
        return f"{_place(self.path, self.line)}: {self.reason}"


class Findings:
    """A list of problems and its summary."""

    def __init__(self) -> None:
        self._items: list[Finding] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[Finding, ...]:
        """All findings in the order they were added."""
        return tuple(self._items)

    def add(self, path: Path, line: int | None, reason: str, *, lost: Lost, about: Path | None = None) -> None:
        """Add a problem.

        Args:
            path: The file that contains the problem.
            line: Line number, counted from 1; None if the whole file is meant.
            reason: What is wrong, without the file name.
            lost: "picture" if the whole image is skipped, "label" if one of its labels is, "nothing" for a remark.
            about: The affected image if one file describes many images; None means `path`.
        """
        self._items.append(Finding(Path(path), line, reason, lost, Path(path if about is None else about)))

    def add_error(self, error: BadFileError, *, lost: Lost, about: Path | None = None) -> None:
        """Add a file that could not be used."""
        self.add(error.path, error.line, error.reason, lost=lost, about=about)

    def take(self, others: Findings) -> None:
        """Append all findings of another list."""
        self._items.extend(others.items)

    def counts(self) -> dict[str, int]:
        """Return the number of skipped images and of skipped labels."""
        images = {item.about for item in self._items if item.lost == "picture"}
        return {"picture": len(images), "label": sum(item.lost == "label" for item in self._items)}

    def words(self) -> str:
        """Summarize what was skipped and list the first findings, in a few lines; empty if there are no findings."""
        if not self._items:
            return ""
        counts = self.counts()
        lines = [f"Skipped: {_many(counts['picture'], 'image')} and {_many(counts['label'], 'label')}."]
        lines += [f"  {item}" for item in self._items[:_SHOWN]]
        if len(self._items) > _SHOWN:
            lines.append(f"  ... and {len(self._items) - _SHOWN} more")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write all findings as JSON lines with the keys path, line, reason, lost and about.

        Raises:
            OSError: The file cannot be written.
        """
        rows = [
            {
                "path": str(item.path),
                "line": item.line,
                "reason": item.reason,
                "lost": item.lost,
                "about": str(item.about),
            }
            for item in self._items
        ]
        write_atomically(Path(path), "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows))

    def check(self, num_images: int, max_bad_frac: float = 0.1) -> None:
        """Raise an error if too much of the data is bad.

        Args:
            num_images: Number of images, including the bad ones.
            max_bad_frac: Largest fraction of images that may be skipped or have lost a label, from 0 to 1. Any value above 0
                allows at least one.

        Raises:
            DataError: Too many images are bad, or none is left. The message lists the first findings.
        """
        affected = {item.about for item in self._items if item.lost != "nothing"}
        lost = self.counts()["picture"]
        if num_images - lost < 1:
            raise DataError(f"None of the {num_images} images can be used.\n{self.words()}".rstrip())
        if len(affected) > max(max_bad_frac * num_images, 1 if max_bad_frac else 0):
            raise DataError(
                f"{len(affected)} of {num_images} images have problems, more than the allowed {max_bad_frac:.0%}: "
                f"the cause is probably general, such as a wrong format, folder or class order.\n{self.words()}\n"
                f"Fix the files, or allow a larger fraction."
            )


def _place(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}, line {line}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
