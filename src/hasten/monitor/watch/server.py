"""Serve Trackio's dashboard and our view on the loopback, behind a token, read-only."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.core.errors import HastenError, MachineError
from hasten.monitor.watch.runs import Watch

if TYPE_CHECKING:
    from hasten.monitor.watch.feed import Feed

_EVERY_S = 2.0
"""Seconds between two looks at the runs."""


@contextmanager
def serve(watch: Watch, *, port: int = 0, colours: str = "") -> Iterator[str]:
    """Serve the runs until the context is left. Yields the address, with its token.

    Args:
        watch: The runs.
        port: The port; 0 takes a free one.
        colours: A style sheet with the colour of each phase, as `--phase-NAME`.

    Raises:
        MachineError: Trackio is missing, or the port is in use.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-watch-") as name:
        folder = Path(name)
        os.environ["TRACKIO_DIR"] = str(folder / "data")  # read when Trackio is imported
        os.environ["TRACKIO_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            import uvicorn  # noqa: PLC0415 - of the extra `watch`, as all of these
            from starlette.applications import Starlette  # noqa: PLC0415
            from starlette.routing import Mount  # noqa: PLC0415
            from starlette.staticfiles import StaticFiles  # noqa: PLC0415
            from trackio.frontend_config import BUNDLED_FRONTEND_DIR  # noqa: PLC0415
            from trackio.server import build_starlette_app_only  # noqa: PLC0415

            from hasten.monitor.watch.feed import Feed  # noqa: PLC0415
            from hasten.monitor.watch.guard import VIEW, Guard  # noqa: PLC0415
        except ImportError as error:
            raise MachineError(
                "`hasten watch` needs Trackio: pip install 'hasten[watch]'. Without it, use `hasten watch --text`."
            ) from error
        _make_view(folder / VIEW, colours)
        feed = Feed(watch, folder / VIEW)
        feed.update()
        dashboard, _ = build_starlette_app_only(frontend_dir=str(BUNDLED_FRONTEND_DIR))
        view = StaticFiles(directory=folder / VIEW, html=True)
        app = Starlette(routes=[Mount(f"/{VIEW}", view), Mount("/", dashboard)])
        token = secrets.token_urlsafe(24)
        sock = _listen(port)
        guard = Guard(app, token, BUNDLED_FRONTEND_DIR)
        server = uvicorn.Server(uvicorn.Config(guard, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="hasten-watch", daemon=True)
        ended = threading.Event()
        feeding = threading.Thread(target=_feed, args=(feed, ended), name="hasten-watch-feed", daemon=True)
        thread.start()
        feeding.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/{VIEW}/?token={token}"
        finally:
            ended.set()
            server.should_exit = True
            feeding.join()
            thread.join()


def _feed(feed: Feed, ended: threading.Event) -> None:
    while not ended.wait(_EVERY_S):
        try:
            feed.update()
        except (HastenError, OSError):  # a folder that was removed, a full disk: the next look tries again
            continue


def _make_view(folder: Path, colours: str) -> None:
    """Copy our page, and Plotly from its package."""
    with resources.as_file(resources.files("hasten.monitor.watch").joinpath("page")) as files:
        shutil.copytree(files, folder)
    (folder / "phases.css").write_text(colours, encoding="utf-8")
    with resources.as_file(resources.files("plotly").joinpath("package_data", "plotly.min.js")) as script:
        shutil.copy2(script, folder)


def _listen(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except OSError as error:
        sock.close()
        raise MachineError(f"Port {port} cannot be used ({error.strerror}): choose another with --port.") from error
    return sock
