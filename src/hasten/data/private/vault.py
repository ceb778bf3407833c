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

The file of keys is one line for the root key, then one for each person. New persons are added at its end. Erasing and
rotating write it again. An open vault looks at its first line at each use, and reads only what is new.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
ROW = "sealed_row"
"""Column of random bytes that an encrypted value is bound to."""
SEALED = "encrypted"
"""Key of a store's provenance that names the encrypted columns."""
_FILE = "keys"
_ROWS = 1024
_ERASED = b""
"""In place of the key of a person who was erased. A person whom the vault does not know has no entry."""
_MAX_CIPHERS = 100_000
"""Number of persons whose keys are kept open in memory."""
_ROOT_BYTES = NONCE_BYTES + KEY_BYTES + 16
_HEAD_BYTES = 32 + 1 + _ROOT_BYTES // 3 * 4 + 1
"""Size of the first line: random digits that change whenever the file is written again, and the encrypted root key."""


class Vault:
    """Keep the keys of persons, and encrypt and decrypt with them. Made by `create` or `open`."""

    def __init__(self, path: Path, root: bytes) -> None:
        self._path, self._root = path, root
        self._names = hmac.new(root, b"names of persons", hashlib.sha256).digest()
        self._file = _KeyFile(path)
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
        if path.exists():
            raise DataError(f"{path} exists already: open it, or use another folder.")
        _KeyFile(path).write(_sealed(_cipher(_checked(master)), root, b"root"), {})
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
        root = _opened(_cipher(_checked(master)), _KeyFile(path).read()[0], b"root")
        if root is None:
            raise DataError(f"this is not the master key of {path}.")
        return cls(path, root)

    def rotate(self, master: bytes) -> None:
        """Use another master key from now on. Data stays as it is, and the old key opens the vault no more."""
        sealed = _sealed(_cipher(_checked(master)), self._root, b"root")
        with _locked(self._path):
            self._file.write(sealed, self._file.read()[1])

    def erase(self, person: str) -> bool:
        """Delete the key of a person, so that nothing encrypted with it can be read again. False if there is none.

        Vaults that are open elsewhere notice it at their next use.
        """
        with _locked(self._path):
            root, keys = self._file.read()
            if had := bool(keys.get(self.name_of(person))):
                self._file.write(root, keys | {self.name_of(person): _ERASED})
        return had

    def counts(self) -> tuple[int, int]:
        """Return the number of persons who have a key, and of those who were erased."""
        keys = self._file.read()[1].values()
        erased = sum(key == _ERASED for key in keys)
        return len(keys) - erased, erased

    def erased(self, people: Iterable[str]) -> list[bool]:
        """Return True for each person who had a key that was deleted."""
        keys = self._file.read()[1]
        return [keys.get(self.name_of(person)) == _ERASED for person in people]

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

    def sealed(self, rows: Mapping[str, Any], columns: Sequence[str], *, person: str, first: int = 0) -> dict[str, Any]:
        """Return rows in which some columns are encrypted, for a store whose provenance has their `mark`.

        Args:
            rows: Column -> Arrow array, or array of numbers `[rows, ...]`.
            columns: What to encrypt.
            person: Column of text that says whose row it is.
            first: Number of the first row, for messages.

        Raises:
            DataError: A row has no person or one who was erased, or a value cannot be encrypted.
        """
        people = rows[person].to_pylist()
        if None in people:
            raise DataError(f"row {first + people.index(None):,} has no {person}, so no key could erase it.")
        names = [self.name_of(each) for each in people]
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
        sealed = self._file.read()[1]
        if makes and not names.keys() <= sealed.keys():
            with _locked(self._path):
                root, have = _cipher(self._root), self._file.read()[1]
                new = [name for name in names if name not in have]
                self._file.add({name: _sealed(root, secrets.token_bytes(KEY_BYTES), name.encode()) for name in new})
                sealed = self._file.read()[1]
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


class _KeyFile:
    """Read the file of keys, and follow its changes. Callers that write hold the lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head, self._end, self._keys = b"", 0, dict[str, bytes]()

    def read(self) -> tuple[bytes, dict[str, bytes]]:
        """Return the encrypted root key, and the encrypted keys of persons by their hashes. Do not change them.

        Raises:
            CorruptError: The file is damaged.
            DataError: There is no file.
        """
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
                if head != self._head or os.fstat(file.fileno()).st_size < self._end:
                    self._head, self._end, self._keys = head, _HEAD_BYTES, {}
                file.seek(self._end)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]  # a line without an end is being written, or was cut by a crash
            for line in new.decode("ascii").splitlines():
                name, key = line.split(" ")
                self._keys[name] = base64.b64decode(key, validate=True)
            self._end += len(new)
            _, root = head.decode("ascii").removesuffix("\n").split(" ")
            return base64.b64decode(root, validate=True), self._keys
        except FileNotFoundError as error:
            raise DataError(f"there is no vault: {self._path} is missing.") from error
        except (OSError, ValueError) as error:
            self._head = b""
            raise CorruptError(f"{self._path} is damaged: {type(error).__name__}. Restore it from a backup.") from error

    def add(self, keys: Mapping[str, bytes]) -> None:
        """Add keys of persons, flushed to the disk."""
        with self._path.open("r+b") as file:
            file.truncate(self._end)
            file.seek(self._end)
            file.write("".join(map(_line, keys, keys.values())).encode())
            file.flush()
            os.fsync(file.fileno())

    def write(self, root: bytes, keys: Mapping[str, bytes]) -> None:
        """Write the file again."""
        head = f"{secrets.token_hex(16)} {base64.b64encode(root).decode()}\n"
        write_atomically(self._path, head + "".join(map(_line, keys, keys.values())))
        self._path.chmod(0o600)


def mark(columns: Sequence[str], person: str) -> dict[str, Any]:
    """Return what the provenance of a store must contain, for `Vault.take`."""
    return {SEALED: {"person": person, "columns": list(columns)}}


def _plain(values: pa.Array) -> pa.Array:
    """Return times as whole numbers: microseconds since 1970, if they are counted so."""
    kind = values.type
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        return values.cast(pa.list_(pa.int64()))
    return values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values


def _line(name: str, key: bytes) -> str:
    return f"{name} {base64.b64encode(key).decode()}\n"


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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
