"""Folders that LitData's `optimize` wrote, read by LitData itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from upshift.core.errors import MachineError
from upshift.data.convert.numbered import Numbered, index_of


class LitData(Numbered):
    """A LitData folder."""

    name: ClassVar[str] = "litdata"
    words: ClassVar[str] = "a folder written by LitData's optimize (index.json with chunks)"
    needs: ClassVar[str] = "litdata"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its index."""
        return "chunks" in index_of(path)

    @classmethod
    def count(cls, path: Path) -> int:
        """Samples of all chunks."""
        return sum(int(chunk["chunk_size"]) for chunk in index_of(path)["chunks"])

    @classmethod
    def open(cls, path: str) -> Any:
        """The dataset."""
        try:
            from litdata import StreamingDataset  # noqa: PLC0415  only where it is installed
        except ImportError as error:
            raise MachineError("this folder needs LitData to be read: pip install litdata.") from error
        return StreamingDataset(path)
