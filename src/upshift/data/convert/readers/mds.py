"""Folders of MDS shards, read by MosaicML Streaming itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from upshift.core.errors import MachineError
from upshift.data.convert.numbered import Numbered, index_of


class Mds(Numbered):
    """A folder of MDS shards."""

    name: ClassVar[str] = "mds"
    words: ClassVar[str] = "a folder of MDS shards by MosaicML Streaming (index.json with shards)"
    needs: ClassVar[str] = "streaming"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its index."""
        return "shards" in index_of(path)

    @classmethod
    def count(cls, path: Path) -> int:
        """Samples of all shards."""
        return sum(int(shard["samples"]) for shard in index_of(path)["shards"])

    @classmethod
    def open(cls, path: str) -> Any:
        """The dataset. MDS may hold pickles, which could run anything: its reader refuses them unless told otherwise."""
        try:
            from streaming import StreamingDataset  # noqa: PLC0415  only where it is installed
        except ImportError as error:
            raise MachineError("this folder needs MosaicML Streaming to be read: pip install mosaicml-streaming.") from error
        return StreamingDataset(local=path, shuffle=False, allow_unsafe_types=False)
