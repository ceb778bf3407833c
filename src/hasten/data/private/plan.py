"""Say in one file what happens to private columns, where the keys are, and which role may read what.

    plan = PrivatePlan.create("private")                # plan.toml, keys, vault
    convert("talks.jsonl", "talks", format="conversations", private=plan)
    texts = plan.open(Store("talks"), role="owner").take(range(8), ["contents"])

Every column must be in one of the plan's lists, so that a new column is refused, not stored in the clear by mistake. Roles
are checked within the process, and written to the audit log. They keep honest programs apart. They are no boundary against a
user who can read the files and the keys: for that, give roles different users of the system, and each only its keys.
The plan is a file of its own because tuning writes `hasten.toml` again.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from hasten.core.errors import DataError
from hasten.data.private.audit import AuditLog
from hasten.data.private.identifiers import Identifiers
from hasten.data.private.vault import ROW, SEALED, Vault, mark
from hasten.data.store.store import Store

ALL, AUDIT_LOG = "*", "audit-log"
"""In the list of a role: every column, and the audit log."""
SECRETS = ("salt", "master", "audit")
"""Names of the files of keys: 64 hexadecimal digits each."""
_PLAN = """\
# What happens to each column of a conversion with --private. A column in no list is refused.
identifiers = ["contents", "rejected", "source"]  # text: identifiers become tokens
pseudonyms = ["conversation_id"]      # text: the whole value becomes a token
encrypted = ["contents", "rejected", "timestamps", "voice_signature", "other"]  # with the key of the person of the row
clear = ["stage", "quality_profile", "crisis_intensity", "roles"]   # stored as they are
person = "persona_id"                 # who the row is about; the vault's token for this person is stored

keys = "keys"                         # folder of the files salt, master and audit; move it to another place

