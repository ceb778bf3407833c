"""A store behind a URL as a source of files."""

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
    """A store behind a URL that fsspec knows.

    Args:
        url: Of the store.
        options: For the file system, as fsspec takes them.
        cache_dir: Where parts of it are kept; None takes `$HASTEN_CACHE_DIR/blocks` or `~/.cache/hasten/blocks`.
        cache_bytes: That all parts kept there may take.
        patience: How long to wait for answers.
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
        """The text of a manifest, fetched anew: a store may have grown."""
        name = MANIFEST if version is None else version_path(version)
        try:
            return self._remote.read(name).decode("utf-8")
        except FileNotFoundError as error:
            raise DataError(
                f"{self._remote.url} is no store{'' if version is None else f' with a version {version}'}: it has no "
                f"{name}. "
                f"Convert one to a folder, and copy the folder there."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self._remote.url}/{name} is no manifest: {error}.") from error

    def open(self, file: ShardFile) -> Mapped:
        """A file of the store; its parts come as they are needed."""
        return self._cache.open(self._remote, file)

    @property
    def where(self) -> str:
        """The URL."""
        return self._remote.url

    @property
    def is_remote(self) -> bool:
        """Yes: reading ahead pays."""
        return True


def default_folder() -> Path:
    """Where parts of remote stores are kept unless told otherwise."""
    root = os.environ.get(FOLDER_VARIABLE)
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "hasten") / "blocks"
