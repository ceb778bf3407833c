"""Read datasets larger than memory at memory speed, and resume at any sample."""

from hasten.data.remote.fetch import Patience
from hasten.data.remote.source import Url
from hasten.data.store.store import Store
from hasten.data.store.write import ShardWriter, StoreWriter, publish_written
from hasten.data.stream.batch import Batch
from hasten.data.stream.decoded import DecodeImages
from hasten.data.stream.mixed import MixedStream
from hasten.data.stream.packed import PackedStream
from hasten.data.stream.stream import Stream

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
