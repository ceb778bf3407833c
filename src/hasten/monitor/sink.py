"""The contract of a sink, and the thread that keeps it away from the training.

A sink is a class with a card, in a file of `sinks/` or registered under the entry-point group `hasten.sinks`. It is created
in its own thread with the start of the run, the run's folder and its options, which are keyword arguments of type str.
"""

from __future__ import annotations

import importlib.util
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar, Protocol

from hasten.core.errors import HastenError
from hasten.monitor.window import Window

MOST_WAITING = 256
"""Windows that may wait for a sink. Further ones replace the oldest."""
CLOSE_S = 10.0
"""Seconds that sinks may take at the end of a run to write what waits."""


@dataclass(frozen=True, kw_only=True)
class SinkCard:
    """What a sink writes to.

    Attributes:
        name: Its name in `--log-to`.
        summary: Where the windows go, in a few words.
        module: The package that must be installed; empty if none.
        extra: The extra of Hasten that installs it.
        every_rank: Whether each rank writes, and not rank 0 alone.
    """

    name: str
    summary: str
    module: str = ""
    extra: str = ""
    every_rank: bool = False


class Sink(Protocol):
    """Writes windows."""

    card: ClassVar[SinkCard]

    def write(self, window: Window) -> None:
        """Write a window. An error is counted and reported once; the next windows are still given."""
        ...

    def close(self) -> None:
        """Write what is left, and release everything."""
        ...


@dataclass(frozen=True, kw_only=True)
class SinkRequest:
    """The class of a sink that a user has chosen, and its options."""

    kind: Any
    options: Mapping[str, str]


def parse_sink(text: str, catalogue: Mapping[str, Any]) -> SinkRequest:
    """Read `NAME[:KEY=VALUE,...]`. A value without a key is that of the first option.

    Raises:
        HastenError: There is no such sink or option, or its package is not installed.
    """
    name, _, rest = text.partition(":")
    if name not in catalogue:
        raise HastenError(f"There is no sink `{name}`. Choose from: {', '.join(sorted(catalogue))}.")
    kind, options = catalogue[name], dict[str, str]()
    known = [key for key in inspect.signature(kind).parameters if key not in ("start", "folder")]
    for part in filter(None, rest.split(",")):
        key, given, value = part.partition("=")
        if not given and known:
            key, value = known[0], part
        if key not in known:
            raise HastenError(f"The sink `{name}` has no option `{key}`. Its options: {', '.join(known) or 'none'}.")
        options[key] = value
    card: SinkCard = kind.card
    if card.module and importlib.util.find_spec(card.module) is None:
        raise HastenError(f"The sink `{name}` needs {card.module}: pip install 'hasten[{card.extra}]'.")
    return SinkRequest(kind=kind, options=options)


class QueuedSink:
    """Gives windows to a sink, or alerts to a delivery, in a thread. It never blocks, and never raises.

    Args:
        name: Name of the sink.
        make: Creates the sink, in the thread.
        say: Called with one message if items are lost.
        loses: Begin of that message.
        gather_s: If not 0, `write` gets lists: what was put within this time of the first item.

    Attributes:
        dropped: Number of items that were not written.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], say: Callable[[str], None], *, loses: str = "", gather_s: float = 0.0
    ) -> None:
        self._make, self._say, self._loses = make, say, loses or f"the sink `{name}` loses windows"
        self._gather_s = gather_s
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._ends = self._told = False
        self._busy = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name=f"hasten-sink-{name}", daemon=True)
        self._thread.start()

    def put(self, item: Any) -> None:
        """Queue an item. If too many wait, the oldest is dropped."""
        with self._changed:
            full = len(self._waiting) >= MOST_WAITING
            if full:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(item)
            self._changed.notify()
        if full:
            self._tell("it is too slow or does not answer")

    def end(self) -> None:
        """Write what waits, then close the sink. Does not wait."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    def wait(self, until: float) -> None:
        """Wait for the end, at most until this time (`monotonic`). Items that are not written by then are dropped."""
        self._thread.join(max(until - monotonic(), 0.0))
        if not self._thread.is_alive():
            return
        with self._changed:
            self.dropped += len(self._waiting) + self._busy
            self._waiting.clear()
        self._tell("it did not end in time")

    def _work(self) -> None:
        sink: Any = None
        while (item := self._next()) is not None:
            try:
                sink = sink or self._make()
                sink.write(item)
            except HastenError as error:
                self._lose(str(error))
            except Exception as error:  # noqa: BLE001 - a sink may fail in any way, and the training goes on
                self._lose(f"{type(error).__name__}: {error}")
            self._busy = 0
        if sink is not None:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - as above
                self._tell(f"it could not be closed: {type(error).__name__}: {error}")

    def _next(self) -> Any:
        """Wait for an item; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._ends)
            if not self._waiting:
                return None
            if self._gather_s:
                self._changed.wait_for(lambda: self._ends, self._gather_s)
                items = list(self._waiting)
                self._waiting.clear()
                self._busy = len(items)
                return items
            self._busy = 1
            return self._waiting.popleft()

    def _lose(self, why: str) -> None:
        self.dropped += self._busy
        self._tell(why)

    def _tell(self, why: str) -> None:
        told, self._told = self._told, True
        if not told:
            self._say(f"{self._loses}: {why}. The training goes on.")
