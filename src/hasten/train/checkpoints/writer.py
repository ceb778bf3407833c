"""Hand a snapshot to a process that writes it, and hear what came of it."""

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
    """What came of an order.

    Attributes:
        path: The file.
        num_bytes: Its size.
        checksum: Of its bytes, as `folder.Checksum` has it; empty where it was not written.
        error: What went wrong, in the system's words; empty where nothing did.
    """

    path: Path
    num_bytes: int
    checksum: str
    error: str = ""


class WriterProcess:
    """A process that writes one file at a time from an anonymous file; started again at an order if it died.

    Args:
        handle: The anonymous file.
        held: Open files that stay open as long as the process lives: a lock on them lasts until the last byte is written.
    """

    def __init__(self, handle: int, held: Sequence[int] = ()) -> None:
        self._handle, self._held = handle, tuple(held)
        self._process: subprocess.Popen[bytes] | None = None
        self._order: tuple[Path, int] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an order is under way."""
        return self._order is not None

    def start(self) -> None:
        """Start the process ahead of the first order, which then need not wait for it.

        Raises:
            MachineError: It cannot be started.
        """
        self._alive()

    def write(self, path: Path, num_bytes: int, *, commit: Mapping[str, Any] | None = None) -> None:
        """Order the first bytes of the anonymous file to be written to `path`.

        Args:
            path: The file.
            num_bytes: Its size.
            commit: What `commit` of the process takes besides: a checkpoint of this file alone is made whole there and then.

        Raises:
            HastenError: An order is under way.
            MachineError: The process cannot be started.
        """
        if self._order is not None:
            raise HastenError("a checkpoint is under way: wait for it before the next one.")
        process = self._alive()
        told = {"path": str(path), "num_bytes": num_bytes, "commit": None if commit is None else dict(commit)}
        order = json.dumps(told).encode() + b"\n"
        if process.stdin is None:
            raise HastenError("the process that writes checkpoints has no stdin.")
        try:
            process.stdin.write(order)
            process.stdin.flush()
        except BrokenPipeError:
            self._drop()
            process = self._alive()
            if process.stdin is None:
                raise HastenError("the process that writes checkpoints has no stdin.") from None
            process.stdin.write(order)
            process.stdin.flush()
        self._order = (path, num_bytes)

    def poll(self, timeout_s: float | None = 0.0) -> Done | None:
        """What came of the order under way; None where there is none, or it is not done yet.

        Args:
            timeout_s: How long to wait for it; None waits until it is done.
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
        """Wait for the order under way, and end the process."""
        self.poll(None)
        self._drop()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._process is None:
            try:
                self._process = subprocess.Popen(  # noqa: S603  our own module, by our own interpreter
                    [sys.executable, "-m", "hasten.train.checkpoints.writer_process", str(self._handle)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[self._handle, *self._held],
                    start_new_session=True,  # a Ctrl-C at the terminal is for the run alone
                )
            except OSError as error:
                raise MachineError(f"The process that writes checkpoints cannot be started: {error}.") from error
        return self._process

    def _drop(self) -> None:
        if self._process is not None:
            # Loader workers that were forked meanwhile hold its stdin open: it must be told.
            with contextlib.suppress(OSError):
                if self._process.stdin is not None:
                    self._process.stdin.write(b"null\n")
                    self._process.stdin.flush()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # it was killed, and what is left in the pipe is for nobody
                        pipe.close()
            self._process.wait()
            self._process = None
