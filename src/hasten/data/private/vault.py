"""Encrypt columns of a store with a key for each person, so that erasing a key erases what it encrypted.

    vault = Vault.create(folder, master)                  # master: 32 secret bytes, kept elsewhere
    vault.encrypt(Store("stage"), "sealed", ["contents"], person="persona_id")
    vault.take(Store("sealed"), range(8))                 # column -> values; None where the person was erased
    vault.rotate(new_master)                              # no data is written again
    vault.erase("anna")

Values are encrypted by AES-256-GCM, each with a nonce of its own, and are bound to their row, column and person: one that
was changed or moved is refused. A row is known by random bytes in the column `sealed_row`, so whole rows can be moved to
other places and stores, or be left out, unnoticed. Keys of persons are random, and are kept encrypted (an envelope). Names
of persons are in no file: the vault knows them by a keyed hash. Erasing does not reach copies of the file of keys, such as
backups.

The keys are in an SQLite database, which is asked at each use: an erased key stops working in open vaults too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.core.records import decode, encode
from hasten.data.store.store import Store
from hasten.data.store.write import StoreWriter

KEY_BYTES, NONCE_BYTES = 32, 12
ROW = "sealed_row"
"""Column of random bytes that an encrypted value is bound to."""
SEALED = "encrypted"
"""Key of a store's provenance that names the encrypted columns."""
_FILE = "keys.sqlite"
_ROWS = 1024
_ERASED = b""
"""In place of the key of a person who was erased. A person whom the vault does not know has no entry."""
_MAX_CIPHERS = 100_000
"""Number of persons whose keys are kept open in memory."""
_ROOT = ""
"""In place of the name of a person: the root key, which encrypts all others."""


