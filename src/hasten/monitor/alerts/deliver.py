"""Deliver alerts: to `alerts.jsonl` in the run's folder, the log, webhooks (Slack, Discord, JSON) and commands such as mail.

Deliveries run in a thread. One that fails or hangs is counted and reported once; it never slows or ends the training.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

from hasten.core.errors import DataError
from hasten.monitor.alerts.engine import Alert

ALERTS = "alerts.jsonl"
TIMEOUT_S = 10.0
"""Seconds that one delivery may take."""
_MOST_WAITING = 100
_KEYS = ("webhook", "format", "command")
_FORMATS = ("slack", "discord", "json")
_FORMAT_OF = {"hooks.slack.com": "slack", "discord.com": "discord", "discordapp.com": "discord"}
_ENVIRONMENT = "env:"


class Delivery(Protocol):
    """Delivers an alert. It may raise anything."""

    @property
    def name(self) -> str:
        """For messages. It must not contain secrets."""
        ...

    def __call__(self, alert: Alert, run: str) -> None:
        """Deliver an alert of a run."""
        ...


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Posts an alert to a web address.

    Attributes:
        url: The address. It may contain a secret, so it never appears in messages.
        form: `slack`, `discord` or `json`.
    """

    url: str
    form: str

    @property
    def name(self) -> str:
        """The host alone: the path of a webhook is its secret."""
        return f"the webhook at {urlsplit(self.url).hostname}"

    def __call__(self, alert: Alert, run: str) -> None:
        """Post the alert."""
        text = f"[{run}] {alert.rule} {alert.text()}"
        body: Mapping[str, Any] = {
            "slack": {"text": text},
            "discord": {"content": text[:2000]},  # Discord refuses longer ones
            "json": {"run": run, "text": text, **alert.to_dict()},
        }[self.form]
        head = {"Content-Type": "application/json", "User-Agent": "hasten"}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), head)  # noqa: S310 - checked by `deliveries_of`
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise DataError(f"it answered {error.code}") from None  # the error's own text has the address
        except (urllib.error.URLError, OSError) as error:
            raise DataError(f"it cannot be reached: {getattr(error, 'reason', error)}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook that redirects could send an alert anywhere, so it is not followed."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True, kw_only=True)
class Command:
    """Runs a command, without a shell, with the alert as its standard input.

    Attributes:
        words: The command and its arguments; `{rule}` and `{run}` are filled in.
    """

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The program's name."""
        return f"the command `{Path(self.words[0]).name}`"

    def __call__(self, alert: Alert, run: str) -> None:
        """Run the command."""
        command = [word.replace("{rule}", alert.rule).replace("{run}", run) for word in self.words]
        text = f"{alert.rule} of {run}\n\n{alert.text()}\n"
        ended = subprocess.run(command, input=text, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
        if ended.returncode:
            raise DataError(f"it ended with exit status {ended.returncode}: {ended.stderr.strip()[:200]}")


def deliveries_of(tables: Sequence[Mapping[str, Any]], where: str) -> list[Delivery]:
    """Return the deliveries that tables `[[deliver]]` ask for.

    Args:
        tables: Each with `webhook` (an address, or `env:NAME` for one in an environment variable) and, if wanted, `format`;
            or with `command`, a list of words.
        where: What contains the tables, for errors.

    Raises:
        DataError: A table is not valid.
    """
    return [_delivery(table, f"[[deliver]] number {number} of {where}") for number, table in enumerate(tables, 1)]


def _delivery(table: Mapping[str, Any], where: str) -> Delivery:
    if unknown := sorted(set(table) - set(_KEYS)):
        raise DataError(f"{where} has an unknown key `{unknown[0]}`. Its keys: {', '.join(_KEYS)}.")
    if ("webhook" in table) == ("command" in table):
        raise DataError(f"{where} needs either `webhook` or `command`.")
    if "command" in table:
        words = table["command"]
        if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
            raise DataError(
                f'{where}: `command` must be a list of words, such as ["mail", "-s", "{{rule}}", "me@example.org"].'
            )
        return Command(words=tuple(words))
    return webhook_at(table["webhook"], where, table.get("format"))


def webhook_at(given: object, where: str, form: object = None) -> Webhook:
    """Return a webhook.

    Args:
        given: Its address, or `env:NAME`.
        where: What contains the address, for errors, which do not show it.
        form: `slack`, `discord` or `json`; None decides by the host.

    Raises:
        DataError: The address or the format is not valid, or the variable is not set.
    """
    url = str(given)
    if url.startswith(_ENVIRONMENT):
        name = url.removeprefix(_ENVIRONMENT)
        url = os.environ.get(name, "")
        if not url:
            raise DataError(
                f"{where}: the environment variable {name} is not set. It must contain the address of the webhook."
            )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DataError(f"{where}: a webhook must be an http or https address, or env:NAME for one in a variable.")
    if form is None:
        form = _FORMAT_OF.get(parts.hostname, "json")
    if form not in _FORMATS:
        raise DataError(f"{where}: the format {form!r} is unknown. There are: {', '.join(_FORMATS)}.")
    return Webhook(url=url, form=str(form))


class AlertsFile:
    """Appends each change of state to `alerts.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ALERTS
        self.name = ALERTS

    def __call__(self, alert: Alert, run: str) -> None:
        """Append a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**alert.to_dict(), "run": run}) + "\n")


class Courier:
    """Delivers alerts in a thread, in order.

    Args:
        run: Name of the run.
        deliveries: Where alerts go.
        say: Called with one message for each delivery that fails.

    Attributes:
        lost: Number of deliveries that failed.
    """

    def __init__(self, run: str, deliveries: Sequence[Delivery], say: Callable[[str], None]) -> None:
        self._run, self._deliveries, self._say = run, deliveries, say
        self._waiting: deque[Alert] = deque(maxlen=_MOST_WAITING)
        self._changed = threading.Condition()
        self._ends = False
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None
        self.lost = 0

    def put(self, alert: Alert) -> None:
        """Queue an alert. Does not wait."""
        with self._changed:
            self._waiting.append(alert)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hasten-alerts", daemon=True)
            self._thread.start()

    def close(self, seconds: float = TIMEOUT_S) -> None:
        """Deliver what waits, for some seconds at most."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._ends)
                if not self._waiting:
                    return
                alert = self._waiting.popleft()
            for delivery in self._deliveries:
                self._try(delivery, alert)

    def _try(self, delivery: Delivery, alert: Alert) -> None:
        began = monotonic()
        try:
            delivery(alert, self._run)
        except Exception as error:  # noqa: BLE001 - a delivery may fail in any way, and the training goes on
            self.lost += 1
            if delivery.name not in self._told:
                self._told.add(delivery.name)
                why = f"no answer for {monotonic() - began:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else error
                self._say(f"alerts do not reach {delivery.name}: {why}. The training goes on.")


def read_alerts(folder: Path) -> list[Alert]:
    """Return the alerts of a run's folder, in order. Lines that cannot be read are passed over."""
    path = folder / ALERTS
    if not path.is_file():
        return []
    alerts = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
            line.pop("kind")
            line.pop("run", None)
            alerts.append(Alert(**line))
        except (ValueError, KeyError, TypeError, AttributeError):  # a line that a killed run or a full disk cut short
            continue
    return alerts
