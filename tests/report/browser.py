"""Open a page in a real browser."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=8000",
    "--dump-dom",
]


@dataclass(frozen=True)
class Page:
    """A page after its scripts have run.

    Attributes:
        error: The error that a script raised; None if there was none.
        plots: Number of plots that its script reports as drawn.
        svgs: Number of plots in the document.
        title: The title of the page.
    """

    error: str | None
    plots: int
    svgs: int
    title: str


def chromium() -> str:
    """Return the path of the browser. Without a browser the test is skipped, or fails in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None and os.environ.get("HASTEN_CI") == "1":
        pytest.fail("chromium is not on PATH, and CI must open the page in a real browser: apt-get install chromium")
    if found is None:
        pytest.skip("chromium is not on PATH: the page is not opened in a real browser (apt-get install chromium)")
    return found


def open_page(path: Path) -> Page:
    """Open a page and run its scripts."""
    browser = chromium()
    with tempfile.TemporaryDirectory(prefix="hasten-browser-") as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    root = re.search(r"<html[^>]*>", done.stdout)
    assert root is not None
    error, plots = (re.search(rf'data-{name}="([^"]*)"', root[0]) for name in ("error", "plots"))
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    return Page(
        error=error[1] if error else None,
        plots=int(plots[1]) if plots else 0,
        svgs=len(re.findall(r'<svg class="main-svg"', done.stdout)),
        title=html.unescape(title[1]) if title else "",
    )