class Vault:
    """Keep the keys of persons, and encrypt and decrypt with them. Made by `create` or `open`."""

    def __init__(self, path: Path, root: bytes) -> None:
        self._path, self._root = path, root
        self._names = hmac.new(root, b"names of persons", hashlib.sha256).digest()
        self._ciphers: dict[str, tuple[bytes, Any]] = {}

    @classmethod
    def create(cls, folder: str | os.PathLike[str], master: bytes) -> Self:
        """Make a vault.

        Args:
            folder: Where the encrypted keys are kept.
            master: 32 secret bytes, such as `secrets.token_bytes(32)`. Without them nothing can be decrypted.

        Raises:
            DataError: The key has another length, or there is a vault already.
            MachineError: The package cryptography is not installed.
        """
        path, root = Path(folder) / _FILE, secrets.token_bytes(KEY_BYTES)
        sealed = _sealed(_cipher(_checked(master)), root, b"root")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise DataError(f"{path} exists already: open it, or use another folder.") from None
        with _database(path) as database:
            database.execute("CREATE TABLE keys (name TEXT PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID")
            database.execute("INSERT INTO keys VALUES (?, ?)", (_ROOT, sealed))
        return cls(path, root)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], master: bytes) -> Self:
        """Open a vault.

        Raises:
            CorruptError: The file of keys is damaged.
            DataError: There is no vault, or the key is not its master key.
            MachineError: The package cryptography is not installed.
        """
        path = Path(folder) / _FILE
        sealed = _sealed_keys(path, [])[_ROOT]
        root = _opened(_cipher(_checked(master)), sealed, b"root")
        if root is None:
            raise DataError(f"this is not the master key of {path}.")
        return cls(path, root)

    def rotate(self, master: bytes) -> None:
        """Use another master key from now on. Data stays as it is, and the old key opens the vault no more."""
        sealed = _sealed(_cipher(_checked(master)), self._root, b"root")
        with _database(self._path) as database:
            database.execute("UPDATE keys SET sealed = ? WHERE name = ?", (sealed, _ROOT))

    def erase(self, person: str) -> bool:
        """Delete the key of a person, so that nothing encrypted with it can be read again. False if there is none.

        Vaults that are open elsewhere notice it at their next use.
        """
        update = "UPDATE keys SET sealed = ? WHERE name = ? AND sealed != ?"
        with _database(self._path) as database:
            return database.execute(update, (_ERASED, self.name_of(person), _ERASED)).rowcount > 0

    def counts(self) -> tuple[int, int]:
        """Return the number of persons who have a key, and of those who were erased."""
        with _database(self._path) as database:
            keys, erased = database.execute("SELECT count(*), sum(sealed = ?) FROM keys", (_ERASED,)).fetchone()
        return keys - 1 - erased, erased

    def erased(self, people: Iterable[str]) -> list[bool]:
        """Return True for each person who had a key that was deleted."""
        names = [self.name_of(person) for person in people]
        keys = _sealed_keys(self._path, names)
        return [keys.get(name) == _ERASED for name in names]

    def name_of(self, person: str) -> str:
        """Return the keyed hash that stands for a person in encrypted stores."""
        return hmac.new(self._names, person.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def encrypt(self, source: Store, folder: str | os.PathLike[str], columns: Sequence[str], *, person: str) -> None:
        """Write a copy of a store in which some columns are encrypted, and persons are replaced by keyed hashes.

        Args:
            source: The store.
            folder: The new store.
            columns: What to encrypt: columns of text, numbers, times, lists of them, or arrays. Times come back as numbers.
            person: Column of text that says whose row it is.

        Raises:
            DataError: There is no such column, a row has no person or one who was erased, a value cannot be encrypted, or
                the new store exists.
        """
        source.checked_columns([person, *columns])
        with StoreWriter(folder, provenance={**source.manifest.provenance, **mark(columns, person)}) as writer:
            for first in range(0, len(source), _ROWS):
                rows = source.take(range(first, min(first + _ROWS, len(source))))
                writer.write(self.sealed(rows, columns, person=person, first=first))

    def sealed(
        self, rows: Mapping[str, Any], columns: Sequence[str], *, person: str, first: int = 0, are_hashes: bool = False
    ) -> dict[str, Any]:
        """Return rows in which some columns are encrypted, for a store whose provenance has their `mark`.

        Args:
            rows: Column -> Arrow array, or array of numbers `[rows, ...]`.
            columns: What to encrypt.
            person: Column of text that says whose row it is.
            first: Number of the first row, for messages.
            are_hashes: The persons are hashes of this vault already, as in rows of an encrypted store.

        Raises:
            DataError: A row has no person or one who was erased, or a value cannot be encrypted.
        """
        people = rows[person].to_pylist()
        if None in people:
            raise DataError(f"row {first + people.index(None):,} has no {person}, so no key could erase it.")
        names = people if are_hashes else [self.name_of(each) for each in people]
        ciphers = self._keys(names, makes=True)
        ids = [secrets.token_bytes(16) for _ in names]
        made = {**rows, person: pa.array(names, pa.string()), ROW: pa.array(ids, pa.binary())}
        for column in columns:
            values = rows[column] if isinstance(rows[column], np.ndarray) else _plain(rows[column]).to_pylist()
            try:
                made[column] = pa.array([
                    _sealed(ciphers[name], encode(value), _bound(row, column, name))
                    for row, name, value in zip(ids, names, values, strict=True)
                ], pa.binary())  # fmt: skip
            except TypeError as error:
                raise DataError(f"the column {column} cannot be encrypted: {error}.") from error
        return made

    def take(
        self, store: Store, rows: Sequence[int] | NDArray[np.int64], columns: Sequence[str] | None = None
    ) -> dict[str, list[Any]]:
        """Return rows of an encrypted store, decrypted.

        Args:
            store: Written by `encrypt`, or by a conversion with `--private`.
            rows: Row numbers.
            columns: Names of the columns; None returns all but `sealed_row`.

        Returns:
            Column -> one value for each row. An encrypted value of a person who was erased is None.

        Raises:
            CorruptError: A value was changed or moved. Names the row and the column.
            DataError: The store is not encrypted, has no such column, or was encrypted by another vault.
        """
        sealed = store.manifest.provenance.get(SEALED)
        if not isinstance(sealed, dict):
            raise DataError(f"{store.source.where} is not encrypted: read it as it is.")
        person = sealed["person"]
        wanted = store.checked_columns([name for name in store.columns if name != ROW] if columns is None else columns)
        taken = store.take(rows, [*dict.fromkeys([*wanted, person, ROW])])
        plain = {name: list(part) if isinstance(part, np.ndarray) else part.to_pylist() for name, part in taken.items()}
        names = plain[person]
        ciphers = self._keys(names)
        for column in set(sealed["columns"]).intersection(wanted):
            for at, (row, name) in enumerate(zip(plain[ROW], names, strict=True)):
                if name not in ciphers:
                    plain[column][at] = None
                    continue
                value = _opened(ciphers[name], plain[column][at], _bound(row, column, name))
                if value is None:
                    raise CorruptError(f"{store.source.where}, row {rows[at]:,}: {column} was changed or moved.")
                plain[column][at] = decode(bytearray(value))
        return {name: plain[name] for name in wanted}

    def _keys(self, names: Iterable[str], *, makes: bool = False) -> dict[str, Any]:
        """Return the ciphers of persons who were not erased, by their hashes. Makes missing keys if asked to."""
        names, found = dict.fromkeys(names), dict[str, Any]()
        sealed = _sealed_keys(self._path, names)
        if makes and (missing := names.keys() - sealed.keys()):
            root = _cipher(self._root)
            new = [(name, _sealed(root, secrets.token_bytes(KEY_BYTES), name.encode())) for name in sorted(missing)]
            with _database(self._path) as database:  # another process may have been faster: its keys stay
                database.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?)", new)
            sealed = _sealed_keys(self._path, names)
        for name in names:
            if name not in sealed:
                raise DataError(
                    f"{self._path} has never had a key of a person in this store: open the vault that encrypted it."
                )
            if sealed[name] == _ERASED and makes:
                raise DataError("a person in this store was erased from the vault: leave those rows out.")
            if sealed[name] == _ERASED:
                self._ciphers.pop(name, None)
            else:
                found[name] = self._cipher_of(name, sealed[name])
        return found

    def _cipher_of(self, name: str, sealed: bytes) -> Any:
        """Return the cipher of a person, of which many are kept in memory, as long as the encrypted key is the same."""
        of, cipher = self._ciphers.get(name, (b"", None))
        if of != sealed:
            key = _opened(_cipher(self._root), sealed, name.encode())
            if key is None:
                raise CorruptError(f"{self._path}: a key was changed. Restore the file from a backup.")
            cipher = _cipher(key)
            if len(self._ciphers) >= _MAX_CIPHERS:
                self._ciphers.clear()
            self._ciphers[name] = sealed, cipher
        return cipher


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of keys, and commit at the end."""
    if not path.exists():
        raise DataError(f"there is no vault: {path} is missing.")
    try:
        with closing(sqlite3.connect(path, timeout=60)) as database, database:
            database.execute("PRAGMA secure_delete = ON")
            yield database
    except sqlite3.OperationalError as error:
        raise DataError(f"{path} cannot be used: {error}.") from error
    except sqlite3.DatabaseError as error:
        raise CorruptError(f"{path} is damaged: {error}. Restore it from a backup.") from error


def _sealed_keys(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the encrypted keys of persons that the vault knows, and of the root."""
    query = "SELECT name, sealed FROM keys WHERE name IN (SELECT value FROM json_each(?))"
    with _database(path) as database:
        found: dict[str, bytes] = dict(database.execute(query, (json.dumps([_ROOT, *names]),)).fetchall())
    if _ROOT not in found:
        raise CorruptError(f"{path} is damaged: it has no root key. Restore it from a backup.")
    return found


