"""Alerts of a live run: judge each window, deliver what changes, and remember what a rule asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from hasten.core.errors import DataError
from hasten.core.machine import read_machine
from hasten.monitor.alerts.deliver import TIMEOUT_S, AlertsFile, Delivery, deliveries_of, queued, webhook_at
from hasten.monitor.alerts.engine import Alert, Alerts
from hasten.monitor.alerts.judge import FIRST, WARM_UP
from hasten.monitor.alerts.rule import Rule, load_rules
from hasten.monitor.contract import Contract, contract_rule, proved_phases, why_void
from hasten.monitor.sink import QueuedSink
from hasten.monitor.window import Window
from hasten.monitor.windows_file import WindowsReader, windows_path
from hasten.train.guards.memory_growth import Kinds, growth_words, tensors_alive

EXIT_ALERT = 4
"""Exit status of a run of which a rule asked to `fail` or `stop`."""


def read_options(path: Path | None, webhooks: Sequence[str]) -> tuple[tuple[Rule, ...], list[Delivery]]:
    """Return the rules and deliveries of `--alerts FILE` and `--alert-to URL`. Raises DataError if one is not valid."""
    rules, tables = load_rules(path)
    hooks = [webhook_at(url, "--alert-to") for url in webhooks]
    return rules, [*deliveries_of(tables, str(path)), *hooks]


class LiveAlerts:
    """Judges the windows of a run. Made before the run; `begin` connects it.

    Args:
        rules: The rules.
        deliveries: Where alerts go, in addition to the log and `alerts.jsonl`.
        say: Called with each alert that fires or is resolved, and with each delivery that fails.
        stop: Asks the run to save a checkpoint and stop.
        contract: What the run is held to; None if it trains without a plan.

    Attributes:
        failed: The first alert whose rule asks to fail or stop; None before.
        firing: Alerts that are firing now, by (rule, rank).
    """

    def __init__(
        self,
        rules: tuple[Rule, ...],
        deliveries: list[Delivery],
        *,
        say: Callable[[str], None],
        stop: Callable[[], None] = lambda: None,
        contract: Contract | None = None,
    ) -> None:
        self._rules, self._deliveries, self._say, self._stop = rules, deliveries, say, stop
        self._contract = contract
        self._alerts = Alerts(())  # until `begin`
        self._queues: list[QueuedSink] = []
        self._others: list[WindowsReader] = []
        self._kinds: Kinds | None = None
        self._windows = 0
        self._trains = True
        self._by_guards: frozenset[str] = frozenset()
        self.failed: Alert | None = None
        self.firing: dict[tuple[str, int], Alert] = {}

    def leave_to_guards(self) -> None:
        """Prepare for a run with guards: their incidents are marks of its windows, and they write to the log themselves."""
        rules = [rule.by_guards() for rule in self._rules]
        firsts = {rule.metric: rule for rule in reversed(rules) if rule.kind == "incident"}  # one rule for each incident
        self._rules = tuple(rule for rule in rules if rule.kind != "incident" or firsts[rule.metric] is rule)
        self._by_guards = frozenset(rule.name for rule in self._rules if rule.kind == "incident")

    def begin(self, run: str, folder: Path, world: int, *, samples: int | None = None) -> None:
        """Begin to follow a run of this name, in this folder, with this number of ranks and of training samples."""
        self._trains = True  # a run that failed under its plan begins again
        rule, proved = self._held(samples)
        self._alerts = Alerts((*self._rules, *rule), memory_words=self._memory_words, proved=proved)
        self._queues = [queued(delivery, run, self._say) for delivery in (AlertsFile(folder=folder), *self._deliveries)]
        self._others = [WindowsReader(windows_path(folder, rank)) for rank in range(1, world)]

    def on_window(self, window: Window) -> None:
        """Judge a window of rank 0, and what the other ranks have written since the last one."""
        self._windows += 1
        if self._windows == WARM_UP + FIRST and any(rule.kind == "grows" for rule in self._rules):
            self._kinds = tensors_alive()
        for reader in self._others:
            try:
                for other in reader.new():
                    self._take(other)
            except DataError:  # the file of another version; the run itself says so
                continue
        self._take(window)

    def training_ended(self) -> None:
        """Note that there is nothing to stop any more."""
        self._trains = False

    def close(self) -> None:
        """Deliver what waits, for some seconds at most."""
        until = monotonic() + TIMEOUT_S
        for queue in self._queues:
            queue.end()
        for queue in self._queues:
            queue.wait(until)

    def _held(self, samples: int | None) -> tuple[list[Rule], Mapping[str, float]]:
        """Return the rule of the contract and what it was proved by; nothing if there is none, or if it is void."""
        if self._contract is None:
            return [], {}
        if why := why_void(self._contract, read_machine(), samples):
            self._say(f"contract void: {why}. The plan's gain may not hold here: tune again")
            return [], {}
        proved = self._contract.plan.proved
        rule = contract_rule(proved, self._contract.action)
        return ([], {}) if rule is None else ([rule], proved_phases(proved))

    def _take(self, window: Window) -> None:
        for alert in self._alerts.judge(window):
            self._note(alert)

    def _note(self, alert: Alert) -> None:
        if alert.state == "firing":
            self.firing[alert.rule, alert.rank] = alert
        else:
            self.firing.pop((alert.rule, alert.rank), None)
        if alert.state != "pending" and (alert.rank or alert.rule not in self._by_guards):
            self._say(f"alert {alert.rule}, {alert.text()}")
        for queue in self._queues:
            queue.put(alert)
        if alert.state == "firing" and alert.action != "warn" and self.failed is None:
            self.failed = alert
            if alert.action == "stop" and self._trains:
                self._stop()

    def _memory_words(self) -> str:
        return growth_words(self._kinds, tensors_alive()) if self._kinds is not None else ""
