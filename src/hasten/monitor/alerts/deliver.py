"""Deliver alerts: to `alerts.jsonl` in the run's folder, webhooks (Slack, Discord, JSON) and commands such as mail.

Each delivery has a queue and a thread. One that fails or hangs is reported once; it never slows or ends the training.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from hasten.core.errors import DataError
from hasten.monitor.alerts.engine import Alert
from hasten.monitor.sink import QueuedSink

ALERTS = "alerts.jsonl"
TIMEOUT_S = 10.0
"""Seconds that one delivery may take."""
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
        request = urllib.request.Request(self.url, json.dumps(body).encode(), head)  # noqa: S310 - checked by `webhook_at`
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
        try:
            ended = subprocess.run(command, input=text, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            raise DataError(f"no answer for {TIMEOUT_S:.0f} s") from None
        if ended.returncode:
            raise DataError(f"it ended with exit status {ended.returncode}: {ended.stderr.strip()[:200]}")


@dataclass(frozen=True, kw_only=True)
class AlertsFile:
    """Appends each change of state to `alerts.jsonl` in a folder."""

    folder: Path
    name: str = ALERTS

    def __call__(self, alert: Alert, run: str) -> None:
        """Append a line."""
        with (self.folder / ALERTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**alert.to_dict(), "run": run}) + "\n")


def deliveries_of(tables: Sequence[Mapping[str, Any]], where: str) -> list[Delivery]:
    """Return the deliveries that tables `[[deliver]]` ask for; `where` contains the tables, for errors.

    Raises:
        DataError: A table is not valid.
    """
    return [_delivery(table, f"[[deliver]] number {number} of {where}") for number, table in enumerate(tables, 1)]


def _delivery(table: Mapping[str, Any], where: str) -> Delivery:
    if unknown := sorted(set(table) - set(_KEYS)):
        raise DataError(f"{where} has an unknown key `{unknown[0]}`. Its keys: {', '.join(_KEYS)}.")
    if ("webhook" in table) == ("command" in table):
        raise DataError(f"{where} needs either `webhook` or `command`.")
    if "webhook" in table:
        return webhook_at(table["webhook"], where, table.get("format"))
    words = table["command"]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise DataError(f'{where}: `command` must be a list of words, such as ["mail", "-s", "{{rule}}", "me@example.org"].')
    return Command(words=tuple(words))


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


@dataclass(frozen=True, kw_only=True)
class _Sink:
    """A delivery as a sink of alerts."""

    delivery: Delivery
    run: str

    def write(self, alert: Alert) -> None:
        self.delivery(alert, self.run)

    def close(self) -> None:
        """Do nothing: a delivery holds nothing open."""


def queued(delivery: Delivery, run: str, say: Callable[[str], None]) -> QueuedSink:
    """Return a queue that delivers alerts of a run in order. `say` is called with one message if it fails."""
    sink = _Sink(delivery=delivery, run=run)
    return QueuedSink("alerts", lambda: sink, say, loses=f"alerts do not reach {delivery.name}")


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
