"""Provide the files of a store behind a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError
from hasten.data.remote.blocks import BlockCache
from hasten.data.remote.fetch import Patience, Remote
from hasten.data.store.layout import MANIFEST, ShardFile
from hasten.data.store.mapping import Mapped, Source, version_path

FOLDER_VARIABLE = "HASTEN_CACHE_DIR"
CACHE_BYTES = 16 * 2**30


class Url(Source):
    """Provide the files of a store behind a URL that fsspec supports.

    Args:
        url: URL of the store.
        options: Options for fsspec's file system.
        cache_dir: Folder for cached parts; None uses `$HASTEN_CACHE_DIR/blocks` or `~/.cache/hasten/blocks`.
        cache_bytes: Maximum total size of the cached parts.
        patience: How long to wait for responses.
    """

    def __init__(
        self,
        url: str,
        *,
        options: dict[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        patience: Patience | None = None,
    ) -> None:
        self._remote = Remote(url, options or {}, patience or Patience())
        self._cache = BlockCache(Path(cache_dir) if cache_dir is not None else default_folder(), cache_bytes)

    def manifest(self, version: int | None) -> str:
        """Return the content of a manifest. It is always fetched, because the store may have grown."""
        name = MANIFEST if version is None else version_path(version)
        try:
            return self._remote.read(name).decode("utf-8")
        except FileNotFoundError as error:
            raise DataError(
                f"{self._remote.url} is not a store{'' if version is None else f' with a version {version}'}: it has no "
                f"{name}. Convert the source to a local folder, and copy that folder to the URL."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self._remote.url}/{name} is not a manifest: {error}.") from error

    def open(self, file: ShardFile) -> Mapped:
        """Map a file of the store. Its parts are fetched when they are needed."""
        return self._cache.open(self._remote, file)

    @property
    def where(self) -> str:
        """Return the URL."""
        return self._remote.url

    @property
    def is_remote(self) -> bool:
        """Return True: reading ahead pays off."""
        return True


def default_folder() -> Path:
    """Return the default folder for cached parts of remote stores."""
    root = os.environ.get(FOLDER_VARIABLE)
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "hasten") / "blocks"
