"""Encrypted columns come back with the right key, and never without it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hasten.core.errors import CorruptError, DataError
from hasten.data import Store, StoreWriter
from hasten.data.private.vault import Vault, mark

MASTER, OTHER = bytes(range(32)), bytes(32)
PEOPLE = ["anna", "otto", "anna", "zoë"]
TEXTS = [["a secret", "reply"], ["two"], [], None]
PRINTS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def source(tmp_path: Path) -> Store:
    with StoreWriter(tmp_path / "plain") as writer:
        writer.write({"who": PEOPLE, "contents": TEXTS, "voice": PRINTS, "stage": ["a", "b", "a", "a"]})
    return Store(tmp_path / "plain")


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault.create(tmp_path / "vault", MASTER)


@pytest.fixture
def sealed(vault: Vault, source: Store, tmp_path: Path) -> Store:
    vault.encrypt(source, tmp_path / "sealed", ["contents", "voice"], person="who")
    return Store(tmp_path / "sealed")


def test_values_come_back(vault: Vault, sealed: Store, tmp_path: Path) -> None:
    opened = Vault.open(tmp_path / "vault", MASTER)
    for one in (vault, opened):
        taken = one.take(sealed, range(4))
        assert taken["contents"] == TEXTS
        np.testing.assert_array_equal(np.stack(taken["voice"]), PRINTS)
        assert taken["stage"] == ["a", "b", "a", "a"]
        assert taken["who"] == [one.name_of(person) for person in PEOPLE]
    assert vault.take(sealed, [-1, 1], ["voice"]).keys() == {"voice"}
    assert vault.take(sealed, np.array([-3, 0]), ["contents"]) == {"contents": [TEXTS[1], TEXTS[0]]}


def test_no_file_holds_text_or_names(sealed: Store, tmp_path: Path) -> None:
    files = [file for folder in ("sealed", "vault") for file in (tmp_path / folder).rglob("*") if file.is_file()]
    everything = b"".join(file.read_bytes() for file in files)
    assert len(everything) > 1000
    assert not [word for word in ("secret", "reply", "anna", "otto", "zoë") if word.encode() in everything]
    assert PRINTS[1].tobytes() not in everything


def test_an_erased_person_is_gone(vault: Vault, source: Store, sealed: Store, tmp_path: Path) -> None:
    assert vault.erase("anna")
    assert not vault.erase("anna")
    assert vault.take(sealed, range(4))["contents"] == [None, ["two"], None, None]
    assert vault.take(sealed, [0])["voice"] == [None]
    with pytest.raises(DataError, match="was erased from the vault"):
        vault.encrypt(source, tmp_path / "again", ["contents"], person="who")
    assert vault.take(sealed, range(4))["contents"] == [None, ["two"], None, None]


def test_another_master_key(vault: Vault, sealed: Store, tmp_path: Path) -> None:
    vault.rotate(OTHER)
    with pytest.raises(DataError, match="not the master key"):
        Vault.open(tmp_path / "vault", MASTER)
    assert Vault.open(tmp_path / "vault", OTHER).take(sealed, [0])["contents"] == [TEXTS[0]]
    with pytest.raises(DataError, match="32 secret bytes, not 3"):
        vault.rotate(b"key")
    with pytest.raises(DataError, match="exists already"):
        Vault.create(tmp_path / "vault", MASTER)
    with pytest.raises(DataError, match="there is no vault"):
        Vault.open(tmp_path / "none", MASTER)


def moved(rows: dict[str, Any]) -> None:
    rows["contents"] = [rows["contents"][at] for at in (2, 1, 0, 3)]  # of the same person


def exchanged(rows: dict[str, Any]) -> None:
    rows["contents"], rows["voice"] = rows["voice"], rows["contents"]


def changed(rows: dict[str, Any]) -> None:
    rows["contents"][0] = rows["contents"][0][:-1] + bytes([rows["contents"][0][-1] ^ 1])


def emptied(rows: dict[str, Any]) -> None:
    rows["contents"][0] = b""


@pytest.mark.parametrize("change", [moved, exchanged, changed, emptied])
def test_a_changed_value_is_refused(
    change: Callable[[dict[str, Any]], None], vault: Vault, sealed: Store, tmp_path: Path
) -> None:
    rows = {name: part.to_pylist() for name, part in sealed.take(range(4)).items()}
    change(rows)
    with StoreWriter(tmp_path / "forged", provenance=sealed.manifest.provenance) as writer:
        writer.write(rows)
    with pytest.raises(CorruptError, match=r"forged.*, row 0: (contents|voice) was changed or moved"):
        vault.take(Store(tmp_path / "forged"), range(4))


def test_another_vault_reads_nothing(sealed: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="open the vault that encrypted it"):
        Vault.create(tmp_path / "other", MASTER).take(sealed, range(4))


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:0], lambda data: data[:100], lambda data: data[:5000], lambda data: data[::-1]],
    ids=["empty", "head", "half", "backwards"],
)
def test_damaged_keys(change: Callable[[bytes], bytes], vault: Vault, sealed: Store, tmp_path: Path) -> None:
    path = tmp_path / "vault" / "keys.sqlite"
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    with pytest.raises(DataError, match=r"keys\.sqlite (is damaged|cannot be used)"):
        Vault.open(tmp_path / "vault", MASTER)
    with pytest.raises(DataError, match=r"keys\.sqlite (is damaged|cannot be used)"):
        vault.take(sealed, [0])
    path.write_bytes(whole)
    assert vault.take(sealed, [0])["contents"] == [TEXTS[0]]


def test_exchanged_keys(vault: Vault, sealed: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "vault" / "keys.sqlite")) as database, database:
        (_, (one, key), (two, other), _) = database.execute("SELECT name, sealed FROM keys ORDER BY name").fetchall()
        database.executemany("UPDATE keys SET sealed = ? WHERE name = ?", [(other, one), (key, two)])
    with pytest.raises(CorruptError, match="a key was changed"):
        Vault.open(tmp_path / "vault", MASTER).take(sealed, range(4))
    with pytest.raises(CorruptError, match="a key was changed"):
        vault.take(sealed, range(4))


def test_an_erased_key_is_overwritten(vault: Vault, sealed: Store, tmp_path: Path) -> None:
    path = tmp_path / "vault" / "keys.sqlite"
    with closing(sqlite3.connect(path)) as database:
        (key,) = database.execute("SELECT sealed FROM keys WHERE name = ?", (vault.name_of("anna"),)).fetchone()
    assert key in path.read_bytes()
    vault.erase("anna")
    assert key not in path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert vault.take(sealed, [0, 1])["contents"] == [None, TEXTS[1]]


def test_programs_that_meet_a_new_person_use_one_key(vault: Vault, tmp_path: Path) -> None:
    def row(_: int) -> dict[str, Any]:
        rows = {"who": pa.array(["new"]), "a": pa.array(["text"])}
        return Vault.open(tmp_path / "vault", MASTER).sealed(rows, ["a"], person="who")

    with ThreadPoolExecutor(8) as threads, StoreWriter(tmp_path / "s", provenance=mark(["a"], "who")) as writer:
        for made in threads.map(row, range(40)):
            writer.write(made)
    assert vault.take(Store(tmp_path / "s"), range(40), ["a"])["a"] == ["text"] * 40
    assert vault.counts() == (1, 0)


def test_an_open_vault_follows_the_file(vault: Vault, source: Store, sealed: Store, tmp_path: Path) -> None:
    opened = Vault.open(tmp_path / "vault", MASTER)
    assert opened.take(sealed, range(4))["contents"] == TEXTS
    with StoreWriter(tmp_path / "more") as writer:
        writer.write({"who": ["new"], "contents": [["five"]]})
    vault.encrypt(Store(tmp_path / "more"), tmp_path / "sealed-more", ["contents"], person="who")
    assert opened.take(Store(tmp_path / "sealed-more"), [0])["contents"] == [["five"]]
    assert (opened.counts(), opened.erased(["otto"])) == ((4, 0), [False])
    vault.erase("otto")  # as another process would
    assert opened.take(sealed, range(4))["contents"] == [TEXTS[0], None, *TEXTS[2:]]
    assert (opened.counts(), opened.erased(["otto", "never"])) == ((3, 1), [True, False])
    vault.rotate(OTHER)
    assert opened.take(sealed, [0, 1])["contents"] == [TEXTS[0], None]
    assert ((tmp_path / "vault" / "keys.sqlite").stat().st_mode & 0o777) == 0o600


def test_a_row_can_be_moved_as_a_whole(vault: Vault, sealed: Store, tmp_path: Path) -> None:
    rows = {name: part.to_pylist()[::-1] for name, part in sealed.take([0, 1, 3]).items()}
    with StoreWriter(tmp_path / "moved", provenance=sealed.manifest.provenance) as writer:
        writer.write(rows)
    assert vault.take(Store(tmp_path / "moved"), [2, 0, 1], ["contents"])["contents"] == [TEXTS[0], TEXTS[3], TEXTS[1]]


def test_what_cannot_be_encrypted(vault: Vault, source: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'x'"):
        vault.encrypt(source, tmp_path / "s", ["x"], person="who")
    with StoreWriter(tmp_path / "incomplete") as writer:
        writer.write({"who": ["anna", None], "contents": ["a", "b"]})
    with pytest.raises(DataError, match="row 1 has no who"):
        vault.encrypt(Store(tmp_path / "incomplete"), tmp_path / "s", ["contents"], person="who")
    assert not (tmp_path / "s").exists() or not list((tmp_path / "s").iterdir())
    with pytest.raises(DataError, match="is not encrypted"):
        vault.take(source, [0])
