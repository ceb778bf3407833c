"""Save the plots of a page as SVG and PNG, by an installed Chromium or Chrome.

Plotly draws in a browser only, and its own exporter for Python starts Chrome too. Here the page's script exports the
plots, so no other package is needed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import unquote_to_bytes

from hasten.core.errors import HastenError, MachineError
from hasten.core.files import write_atomically

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
TIMEOUT_S = 120.0
_IMAGES = re.compile(r'<script type="application/json" id="images">(.*?)</script>', re.DOTALL)
_UNSAFE = re.compile(r"[^\w.-]")


def save_plots(page: str, folder: Path) -> list[Path]:
    """Write each plot of a page as SVG and PNG into a folder, and return the files.

    Args:
        page: The page, as text.
        folder: The folder, which is made if it does not exist.

    Raises:
        MachineError: No browser is installed, it failed, or the files cannot be written.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise MachineError(
            "--plots needs Chromium or Chrome on PATH, because plots are drawn by a browser. Install one "
            "(apt-get install chromium), or save plots from the page: each has buttons SVG and PNG."
        )
    with tempfile.TemporaryDirectory(prefix="hasten-plots-") as place:
        path = Path(place, "page.html")
        path.write_text(page, encoding="utf-8")
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--virtual-time-budget=60000", "--dump-dom", f"--user-data-dir={place}/profile",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), f"{path.as_uri()}#images",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            raise MachineError(f"{browser} could not draw the plots: {error}. Save them from the page instead.") from error
    images = _IMAGES.search(done.stdout)
    if images is None:
        raise HastenError(f"{browser} drew no plots: the page has none, or took over {TIMEOUT_S:.0f} s.")
    return [_save(folder, name, form, url) for name, form, url in json.loads(images[1])]


def _save(folder: Path, name: str, form: str, url: str) -> Path:
    head, _, body = url.partition(",")
    path = folder / f"{_UNSAFE.sub('_', name)}.{form}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, base64.b64decode(body) if head.endswith("base64") else unquote_to_bytes(body))
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another folder with --plots.") from error
    return path
