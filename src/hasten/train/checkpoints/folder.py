"""The checkpoints of a run on disk: list, verify and prune them.

    RUN/checkpoints/
      00001200/rank0.safetensors    state of rank 0: weights, optimizer, position of the run
      00001200/rank1.safetensors    state that only rank 1 has: its random number generators, its shards
      00001200/manifest.json        sizes and checksums; written last, so a checkpoint without it is incomplete
      latest, best                  names of checkpoints, replaced atomically

A checkpoint without a manifest, or whose files do not match it, is skipped with a message, and the previous one is used.
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
"""The checksum detects corruption by a disk or a crash, in a tenth of the time of SHA-256. Neither protects against
deliberate changes, because anyone who can change a file can also change the manifest."""
CHECKPOINTS, MANIFEST, LATEST, BEST = "checkpoints", "manifest.json", "latest", "best"
_NAME = re.compile(r"\d{8,}")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint with a manifest.

    Attributes:
        path: Its folder.
        update: Completed updates.
        world: Number of ranks that wrote it.
        files: File name -> size and checksum.
        created: Time of creation in ISO 8601.
        facts: Other data from the run: fingerprints, metrics, the plan.
    """

    path: Path
    update: int
    world: int
    files: Mapping[str, tuple[int, str]]
    created: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(size for size, _ in self.files.values())


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        run: The run's folder.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / CHECKPOINTS

    def place(self, update: int) -> Path:
        """Return the folder of a checkpoint. Create it if missing, and remove a manifest left by an earlier attempt."""
        folder = self.path / f"{update:08d}"
        (folder / MANIFEST).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def commit(
        self, update: int, files: Mapping[str, tuple[int, str]], *, world: int = 1, facts: Mapping[str, Any] | None = None
    ) -> Saved:
        """Mark a checkpoint as complete by writing its manifest, and return it.

        Args:
            update: Completed updates.
            files: File name -> size and checksum.
            world: Number of ranks that wrote it.
            facts: Plain data to store in the manifest.
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
        """Mark a checkpoint as the best."""
        write_atomically(self.path / BEST, f"{update:08d}\n")

    def all(self) -> list[Saved]:
        """Return all checkpoints with a readable manifest, the oldest first."""
        checkpoints = []
        for folder in sorted(self.path.glob("*")):
            if _NAME.fullmatch(folder.name) and (folder / MANIFEST).exists():
                try:
                    checkpoints.append(read_saved(folder))
                except CorruptError:  # reported by `newest_valid` and `find`
                    continue
        return sorted(checkpoints, key=lambda saved: saved.update)

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
        """Return the checkpoint of an update.

        Raises:
            CorruptError: There is none, or it was never completed.
        """
        return read_saved(self.path / f"{update:08d}")

    def best(self) -> Saved | None:
        """Return the checkpoint marked as best, or None."""
        try:
            return read_saved(self.path / (self.path / BEST).read_text(encoding="utf-8").strip())
        except (FileNotFoundError, CorruptError):
            return None

    def newest_valid(self, say: Callable[[str], None]) -> Saved | None:
        """Return the newest checkpoint whose files match their checksums, or None. Report each one that is skipped.

        The newest is the one with the most updates, not the latest time.
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
            say(f"checkpoint {folder.name} is skipped: {problem}")
        return None

    def prune(self, keep: int) -> None:
        """Remove all checkpoints except the newest `keep` and the best, and incomplete ones older than the newest."""
        saved = self.all()
        best = self.best()
        kept = {one.path.name for one in saved[-keep:]} | ({best.path.name} if best else set())
        newest = saved[-1].update if saved else 0
        for folder in sorted(self.path.glob("*")):
            if not _NAME.fullmatch(folder.name) or folder.name in kept:
                continue
            if (folder / MANIFEST).exists() or int(folder.name) < newest:
                # Remove the manifest first, so that a partly removed checkpoint counts as incomplete.
                (folder / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)


def read_saved(folder: Path) -> Saved:
    """Read the manifest of a checkpoint.

    Raises:
        CorruptError: There is no manifest, or it cannot be read.
        DataError: It has another format version.
    """
    try:
        read = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if read["format"] != FORMAT:
            newer = read["format"] > FORMAT
            which, remedy = ("a newer", "upgrade Hasten") if newer else ("an older", "resume with that version")
            raise DataError(
                f"{folder} was written by {which} version of Hasten (format {read['format']}; this one reads {FORMAT}): "
                f"{remedy}."
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
        raise CorruptError("it is incomplete (no manifest.json)") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"its manifest.json cannot be read ({type(error).__name__})") from error


def damage(saved: Saved) -> str:
    """Return what is wrong with the files of a checkpoint; empty if they match their checksums."""
    for name, (size, digest) in saved.files.items():
        path = saved.path / name
        try:
            have = path.stat().st_size
            if have != size:
                return f"{name} has {have:,} bytes instead of {size:,}"
            if file_checksum(path) != digest:
                return f"{name} is corrupt: its checksum differs"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return ""


def file_checksum(path: Path) -> str:
    """Return the checksum of a file in hexadecimal."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, Checksum).hexdigest()


def _safe(name: str) -> str:
    """Validate a file name from a manifest, which may be untrusted."""
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is not a file name")
    return name
