"""Servers of stores for the tests: plain HTTP with configurable failures, and S3 by moto."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FileServer:
    """Serve a folder over HTTP.

    Attributes:
        requests: Requested paths in order, each with its range.
        fail: Number of following responses that are errors.
        stall_s: Delay of each response in seconds.
        released: When set, no response is delayed any longer.
        ranges: True if range requests are supported.
    """

    def __init__(self, folder: Path) -> None:  # noqa: C901  the handler belongs to its server
        self.requests: list[tuple[str, str]] = []
        self.fail, self.stall_s, self.ranges = 0, 0.0, True
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers.get("Range", "")))
                outer.released.wait(outer.stall_s)
                if outer.fail > 0:
                    outer.fail -= 1
                    self.send_error(503)
                    return
                self._answer(body=True)

            def _answer(self, *, body: bool) -> None:
                path = folder / self.path.lstrip("/")
                if not path.is_file():
                    self.send_error(404)
                    return
                data = path.read_bytes()
                found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if outer.ranges else None
                part = data[int(found[1]) : int(found[2]) + 1] if found else data
                self.send_response(206 if found else 200)
                self.send_header("Content-Length", str(len(part)))
                if outer.ranges:
                    self.send_header("Accept-Ranges", "bytes")
                if found:
                    self.send_header("Content-Range", f"bytes {found[1]}-{found[2]}/{len(data)}")
                self.end_headers()
                if body:
                    try:
                        self.wfile.write(part)
                    except (BrokenPipeError, ConnectionResetError):  # the client has disconnected
                        return

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Handler
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.released.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
