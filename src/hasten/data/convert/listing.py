"""List the files of a source. Nothing is left out without a word: what is not read is counted, or has a problem.

Hidden and system files are not data: names that begin with a dot (`.DS_Store`, `._photo.jpg`, `.git`) and those in `SYSTEM`.
Links to files and folders are followed, except to a folder that contains the link.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hasten.core.errors import DataError
from hasten.data.convert.compressed import SUFFIXES

SYSTEM = frozenset({
    "$recycle.bin", "__macosx", "desktop.ini", "ehthumbs.db", "lost+found", "system volume information", "thumbs.db",
    "_delta_log", "_spark_metadata", "_temporary",
})  # fmt: skip
"""Files and folders of operating systems and of Spark, in lower case."""
SKIPPED_HIDDEN = "skipped hidden or system files and folders"
_NAMED_ENDINGS = 5
"""Number of endings of skipped files that are named. The others are counted together."""


@dataclass(kw_only=True)
class Listing:
    """Hold the files of a source.

    Attributes:
        files: Files to read, sorted.
        problems: Files that cannot be read, with the reason.
        skipped: What was skipped, in words, and its number.
    """

    files: list[Path] = field(default_factory=list)
    problems: list[tuple[Path, str]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def is_hidden(name: str) -> bool:
    """Return True for the name of a hidden or system file or folder."""
    return (name.startswith(".") and name not in {".", ".."}) or name.lower() in SYSTEM


def is_utf8(name: str) -> bool:
    """Return True if a name can be stored as text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_files(path: Path, endings: Sequence[str]) -> bool:
    """Return True for a file with one of these endings, or a folder that contains one."""
    if not path.is_dir():
        return path.name.lower().endswith(tuple(endings))
    return any(kind == "file" and file.name.lower().endswith(tuple(endings)) for kind, file, _ in _walk(path))


def listed(path: Path, endings: Sequence[str]) -> Listing:
    """List the file itself, or all files in a folder with these endings.

    Raises:
        DataError: There is no such file.
    """
    if path.is_file():
        return Listing(files=[path])
    if not path.is_dir():
        raise DataError(f"{path} is neither a file nor a folder: copy its content to a file first.")
    found, others, folders = Listing(), Counter[str](), []
    for kind, file, words in _walk(path):
        is_data = file.name.lower().endswith(tuple(endings))
        if kind == "skipped":
            found.skipped[words] += 1
        elif kind == "folder":
            folders += [file] if is_data else []
        elif kind == "unreadable" or (kind == "special" and is_data):
            found.problems.append((file, words))
        elif kind == "file" and is_data:
            found.files.append(file)
        else:
            others[file.suffix.lower()] += 1
    plain = set(found.files)
    copies = {file for file in found.files if file.suffix.lower() in SUFFIXES and file.with_suffix("") in plain}
    found.files = [file for file in found.files if file not in copies]
    found.skipped["skipped compressed copies of other files"] += len(copies)
    full = {folder for file in found.files for folder in file.parents}
    found.problems += [(folder, "a folder that contains no data") for folder in folders if folder not in full]
    found.files.sort()
    found.problems.sort()
    for number, (ending, count) in enumerate(others.most_common()):
        named = f"with the ending {ending}" if ending else "without an ending"
        found.skipped[f"skipped files {named if number < _NAMED_ENDINGS else 'with other endings'}"] += count
    if not found.files and not found.problems:
        told = "".join(f"; {words}: {count:,}" for words, count in found.skipped.items() if count)
        wanted = ", ".join(ending for ending in endings if not ending.endswith(SUFFIXES))
        raise DataError(f"{path} contains no {wanted} files: check that it is the right folder{told}.")
    return found


def _walk(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield what a folder contains: its kind, its path, and words about it.

    The kinds are `file`, `folder`, `skipped`, `special` (no regular file) and `unreadable`.
    """
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(path, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            here = folder.stat()
            names = os.listdir(folder)  # noqa: PTH208  names alone
        except OSError as error:
            yield "unreadable", folder, f"the folder cannot be listed: {error.strerror}"
            continue
        if (here.st_dev, here.st_ino) in above:
            yield "skipped", folder, "skipped links to a folder that contains them"
            continue
        for name in names:
            file = folder / name
            if is_hidden(name):
                yield "skipped", file, SKIPPED_HIDDEN
                continue
            try:
                mode = file.stat().st_mode
            except OSError as error:
                yield "special", file, "a link to nothing" if file.is_symlink() else error.strerror or "it cannot be read"
                continue
            if stat.S_ISDIR(mode):
                yield "folder", file, ""
                waiting.append((file, above | {(here.st_dev, here.st_ino)}))
            elif stat.S_ISREG(mode):
                yield "file", file, ""
            else:
                yield "special", file, "not a regular file but a pipe, a socket or a device"
