"""What a script prints and logs, written by a thread of its own: a slow terminal, pipe or disk does not keep the training.

The seam is on the stream object itself: `sys.stdout` stays the object it was, whoever holds it, and what `print`, a
progress bar or a class in place of `sys.stdout` writes to it comes through here. `flush` is handed over too, in its place.
Handlers of `logging` format their records at once, in the script's thread; what they write to files and to stderr is
handed over. All streams share one queue, so the order between them stays. Anything else that is written to stderr waits
for the queue, and so does whatever asks another process, or the terminal, for something.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from hasten.core.live import LiveJob
from hasten.script.handover import before_handing_over
from hasten.script.output.outlet import Outlet, Tap
from hasten.script.patches import Patches

_SETTLED = ("close", "detach", "fileno", "reconfigure", "seek", "tell", "truncate")
"""Methods of a stream that look at what was written, or change how it is."""

Function = Callable[..., Any]


class AsyncPrinting:
    """Prints and logs in the background, as long as `live.around.report_async` says so.

    Streams that are no plain text files (a notebook's, a `StringIO`) are written as without us.

    Args:
        live: The script's live job; told `reports_in_background` and `report_waits`.
    """

    def __init__(self, live: LiveJob) -> None:
        self.live = live
        self._outlet = Outlet(live.count)
        self._patches: Patches | None = None
        self._taps: dict[int, tuple[Any, Tap]] = {}
        self._here = threading.local()
        self._pid = os.getpid()
        self._armed = self._closed = False

    def install(self, patches: Patches) -> None:
        """Put the seams on the streams and on `logging`, before anybody keeps a `write` of theirs; others follow later."""
        self._patches = patches
        for stream in (sys.stdout, sys.__stdout__):
            self._adopt(stream)
        for stream in (sys.stderr, sys.__stderr__):
            self._adopt(stream, always=False)
        patches.put(logging.StreamHandler, "emit", self._emitting)
        atexit.register(self.close)

    def rehearse(self) -> None:
        """Write nothing at all to stdout in the background, and wait for it, so that the counters tell of it."""
        found = self._taps.get(id(sys.__stdout__))
        if found is not None and self._takes():
            self._outlet.write(found[1], "")
            self._outlet.drain()

    def finish(self) -> None:
        """Wait until everything is written."""
        self._outlet.drain()

    def close(self) -> None:
        """Write what is left, say on stderr what could not be written, and write as without us from now on."""
        if self._closed or os.getpid() != self._pid:
            return
        self._outlet.close()
        self._closed = True
        atexit.unregister(self.close)
        for _, tap in self._taps.values():
            error, tap.error = tap.error, None
            if error is not None:
                sys.stderr.write(f"hasten: not all could be written: {type(error).__name__}: {error}\n")
        self._taps.clear()

    def _takes(self) -> bool:
        """Whether what is written now goes to the thread; starts it."""
        if self._closed or not self.live.around.report_async or os.getpid() != self._pid:
            return False
        if not self._armed:
            self._armed = True
            self._arm()
        return self._outlet.begin()

    def _arm(self) -> None:
        """Everything that must find the queue empty."""
        if self._patches is None:
            return
        put = self._patches.put
        put(builtins, "input", self._settling)
        put(os, "dup2", self._settling)
        before_handing_over(self._patches, self._outlet.drain, loader_workers=True)

    def _adopt(self, stream: Any, *, always: bool = True) -> None:
        """Put the seams on a stream; `always`: what is written to it is handed over, not just what `logging` writes."""
        if type(stream) is not io.TextIOWrapper or id(stream) in self._taps or self._patches is None:
            return
        tap = Tap(
            write=stream.write, flush=stream.flush, by_lines=lambda: bool(stream.line_buffering or stream.write_through)
        )
        self._taps[id(stream)] = (stream, tap)
        put = self._patches.put
        put(stream, "write", functools.partial(self._writing, stream, tap, always))
        put(stream, "flush", functools.partial(self._flushing, tap, always))
        for name in _SETTLED:
            put(stream, name, self._settling if name != "close" else functools.partial(self._closing, stream))

    def _writing(self, stream: Any, tap: Tap, always: bool, original: Function) -> Function:  # noqa: FBT001 - bound by position
        @functools.wraps(original)
        def writing_seam(text: Any) -> Any:
            if tap.error is not None:
                error, tap.error = tap.error, None
                raise error
            wanted = always or getattr(self._here, "logs", False)
            if not wanted or type(text) is not str or stream.closed or not self._takes():
                self._outlet.drain()
                return original(text)
            if not text.isascii():
                text.encode(stream.encoding, stream.errors)  # what cannot be written is told to whoever writes it
            self._outlet.write(tap, text)
            return len(text)

        return writing_seam

    def _flushing(self, tap: Tap, always: bool, original: Function) -> Function:  # noqa: FBT001 - as above
        @functools.wraps(original)
        def flushing_seam() -> Any:
            if (always or getattr(self._here, "logs", False)) and self._takes():
                return self._outlet.flush(tap)
            self._outlet.drain()
            return original()

        return flushing_seam

    def _settling(self, original: Function) -> Function:
        """Around what must find everything written."""

        @functools.wraps(original)
        def settling_seam(*args: Any, **kwargs: Any) -> Any:
            self._outlet.drain()
            return original(*args, **kwargs)

        return settling_seam

    def _closing(self, stream: Any, original: Function) -> Function:
        """Around a stream's `close`, after which it is of no interest any more."""

        @functools.wraps(original)
        def closing_seam() -> Any:
            self._outlet.drain()
            if self._taps.pop(id(stream), None) is not None and self._patches is not None:
                self._patches.restore(owner=stream)
            return original()

        return closing_seam

    def _emitting(self, original: Function) -> Function:
        """Around `logging.StreamHandler.emit`, which handlers that write to files use as well."""

        @functools.wraps(original)
        def emitting_seam(handler: Any, record: Any) -> Any:
            if not self._takes():
                return original(handler, record)
            self._adopt(handler.stream)
            before = getattr(self._here, "logs", False)
            self._here.logs = True
            try:
                return original(handler, record)
            finally:
                self._here.logs = before

        return emitting_seam
