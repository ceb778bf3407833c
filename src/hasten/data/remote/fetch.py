"""Ask a remote store for bytes, with patience: time limits, retries with backoff, and a clear end."""

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
    """How long to wait for a remote store.

    Attributes:
        answer_s: Seconds for one request; one that takes longer is given up and made again.
        gone_s: Seconds for which a store may be away before the stream fails.
    """

    answer_s: float = 30.0
    gone_s: float = 120.0


class Remote:
    """A folder behind a URL that fsspec knows.

    Args:
        url: Of the store: `s3://bucket/store`, `gs://...`, `http://host/store`, ...
        options: For the file system, as fsspec takes them (`endpoint_url`, `anon`, ...).
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
        """Bytes of a file of the store: all, or those from `start` to `end` (not included).

        Raises:
            FileNotFoundError: There is no such file.
            GoneError: The store did not answer within the patience there is.
        """
        began = time.monotonic()
        pause, tries = _FIRST_PAUSE_S, 0
        while True:
            tries += 1
            try:
                return _cut(self._once(path, start, end), start, end)
            except (FileNotFoundError, DataError):
                raise
            except Exception as error:  # each file system raises errors of its own for one that does not answer
                waited = time.monotonic() - began
                if waited + pause > self._patience.gone_s:
                    raise GoneError(
                        f"{self.url} does not answer: {tries} tries in {waited:.0f} s, the last ended with "
                        f"{type(error).__name__}. Look whether the store is reachable and the credentials hold; what was "
                        f"read is kept, and the run can be resumed."
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _once(self, path: str, start: int | None, end: int | None) -> bytes:
        """One request, in a thread that is left alone if it hangs."""
        system = self._opened()
        future: Future[bytes] = Future()

        def ask() -> None:
            try:
                future.set_result(system.cat_file(f"{self._root}/{path}", start=start, end=end))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                future.set_exception(error)

        # A daemon: a request that hangs must not hold the end of the process too.
        threading.Thread(target=ask, name="hasten-remote", daemon=True).start()
        try:
            return future.result(self._patience.answer_s)
        except FutureTimeoutError as error:
            with self._guard:
                self._system = None  # its connections may be the ones that hang
            raise TimeoutError(f"no answer within {self._patience.answer_s:.0f} s") from error

    def _opened(self) -> Any:
        with self._guard:
            if self._system is None:
                self._system, self._root = _open(self.url, self._options)
            return self._system


def _cut(data: bytes, start: int | None, end: int | None) -> bytes:
    """The bytes asked for.

    Raises:
        OSError: Fewer came.
    """
    if start is None or end is None or len(data) == end - start:
        return data
    if len(data) >= end:  # a server that knows no ranges sends the whole file
        return data[start:end]
    raise OSError(f"{len(data)} bytes came instead of {end - start}")


def _open(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415  of the extra `remote`
    except ImportError as error:
        raise MachineError("a store behind a URL needs fsspec: pip install 'hasten[remote]'.") from error
    try:
        system, root = url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        raise MachineError(f"{url.partition(':')[0]} needs a package that is not installed: {error}.") from error
    except ValueError as error:
        raise DataError(f"{url} is no URL that can be read: {error}.") from error
    return system, str(root).rstrip("/")
