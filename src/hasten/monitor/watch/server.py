"""Serve Trackio's dashboard and our view on the loopback, behind a token, read-only."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs

from hasten.core.errors import HastenError, MachineError
from hasten.monitor.watch.runs import Watch

if TYPE_CHECKING:
    from hasten.monitor.watch.feed import Feed

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

VIEW = "hasten"
"""Folder of our view below the dashboard's root."""
_COOKIE = "hasten_watch"
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_READS = ("get_", "filter_")
"""What the names of Trackio's reading functions begin with."""
_EVERY_S = 2.0
"""Seconds between two looks at the runs."""


class Guard:
    """Lets a request through only with the token, to this host, and only if it reads.

    Args:
        app: What is behind it.
        token: The token. The first address has it; after that a cookie has.
        dashboard: Folder of the dashboard's files. It answers unknown paths with its first page, so they are refused here.
    """

    def __init__(self, app: App, token: str, dashboard: Path) -> None:
        self._app, self._token, self._root = app, token, dashboard.resolve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            return
        head = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if head.get("host", "").rsplit(":", 1)[0] not in _HOSTS:  # a page elsewhere whose name leads here
            await _answer(send, 403, "This page is served to this machine only.")
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and self._is_token(given):
            target = scope["path"].encode("latin-1", "replace")
            cookie = f"{_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/".encode()
            await _answer(send, 303, "", [(b"location", target), (b"set-cookie", cookie)])
            return
        if not self._is_token(_cookie(head.get("cookie", ""))):
            await _answer(send, 403, "The address needs its token: use the one that `hasten watch` printed.")
            return
        if not self._exists(scope["method"], scope["path"]):
            await _answer(send, 404, "There is nothing at this address.")
            return
        await self._app(scope, receive, send)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())

    def _exists(self, method: str, path: str) -> bool:
        if path.startswith("/api/"):
            return method == "POST" and path.removeprefix("/api/").startswith(_READS)
        if method not in ("GET", "HEAD"):
            return False
        if path in ("/", "/version", "/file") or path.startswith((f"/{VIEW}/", "/static/trackio/", "/__trackio/")):
            return True  # `/file` serves Trackio's own pictures: it checks their folder
        file = (self._root / path.lstrip("/")).resolve()
        return file.is_relative_to(self._root) and file.is_file()


def _cookie(text: str) -> str:
    try:
        morsel = SimpleCookie(text).get(_COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


async def _answer(send: Send, status: int, text: str, head: list[tuple[bytes, bytes]] | None = None) -> None:
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": plain + (head or [])})
    await send({"type": "http.response.body", "body": text.encode()})


@contextmanager
def serve(watch: Watch, *, port: int = 0) -> Iterator[str]:
    """Serve the runs until the context is left. Yields the address, with its token.

    Args:
        watch: The runs.
        port: The port; 0 takes a free one.

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
        except ImportError as error:
            raise MachineError(
                "`hasten watch` needs Trackio: pip install 'hasten[watch]'. Without it, use `hasten watch --text`."
            ) from error
        _make_view(folder / VIEW)
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


def _make_view(folder: Path) -> None:
    """Copy our page, and Plotly from its package."""
    page = resources.files("hasten.monitor.watch").joinpath("page")
    with resources.as_file(page) as files:
        shutil.copytree(files, folder)
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
