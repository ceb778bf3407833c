"""Values in a Redis server, shared between machines; when the server goes away, values stay local until it is back.

Nothing of a cache may stop a training: every failure of the server is taken for a miss, with one warning, and values are
kept in the memory of this process meanwhile. After a while the server is tried again. Keys say all that a value depends
on, so that what a server held before it went away is right afterwards too.
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
_AGAIN_S = 5.0
"""Seconds after which a server that went away is tried again."""
_SCANNED = 1000


class RedisCache(Cache):
    """A cache in a Redis server.

    Args:
        url: `redis://[user:password@]host[:port][/database]`, `rediss://` with TLS, or `unix://path`.
        prefix: Of the keys: caches with different prefixes do not see each other.
        expire_s: Seconds after which a value is forgotten; None leaves that to the server's own limit (`maxmemory-policy`).
        timeout_s: Seconds to wait for an answer.
        local_bytes: That values may take in this process while the server is away.

    Raises:
        MachineError: The package redis is not installed.
        DataError: The URL is none.
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
        """Whether the server failed a moment ago, and values are local."""
        return time.monotonic() < self._away_until

    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """What is kept under the keys, in one request."""
        if not keys:
            return []
        found = self._ask(lambda client: client.mget([self._prefix + key for key in keys]))
        if found is None:
            return self._local.read(keys)
        if len(self._local):  # what was kept while the server was away
            found = [local if value is None else value for value, local in zip(found, self._local.read(keys), strict=True)]
        return list(found)

    def write(self, values: Mapping[str, bytes]) -> int:
        """Keep values, in one request."""

        def send(client: Any) -> int:
            with client.pipeline(transaction=False) as pipeline:
                for key, value in values.items():
                    pipeline.set(self._prefix + key, value, ex=self._expire)
                return sum(bool(answer) for answer in pipeline.execute())

        kept = self._ask(send)
        return self._local.write(values) if kept is None else kept

    def __len__(self) -> int:
        found = self._ask(lambda client: sum(1 for _ in client.scan_iter(f"{_escaped(self._prefix)}*", count=_SCANNED)))
        return len(self._local) if found is None else found

    @property
    def num_bytes(self) -> int:
        """Bytes that this cache's values take in the server, keys and bookkeeping included."""

        def measure(client: Any) -> int:
            with client.pipeline(transaction=False) as pipeline:
                for key in client.scan_iter(f"{_escaped(self._prefix)}*", count=_SCANNED):
                    pipeline.memory_usage(key)
                return sum(size or 0 for size in pipeline.execute())

        found = self._ask(measure)
        return self._local.num_bytes if found is None else found

    def clear(self) -> None:
        """Forget everything under the prefix; other keys of the server stay."""

        def remove(client: Any) -> int:
            keys = list(client.scan_iter(f"{_escaped(self._prefix)}*", count=_SCANNED))
            for at in range(0, len(keys), _SCANNED):
                client.unlink(*keys[at : at + _SCANNED])
            return len(keys)

        self._local.clear()
        self._ask(remove)

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def _ask(self, question: Callable[[Any], Out]) -> Out | None:
        """Ask the server; None while it is away."""
        if self.is_away:
            return None
        try:
            answer = question(self._client)
        except self._errors as error:
            with self._guard:
                self._away_until = time.monotonic() + _AGAIN_S
                first, self._warned = not self._warned, True
            if first:
                warnings.warn(
                    f"Redis at {self._where} does not answer ({type(error).__name__}): values stay in this process, and "
                    f"it is "
                    f"tried again every {_AGAIN_S:.0f} s.",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return None
        return answer


def _connect(url: str, timeout_s: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """A client that connects when it is first asked, and what it raises where the server fails."""
    try:
        import redis  # noqa: PLC0415  of the extra `redis`
    except ImportError as error:
        raise MachineError("RedisCache needs the package redis: pip install 'hasten[redis]'.") from error
    try:
        client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    except ValueError as error:
        raise DataError(f"{_without_password(url)!r} is no URL of a Redis server: write redis://host:port/0.") from error
    return client, (redis.RedisError, OSError)


def _without_password(url: str) -> str:
    """The URL as a log may show it."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _escaped(prefix: str) -> str:
    """The prefix as a pattern of Redis that means itself."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)
