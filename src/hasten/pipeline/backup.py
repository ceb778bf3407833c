"""Back up releases to a folder or a URL that fsspec supports, restore them, and rehearse that.

A backup has the same files as the releases. Each is written under another name, read back and compared, then renamed. The
manifest of a model comes after its files, and the pointer last, so a backup that was killed is the earlier one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hasten.core.errors import CorruptError, DataError, HastenError, MachineError
from hasten.core.files import flush_folder, write_atomically
from hasten.pipeline.model_folder import ID, MANIFEST, MODEL, check_model, files_of, read_manifest, read_small, seal
from hasten.pipeline.release import GATES, HISTORY, MODELS, POINTER, Releases


def backup(releases: Releases, url: str, **options: Any) -> int:
    """Copy the models that are missing there, and the pointer; return the number of models copied.

    Models that are there already are not read again: `drill` checks a whole backup. Releases can be changed meanwhile.

    Args:
        releases: The releases.
        url: A folder, or a URL that fsspec supports.
        options: Of fsspec's file system.

    Raises:
        CorruptError: A model is damaged, or what was read back differs.
        DataError: There is nothing to back up, or other releases are there.
        MachineError: The storage cannot be used.
    """
    small, copied = releases.snapshot(), 0
    with _storage(url, options) as (system, root):
        there = f"{root}/{HISTORY}"
        if system.exists(there) and not small[HISTORY].startswith(read_small(there, system.open)):
            raise DataError(f"{url} holds other releases, or later ones: name an empty folder.")
        for path in sorted(releases.folder.glob(f"{MODELS}/[!.]*")):
            there, manifest = f"{root}/{MODELS}/{path.name}", read_manifest(path)
            if system.exists(f"{there}/{MANIFEST}") and read_small(f"{there}/{MANIFEST}", system.open) == manifest:
                continue
            for name, (_, wanted) in check_model(path).items():
                _put(system, path / name, f"{there}/{name}", wanted)
            _put(system, manifest, f"{there}/{MANIFEST}", hashlib.sha256(manifest).hexdigest())
            copied += 1
        for name, content in small.items():
            _put(system, content, f"{root}/{name}", hashlib.sha256(content).hexdigest())
    return copied


def restore(url: str, folder: str | os.PathLike[str], **options: Any) -> Releases:
    """Copy a backup to a new folder. It is verified before the folder appears.

    Raises:
        CorruptError: The backup is damaged.
        DataError: The folder exists, or there is no backup.
        MachineError: The storage cannot be used, or the disk is full.
    """
    target = Path(folder).absolute()
    if target.exists():
        raise DataError(f"{target} exists already: restore to a new folder.")
    made = Releases(target.with_name(f".{target.name}-{secrets.token_hex(4)}"))
    try:
        with _storage(url, options, f"{url} to {target}") as (system, root):
            if not system.exists(f"{root}/{POINTER}"):
                raise DataError(f"{url} has no backup of releases: hasten release backup makes one.")
            (made.folder / MODELS).mkdir(parents=True)
            for name in (GATES, HISTORY, POINTER):
                if system.exists(f"{root}/{name}"):
                    write_atomically(made.folder / name, read_small(f"{root}/{name}", system.open))
            if not made.pointer.used:
                raise CorruptError(f"{url} names no model in use: use another backup.")
            names = {str(there).rstrip("/").rpartition("/")[2] for there in system.ls(f"{root}/{MODELS}", detail=False)}
            known = {one for entry in made.history() for one in entry["pointer"].values()}
            for name in sorted(filter(ID.fullmatch, names)):
                if name not in known and not system.exists(f"{root}/{MODELS}/{name}/{MANIFEST}"):
                    continue  # the next backup was killed before it had copied this model
                _fetch_model(system, f"{root}/{MODELS}/{name}", made.path(name))
            made.verify()
            _ = made.gates  # they can be read
            made.folder.rename(target)
            flush_folder(target.parent)
    finally:
        shutil.rmtree(made.folder, ignore_errors=True)
    return Releases(target)


def drill(url: str, **options: Any) -> dict[str, int]:
    """Restore a backup to a temporary folder (`TMPDIR`); return the tensors of each model. Raises as `restore`."""
    from hasten.train.checkpoints.read import open_file  # noqa: PLC0415 - loads torch

    with tempfile.TemporaryDirectory(prefix="hasten-drill-") as folder:
        restored = restore(url, Path(folder) / "restored", **options)
        return {path.name: len(open_file(path / MODEL).tensors) for path in sorted((restored.folder / MODELS).iterdir())}


@contextmanager
def _storage(url: str, options: dict[str, Any], where: str = "") -> Iterator[tuple[Any, str]]:
    """Open the storage behind a URL, and turn its errors into those of Hasten, which begin with `where`."""
    from hasten.data.remote.fetch import open_url  # noqa: PLC0415 - of the extra `remote`

    try:
        yield open_url(url, options)
    except HastenError:
        raise
    except Exception as error:  # each storage has errors of its own
        raise MachineError(
            f"{where or url}: {error}. Check the address, permissions and free space, and try again."
        ) from error


def _put(system: Any, source: Path | bytes, there: str, wanted: str) -> None:
    """Copy to another name, compare what can be read back, and rename."""
    part = f"{there}.part"
    system.makedirs(there.rpartition("/")[0], exist_ok=True)
    if isinstance(source, Path):
        system.put_file(str(source), part)
    else:
        system.pipe_file(part, source)
    with system.open(part, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
            raise CorruptError(f"{part} differs from what was copied: check the storage, and back up again.")
    system.mv(part, there)


def _fetch_model(system: Any, there: str, target: Path) -> None:
    """Copy the files that the manifest of a model names. Their checksums are verified afterwards."""
    target.mkdir()
    try:
        manifest = read_small(f"{there}/{MANIFEST}", system.open)
        write_atomically(target / MANIFEST, manifest)
        for name, (size, _) in files_of(manifest, target).items():
            if system.size(f"{there}/{name}") != size:
                raise CorruptError(f"{there}/{name} does not have {size:,} bytes: use another backup.")
            system.get_file(f"{there}/{name}", str(target / name))
    except FileNotFoundError as error:
        raise CorruptError(f"the backup of {there} is incomplete: back up again, or use another one.") from error
    seal(target)
