"""Fetch bytes from a remote store with timeouts, retries and backoff, and fail clearly if it stays unavailable."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from hasten.core.errors import DataError, GoneError, MachineError

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Set how long to wait for a remote store.

    Attributes:
        answer_s: Timeout of one request in seconds; the request is then repeated.
        gone_s: Number of seconds that the store may be unavailable before reading fails.
    """

    answer_s: float = 30.0
    gone_s: float = 120.0


class Remote:
    """Read files in a folder behind a URL that fsspec supports.

    Args:
        url: URL of the store: `s3://bucket/store`, `gs://...`, `http://host/store`, ...
        options: Options for fsspec's file system (`endpoint_url`, `anon`, ...).
        patience: How long to wait.
    """

    def __init__(self, url: str, options: dict[str, Any], patience: Patience) -> None:
        self.url, self._options, self._patience = url.rstrip("/"), options, patience
        self._system: Any = None
        self._root = ""
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self._options, "patience": self._patience}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["options"], state["patience"])  # type: ignore[misc]

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file of the store: all, or those from `start` to `end` (exclusive).

        Raises:
            FileNotFoundError: The file does not exist.
            GoneError: The store did not respond within the time limit.
        """
        began = time.monotonic()
        pause, tries = _FIRST_PAUSE_S, 0
        while True:
            tries += 1
            try:
                return _cut(self._once(path, start, end), start, end)
            except (FileNotFoundError, DataError):
                raise
            except Exception as error:  # each file system raises its own errors
                waited = time.monotonic() - began
                if waited + pause > self._patience.gone_s:
                    raise GoneError(
                        f"{self.url} does not respond: {tries} tries in {waited:.0f} s, the last one failed with "
                        f"{type(error).__name__}. Check that the store is reachable and the credentials are valid. Fetched "
                        f"data is cached, and the run can be resumed."
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _once(self, path: str, start: int | None, end: int | None) -> bytes:
        """Send one request in a separate thread, which is abandoned if it hangs."""
        system = self._opened()
        future: Future[bytes] = Future()

        def ask() -> None:
            try:
                future.set_result(system.cat_file(f"{self._root}/{path}", start=start, end=end))
            except BaseException as error:  # noqa: BLE001  raised in the waiting thread
                future.set_exception(error)

        # A daemon thread, so that a hanging request does not keep the process from exiting.
        threading.Thread(target=ask, name="hasten-remote", daemon=True).start()
        try:
            return future.result(self._patience.answer_s)
        except FutureTimeoutError as error:
            with self._guard:
                self._system = None  # its connections may be hanging
            raise TimeoutError(f"no response within {self._patience.answer_s:.0f} s") from error

    def _opened(self) -> Any:
        with self._guard:
            if self._system is None:
                self._system, self._root = open_url(self.url, self._options)
            return self._system


def _cut(data: bytes, start: int | None, end: int | None) -> bytes:
    """Return the requested bytes.

    Raises:
        OSError: The response is shorter than requested.
    """
    if start is None or end is None or len(data) == end - start:
        return data
    if len(data) >= end:  # a server without range support sends the whole file
        return data[start:end]
    raise OSError(f"received {len(data)} bytes instead of {end - start}")


def open_url(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
        DataError: It is not a URL that fsspec can read.
        MachineError: A package is missing.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415  of the extra `remote`
    except ImportError as error:
        raise MachineError("fsspec is missing: pip install 'hasten[remote]'.") from error
    try:
        system, root = url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        raise MachineError(f"{url.partition(':')[0]} needs a package that is not installed: {error}.") from error
    except ValueError as error:
        raise DataError(f"{url} is not a URL that can be read: {error}.") from error
    return system, str(root).rstrip("/")