[roles]                               # columns that each role may read; "*" is all, "audit-log" the log
owner = ["*"]
trainer = ["tokens", "loss_mask", "num_tokens", "rejected_tokens", "prompt", "stage"]
auditor = ["audit-log"]
"""


@dataclass(frozen=True, kw_only=True)
class PrivatePlan:
    """Hold the settings of a folder of `create`, but no secrets: those are read when they are used.

    Attributes:
        folder: Folder of `plan.toml`, the vault and the audit log.
        identifiers: Columns of text, or lists of text, in which identifiers become tokens.
        pseudonyms: Columns of text whose values become tokens.
        encrypted: Columns encrypted with the key of the row's person.
        clear: Columns stored as they are.
        person: Column of text that names the person of a row.
        keys: Folder of the keys, relative to `folder`.
        roles: Role -> columns that it may read.
    """

    folder: str
    identifiers: tuple[str, ...] = ()
    pseudonyms: tuple[str, ...] = ()
    encrypted: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()
    person: str = "persona_id"
    keys: str = "keys"
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: str | os.PathLike[str]) -> Self:
        """Write a plan with default settings, new keys and an empty vault.

        Raises:
            DataError: The folder exists and is not empty.
            MachineError: The package cryptography is not installed. Nothing was written.
        """
        path = Path(folder)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DataError(f"{path} exists already: use another folder.")
        keys = {name: secrets.token_bytes(32) for name in SECRETS}
        Vault.create(path / "vault", keys["master"])
        (path / "keys").mkdir(mode=0o700)
        for name, key in keys.items():
            handle = os.open(path / "keys" / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{key.hex()}\n")
        (path / "plan.toml").write_text(_PLAN)
        return cls.load(path)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a plan.

        Raises:
            DataError: There is none, or a setting is wrong. Names the setting.
        """
        path = Path(folder) / "plan.toml"
        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path} is missing: create it with `hasten data private {folder}`.") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is not valid TOML: {error}.") from error
        roles = read.pop("roles", {})
        lists = {f"roles.{name}": value for name, value in roles.items()} if isinstance(roles, dict) else {"roles": roles}
        texts = {name: read[name] for name in ("person", "keys") if name in read}
        lists |= {name: value for name, value in read.items() if name not in texts}
        if unknown := read.keys() - ({part.name for part in fields(cls)} - {"folder"}):
            raise DataError(f"{path}: unknown setting {min(unknown)!r}.")
        for name, value in lists.items():
            if not isinstance(value, list) or not all(isinstance(column, str) for column in value):
                raise DataError(f"{path}: {name} must be a list of names of columns.")
        if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
            raise DataError(f"{path}: {wrong[0]} must be text.")
        settings: dict[str, Any] = {name: tuple(value) for name, value in read.items() if name not in texts} | texts
        return cls(folder=str(Path(folder).resolve()), roles={name: tuple(roles[name]) for name in roles}, **settings)

    def secret(self, name: str) -> bytes:
        """Read a key.

        Args:
            name: One of `SECRETS`.

        Raises:
            DataError: The file is missing, others than its owner can read it, or it does not contain 32 bytes in
                hexadecimal digits. The message does not show what it contains.
        """
        path = Path(self.folder) / self.keys / name
        try:
            with path.open("rb") as file:
                is_open = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
                key = file.read(1024)
        except OSError as error:
            raise DataError(f"the key {path} cannot be read: {error.strerror}.") from None
        if is_open:
            raise DataError(f"other users can read the key {path}: chmod 600 {path}.")
        try:
            secret = bytes.fromhex(key.decode("ascii"))
        except ValueError:
            secret = b""
        if len(secret) != 32:
            raise DataError(f"the key {path} is not 64 hexadecimal digits: restore it from a copy.")
        return secret

    def replacer(self) -> Identifiers:
        """Return what replaces identifiers, with the salt of this plan."""
        return Identifiers(self.secret("salt"))

    def vault(self) -> Vault:
        """Open the vault."""
        return Vault.open(Path(self.folder) / "vault", self.secret("master"))

    def log(self, action: str, details: Mapping[str, str | int]) -> str:
        """Write to the audit log in the name of the user who runs this process, and return the new head."""
        return self._log().add(_user(), action, details)

    def facts(self) -> dict[str, Any]:
        """Return what the provenance of a store says: which columns were replaced or encrypted."""
        done = {"identifiers": ", ".join(self.identifiers), "pseudonyms": ", ".join(self.pseudonyms)}
        return {"private": done, **(mark(self.encrypted, self.person) if self.encrypted else {})}

    def fingerprint(self) -> str:
        """Return a hash of the settings and of keyed hashes by the salt and the vault, which reveals neither."""
        lists = (self.identifiers, self.pseudonyms, self.encrypted, self.clear, self.person)
        keyed = self.replacer().pseudonym("fingerprint"), self.vault().name_of("fingerprint")
        return hashlib.sha256(repr((lists, keyed)).encode()).hexdigest()

    def open(self, store: Store, *, role: str, columns: Sequence[str] | None = None) -> PrivateRows:
        """Open a store to read as a role. Written to the audit log, also if it is refused.

        Args:
            store: A store, encrypted or not.
            role: One of the roles of the plan.
            columns: Columns to read; None reads all that the role may read.

        Raises:
            CorruptError: The audit log was changed.
            DataError: The role may not read these columns, or the store has no such columns.
        """
        may = self.roles.get(role, ())
        have = [name for name in store.columns if name != ROW and (ALL in may or name in may)]
        wanted = store.checked_columns(have if columns is None else columns)
        refused = [name for name in wanted if name not in have]
        self._decide(role, "read", store.source.where, refused or wanted, is_allowed=not refused and bool(have))
        return PrivateRows(self, store, wanted)

    def audit(self, *, role: str) -> AuditLog:
        """Return the audit log, to verify it as a role. Written to the log, also if it is refused.

        Raises:
            CorruptError: The end of the audit log was changed.
            DataError: The role may not read the audit log.
        """
        may = self.roles.get(role, ())
        self._decide(role, "audit", AUDIT_LOG, [AUDIT_LOG], is_allowed=AUDIT_LOG in may or ALL in may)
        return self._log()

    def _decide(self, role: str, action: str, what: str, columns: Sequence[str], *, is_allowed: bool) -> None:
        words = ", ".join(columns)
        self.log(action if is_allowed else f"{action} refused", {"role": role[:64], "what": what, "columns": words[:2000]})
        if not is_allowed:
            reason = f"may not read {words or 'any column'} of {what}" if role in self.roles else "is not in the plan"
            raise DataError(f"the role {role!r} {reason}: see [roles] in {self.folder}/plan.toml. The audit log has a note.")

    def _log(self) -> AuditLog:
        return AuditLog(Path(self.folder) / "audit.jsonl", self.secret("audit"))


class PrivateRows(Dataset[dict[str, Any]]):
    """Read some columns of a store, decrypted in memory only. Made by `PrivatePlan.open`.

    It can be sent to worker processes, which read the keys themselves.
    """

    def __init__(self, plan: PrivatePlan, store: Store, columns: Sequence[str]) -> None:
        self._plan, self.store, self.columns = plan, store, tuple(columns)

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return a row."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows."""
        taken = self.take(rows)
        return [{name: values[at] for name, values in taken.items()} for at in range(len(rows))]

    def take(self, rows: Sequence[int] | NDArray[np.int64], columns: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Return rows by number: column -> one value for each row, None where the person was erased.

        Raises:
            CorruptError: An encrypted value was changed or moved.
            DataError: A column was not among those opened.
        """
        wanted = self.columns if columns is None else tuple(columns)
        if unopened := [name for name in wanted if name not in self.columns]:
            raise DataError(f"the column {unopened[0]!r} was not opened: name it in `open`.")
        sealed = self.store.manifest.provenance.get(SEALED)
        if isinstance(sealed, dict) and not set(wanted).isdisjoint(sealed["columns"]):
            return self._vault.take(self.store, rows, wanted)
        taken = self.store.take(rows, wanted)
        return {name: list(part) if isinstance(part, np.ndarray) else part.to_pylist() for name, part in taken.items()}

    @cached_property
    def _vault(self) -> Vault:
        return self._plan.vault()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_vault"}


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
