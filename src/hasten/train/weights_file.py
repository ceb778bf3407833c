"""Save weights so that a crash at any moment leaves a whole file: the old one or the new one.

A file is written beside its name, flushed to the disk and renamed, and the folder is flushed too. On its way there the work
may be taken from the training thread (a copy of the weights that another thread writes), sped up (a faster folder first, the
durable copy behind it) or made smaller (deflated records in the same zip format, which `torch.load` reads as they are).
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from hasten.core.errors import HastenError, MachineError
from hasten.core.files import remove_parts, replaced
from hasten.core.live import AroundSettings
from hasten.train.snapshot import StateSnapshot, on_cpu

DEFLATE_LEVEL = 1
CHUNK_BYTES = 1 << 20


class WeightsFile:
    """Writes one checkpoint after another under one name; at most one is on its way at any time.

    Args:
        path: The file, in the run's folder. It is always whole, and it is the durable copy under every setting.
        settings: How it is written.
        count: Told `checkpoints_in_background`, `checkpoints_staged` and `checkpoints_compressed`, where that is so.

    Raises:
        MachineError: A folder cannot be made or written; from any method, at the latest from the one after it happened.
    """

    def __init__(self, path: Path, settings: AroundSettings, count: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._settings, self._count = path, settings, count
        self._snapshot = StateSnapshot()
        self._thread = ThreadPoolExecutor(1, "hasten-checkpoint")
        self._pending: Future[None] | None = None
        remove_parts(path)

    @property
    def staged_path(self) -> Path | None:
        """Where a checkpoint stands until the durable one is whole; None where nothing is staged.

        The name follows from the run's folder, so a run that was killed leaves at most one, and its successor replaces it.
        """
        if not self._settings.checkpoint_folder:
            return None
        owner = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:12]
        return Path(self._settings.checkpoint_folder) / f"hasten-{owner}-{self.path.name}"

    def save(self, state: Mapping[str, Any]) -> None:
        """Save `state` as it is now; it may be changed as soon as this returns.

        Waits for the checkpoint before, where that is still on its way.
        """
        self.wait()
        staged = self.staged_path
        if self._settings.checkpoint_background:
            self._pending = self._thread.submit(self._write_all, self._snapshot.take(state), staged)
            self._count("checkpoints_in_background")
        elif staged is not None:
            self._write(staged, on_cpu(state))
            self._pending = self._thread.submit(self._settle, staged)
        else:
            self._write(self.path, on_cpu(state))

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the durable file is whole."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except HastenError:
            raise
        except Exception as error:
            raise HastenError(f"Writing {self.path} raised {type(error).__name__}: {error}.") from error

    def _write_all(self, state: Mapping[str, Any], staged: Path | None) -> None:
        if staged is None:
            self._write(self.path, state)
        else:
            self._write(staged, state)
            self._settle(staged)

    def _write(self, path: Path, state: Mapping[str, Any]) -> None:
        with self._replaced(path) as file:
            if self._settings.checkpoint_compress:
                write_deflated(state, file)
                self._count("checkpoints_compressed")
            else:
                torch.save(state, file)

    @contextmanager
    def _replaced(self, path: Path) -> Iterator[IO[bytes]]:
        try:
            with replaced(path) as file:
                yield file
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            raise MachineError(f"Cannot write {path}: {error}. Make room there, or choose another folder.") from error

    def _settle(self, staged: Path) -> None:
        """Make the durable copy of a staged file, then let that one go."""
        with self._replaced(self.path) as file, staged.open("rb") as source:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
        staged.unlink()
        self._count("checkpoints_staged")


def write_deflated(state: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write what `torch.save` writes, each record deflated; `torch.load` reads it, but cannot map it (`mmap=True`)."""
    plain = io.BytesIO()
    torch.save(state, plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=DEFLATE_LEVEL) as target,
    ):
        for entry in source.infolist():
            with source.open(entry) as record, target.open(entry.filename, "w", force_zip64=True) as written:
                shutil.copyfileobj(record, written, CHUNK_BYTES)
