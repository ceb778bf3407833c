"""Releases: models that never change, and a pointer that says which one is used.

    releases = Releases("releases")
    releases.promote("hasten-run", share=0.1)             # a tenth of the readers get it
    folder = releases.choose(key="user-17")               # what this reader loads: folder / "model.safetensors"
    releases.promote()                                    # everybody gets it
    releases.rollback("it answers too slowly")            # the one before

A model is a folder named by a hash of its content. Of two places, `blue` and `green`, one is used, and a new model goes to
the other. The pointer is a small file that is replaced atomically: a reader sees the old model or the new one. Readers take
no lock, and models are never deleted, so what a reader has chosen can be loaded. If the folder has a `gates.toml`, a model
must pass it: tables in the form of a stage's gates, such as `[loss]` with a `metric` and a `threshold`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.core.files import remove_parts, write_atomically
from hasten.pipeline.description import StageGate
from hasten.pipeline.judge import decide, read_metrics
from hasten.pipeline.model_folder import (
    ID,
    MANIFEST,
    TODO,
    add_model,
    check_model,
    files_of,
    read_manifest,
    read_small,
)

POINTER, HISTORY, GATES, MODELS = "pointer.json", "history.jsonl", "gates.toml", "models"


@dataclass(frozen=True)
class Pointer:
    """Which models are used.

    Attributes:
        serial: Number of changes so far.
        live: The place in use: `blue` or `green`.
        blue: Model of this place; empty if none.
        green: Model of this place; empty if none.
        share: Share of the readers who get the model of the other place, which is then on trial; 0 for no trial.
        kept: While a model is on trial, the model that was in its place before; empty if none.
    """

    serial: int = 0
    live: str = "blue"
    blue: str = ""
    green: str = ""
    share: float = 0.0
    kept: str = ""

    @property
    def other(self) -> str:
        """The place not in use."""
        return "green" if self.live == "blue" else "blue"

    @property
    def used(self) -> str:
        """The model in use; empty if there is none."""
        return str(getattr(self, self.live))

    @property
    def waiting(self) -> str:
        """The model of the other place: on trial, or used before; empty if there is none."""
        return str(getattr(self, self.other))

    def with_other(self, name: str, **changes: Any) -> Pointer:
        """Return a pointer with this model in the place not in use, and other changes."""
        return replace(self, **{self.other: name, **changes})


class Releases:
    """A folder of releases. Several processes may change and read it at the same time.

    Args:
        folder: The folder. It is created when the first model is promoted.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @property
    def pointer(self) -> Pointer:
        """Which models are used.

        Raises:
            CorruptError: The file is damaged.
            MachineError: It cannot be read.
        """
        path = self.folder / POINTER
        try:
            pointer = Pointer(**json.loads(read_small(path)))
            named = all(ID.fullmatch(name) for name in (pointer.blue, pointer.green, pointer.kept) if name)
            share = 0 <= pointer.share < 1 and (pointer.waiting or not pointer.share)
            if pointer.live not in {"blue", "green"} or not named or not share or type(pointer.serial) is not int:
                raise ValueError  # noqa: TRY301 - told below
        except FileNotFoundError:
            return Pointer()
        except OSError as error:
            raise MachineError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptError(f"{path} is damaged. {TODO}") from error
        return pointer

    @property
    def gates(self) -> dict[str, StageGate]:
        """What a model must pass; empty if the folder has no `gates.toml`.

        Raises:
            DataError: It cannot be read, or names no gate.
        """
        path = self.folder / GATES
        try:
            gates = {name: StageGate(**settings) for name, settings in tomllib.loads(read_small(path).decode()).items()}
            if not gates:
                raise ValueError("it has no gates")  # noqa: TRY301 - told below
        except FileNotFoundError:
            return {}
        except (ValidationError, ValueError, TypeError) as error:
            words = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise DataError(f"{path} cannot be read: {words}. Correct it, or remove it to release without gates.") from error
        return gates

    def choose(self, key: str = "") -> Path:
        """Return the folder of the model to load.

        Args:
            key: Name of the reader, such as a user. During a trial, a reader who gets the new model keeps it while the share
                grows. Empty gives the model in use.

        Raises:
            CorruptError: The pointer is damaged.
            DataError: Nothing is released.
        """
        here = Releases(self.folder.resolve())  # where the folder is a link, the model is of the folder that was chosen
        pointer = here.pointer
        salted = f"{pointer.waiting} {key}".encode("utf-8", "surrogatepass")  # so each trial has other readers
        draw = int.from_bytes(hashlib.blake2b(salted, digest_size=8).digest()) / 2**64
        name = pointer.waiting if key and draw < pointer.share else pointer.used
        if not name:
            raise DataError(f"{self.folder} has no model in use. Release one: hasten release promote {self.folder} RUN.")
        return here.path(name)

    def promote(
        self, source: str | os.PathLike[str] = "", *, share: float | None = None, metrics: Path | None = None
    ) -> Pointer:
        """Release the newest weights of a run, a model that is here already, or the model on trial.

        Args:
            source: Folder of a finished run, or name of a model; empty for the model on trial.
            share: Share of the readers who get it, between 0 and 1; None gives it to all.
            metrics: Folder of an evaluation, with the `metrics.json` to judge it by. Default: the run's own metrics.

        Raises:
            CorruptError: The run's newest checkpoint, or the model, is damaged.
            DataError: A gate is not passed, the run has not finished or broke its gain contract, or there is nothing to
                release.
            MachineError: The disk is full, or cannot be written.
        """
        if share is not None and not 0 < share < 1:
            raise DataError(f"the share must be between 0 and 1, not {share:g}. Leave it out to release to all readers.")
        measured = read_metrics(metrics) if metrics else {}
        if metrics and not measured:
            raise DataError(f"{metrics} has no metrics that can be read: name the folder of an evaluation.")
        with self._changing(new=bool(source)) as pointer:
            if share is not None and not pointer.used:
                raise DataError(f"{self.folder} has no model in use for the other readers. Leave out the share.")
            name = str(source) or (pointer.waiting if pointer.share else "")
            if not name:
                raise DataError(f"no model is on trial in {self.folder}: name a run, or a model of hasten release list.")
            if ID.fullmatch(name) and self.path(name).is_dir():
                self.verify(name)
                self._pass_gates(measured or read_metrics(self.path(name)))
            else:
                name = add_model(
                    Path(source), self.folder / MODELS, measured, lambda made: self._pass_gates(read_metrics(made))
                )
            if name == pointer.used:
                raise DataError(f"{name} is in use already.")
            if pointer.share and name != pointer.waiting:
                raise DataError(f"{pointer.waiting} is on trial: promote it to all readers, or roll it back first.")
            if share is None:
                made = pointer.with_other(name, live=pointer.other, share=0.0, kept="")
            else:
                kept = pointer.kept if pointer.share else pointer.waiting
                made = pointer.with_other(name, share=share, kept=kept)
            readers = "all readers" if share is None else f"{share:.3g} of the readers"
            return self._point(made, "promote", f"{source or name} to {readers}")

    def rollback(self, reason: str) -> Pointer:
        """Withdraw the model on trial; without a trial, go back to the model before.

        Raises:
            CorruptError: The model before is damaged.
            DataError: There is nothing to go back to, or no reason.
        """
        if not reason.strip():
            raise DataError("a rollback needs a reason, which is kept in the history: --reason TEXT.")
        with self._changing() as pointer:
            return self._back(pointer, reason.strip())

    def judge(self, model: str, metrics: Mapping[str, Any]) -> list[str]:
        """Judge new measurements of the newest model by the gates, and roll it back if one is not passed.

        Args:
            model: The model that was measured. If it is not the newest, nothing is rolled back.
            metrics: In the form of `metrics.json` of a pipeline's stage.

        Returns:
            Why it was rolled back; empty if it was not.

        Raises:
            DataError: There are no gates, another model is the newest, or there is nothing to go back to.
        """
        with self._changing() as pointer:
            newest = pointer.waiting if pointer.share else pointer.used
            if model != newest:
                raise DataError(f"{model} is not the newest model ({newest or 'none'}), so it cannot be rolled back.")
            if not self.gates:
                raise DataError(f"{self.folder / GATES} is missing: write the gates to judge by.")
            if words := self._failures(metrics):
                self._back(pointer, "; ".join(words)[:2000])
        return words

    def history(self, pointer: Pointer | None = None) -> list[dict[str, Any]]:
        """Return what was changed, the oldest first: `at`, `user`, `action`, `words`, `pointer`.

        Args:
            pointer: Leave out changes after it; None reads it. An entry that a killed process left is thus left out.

        Raises:
            CorruptError: The file is damaged.
        """
        pointer = pointer or self.pointer
        return [entry for entry in self._entries() if entry["pointer"]["serial"] <= pointer.serial]

    def models(self) -> list[dict[str, Any]]:
        """Describe all models, the newest first: `model`, `state`, `update`, `num_bytes`, `written` (a time)."""
        pointer, found = self.pointer, []
        states = {pointer.kept: "before", pointer.waiting: "before", pointer.used: "in use"}
        if pointer.share:
            states[pointer.waiting] = f"{pointer.share:.3g} of all"
        for path in sorted(self.folder.glob(f"{MODELS}/[!.]*"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            manifest = read_manifest(path)
            num_bytes = sum(size for size, _ in files_of(manifest, path).values())
            facts, written = json.loads(manifest).get("facts", {}), (path / MANIFEST).stat().st_mtime
            found.append(
                {"model": path.name, "state": states.get(path.name, ""), "update": facts.get("update"),
                 "num_bytes": num_bytes, "written": f"{datetime.fromtimestamp(written, UTC):%Y-%m-%d %H:%M}"}
            )  # fmt: skip
        return found

    def verify(self, name: str = "") -> int:
        """Verify the checksums of one model, or of all and that the pointer fits; return the number of models.

        Raises:
            CorruptError: A file is missing, was changed, or was added.
        """
        pointer = self.pointer
        names = [name] if name else sorted(path.name for path in self.folder.glob(f"{MODELS}/[!.]*"))
        for one in names:
            if not ID.fullmatch(one):
                raise CorruptError(f"{self.folder / MODELS / one} was added: remove it.")
            check_model(self.path(one))
        if not name:
            for one in (pointer.blue, pointer.green, pointer.kept):
                if one and one not in names:
                    raise CorruptError(f"{self.path(one)} is missing. {TODO}")
            history = self.history(pointer)
            if pointer.serial and history and history[-1]["pointer"] != asdict(pointer):
                raise CorruptError(f"{self.folder / POINTER} was changed: it is not what {HISTORY} says.")
        return len(names)

    def snapshot(self) -> dict[str, bytes]:
        """Return the files beside the models as they fit together: name -> content, the pointer last.

        Raises:
            DataError: Nothing is released.
        """
        with self._changing() as pointer:
            if not pointer.used:
                raise DataError(f"{self.folder} has no model in use, so there is nothing to back up.")
            gates = {GATES: read_small(self.folder / GATES)} if (self.folder / GATES).exists() else {}
            return {**gates, HISTORY: _lines(self.history(pointer)), POINTER: json.dumps(asdict(pointer)).encode()}

    def path(self, name: str) -> Path:
        """Return the folder of a model."""
        return self.folder / MODELS / name

    def _entries(self) -> list[dict[str, Any]]:
        path = self.folder / HISTORY
        try:
            entries = [json.loads(line) for line in read_small(path).decode().splitlines()] if path.exists() else []
            _ = [entry["pointer"]["serial"] + 1 for entry in entries]
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptError(f"{path} is damaged: move it away, and a new one is begun.") from error
        return entries

    def _failures(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return why gates are not passed; empty without gates."""
        judged = [decide(name, gate, metrics, {}) for name, gate in self.gates.items()]
        return [f"{one.name}: {'; '.join(one.words)}" for one in judged if not one.passed]

    def _pass_gates(self, metrics: Mapping[str, Any]) -> None:
        if words := self._failures(metrics):
            raise DataError(f"not released: {'; '.join(words)}. The gates are in {self.folder / GATES}.")

    @contextmanager
    def _changing(self, *, new: bool = False) -> Iterator[Pointer]:
        """Hold the folder's lock, remove what killed processes left, and give the pointer."""
        if not new and not self.folder.is_dir():
            raise DataError(f"{self.folder} has no releases. Release a run: hasten release promote {self.folder} RUN.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                for left in self.folder.glob(f"{MODELS}/.new-*"):
                    shutil.rmtree(left, ignore_errors=True)
                for name in (POINTER, HISTORY):
                    remove_parts(self.folder / name)
                pointer, entries = self.pointer, self._entries()
                if entries and entries[-1]["pointer"]["serial"] > pointer.serial + 1:
                    raise CorruptError(f"{self.folder / POINTER} is missing, or older than {HISTORY}. {TODO}")
                yield pointer
        except OSError as error:
            raise MachineError(
                f"{error.filename or self.folder}: {error.strerror}. Free space or correct the permissions, and try again; "
                "hasten release list shows what is used."
            ) from error

    def _back(self, pointer: Pointer, reason: str) -> Pointer:
        if pointer.share:
            made = pointer.with_other(pointer.kept, share=0.0, kept="")
        elif pointer.waiting:
            self.verify(pointer.waiting)
            made = replace(pointer, live=pointer.other).with_other("")
        else:
            raise DataError(f"{self.folder} has no model to go back to ({reason}). Promote a model of hasten release list.")
        return self._point(made, "rollback", reason)

    def _point(self, pointer: Pointer, action: str, words: str) -> Pointer:
        """Replace the pointer. The history is written before: an entry without its pointer does not count."""
        made = replace(pointer, serial=pointer.serial + 1)
        entry = {
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "user": os.environ.get("USER") or str(os.getuid()),
            "action": action,
            "words": words,
        }
        write_atomically(self.folder / HISTORY, _lines([*self.history(pointer), {**entry, "pointer": asdict(made)}]))
        write_atomically(self.folder / POINTER, json.dumps(asdict(made)))
        return made


def _lines(entries: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()
