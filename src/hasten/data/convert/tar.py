"""List the samples of a tar file before anything is read, and read their members by position.

Python's `tarfile` takes a damaged header for the end of the archive, so the end is checked here. Nothing is extracted: names
are text, and links are not followed.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hasten.data.convert.compressed import is_compressed, open_plain
from hasten.data.convert.listing import is_hidden, is_utf8
from hasten.data.convert.reasons import reason_of
from hasten.data.convert.refusals import truncated

ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
MAX_MEMBER_BYTES = 2**30
"""Maximum size of a file within an archive."""
_MAX_MEMBERS = 256
"""Maximum number of files of a sample, which are columns."""
_BLOCK = 512
_DAMAGED = "the archive is truncated or damaged"
_DOCUMENTS = frozenset({"authors", "changelog", "citation", "copying", "license", "licence", "notice", "readme"})
_DOCUMENT_ENDINGS = ("", "bib", "cff", "html", "md", "pdf", "rst", "txt")
_PADDED = re.compile(r"[0-9].*\.")
"""Endings with a number before their last dot, such as `05_0000.jpg`."""


@dataclass(kw_only=True)
class Member:
    """Describe a file in an archive.

    Attributes:
        start: Position of its bytes in the uncompressed archive.
        size: Number of its bytes.
        entry: Its header if its bytes are not contiguous.
    """

    start: int
    size: int
    entry: tarfile.TarInfo | None = None


@dataclass(kw_only=True)
class Sample:
    """Describe the files of an archive that form a sample.

    Attributes:
        key: Their path up to the first dot of the name.
        members: Ending -> file.
        problem: Why the sample cannot be used; empty if it can.
        num_runs: Number of places in the archive where its files are.
    """

    key: str
    members: dict[str, Member] = field(default_factory=dict)
    problem: str = ""
    num_runs: int = 1


@dataclass(kw_only=True)
class Index:
    """Hold the samples of an archive, in the order of their first files.

    Attributes:
        samples: The samples.
        notes: What was skipped or joined, in words, and its number.
        problem: Why the rest of the archive cannot be read; empty if all of it can.
    """

    samples: list[Sample] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    problem: str = ""


class Archive:
    """Read an open tar file, compressed or not."""

    def __init__(self, file: IO[bytes], *, is_compressed: bool) -> None:
        self._file, self._is_compressed = file, is_compressed

    def index(self, max_samples: int | None = None) -> Index:
        """List the samples, or some from the start."""
        self._file.seek(0)
        found = Index()
        by_key: dict[str, list[Sample]] = {}
        last, is_marked = Sample(key=""), True
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                while (entry := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # it would keep all headers
                    key, ending = _split(entry, found.notes)
                    if not ending:
                        continue
                    if key != last.key:
                        if max_samples is not None and len(found.samples) >= max_samples:
                            return found
                        last = self._sample_of(key, ending, by_key.setdefault(key, []), found)
                    _add(last, ending, entry)
                found.problem, is_marked = self._end(archive.offset)
                found.notes["archives without the mark of their end, perhaps truncated"] += not is_marked
        except Exception as error:  # noqa: BLE001  headers and compressed data can be damaged in any way
            found.problem = _DAMAGED if found.samples else f"it is truncated, or not a tar file ({reason_of(error)})"
        if found.problem == _DAMAGED and found.samples:
            found.samples.remove(last)  # it may be incomplete
        elif not is_marked and found.samples and last.members.keys() < found.samples[0].members.keys():
            found.samples.remove(last)
            found.problem = _DAMAGED
        found.notes += Counter(_warnings(found.samples))
        return found

    def _sample_of(self, key: str, ending: str, earlier: list[Sample], found: Index) -> Sample:
        """Return the sample that a file which does not follow others of its key belongs to."""
        for sample in earlier:
            if ending not in sample.members:
                if not self._is_compressed:
                    found.notes["samples whose files are not next to each other, joined"] += sample.num_runs == 1
                sample.num_runs += 1
                return sample
        if earlier:
            found.notes["samples with the key of an earlier one in the archive, kept as rows of their own"] += 1
        sample = Sample(key=key)
        earlier.append(sample)
        found.samples.append(sample)
        return sample

    def read(self, sample: Sample) -> Iterator[tuple[str, bytes]]:
        """Yield the ending and the bytes of each file of a sample.

        Raises:
            ValueError: The sample cannot be read; says why.
        """
        if sample.problem:
            raise ValueError(sample.problem)
        if sample.num_runs > 1 and self._is_compressed:
            raise ValueError("its files are not next to each other in a compressed archive: decompress the archive")
        for ending, member in sample.members.items():
            if member.size > MAX_MEMBER_BYTES:
                raise ValueError(f"{ending} is larger than {MAX_MEMBER_BYTES:,} bytes")
            yield ending, self._bytes(member)

    def _bytes(self, member: Member) -> bytes:
        if member.entry is not None:
            self._file.seek(0)
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                file = archive.extractfile(member.entry)
                return file.read() if file is not None else b""
        self._file.seek(member.start)
        data = self._file.read(member.size)
        if len(data) < member.size:
            raise ValueError("the archive is truncated")
        return data

    def _end(self, offset: int) -> tuple[str, bool]:
        """Say what is wrong where the archive ended, and whether it is marked as its end: by blocks of zeros."""
        self._file.seek(offset)
        block = self._file.read(_BLOCK)
        if not block:
            return "", False
        if any(block) or len(block) < _BLOCK:
            return _DAMAGED, True
        while block := self._file.read(2**20):
            if any(block):
                return "other data follows the end of the archive, perhaps a second archive", True
        return "", True


@contextmanager
def opened(path: str) -> Iterator[Archive]:
    """Open a tar file. Its first bytes say how it is compressed.

    Raises:
        BrokenFileError: It is empty.
    """
    if not Path(path).stat().st_size:
        raise truncated(path)
    with open_plain(path) as file:
        yield Archive(file, is_compressed=is_compressed(path))


def _split(entry: tarfile.TarInfo, notes: Counter[str]) -> tuple[str, str]:
    """Return the key and the ending of a member, or empty strings if it is not part of a sample."""
    if entry.isdir():
        return "", ""
    folder, _, name = entry.name.rpartition("/")
    stem, _, ending = name.partition(".")
    if any(map(is_hidden, entry.name.split("/"))) or re.match("__[^/]*__($|/)", entry.name):
        notes["skipped hidden or system files in archives"] += 1
    elif stem.lower() in _DOCUMENTS and ending.lower() in _DOCUMENT_ENDINGS:
        notes["skipped files such as README and LICENSE in archives"] += 1
    elif not ending:
        notes["skipped files without an ending in archives"] += 1
    else:
        if entry.name.startswith("/") or ".." in entry.name.split("/"):
            notes["files in archives with absolute names or `..`, used as keys only"] += 1
        return f"{folder}/{stem}" if folder else stem, ending.lower()
    return "", ""


def _add(sample: Sample, ending: str, entry: tarfile.TarInfo) -> None:
    problem = ""
    if not is_utf8(entry.name):
        problem = "the name of a file is not UTF-8"
    elif not entry.isreg():
        problem = f"{ending} is a link or a device, which is not followed"
    elif ending in sample.members:
        problem = f"several files are named {ending}"
    elif len(sample.members) >= _MAX_MEMBERS:
        problem = f"more than {_MAX_MEMBERS} files have the same name before the first dot"
    if problem:
        sample.problem = sample.problem or problem
        return
    is_sparse = entry.sparse is not None
    sample.members[ending] = Member(start=entry.offset_data, size=entry.size, entry=entry if is_sparse else None)


def _warnings(samples: list[Sample]) -> dict[str, int]:
    """Warn about names with dots, of which WebDataset's rule makes few samples with many columns."""
    endings = [ending for sample in samples for ending in sample.members]
    dotted = sum(bool(_PADDED.match(ending)) for ending in endings)
    if len(endings) < 4 * len(samples) or 2 * dotted < len(endings):
        return {}
    return {"WARNING: the key ends at the first dot of a name, which joins many files; rename them if it should not": dotted}