def mark(columns: Sequence[str], person: str) -> dict[str, Any]:
    """Return what the provenance of a store must contain, for `Vault.take`."""
    return {SEALED: {"person": person, "columns": list(columns)}}


def _plain(values: pa.Array) -> pa.Array:
    """Return times as whole numbers: microseconds since 1970, if they are counted so."""
    kind = values.type
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        return values.cast(pa.list_(pa.int64()))
    return values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values


def _bound(row: bytes, column: str, name: str) -> bytes:
    return json.dumps([row.hex(), column, name]).encode()


def _checked(master: bytes) -> bytes:
    if len(master) != KEY_BYTES:
        raise DataError(f"a master key has {KEY_BYTES} secret bytes, not {len(master)}: make it by secrets.token_bytes(32).")
    return master


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  of the extra `private`
    except ImportError as error:
        raise MachineError("encryption needs the package cryptography: pip install 'hasten[private]'") from error
    return AESGCM(key)


def _sealed(cipher: Any, data: bytes, bound: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + bytes(cipher.encrypt(nonce, data, bound))


def _opened(cipher: Any, sealed: bytes, bound: bytes) -> bytes | None:
    """Return what was encrypted; None if the key is another one, or anything was changed."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  installed, as the cipher is

    try:
        return bytes(cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound))
    except (InvalidTag, ValueError):
        return None
