"""Follow a run of a dialogue job: count which groups the conversations mention, while they are trained on.

A thread takes the texts of the batches that were trained on and gives them to the `BiasMonitor`, which counts them in a
process of its own. It begins after the last batch that the file of counts has, so each batch is counted once, however often
the run is killed and resumed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import ClassVar

from hasten.core.errors import MachineError
from hasten.monitor.metric import Card, Metric
from hasten.monitor.sampler import Host

_ROOM = 64
"""Batches that wait in the monitor at most; it would drop some only at 256."""
_CLOSE_S = 60.0


class BiasSampler:
    """Feeds the bias monitor, and tells how far it is. Only for jobs with `bias_counts`, on rank 0."""

    card: ClassVar[Card] = Card(
        name="dialogue_bias",
        source="the process that counts mentions of groups",
        needs="a job of the dialogue recipe with `bias_counts`",
        metrics=(
            Metric(name="bias.counted", unit="{batch}", help="Batches whose mentions of groups are counted."),
            Metric(name="bias.waiting", unit="{batch}", help="Batches trained on, but not counted yet."),
            Metric(name="bias.lost", unit="{batch}", help="Batches that were dropped, so that counts are incomplete."),
            Metric(name="bias.lag", unit="s", help="Seconds from giving a batch to the process to its count."),
        ),
    )

    def __init__(self, host: Host) -> None:
        if host.rank or not getattr(host.job, "bias_counts", False):
            raise MachineError("the job does not count mentions of groups")
        from hasten.recipes.dialogue.bias.monitor import BiasMonitor, read_journal  # noqa: PLC0415  other runs need none

        self._host = host
        self._monitor = BiasMonitor(host.folder)
        ranges, _ = read_journal(self._monitor.path)
        self._next = ranges[0][1] if ranges and ranges[0][0] == 0 else 0
        self._waiting: deque[tuple[int, list[int]]] = deque()
        self._wake, self._until = threading.Event(), float("inf")
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._feed, name="hasten-bias-feed", daemon=True)
        self._thread.start()

    def sample(self) -> Mapping[str, float]:
        """Note the new batches, and return how far the counting is. Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure
        for batch in self._host.batches(self._next):
            self._waiting.append((self._next, batch))
            self._next += 1
        self._wake.set()
        report = self._monitor.report()
        return {
            "bias.counted": report.num_counted,
            "bias.waiting": report.waiting + len(self._waiting),
            "bias.lost": report.lost,
            "bias.lag": report.lag_s,
        }

    def close(self) -> None:
        """Count what is left, for at most a minute, and end the process."""
        self.sample()
        self._until = monotonic() + _CLOSE_S
        self._wake.set()
        self._thread.join(_CLOSE_S)
        self._monitor.close(max(self._until - monotonic(), 1.0))

    def _feed(self) -> None:
        try:
            self._feed_all()
        except Exception as error:  # noqa: BLE001 - told by `sample`
            self._failure = error

    def _feed_all(self) -> None:
        """Give batches to the monitor as fast as it counts them."""
        while monotonic() < self._until:
            if not self._waiting:
                if self._until < float("inf"):
                    return
                self._wake.wait()
                self._wake.clear()
            elif self._monitor.report().waiting >= _ROOM:
                threading.Event().wait(0.02)
            else:
                number, samples = self._waiting[0]
                self._monitor.put(self._host.job.texts(samples), number=number)
                self._waiting.popleft()
