"""Pass a snapshot to a process that writes it, and receive the result."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError, MachineError


@dataclass(frozen=True)
class Done:
    """The result of a write.

    Attributes:
        path: The file.
        num_bytes: Its size.
        checksum: Checksum of the file, see `folder.Checksum`; empty if it was not written.
        error: The system's error message; empty on success.
    """

    path: Path
    num_bytes: int
    checksum: str
    error: str = ""


class WriterProcess:
    """A process that writes one file at a time from an anonymous file. If it died, the next write restarts it.

    Args:
        handle: File descriptor of the anonymous file.
        held: File descriptors that the process keeps open, so that locks on them last until the last byte is written.
    """

    def __init__(self, handle: int, held: Sequence[int] = ()) -> None:
        self._handle, self._held = handle, tuple(held)
        self._process: subprocess.Popen[bytes] | None = None
        self._order: tuple[Path, int] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a write is in progress."""
        return self._order is not None

    def start(self) -> None:
        """Start the process before the first write, so that the write does not wait for it.

        Raises:
            MachineError: The process cannot be started.
        """
        self._alive()

    def write(self, path: Path, num_bytes: int, *, commit: Mapping[str, Any] | None = None) -> None:
        """Have the process write the first `num_bytes` of the anonymous file to `path`.

        Args:
            path: The file.
            num_bytes: Its size.
            commit: Arguments for `writer_process.commit`, if the process is to complete a checkpoint of this single file.

        Raises:
            HastenError: A write is in progress.
            MachineError: The process cannot be started.
        """
        if self._order is not None:
            raise HastenError("A checkpoint is being written: wait for it before the next one.")
        process = self._alive()
        request = {"path": str(path), "num_bytes": num_bytes, "commit": None if commit is None else dict(commit)}
        order = json.dumps(request).encode() + b"\n"
        if process.stdin is None:
            raise HastenError("The process that writes checkpoints has no stdin.")
        try:
            process.stdin.write(order)
            process.stdin.flush()
        except BrokenPipeError:
            self._drop()
            process = self._alive()
            if process.stdin is None:
                raise HastenError("The process that writes checkpoints has no stdin.") from None
            process.stdin.write(order)
            process.stdin.flush()
        self._order = (path, num_bytes)

    def poll(self, timeout_s: float | None = 0.0) -> Done | None:
        """Return the result of the write in progress, or None if there is none or it is not finished.

        Args:
            timeout_s: Seconds to wait for it; None waits until it is finished.
        """
        if self._order is None or self._process is None or self._process.stdout is None:
            return None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return None
        path, num_bytes = self._order
        line = self._process.stdout.readline()
        self._order = None
        if not line:
            code = self._process.wait()
            self._drop()
            return Done(path, num_bytes, "", f"the process that writes checkpoints ended with code {code}")
        answer = json.loads(line)
        return Done(path, num_bytes, answer.get("checksum", ""), answer.get("error", ""))

    def close(self) -> None:
        """Wait for the write in progress, and end the process."""
        self.poll(None)
        self._drop()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._process is None:
            try:
                self._process = subprocess.Popen(  # noqa: S603  a module of this package
                    [sys.executable, "-m", "hasten.train.checkpoints.writer_process", str(self._handle)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[self._handle, *self._held],
                    start_new_session=True,  # Ctrl-C in the terminal must only reach the run
                )
            except OSError as error:
                raise MachineError(f"The process that writes checkpoints cannot be started: {error}.") from error
        return self._process

    def _drop(self) -> None:
        if self._process is not None:
            # Loader workers forked in the meantime keep its stdin open, so it needs an explicit message to end.
            with contextlib.suppress(OSError):
                if self._process.stdin is not None:
                    self._process.stdin.write(b"null\n")
                    self._process.stdin.flush()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # it was killed, and no process reads the rest of the pipe
                        pipe.close()
            self._process.wait()
            self._process = None
