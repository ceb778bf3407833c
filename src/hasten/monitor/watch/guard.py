"""Let only reads through to the dashboard, only with the token, and only from this machine."""

from __future__ import annotations

import secrets
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

VIEW = "hasten"
"""Folder of our view below the dashboard's root."""
_COOKIE = "hasten_watch"
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_READS = ("get_", "filter_")
"""What the names of Trackio's reading functions begin with."""


class Guard:
    """Lets a request through only with the token, to this host, and only if it reads.

    Args:
        app: What is behind it.
        token: The token. The first address has it; after that a cookie has.
        dashboard: Folder of the dashboard's files. It answers unknown paths with its first page, so they are refused here.
    """

    def __init__(self, app: ASGIApp, token: str, dashboard: Path) -> None:
        self._app, self._token, self._root = app, token, dashboard.resolve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "http":
            await self._answer(Request(scope))(scope, receive, send)

    def _answer(self, request: Request) -> ASGIApp:
        if request.headers.get("host", "").rsplit(":", 1)[0] not in _HOSTS:  # a page elsewhere whose name leads here
            return PlainTextResponse("This page is served to this machine only.", 403)
        if self._is_token(request.query_params.get("token", "")):
            first = RedirectResponse(request.url.path, 303)
            first.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
            return first
        if not self._is_token(request.cookies.get(_COOKIE, "")):
            return PlainTextResponse("The address needs its token: use the one that `hasten watch` printed.", 403)
        if not self._exists(request.method, request.url.path):
            return PlainTextResponse("There is nothing at this address.", 404)
        return self._app

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
