"""Handle signals that ask a run to stop. It stops between two updates, where its state is consistent.

Schedulers send SIGTERM or SIGUSR1 before they take a machine away; SIGINT is Ctrl-C. The first signal asks the run to stop.
A second SIGINT stops it immediately.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """A context manager that records stop signals instead of acting on them. Outside the main thread, it records none.

    Args:
        raises: Raise KeyboardInterrupt on a second SIGINT. If False, only `is_urgent` is set.

    Attributes:
        signal: The first signal received; None before that.
        is_urgent: Whether a SIGINT followed it.
    """

    def __init__(self, *, raises: bool = True) -> None:
        self.signal: signal.Signals | None = None
        self.is_urgent = False
        self._raises = raises
        self._handlers_before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers_before = {number: signal.signal(number, self._record) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned before
        self._handlers_before = {}

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
        elif number == signal.SIGINT:
            self.is_urgent = True
            if self._raises:
                raise KeyboardInterrupt
