"""The process that writes checkpoints: it knows bytes and files, and nothing of torch.

It reads orders from its first stdin, one JSON object a line, and answers on its stdout. It takes the lowest priority there
is, so that training goes first. When the one who started it is gone, it finishes what it is at, and ends: a run that was
killed while a checkpoint was under way has one more checkpoint.
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
"""Bytes handed on at a time."""
BLOCK = 4096
"""Bytes that a disk takes at a time, or a multiple of them."""


def write_file(handle: int, num_bytes: int, path: Path) -> str:
    """Write the first bytes of an anonymous file to `path`, durably; their checksum.

    The file appears whole or not at all.

    Raises:
        OSError: The disk is full, or the folder cannot be written; nothing is left behind then.
    """
    digest = Checksum()
    with mmap.mmap(handle, num_bytes, prot=mmap.PROT_READ) as source, replaced(path, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is found before it is written full
        out = _PastTheCache(file.fileno())
        with memoryview(source) as view:
            for start in range(0, num_bytes, PART):
                with view[start : start + PART] as chunk:
                    digest.update(chunk)
                    out.write(chunk)
    return digest.hexdigest()


class _PastTheCache:
    """Writes to an open file, past the page cache where its file system can.

    Through the cache a checkpoint takes as much memory again, which the system must find while training needs it: a fresh
    page costs more than the copy into it.
    """

    def __init__(self, handle: int) -> None:
        self._handle, self._flags = handle, fcntl.fcntl(handle, fcntl.F_GETFL)
        self._is_direct = hasattr(os, "O_DIRECT")
        if self._is_direct:
            self._switch(on=True)

    def write(self, data: memoryview) -> None:
        """Write all of it; what is no whole block goes through the cache, and so does all that follows it."""
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
            self._is_direct = False  # this file system has no such way


def commit(path: Path, num_bytes: int, checksum: str, *, update: int, facts: dict[str, Any], best: bool, keep: int) -> None:
    """Say that a checkpoint of this one file is whole, and let older ones go: training does not wait for it.

    Args:
        path: The file, `RUN/checkpoints/UPDATE/rank0.safetensors`.
        num_bytes: Its size.
        checksum: Of its bytes.
        update: Updates that were done.
        facts: Noted with it.
        best: Mark it as the best.
        keep: Checkpoints that stay.
    """
    folder = CheckpointFolder(path.parents[2])
    folder.commit(update, {path.name: (num_bytes, checksum)}, facts=facts)
    if best:
        folder.mark_best(update)
    folder.prune(keep)


def main(handle: int) -> None:
    """Obey orders until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which tells us what to do
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(19)
    for line in sys.stdin.buffer:
        order: dict[str, Any] | None = json.loads(line)
        if order is None:  # the end; that of the pipe may be far, as forks of the run hold it too
            return
        try:
            answer: dict[str, Any] = {"checksum": write_file(handle, order["num_bytes"], Path(order["path"]))}
            if order["commit"] is not None:
                commit(Path(order["path"]), order["num_bytes"], answer["checksum"], **order["commit"])
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        except HastenError as error:  # another checkpoint of the folder is of a newer version
            answer = {"error": str(error)}
        try:
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # nobody is left to hear it
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
