"""Run a script's `torch.save` in the background: the script waits for a copy in memory, not for the disk.

`torch.save` pickles an object and appends its storages, writing into a zip file that it opens with one function. That
function is replaced: `torch.save` runs as usual in the script's thread, but writes into an object that keeps the pickle and
copies the storages into reusable buffers. A thread then writes the zip file from these copies. So the file is the same byte
for byte, because shared storages, devices, types and errors are handled by torch itself. The alternatives are worse. A deep
copy that is saved later would change devices, call the objects' `__deepcopy__`, fail for tensors with a gradient history,
and compete with the training for the GIL while pickling. An in-memory file would leave the checksum to the script's thread.

If this process accesses the file through Python's own functions, it waits until the file is written (`_READERS`).
"""

from __future__ import annotations

import atexit
import builtins
import functools
import io
import itertools
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hasten.core.live import LiveJob
from hasten.script.output.file_writer import FileWriter, PendingFile, create_temporary, remove_orphans
from hasten.script.output.process_boundaries import finish_before_boundaries
from hasten.script.output.zip_snapshot import ZipSnapshot
from hasten.script.patches import Patches, let_pass
from hasten.script.source_lines import FOREIGN, OURS
from hasten.train.snapshot import StorageBuffers

_READERS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (builtins, ("open",)),
    (io, ("open",)),
    (os, ("open", "stat", "access", "chmod", "utime", "truncate", "remove", "unlink", "link", "listdir", "scandir")),
    (os, ("rename", "replace", "rmdir")),
)
_OF_FOLDERS = frozenset({(os, "open"), *((os, name) for name in ("listdir", "scandir", "rename", "replace", "rmdir"))})
"""Functions that may access a file through the name of its folder. `shutil.rmtree` opens the folder first."""
_PATHS = ("file", "path", "src", "dst")


