"""An audit log notices every change, and loses no entry of several processes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from hasten.core.errors import CorruptError, DataError
from hasten.data.private.audit import MAX_ENTRY_BYTES, AuditLog

KEY = bytes(range(32))


def filled(path: Path, count: int = 5) -> tuple[AuditLog, str]:
    log, head = AuditLog(path, KEY), ""
    for number in range(count):
        head = log.add("anna", "decrypt", {"rows": number, "store": "stage"})
    return log, head


def test_entries_are_verified(tmp_path: Path) -> None:
    log, head = filled(tmp_path / "new" / "audit.jsonl")
    assert log.verify() == log.verify(head) == 5
    assert (log.path.stat().st_mode & 0o777) == 0o600


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0].replace(b"anna", b"otto"), *lines[1:]], 1),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [*lines[:2], lines[3], lines[2], lines[4]], 3),
        (lambda lines: [*lines, lines[4]], 6),
        (lambda lines: [*lines[:4], b"[]"], 5),
        (lambda lines: [*lines[:4], b'{"hash": 1, "number": 5}'], 5),
        (lambda lines: [*lines[:4], lines[4][:-9]], 5),
    ],
    ids=["changed", "removed", "moved", "repeated", "no entry", "wrong types", "torn"],
)
def test_a_change_is_found(change: object, line: int, tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "audit.jsonl")
    lines = change(log.path.read_bytes().splitlines())  # type: ignore[operator]
    log.path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(CorruptError, match=f"line {line}: it was changed"):
        log.verify()


def test_a_log_that_was_cut_needs_its_head(tmp_path: Path) -> None:
    log, head = filled(tmp_path / "audit.jsonl")
    log.path.write_bytes(b"".join(log.path.read_bytes().splitlines(keepends=True)[:3]))
    assert log.verify() == 3
    with pytest.raises(CorruptError, match="entries after line 3 are missing"):
        log.verify(head)


def test_an_entry_that_a_crash_cut_is_replaced(tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "audit.jsonl")
    with log.path.open("ab") as file:
        file.write(b'{"number": 6, "ti')
    assert log.verify(log.add("anna", "erase")) == 6


def test_nothing_is_added_after_a_change_or_with_another_key(tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "audit.jsonl")
    with pytest.raises(CorruptError, match="the key is another one"):
        AuditLog(log.path, bytes(32)).add("otto", "decrypt")
    with pytest.raises(DataError, match="too large"):
        log.add("anna", "decrypt", {"text": "x" * MAX_ENTRY_BYTES})
    with pytest.raises(DataError, match="at least 32 secret bytes"):
        AuditLog(log.path, b"key")
    assert log.verify() == 5


def add_many(path: Path) -> None:
    log = AuditLog(path, KEY)
    for _ in range(200):
        log.add("anna", "decrypt", {"note": "x" * 500})


def test_processes_add_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add_many, args=(path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert AuditLog(path, KEY).verify() == 600
