"""The process that writes checkpoints. It handles bytes and files only, and does not import torch.

It reads orders from stdin, one JSON object per line, and answers on stdout. It runs at the lowest priority, so that training
is not slowed down. When its parent has ended, it finishes the current write and exits. A run that is killed during the write
of a checkpoint therefore still gets this checkpoint.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.core.files import replaced
from hasten.train.checkpoints.folder import CheckpointFolder, Checksum

PART = 2**23
"""Size in bytes of each write."""
BLOCK = 4096
"""Block size in bytes: direct writes must be a multiple of it."""


def write_file(handle: int, num_bytes: int, path: Path) -> str:
    """Write the first `num_bytes` of an anonymous file to `path` atomically and durably, and return their checksum.

    Raises:
        OSError: The disk is full, or the folder cannot be written. No file is left behind.
    """
    digest = Checksum()
    with mmap.mmap(handle, num_bytes, prot=mmap.PROT_READ) as source, replaced(path, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)  # fails early if the disk is too full
        out = _DirectFile(file.fileno())
        with memoryview(source) as view:
            for start in range(0, num_bytes, PART):
                with view[start : start + PART] as chunk:
                    digest.update(chunk)
                    out.write(chunk)
    return digest.hexdigest()


class _DirectFile:
    """Writes to an open file with direct I/O, bypassing the page cache, if its file system supports it.

    Writing through the page cache would need as much memory as the checkpoint, while training needs it. Allocating a page
    takes longer than copying to it.
    """

    def __init__(self, handle: int) -> None:
        self._handle, self._flags = handle, fcntl.fcntl(handle, fcntl.F_GETFL)
        self._is_direct = hasattr(os, "O_DIRECT")
        if self._is_direct:
            self._switch(on=True)

    def write(self, data: memoryview) -> None:
        """Write all data. A partial block goes through the page cache, and so does everything after it."""
        done = 0
        while done < len(data):
            whole = (len(data) - done) // BLOCK * BLOCK
            if self._is_direct and not whole:
                self._switch(on=False)
            with data[done : done + whole if self._is_direct else None] as rest:
                try:
                    count = os.write(self._handle, rest)
                except OSError as error:
                    if not self._is_direct or error.errno != errno.EINVAL:
                        raise
                    self._switch(on=False)
                    continue
            done += count
            if self._is_direct and count % BLOCK:
                self._switch(on=False)

    def _switch(self, *, on: bool) -> None:
        self._is_direct = on
        try:
            fcntl.fcntl(self._handle, fcntl.F_SETFL, self._flags | (os.O_DIRECT if on else 0))
        except OSError:
            if not on:
                raise
            self._is_direct = False  # this file system does not support direct I/O


def commit(path: Path, num_bytes: int, checksum: str, *, update: int, facts: dict[str, Any], best: bool, keep: int) -> None:
    """Mark a checkpoint with a single file as complete, and prune older ones, so that training does not wait for it.

    Args:
        path: The file, `RUN/checkpoints/UPDATE/rank0.safetensors`.
        num_bytes: Its size.
        checksum: Its checksum.
        update: Completed updates.
        facts: Plain data to store in the manifest.
        best: Mark it as the best.
        keep: Number of newest checkpoints to keep.
    """
    folder = CheckpointFolder(path.parents[2])
    folder.commit(update, {path.name: (num_bytes, checksum)}, facts=facts)
    if best:
        folder.mark_best(update)
    folder.prune(keep)


def main(handle: int) -> None:
    """Execute orders until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(19)
    for line in sys.stdin.buffer:
        order: dict[str, Any] | None = json.loads(line)
        if order is None:  # explicit end: forks of the run may keep the pipe open
            return
        try:
            answer: dict[str, Any] = {"checksum": write_file(handle, order["num_bytes"], Path(order["path"]))}
            if order["commit"] is not None:
                commit(Path(order["path"]), order["num_bytes"], answer["checksum"], **order["commit"])
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        except HastenError as error:  # the folder has a checkpoint written by a newer version
            answer = {"error": str(error)}
        try:
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the parent has ended
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
