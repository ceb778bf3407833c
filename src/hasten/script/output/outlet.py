"""Do on text streams, in a thread, what was asked of them, in the order it was asked.

Handing over takes no lock that a signal handler could meet while it is held: items are appended to a queue, and the thread
is woken by the release of a lock that it holds itself.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

GATHER_S = 0.02
"""The thread waits this long for more before it writes, so that a burst of lines is one write."""
MAX_ITEMS = 4096
MAX_CHARS = 1 << 14
"""What is longer is written before the caller goes on, and everything before it."""


@dataclass(eq=False)
class Tap:
    """A stream as it was before its seam.

    Attributes:
        write: Writes text.
        flush: Hands on what the stream holds back.
        by_lines: Whether it hands on each line at once. What makes blocks of its own is given text as it came: else the
            blocks would end elsewhere, and lines of another stream come to stand between others.
        error: What the thread met; whoever raises it takes it out.
    """

    write: Callable[[str], object]
    flush: Callable[[], object]
    by_lines: Callable[[], bool] = lambda: False
    error: BaseException | None = None

    def write_all(self, texts: list[str]) -> None:
        """Write these; whole lines at once where that is the same to whoever reads them."""
        ends = [at for at, text in enumerate(texts, 1) if "\n" in text or "\r" in text]
        whole = ends[-1] if ends and self.by_lines() else 0
        if whole:
            self.write("".join(texts[:whole]))
        for text in texts[whole:]:
            self.write(text)


class _Mark:
    """A place in the queue that somebody waits for."""

    def __init__(self) -> None:
        self._reached = threading.Lock()
        self._reached.acquire()

    def reach(self) -> None:
        self._reached.release()

    def wait(self, seconds: float) -> bool:
        return self._reached.acquire(timeout=seconds)


_Item = tuple[Tap, str | None] | _Mark
"""Text for a stream, a flush of it (None), or a mark."""


class Outlet:
    """A bounded queue and its thread, which begins with the first item. Nothing is dropped.

    Args:
        count: Told `reports_in_background` for each line, and `report_waits` when the queue was full.
    """

    def __init__(self, count: Callable[[str, float], None] = lambda _name, _amount: None) -> None:
        self._count = count
        self._queue: deque[_Item] = deque()
        self._wake, self._hurry = threading.Lock(), threading.Lock()
        self._wake.acquire()
        self._hurry.acquire()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._ends = False

    def begin(self) -> bool:
        """Start the thread if need be; False where none can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="hasten-printing", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                return False
            self._thread = thread
        return True

    def write(self, tap: Tap, text: str) -> None:
        """Have text written; waits only while the queue is full."""
        self._put((tap, text))
        if len(text) > MAX_CHARS or len(self._queue) > MAX_ITEMS:
            self._count("report_waits", 1)
            self.drain()

    def flush(self, tap: Tap) -> None:
        """Have a stream flushed, behind what was written to it."""
        self._put((tap, None))

    def drain(self) -> None:
        """Wait until everything so far is done; at once where nothing is, in a forked process, and in the thread itself."""
        thread = self._thread
        if not self._queue or thread is None or threading.current_thread() is thread or os.getpid() != self._pid:
            return
        mark = _Mark()
        self._put(mark)
        _open(self._hurry)
        while not mark.wait(0.5) and thread.is_alive():
            _open(self._hurry)

    def close(self) -> None:
        """Do what is left and end the thread; the outlet may begin again."""
        self.drain()
        thread = self._thread
        if thread is not None and os.getpid() == self._pid:
            self._ends = True
            _open(self._wake)
            _open(self._hurry)
            thread.join()
            self._thread, self._ends = None, False

    def _put(self, item: _Item) -> None:
        self._queue.append(item)
        _open(self._wake)

    def _serve(self) -> None:
        while not self._ends:
            self._wake.acquire()
            self._hurry.acquire(timeout=GATHER_S)
            while self._queue:  # an item leaves it only when it is done: an empty queue has nothing under way
                number = min(len(self._queue), MAX_ITEMS)
                self._do([self._queue[at] for at in range(number)])
                for _ in range(number):
                    self._queue.popleft()

    def _do(self, items: list[_Item]) -> None:
        """Do these in order, and all that follows on one stream together."""
        tap: Tap | None = None
        asked: list[str | None] = []
        for item in items:
            owner = None if isinstance(item, _Mark) else item[0]
            if owner is not tap:
                self._emit(tap, asked)
                tap, asked = owner, []
            if isinstance(item, _Mark):
                item.reach()
            else:
                asked.append(item[1])
        self._emit(tap, asked)

    def _emit(self, tap: Tap | None, asked: list[str | None]) -> None:
        """Do to a stream what was asked of it: what it holds back in the end is what it would have held back."""
        if tap is None:
            return
        texts = [text for text in asked if text is not None]
        flushes = len(texts) != len(asked)
        kept = asked[::-1].index(None) if flushes else len(texts)  # what follows the last flush
        early, late = texts[: len(texts) - kept], texts[len(texts) - kept :]
        try:
            tap.write_all(early)
            if flushes:
                tap.flush()
            tap.write_all(late)
        except BaseException as error:  # noqa: BLE001 - raised by the next write to this stream
            tap.error = tap.error or error
        if texts:
            self._count("reports_in_background", max(sum(text.count("\n") for text in texts), 1))


def _open(lock: threading.Lock) -> None:
    """Release a lock that another thread waits for; nothing where it is open already."""
    if lock.locked():
        try:
            lock.release()
        except RuntimeError:
            return  # somebody else was faster
