"""The process that writes checkpoints: it knows bytes and files, and nothing of torch.

It reads orders from its first stdin, one JSON object a line, and answers on its stdout. It takes the lowest priority there
is, so that training goes first. When the one who started it is gone, it finishes what it is at, and ends: a run that was
killed while a checkpoint was under way has one more checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from upshift.core.errors import UpshiftError
from upshift.train.saving.folder import CheckpointFolder

PART = 2**23
"""Bytes handed on at a time."""


def write_file(handle: int, num_bytes: int, path: Path) -> str:
    """Write the first bytes of an anonymous file to `path`, durably; their SHA-256.

    The file appears whole or not at all.

    Raises:
        OSError: The disk is full, or the folder cannot be written; nothing is left behind then.
    """
    digest = hashlib.sha256()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with mmap.mmap(handle, num_bytes, prot=mmap.PROT_READ) as source, part.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is found before it is written full
            with memoryview(source) as view:
                for start in range(0, num_bytes, PART):
                    with view[start : start + PART] as chunk:
                        digest.update(chunk)
                        done = 0
                        while done < len(chunk):
                            done += file.write(chunk[done:]) or 0
            os.fsync(file.fileno())
        part.replace(path)
        flush_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


def flush_folder(folder: Path) -> None:
    """Let names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def commit(path: Path, num_bytes: int, sha256: str, *, update: int, facts: dict[str, Any], best: bool, keep: int) -> None:
    """Say that a checkpoint of this one file is whole, and let older ones go: training does not wait for it.

    Args:
        path: The file, `RUN/checkpoints/UPDATE/rank0.safetensors`.
        num_bytes: Its size.
        sha256: Of its bytes.
        update: Updates that were done.
        facts: Noted with it.
        best: Mark it as the best.
        keep: Checkpoints that stay.
    """
    folder = CheckpointFolder(path.parents[2])
    folder.commit(update, {path.name: (num_bytes, sha256)}, facts=facts)
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
        started = time.perf_counter()
        try:
            answer: dict[str, Any] = {"sha256": write_file(handle, order["num_bytes"], Path(order["path"]))}
            if order["commit"] is not None:
                commit(Path(order["path"]), order["num_bytes"], answer["sha256"], **order["commit"])
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        except UpshiftError as error:  # another checkpoint of the folder is of a newer version
            answer = {"error": str(error)}
        answer["seconds"] = time.perf_counter() - started
        try:
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # nobody is left to hear it
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
