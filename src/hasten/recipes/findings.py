"""Collect problems in a user's data, each with its file, line and reason, while reading continues.

One bad file in ten thousand must neither end a run nor go unreported. Readers add what they skip to `Findings`. The user
then gets a short summary, a file with all findings, or an error if too much is bad.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hasten.core.errors import DataError
from hasten.core.files import write_atomically

Lost: TypeAlias = Literal["picture", "label", "nothing"]
"""What a problem costs: a whole image with its labels, one label, or nothing if it is only worth reporting."""

_SHOWN = 5
"""Number of reasons that `Findings.words` lists."""
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
"""Quoted words and numbers: reasons that differ only in these are of one kind."""


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

    @property
    def kind(self) -> tuple[str, str]:
        """What the problem costs, and its reason without names and numbers."""
        return self.lost, _DETAIL.sub("#", self.reason.replace(self.about.name, "#"))


class Findings:
    """A list of problems and its summary.

    Attributes:
        understood: How the files were read, and how much of them can be used: one sentence each.
        num_images: Number of images that were checked, including the bad ones.
    """

    def __init__(self) -> None:
        self._items: list[Finding] = []
        self.understood: list[str] = []
        self.num_images = 0

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
        self.understood.extend(others.understood)
        self.num_images += others.num_images

    def counts(self) -> dict[str, int]:
        """Return the number of skipped images and of skipped labels."""
        images = {item.about for item in self._items if item.lost == "picture"}
        return {"picture": len(images), "label": sum(item.lost == "label" for item in self._items)}

    def words(self) -> str:
        """Summarize what was skipped, with the commonest reasons, in a few lines; empty if there are no findings."""
        if not self._items:
            return ""
        counts, kinds = self.counts(), Counter(item.kind for item in self._items)
        first: dict[tuple[str, str], Finding] = {}
        for item in self._items:
            first.setdefault(item.kind, item)
        remarks = sum(item.lost == "nothing" for item in self._items)
        skipped = f"Skipped: {many(counts['picture'], 'image')} and {many(counts['label'], 'label')}."
        lines = [f"{skipped} {many(remarks, 'remark')}." if remarks else skipped]
        for kind, count in kinds.most_common(_SHOWN):
            lines.append(f"  {first[kind]}" + (f" (and {count - 1} more like this)" if count > 1 else ""))
        if len(kinds) > _SHOWN:
            lines.append(f"  ... and {many(len(kinds) - _SHOWN, 'other reason')}")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write all findings as JSON lines with the keys path, line, reason, lost and about.

        Raises:
            OSError: The file cannot be written.
        """
        rows = [
            {
                "path": printable(item.path),
                "line": item.line,
                "reason": item.reason,
                "lost": item.lost,
                "about": printable(item.about),
            }
            for item in self._items
        ]
        write_atomically(Path(path), "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows))

    def num_affected(self) -> int:
        """Return the number of images that are skipped or have lost a label."""
        return len({item.about for item in self._items if item.lost != "nothing"})

    def too_many(self, max_bad_frac: float) -> bool:
        """Return whether more images are affected than a fraction of all; any fraction above 0 allows at least one."""
        return self.num_affected() > max(max_bad_frac * self.num_images, 1 if max_bad_frac else 0)

    def check(self, max_bad_frac: float = 0.1) -> None:
        """Raise an error if too much of the data is bad.

        Args:
            max_bad_frac: Largest fraction of images that may be skipped or have lost a label, from 0 to 1. Any value above 0
                allows at least one.

        Raises:
            DataError: Too many images are bad, or none is left. The message lists the first findings.
        """
        if self.num_images - self.counts()["picture"] < 1:
            raise DataError(f"None of the {self.num_images} images can be used.\n{self.words()}".rstrip())
        if self.too_many(max_bad_frac):
            raise DataError(
                f"{self.num_affected()} of {self.num_images} images have problems, more than the allowed "
                f"{max_bad_frac:.0%}: the cause is probably general, such as a wrong format, folder or class order.\n"
                f"{self.words()}\nFix the files, or set max_bad_frac of the job to allow a larger fraction."
            )


def printable(path: Path) -> str:
    """Return a path as text that can be printed and encoded: bytes of its name that are not UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _place(path: Path, line: int | None) -> str:
    return printable(path) if line is None else f"{printable(path)}, line {line}"


def many(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
