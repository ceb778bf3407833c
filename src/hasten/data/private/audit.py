"""Keep a log of who used private data, in which every entry carries a keyed hash of all entries before it.

    log = AuditLog(path, key)
    log.add("anna", "decrypt", {"store": "stage-1", "rows": 250})
    log.verify(head)          # CorruptError names the first line that was changed, removed or moved

Without the key, no one can write an entry that fits. A log that was cut at its end still fits: keep its head, the hash
of the last entry, in another place, and give it to `verify`. It is still found when the log has grown.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from hasten.core.errors import CorruptError, DataError

Detail = str | int | float | bool | None
_BEGIN = "0" * 64
MAX_ENTRY_BYTES = 2**14


class AuditLog:
    """Add to a log, and verify it. Several processes may add at the same time.

    Args:
        path: The log, a file of JSON lines. It is created by the first entry, readable by its owner only.
        key: Secret bytes, at least 32.

    Raises:
        DataError: The key is too short.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        if len(key) < 32:
            raise DataError(f"the key of an audit log needs at least 32 secret bytes, not {len(key)}.")
        self.path, self._key = path, key

    def add(self, actor: str, action: str, details: Mapping[str, Detail] | None = None) -> str:
        """Add an entry, flushed to the disk, and return the new head.

        Args:
            actor: Who does it.
            action: What, such as `decrypt`, `rotate` or `erase`.
            details: Names and numbers. Never text of a person.

        Raises:
            CorruptError: The last entry was changed, or was written with another key.
            DataError: The entry is larger than `MAX_ENTRY_BYTES`.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number, head, end = self._last(file)
            entry = {
                "number": number + 1, "time": datetime.now(UTC).isoformat(), "actor": actor, "action": action,
                "details": dict(details or {}),
            }  # fmt: skip
            new = self._hash(head, entry)
            line = json.dumps({**entry, "hash": new}).encode() + b"\n"
            if len(line) > MAX_ENTRY_BYTES:
                raise DataError(f"an entry of {len(line):,} bytes is too large: give names and numbers, below 16 KiB.")
            file.truncate(end)  # of an entry that was cut by a crash
            file.seek(end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        return new

    def verify(self, head: str | None = None) -> int:
        """Check every entry, and return their number.

        Args:
            head: Hash of an entry that must be there, as `add` returned it and as it was kept elsewhere.

        Raises:
            CorruptError: An entry was changed, removed, moved, added without the key, or cut off. Names the first such line.
        """
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError as error:
            raise CorruptError(f"{self.path} cannot be read: {error}. Restore it from a backup.") from error
        last, heads = _BEGIN, {_BEGIN}
        for number, line in enumerate(lines, 1):
            last = self._checked(line, last, number)
            heads.add(last)
        if head is not None and head not in heads:
            raise CorruptError(
                f"{self.path}: entries after line {len(lines):,} are missing: none of them is the given head."
            )
        return len(lines)

    def _last(self, file: IO[bytes]) -> tuple[int, str, int]:
        """Return the number and the hash of the last whole entry, and where it ends. Reads the end of the file only."""
        start = max(file.seek(0, os.SEEK_END) - 4 * MAX_ENTRY_BYTES, 0)
        file.seek(start)
        text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        *others, last = [b"", *text.splitlines()]
        if not last:
            return 0, _BEGIN, 0
        before = _entry(others[-1]) or {"hash": _BEGIN, "number": 0}
        number = before["number"] + 1
        return number, self._checked(last, before["hash"], number), start + len(text)

    def _checked(self, line: bytes, before: str, number: int) -> str:
        if entry := _entry(line):
            found = entry.pop("hash")
            if entry["number"] == number and hmac.compare_digest(found, self._hash(before, entry)):
                return str(found)
        raise CorruptError(
            f"{self.path}, line {number:,}: it was changed, or a line before it was removed, or the key is another one."
        )

    def _hash(self, before: str, entry: Mapping[str, object]) -> str:
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        return hmac.new(self._key, f"{before}\n{text}".encode(), hashlib.sha256).hexdigest()


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and {"hash": str, "number": int}.items() <= _types(entry).items() else None


def _types(entry: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in entry.items()}
