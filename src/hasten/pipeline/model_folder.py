"""The folder of a released model: weights, what is known about them, and a manifest with a checksum of each file.

    MODELS/8c6e...f1/model.safetensors, hasten.toml, run.toml, metrics.jsonl, ..., manifest.json

The folder is named by a hash of its manifest, so a changed model cannot keep its name. Files are read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.core.errors import CorruptError, DataError
from hasten.core.files import flush_folder, write_atomically
from hasten.monitor.alerts.deliver import ALERTS, read_alerts
from hasten.monitor.alerts.rule import CONTRACT
from hasten.pipeline.description import METRICS
from hasten.train.checkpoints.folder import CheckpointFolder, damage

MODEL, MANIFEST = "model.safetensors", "manifest.json"
KEPT = ("hasten.toml", "run.toml", "metrics.jsonl", METRICS, "evaluation.json", "evidence.json")
"""Files of a run that are kept with its weights, if it has them."""
ID, _NAME = re.compile(r"[0-9a-f]{32}"), re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MOST_BYTES = 2**24
"""Largest size of a manifest, and of the other small files of releases."""
TODO = "Restore a backup to a new folder: hasten release restore."


def add_model(run: Path, models: Path, metrics: Mapping[str, Any], accept: Callable[[Path], None]) -> str:
    """Write a model from the newest weights of a run, and return its name. Equal content is the same model.

    The caller holds a lock on `models`. `metrics` replace those of the run; `accept` raises to refuse the complete folder.

    Raises:
        CorruptError: The newest checkpoint, or the model of the same name, is damaged.
        DataError: The run has not finished, broke its gain contract, or has no checkpoints.
        MachineError, OSError: The disk is full, or cannot be written.
    """
    from hasten.train.checkpoints.read import export_weights  # noqa: PLC0415 - loads torch, which a list does not need
    from hasten.train.records.runs import open_run  # noqa: PLC0415

    opened, saved = open_run(run), CheckpointFolder(run).all()
    if opened.state != "finished":
        raise DataError(f"{run} is {opened.state}, not finished: complete it with hasten run --resume.")
    if "firing" in {alert.rank: alert.state for alert in read_alerts(run) if alert.rule == CONTRACT}.values():
        raise DataError(f"{run} ended in breach of its gain contract ({run / ALERTS}): tune again, or train without a plan.")
    if not saved:
        raise DataError(f"{run} has no checkpoints, so it has no weights to release: train again, and keep them.")
    if problem := damage(saved[-1]):
        raise CorruptError(f"the newest checkpoint of {run} is damaged: {problem}. Resume the run to write it again.")
    scratch = models / f".new-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        export_weights(saved[-1], scratch / MODEL)
        for name in KEPT:
            if (run / name).is_file():
                write_atomically(scratch / name, (run / name).read_bytes())
        if metrics:
            write_atomically(scratch / METRICS, json.dumps(metrics, sort_keys=True))
        accept(scratch)
        facts = {key: opened.last.get(key) for key in ("code", "data", "machine", "versions")}
        files = {file.name: [file.stat().st_size, _sum(file)] for file in sorted(scratch.iterdir())}
        content = {"files": files, "facts": {**facts, "update": saved[-1].update}}
        manifest = json.dumps(content, sort_keys=True, default=str).encode()
        write_atomically(scratch / MANIFEST, manifest)
        seal(scratch)
        made = models / _name(manifest)
        if not made.exists():
            scratch.rename(made)
            flush_folder(models)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    check_model(made)
    return made.name


def check_model(folder: Path) -> dict[str, tuple[int, str]]:
    """Verify a model: its name, the files of its manifest and their checksums.

    Returns:
        File name -> size in bytes and SHA-256.

    Raises:
        CorruptError: Something differs. Names the file.
    """
    files = files_of(read_manifest(folder), folder)
    if different := {path.name for path in folder.iterdir()} ^ {*files, MANIFEST}:
        name = min(different)
        raise CorruptError(f"{folder / name} {'is missing' if name in files else 'was added'}. {TODO}")
    for name, (size, wanted) in files.items():
        path = folder / name
        plain = path.is_file() and not path.is_symlink() and path.stat().st_size == size
        if not plain or _sum(path) != wanted:
            raise CorruptError(f"{path} was changed. {TODO}")
    return files


def files_of(manifest: bytes, place: Path) -> dict[str, tuple[int, str]]:
    """Return the files that the manifest of a model names: name -> size in bytes and SHA-256.

    Raises:
        CorruptError: The folder's name is not the manifest's, or the manifest names anything but plain files.
    """
    try:
        files = {name: (size, wanted) for name, (size, wanted) in json.loads(manifest)["files"].items()}
        sound = all(_NAME.fullmatch(name) and type(size) is int for name, (size, _) in files.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound or _name(manifest) != place.name or MODEL not in files or MANIFEST in files:
        raise CorruptError(f"{place / MANIFEST} was changed. {TODO}")
    return files


def read_manifest(folder: Path) -> bytes:
    """Return the manifest of a model.

    Raises:
        CorruptError: It is missing.
    """
    try:
        return read_small(folder / MANIFEST)
    except FileNotFoundError as error:
        raise CorruptError(f"{folder / MANIFEST} is missing. {TODO}") from error


def read_small(path: Path | str, start: Callable[..., Any] = open) -> bytes:
    """Read a file of at most `MOST_BYTES`, with `start(path, "rb")`.

    Raises:
        CorruptError: It is larger.
    """
    with start(path, "rb") as file:
        content = bytes(file.read(MOST_BYTES + 1))
    if len(content) > MOST_BYTES:
        raise CorruptError(f"{path} has more than {MOST_BYTES:,} bytes, so it is not what was written. {TODO}")
    return content


def seal(folder: Path) -> None:
    """Make the files of a model read-only."""
    for file in folder.iterdir():
        file.chmod(file.stat().st_mode & ~0o222)


def _name(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:32]


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
