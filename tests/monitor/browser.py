"""Drive a real browser by its DevTools protocol."""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from tests.report.browser import chromium

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]


class Tab:
    """A page of the browser.

    Attributes:
        errors: What scripts raised, and what could not be loaded.
    """

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0
        self.errors: list[str] = []
        for area in ("Runtime", "Log", "Page"):
            self._call(f"{area}.enable")

    def open(self, address: str, *, width: int = 1280, height: int = 900) -> None:
        """Go to an address."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """Return the value of an expression."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return answer.get("result", {}).get("value")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            for kind in ("keyDown", "keyUp"):
                self._call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def wait(self, script: str, seconds: float = 30.0) -> Any:
        """Wait until an expression is true, and return its value."""
        until = monotonic() + seconds
        while not (value := self.value(script)):
            assert monotonic() < until, f"{script} is still {value!r}; errors: {self.errors}"
            sleep(0.05)
        return value

    def _call(self, method: str, **given: Any) -> Any:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": given}))
        while True:
            told = json.loads(self._socket.recv(60))
            if told.get("method") == "Runtime.exceptionThrown" or (
                told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error"
            ):
                self.errors.append(json.dumps(told["params"])[:500])
            if told.get("id") == self._number:
                return told.get("result", told)


@contextmanager
def open_browser() -> Iterator[Tab]:
    """Start the browser, and yield its only tab."""
    client = pytest.importorskip("websockets.sync.client")
    with tempfile.TemporaryDirectory(prefix="hasten-browser-", ignore_cleanup_errors=True) as profile:
        command = [chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                line = next(line for line in process.stderr if "DevTools listening on" in line)
                place = line.split("ws://")[1].split("/")[0]
                with urllib.request.urlopen(f"http://{place}/json") as answer:
                    tabs = json.load(answer)
                address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                with client.connect(address, max_size=None) as socket:
                    yield Tab(socket)
            finally:
                process.kill()
                process.stderr.close()  # type: ignore[union-attr]