class BackgroundSaving:
    """Writes the script's checkpoints in the background while `live.around.checkpoint_background` is set.

    While one checkpoint is copied, pending ones may use at most as much memory as the largest checkpoint so far. If a newer
    checkpoint for the same path arrives before writing of the older one has started, it replaces the older one. No one in
    this process could have read the older one, and a script that saves faster than the disk can write is not slowed down.
    Saves to an open file, from another thread, or with several ranks, which may wait for the file, are done in the
    foreground.

    Args:
        live: The script's live job. Counts `checkpoints_in_background`.
    """

    def __init__(self, live: LiveJob) -> None:
        self.live = live
        self._writer, self._buffers = FileWriter(), StorageBuffers()
        self._patches: Patches | None = None
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._asked: str | None = None
        self._folders: set[str] = set()
        self._guarded = self._closed = False
        self._largest = self._begun = 0

    def install(self, patches: Patches) -> None:
        """Install the first seam. More follow with the first background save."""
        self._patches = patches = patches.telling(self._give_up)
        patches.put(torch.serialization, "_open_zipfile_writer", self._opening)
        patches.put(torch, "save", self._asking)
        atexit.register(self.close)

    def rehearse(self) -> None:
        """Save a small file in the background and wait for it, so that the counters show whether it works."""
        if self.live.around.checkpoint_background:
            with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
                torch.save({"rehearsal": torch.zeros(1)}, Path(folder) / "rehearsal.pt")
                self.finish()

    def finish(self) -> None:
        """Wait until all files are written."""
        if self._writer.waiting and os.getpid() == self._pid:
            self._writer.wait(lambda: bool(self._writer.waiting))

    def close(self) -> None:
        """Write all pending files, report failures on stderr, and save in the foreground from now on."""
        if self._closed or os.getpid() != self._pid:
            return
        self._finish_and_tell()
        self._closed = True
        atexit.unregister(self.close)

    def _give_up(self, _error: Exception) -> None:
        """Save in the foreground from now on, after an internal error. Waits, so that no outdated file is read."""
        self._closed = True
        self.finish()

    def _finish_and_tell(self) -> None:
        self.finish()
        while self._writer.errors and os.getpid() == self._pid:
            path, error = self._writer.errors.pop(0)
            sys.stderr.write(f"hasten: {path} could not be saved in the background: {type(error).__name__}: {error}\n")

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.save` to record the path that the script gave, because another seam may redirect the file."""

        @functools.wraps(original)
        def asking_seam(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            before, self._asked = self._asked, os.path.abspath(f) if isinstance(f, str | os.PathLike) else None  # noqa: PTH100 - compared with paths as the script gives them
            begun = self._begun
            try:
                return original(obj, f, *args, **kwargs)
            except Exception as error:
                if self._begun == begun or not _met_in_snapshot(error):
                    raise
                self._give_up(error)
            finally:
                self._asked = before
            return original(obj, f, *args, **kwargs)

        return asking_seam

    def _opening(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the function with which `torch.save` opens its zip file."""

        @functools.wraps(original)
        def opening_seam(name_or_buffer: Any) -> Any:
            if os.getpid() != self._pid or not isinstance(name_or_buffer, str):
                return original(name_or_buffer)
            mine = not self._closed and threading.get_ident() == self._thread
            background = mine and self.live.around.checkpoint_background and _ranks() == 1
            if not background:
                self._await([name_or_buffer], below=False)  # keep the order: this file replaces the pending one
            if mine:
                self._raise()
            return self._snapshot(original, name_or_buffer) if background else original(name_or_buffer)

        return opening_seam

    def _plainly(self, original: Callable[[Any], Any], name: str) -> Any:
        """Open the file itself, after a pending write to it has finished."""
        self._await([name], below=False)
        return original(name)

    def _raise(self) -> None:
        """Raise the error of an earlier background save.

        Raises:
            Exception: The original error of torch or of the system.
        """
        if self._writer.errors:
            path, error = self._writer.errors.pop(0)
            error.add_note(f"hasten: this error occurred while {path} was saved in the background")
            raise let_pass(error)

    def _snapshot(self, original: Callable[[Any], Any], name: str) -> Any:
        path = os.path.realpath(name)
        folder = os.path.dirname(path)  # noqa: PTH120 - torch takes strings
        try:
            temporary = create_temporary(path)
            if folder not in self._folders:
                self._folders.add(folder)
                remove_orphans(folder)
        except OSError:
            return self._plainly(original, name)  # reports the error, or writes a file that cannot be replaced
        self._begun += 1
        self._guard()
        self._writer.discard(path)
        self._writer.wait(lambda: self._writer.num_bytes > self._largest)
        names = {path, os.path.abspath(name), self._asked or path}  # noqa: PTH100 - as above

        def keep(snapshot: ZipSnapshot) -> None:
            self._largest = max(self._largest, snapshot.num_bytes)
            self._writer.add(
                PendingFile(
                    path=path,
                    names=frozenset(names),
                    temporary=temporary,
                    num_bytes=snapshot.num_bytes,
                    fill=functools.partial(snapshot.write, original),
                    done=snapshot.release,
                )
            )
            self.live.count("checkpoints_in_background")

        return ZipSnapshot(self._buffers, plain=lambda: self._plainly(original, name), keep=keep, temporary=temporary)

    def _guard(self) -> None:
        """Make functions that access a pending file wait for it."""
        if self._guarded or self._patches is None:
            return
        self._guarded = True
        for owner, names in _READERS:
            for name in names:
                self._patches.put(owner, name, functools.partial(self._reading, below=(owner, name) in _OF_FOLDERS))
        finish_before_boundaries(self._patches, self._finish_and_tell)

    def _reading(self, original: Callable[..., Any], *, below: bool) -> Callable[..., Any]:
        waiting = self._writer.waiting

        @functools.wraps(original)
        def reading_seam(*args: Any, **kwargs: Any) -> Any:
            if waiting:
                self._await([*args[:2], *(kwargs[name] for name in _PATHS if name in kwargs)], below=below)
            return original(*args, **kwargs)

        return reading_seam

    def _await(self, candidates: list[Any], *, below: bool) -> None:
        """Wait for the files with these names. `below` also waits for files in folders with these names."""
        if not self._writer.waiting or os.getpid() != self._pid:
            return
        asked = {name for item in candidates for name in _names(item)} or ({str(Path.cwd())} if below else set())

        def concerned() -> bool:
            files = tuple(self._writer.waiting)
            return any(file.names & asked or (below and _folders(file) & asked) for file in files)

        if concerned():
            self._writer.wait(concerned)


def _met_in_snapshot(error: Exception) -> bool:
    """Return whether an error was raised by the snapshot that torch writes into, not by the script's objects."""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    below = itertools.dropwhile(lambda name: not name.startswith(FOREIGN[0]), names)
    return any(name.startswith(OURS) for name in below)


def _ranks() -> int:
    """Return the number of ranks. Another rank may load the file as soon as all ranks reach the same point."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _names(item: Any) -> tuple[str, ...]:
    """Return the possible names of a path; empty for anything else, such as a file descriptor."""
    if not isinstance(item, str | bytes | os.PathLike):
        return ()
    try:
        name = os.fsdecode(item)
        return os.path.abspath(name), os.path.realpath(name)  # noqa: PTH100 - as above
    except (OSError, ValueError, TypeError):
        return ()


def _folders(file: PendingFile) -> set[str]:
    """Return all folders that contain a file."""
    return {str(folder) for name in file.names for folder in Path(name).parents}
