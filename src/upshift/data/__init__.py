"""Datasets larger than memory, at the speed of memory, resumable to the sample."""

from upshift.data.remote.fetch import Patience
from upshift.data.remote.source import Url
from upshift.data.store.store import Store
from upshift.data.store.write import ShardWriter, StoreWriter, publish_written
from upshift.data.stream.batch import Batch
from upshift.data.stream.decoded import DecodeImages
from upshift.data.stream.mixed import MixedStream
from upshift.data.stream.packed import PackedStream
from upshift.data.stream.stream import Stream

__all__ = [
    "Batch",
    "DecodeImages",
    "MixedStream",
    "PackedStream",
    "Patience",
    "ShardWriter",
    "Store",
    "StoreWriter",
    "Stream",
    "Url",
    "publish_written",
]
