"""Signals that ask a run to end: it ends between two updates, where everything is whole.

SIGTERM and SIGUSR1 are how schedulers announce that a machine will be taken away, SIGINT is Ctrl-C. The first one asks; a
second SIGINT does not wait.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While it is entered, signals ask for an end and do nothing else; outside of the main thread it hears none.

    Attributes:
        signal: Which one asked; None as long as none did.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._asked) for number in ASKING}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave before
        self._before = {}

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
