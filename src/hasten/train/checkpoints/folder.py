"""The checkpoints of a run on disk: which there are, which is whole, which may go.

    RUN/checkpoints/
      00001200/rank0.safetensors    what rank 0 holds: the weights, the optimizer, where everything stands
      00001200/rank1.safetensors    what rank 1 holds besides: its random numbers, or its shards
      00001200/manifest.json        sizes and checksums; written last, so that without it nothing is there
      latest, best                  names, each replaced in one rename

A checkpoint that lacks its manifest, or whose files are not as the manifest says, is passed over with a word, and the one
before it is taken.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from hasten.core.errors import CorruptError, DataError
from hasten.core.files import write_atomically

FORMAT = 2
Checksum, CHECKSUM = xxhash.xxh3_128, "xxh3_128"
"""It finds what a disk or a crash did to a file, in a tenth of the time that SHA-256 would take from training. Against
forgers neither helps: who can change a file can change the manifest as well."""
CHECKPOINTS, MANIFEST, LATEST, BEST = "checkpoints", "manifest.json", "latest", "best"
_NAME = re.compile(r"\d{8,}")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint whose manifest is there.

    Attributes:
        path: Its folder.
        update: Updates that were done.
        world: Ranks that wrote it.
        files: Size and checksum of each file, by name.
        created: When, in ISO 8601.
        facts: What else the run noted: fingerprints, metrics, the plan.
    """

    path: Path
    update: int
    world: int
    files: Mapping[str, tuple[int, str]]
    created: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(size for size, _ in self.files.values())


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        run: The run's folder.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / CHECKPOINTS

    def place(self, update: int) -> Path:
        """The folder of a checkpoint, made where it is not there; what an earlier attempt left in it goes."""
        folder = self.path / f"{update:08d}"
        (folder / MANIFEST).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def commit(
        self, update: int, files: Mapping[str, tuple[int, str]], *, world: int = 1, facts: Mapping[str, Any] | None = None
    ) -> Saved:
        """Say that a checkpoint is whole: from here on it is found.

        Args:
            update: Updates that were done.
            files: Size and checksum of each, by name.
            world: Ranks that wrote it.
            facts: Plain data, kept beside.
        """
        folder = self.path / f"{update:08d}"
        manifest = {
            "format": FORMAT,
            "update": update,
            "world": world,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": {name: {"num_bytes": size, CHECKSUM: digest} for name, (size, digest) in files.items()},
            "facts": dict(facts or {}),
        }
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))
        write_atomically(self.path / LATEST, folder.name + "\n")
        return read_saved(folder)

    def mark_best(self, update: int) -> None:
        """Say that a checkpoint is the best there is."""
        write_atomically(self.path / BEST, f"{update:08d}\n")

    def all(self) -> list[Saved]:
        """All that have a manifest that can be read, the oldest first."""
        found = []
        for folder in sorted(self.path.glob("*")):
            if _NAME.fullmatch(folder.name) and (folder / MANIFEST).exists():
                try:
                    found.append(read_saved(folder))
                except CorruptError:  # told by whoever wants this very one
                    continue
        return sorted(found, key=lambda saved: saved.update)

    def describe(self) -> list[dict[str, Any]]:
        """Describe each of `all()` as plain data: name, update, size, time, number of ranks, whether it is the best."""
        best = self.best()
        return [
            {
                "name": saved.path.name,
                "update": saved.update,
                "num_bytes": saved.num_bytes,
                "created": saved.created,
                "ranks": saved.world,
                "best": best is not None and best.update == saved.update,
            }
            for saved in self.all()
        ]

    def find(self, update: int) -> Saved:
        """The one of an update.

        Raises:
            CorruptError: There is none, or it was never finished.
        """
        return read_saved(self.path / f"{update:08d}")

    def best(self) -> Saved | None:
        """The one marked as best; None where there is none."""
        try:
            return read_saved(self.path / (self.path / BEST).read_text(encoding="utf-8").strip())
        except (FileNotFoundError, CorruptError):
            return None

    def newest_valid(self, say: Callable[[str], None]) -> Saved | None:
        """The newest that is whole, byte for byte; each that is not is told.

        The number of updates decides what is newest, not a clock.
        """
        folders = [folder for folder in self.path.glob("*") if _NAME.fullmatch(folder.name)]
        for folder in sorted(folders, key=lambda folder: int(folder.name), reverse=True):
            problem = ""
            try:
                saved = read_saved(folder)
                problem = damage(saved)
            except CorruptError as error:
                problem = str(error)
            if not problem:
                return saved
            say(f"checkpoint {folder.name} is passed over: {problem}")
        return None

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep`, and the best; also what was never finished before the newest."""
        saved = self.all()
        best = self.best()
        kept = {one.path.name for one in saved[-keep:]} | ({best.path.name} if best else set())
        newest = saved[-1].update if saved else 0
        for folder in sorted(self.path.glob("*")):
            if not _NAME.fullmatch(folder.name) or folder.name in kept:
                continue
            if (folder / MANIFEST).exists() or int(folder.name) < newest:
                # The manifest first: half of a checkpoint must not look like one.
                (folder / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)


def read_saved(folder: Path) -> Saved:
    """What the manifest of a checkpoint says.

    Raises:
        CorruptError: There is none, or it cannot be read.
        DataError: It is of another format.
    """
    try:
        read = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if read["format"] != FORMAT:
            which, then = ("a newer", "upgrade") if read["format"] > FORMAT else ("an older", "go on with that one")
            raise DataError(
                f"{folder} was written by {which} version of Hasten (format {read['format']}; this one reads {FORMAT}): "
                f"{then}."
            )
        files = {_safe(name): (int(file["num_bytes"]), str(file[CHECKSUM])) for name, file in read["files"].items()}
        return Saved(
            path=folder,
            update=int(read["update"]),
            world=int(read["world"]),
            files=files,
            created=str(read["created"]),
            facts=dict(read["facts"]),
        )
    except FileNotFoundError as error:
        raise CorruptError("it was never finished (no manifest.json)") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"its manifest.json cannot be read ({type(error).__name__})") from error


def damage(saved: Saved) -> str:
    """What is wrong with the files of a checkpoint, in words; empty where they are byte for byte what was written."""
    for name, (size, digest) in saved.files.items():
        path = saved.path / name
        try:
            have = path.stat().st_size
            if have != size:
                return f"{name} has {have:,} bytes instead of {size:,}"
            if file_checksum(path) != digest:
                return f"{name} is not what was written: its checksum differs"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return ""


def file_checksum(path: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, Checksum).hexdigest()


def _safe(name: str) -> str:
    """A file's name from a manifest, which may come from a stranger."""
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is no name of a file")
    return name
