"""Cache values in a Redis server shared between machines, and locally while the server is unavailable.

A cache must never stop a training run. If the server fails, every read counts as a miss, one warning is shown, and values
are stored in this process until the server is tried again. Keys cover everything a value depends on, so values that the
server stored before the failure are still valid.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hasten.core.errors import DataError, MachineError
from hasten.data.cache.contract import Cache
from hasten.data.cache.memory import MemoryCache

Out = TypeVar("Out")
_RETRY_S = 5.0
"""Seconds before an unavailable server is tried again."""
_SCANNED = 1000
"""Number of keys per request when all keys are listed."""


class RedisCache(Cache):
    """Cache values in a Redis server.

    Args:
        url: `redis://[user:password@]host[:port][/database]`, `rediss://` with TLS, or `unix://path`.
        prefix: Prefix of the keys. Caches with different prefixes do not see each other's values.
        expire_s: Seconds until a value expires; None leaves that to the server's own policy (`maxmemory-policy`).
        timeout_s: Seconds to wait for a response.
        local_bytes: Maximum size of the values stored in this process while the server is unavailable.

    Raises:
        MachineError: The package redis is not installed.
        DataError: The URL is not valid.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        prefix: str = "hasten:",
        expire_s: int | None = None,
        timeout_s: float = 2.0,
        local_bytes: int = 2**28,
    ) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {
            "url": url,
            "prefix": prefix,
            "expire_s": expire_s,
            "timeout_s": timeout_s,
            "local_bytes": local_bytes,
        }
        self._prefix, self._expire = prefix, expire_s
        self._client, self._errors = _connect(url, timeout_s)
        self._where = _without_password(url)
        self._local = MemoryCache(local_bytes)
        self._away_until = 0.0
        self._warned = False
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return self._settings

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def is_away(self) -> bool:
        """Return True if the server failed recently and values are stored locally."""
        return time.monotonic() < self._away_until

    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """Read the values of several keys in one request."""
        if not keys:
            return []
        values = self._ask(lambda client: client.mget([self._prefix + key for key in keys]))
        if values is None:
            return self._local.read(keys)
        if len(self._local):  # stored while the server was unavailable
            values = [local if value is None else value for value, local in zip(values, self._local.read(keys), strict=True)]
        return list(values)

    def write(self, values: Mapping[str, bytes]) -> int:
        """Store values in one request."""

        def send(client: Any) -> int:
            with client.pipeline(transaction=False) as pipeline:
                for key, value in values.items():
                    pipeline.set(self._prefix + key, value, ex=self._expire)
                return sum(bool(answer) for answer in pipeline.execute())

        stored = self._ask(send)
        return self._local.write(values) if stored is None else stored

    def __len__(self) -> int:
        count = self._ask(lambda client: sum(1 for _ in client.scan_iter(f"{_escaped(self._prefix)}*", count=_SCANNED)))
        return len(self._local) if count is None else count

    @property
    def num_bytes(self) -> int:
        """Return the memory that this cache's values use in the server, in bytes, including keys and bookkeeping."""

        def measure(client: Any) -> int:
            with client.pipeline(transaction=False) as pipeline:
                for key in client.scan_iter(f"{_escaped(self._prefix)}*", count=_SCANNED):
                    pipeline.memory_usage(key)
                return sum(size or 0 for size in pipeline.execute())

        size = self._ask(measure)
        return self._local.num_bytes if size is None else size

    def clear(self) -> None:
        """Remove all values under the prefix. Other keys of the server are not touched."""

        def remove(client: Any) -> int:
            keys = list(client.scan_iter(f"{_escaped(self._prefix)}*", count=_SCANNED))
            for start in range(0, len(keys), _SCANNED):
                client.unlink(*keys[start : start + _SCANNED])
            return len(keys)

        self._local.clear()
        self._ask(remove)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, question: Callable[[Any], Out]) -> Out | None:
        """Send a request; return None while the server is unavailable."""
        if self.is_away:
            return None
        try:
            answer = question(self._client)
        except self._errors as error:
            with self._guard:
                self._away_until = time.monotonic() + _RETRY_S
                first, self._warned = not self._warned, True
            if first:
                warnings.warn(
                    f"Redis at {self._where} does not respond ({type(error).__name__}): values are cached in this process, "
                    f"and the server is tried again every {_RETRY_S:.0f} s.",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return None
        return answer


def _connect(url: str, timeout_s: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a client that connects on first use, and the exceptions it raises if the server fails."""
    try:
        import redis  # noqa: PLC0415  of the extra `redis`
    except ImportError as error:
        raise MachineError("RedisCache needs the package redis: pip install 'hasten[redis]'.") from error
    try:
        client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    except ValueError as error:
        raise DataError(f"{_without_password(url)!r} is not the URL of a Redis server: use redis://host:port/0.") from error
    return client, (redis.RedisError, OSError)


def _without_password(url: str) -> str:
    """Return the URL without its password, for messages and logs."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _escaped(prefix: str) -> str:
    """Return a Redis pattern that matches the prefix literally."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)
