"""Encrypt columns of a store with a key for each person, so that erasing a key erases what it encrypted.

    vault = Vault.create(folder, master)                  # master: 32 secret bytes, kept elsewhere
    vault.encrypt(Store("stage"), "sealed", ["contents"], person="persona_id")
    vault.take(Store("sealed"), range(8))                 # column -> values; None where the person was erased
    vault.rotate(new_master)                              # no data is written again
    vault.erase("anna")

Values are encrypted by AES-256-GCM, each with a nonce of its own, and are bound to their store, row, column and person:
one that was changed or moved is refused. Keys of persons are random, and are kept encrypted (an envelope). Names of
persons are in no file: the vault knows them by a keyed hash. Erasing does not reach copies of the file of keys, such as
backups.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.core.files import write_atomically
from hasten.core.records import decode, encode
from hasten.data.store.store import Store
from hasten.data.store.write import StoreWriter

KEY_BYTES, NONCE_BYTES = 32, 12
_FILE, _SEALED = "keys.json", "encrypted"
_ROWS = 1024
_ERASED = b""
"""In place of the key of a person who was erased. A person whom the vault does not know has no entry."""


class Vault:
    """Keep the keys of persons, and encrypt and decrypt with them. Made by `create` or `open`."""

    def __init__(self, path: Path, root: bytes) -> None:
        self._path, self._root = path, root
        self._names = hmac.new(root, b"names of persons", hashlib.sha256).digest()

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
        if path.exists():
            raise DataError(f"{path} exists already: open it, or use another folder.")
        _write(path, _sealed(_checked(master), root, b"root"), {})
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
        root = _opened(_checked(master), _read(path)[0], b"root")
        if root is None:
            raise DataError(f"this is not the master key of {path}.")
        return cls(path, root)

    def rotate(self, master: bytes) -> None:
        """Use another master key from now on. Data stays as it is, and the old key opens the vault no more."""
        sealed = _sealed(_checked(master), self._root, b"root")
        with _locked(self._path):
            _write(self._path, sealed, _read(self._path)[1])

    def erase(self, person: str) -> bool:
        """Delete the key of a person, so that nothing encrypted with it can be read again. False if there is none."""
        with _locked(self._path):
            root, keys = _read(self._path)
            if had := bool(keys.get(self.name_of(person))):
                keys[self.name_of(person)] = _ERASED
                _write(self._path, root, keys)
        return had

    def name_of(self, person: str) -> str:
        """Return the keyed hash that stands for a person in encrypted stores."""
        return hmac.new(self._names, person.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def encrypt(self, source: Store, folder: str | os.PathLike[str], columns: Sequence[str], *, person: str) -> None:
        """Write a copy of a store in which some columns are encrypted, and persons are replaced by keyed hashes.

        Args:
            source: The store.
            folder: The new store.
            columns: What to encrypt: columns of text, numbers, lists of them, or arrays.
            person: Column of text that says whose row it is.

        Raises:
            DataError: There is no such column, a row has no person or one who was erased, a value cannot be encrypted, or
                the new store exists.
        """
        source.checked_columns([person, *columns])
        number = secrets.token_hex(16)
        mark = {"id": number, "person": person, "columns": list(columns)}
        with StoreWriter(folder, provenance={**source.manifest.provenance, _SEALED: mark}) as writer:
            for first in range(0, len(source), _ROWS):
                rows = source.take(range(first, min(first + _ROWS, len(source))))
                people = rows[person].to_pylist()
                if None in people:
                    raise DataError(f"row {first + people.index(None):,} has no {person}, so no key could erase it.")
                names = [self.name_of(each) for each in people]
                keys = self._keys(names, makes=True)
                for column in columns:
                    values = rows[column] if isinstance(rows[column], np.ndarray) else rows[column].to_pylist()
                    try:
                        rows[column] = pa.array([
                            _sealed(keys[name], encode(value), _bound(number, first + at, column, name))
                            for at, (name, value) in enumerate(zip(names, values, strict=True))
                        ], pa.binary())  # fmt: skip
                    except TypeError as error:
                        raise DataError(f"the column {column} cannot be encrypted: {error}.") from error
                writer.write({**rows, person: pa.array(names, pa.string())})

    def take(
        self, store: Store, rows: Sequence[int] | NDArray[np.int64], columns: Sequence[str] | None = None
    ) -> dict[str, list[Any]]:
        """Return rows of an encrypted store, decrypted.

        Args:
            store: Written by `encrypt`.
            rows: Row numbers.
            columns: Names of the columns; None returns all.

        Returns:
            Column -> one value for each row. An encrypted value of a person who was erased is None.

        Raises:
            CorruptError: A value was changed or moved. Names the row and the column.
            DataError: The store is not encrypted, has no such column, or was encrypted by another vault.
        """
        mark = store.manifest.provenance.get(_SEALED)
        if not isinstance(mark, dict):
            raise DataError(f"{store.source.where} is not encrypted: read it as it is.")
        wanted = store.checked_columns(columns)
        taken = store.take(rows, [*dict.fromkeys([*wanted, mark["person"]])])
        plain = {name: list(part) if isinstance(part, np.ndarray) else part.to_pylist() for name, part in taken.items()}
        names = plain[mark["person"]]
        keys = self._keys(names)
        for column in set(mark["columns"]).intersection(wanted):
            for at, (row, name) in enumerate(zip(rows, names, strict=True)):
                if name not in keys:
                    plain[column][at] = None
                    continue
                bound = _bound(mark["id"], int(row) % len(store), column, name)
                value = _opened(keys[name], plain[column][at], bound)
                if value is None:
                    raise CorruptError(f"{store.source.where}, row {row:,}: {column} was changed or moved.")
                plain[column][at] = decode(bytearray(value))
        return {name: plain[name] for name in wanted}

    def _keys(self, names: Iterable[str], *, makes: bool = False) -> dict[str, bytes]:
        """Return the keys of persons who were not erased, by their hashes. Makes missing ones if asked to."""
        sealed, found = _read(self._path)[1], dict[str, bytes]()
        missing = [name for name in dict.fromkeys(names) if name not in sealed]
        if makes and missing:
            with _locked(self._path):
                root, sealed = _read(self._path)
                new = {name: _sealed(self._root, secrets.token_bytes(KEY_BYTES), name.encode()) for name in missing}
                sealed = new | sealed
                _write(self._path, root, sealed)
        for name in dict.fromkeys(names):
            if name not in sealed:
                raise DataError(
                    f"{self._path} has never had a key of a person in this store: open the vault that encrypted it."
                )
            if sealed[name] == _ERASED and makes:
                raise DataError("a person in this store was erased from the vault: leave those rows out.")
            if sealed[name] != _ERASED:
                key = _opened(self._root, sealed[name], name.encode())
                if key is None:
                    raise CorruptError(f"{self._path}: a key was changed. Restore the file from a backup.")
                found[name] = key
        return found


def _bound(store: str, row: int, column: str, name: str) -> bytes:
    return json.dumps([store, row, column, name]).encode()


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


def _sealed(key: bytes, data: bytes, bound: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + bytes(_cipher(key).encrypt(nonce, data, bound))


def _opened(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    """Return what was encrypted; None if the key is another one, or anything was changed."""
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  installed, as the cipher is

    try:
        return bytes(cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound))
    except (InvalidTag, ValueError):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, root: bytes, keys: dict[str, bytes]) -> None:
    texts = {name: base64.b64encode(key).decode() for name, key in {"": root, **keys}.items()}
    write_atomically(path, json.dumps({"root": texts.pop(""), "keys": texts}))


def _read(path: Path) -> tuple[bytes, dict[str, bytes]]:
    try:
        read = json.loads(path.read_bytes())
        keys = {str(name): base64.b64decode(key, validate=True) for name, key in read["keys"].items()}
        return base64.b64decode(read["root"], validate=True), keys
    except FileNotFoundError as error:
        raise DataError(f"there is no vault: {path} is missing.") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"{path} is damaged: {type(error).__name__}. Restore it from a backup.") from error
