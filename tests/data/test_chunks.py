"""MDS and LitData folders, written by hand in the format of the libraries, return every kind of value unchanged.

The writers here follow `MDSWriter.encode_joint_shard` (mosaicml-streaming, streaming/base/format/mds/writer.py) and
`BinaryWriter._create_chunk` (LitData, src/litdata/streaming/writer.py). If a library is installed, a folder written by it is
read as well.
"""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.convert.choose import all_readers, reader_for
from hasten.data.convert.job import convert


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def chunk(samples: Sequence[bytes], config: bytes = b"") -> bytes:
    """Build a chunk: a count, the start of each sample, a part that readers skip, and the samples."""
    head = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = np.cumsum([head, *map(len, samples)])
    return u32(len(samples), *offsets.tolist()) + config + b"".join(samples)


def mds_sample(fields: Sequence[bytes], sizes: Sequence[int | None]) -> bytes:
    told = [len(field) for field, size in zip(fields, sizes, strict=True) if size is None]
    return u32(*told) + b"".join(fields)


MDS = {
    "array": "ndarray",
    "blob": "bytes",
    "class": "int",
    "deep": "json",
    "fixed": "ndarray:int16:2,3",
    "half": "float16",
    "photo": "jpeg",
    "score": "float64",
    "small": "uint8",
    "text": "str",
    "typed": "ndarray:float32",
    "wide": "str_int",
}
SIZES: dict[str, int] = {"class": 8, "fixed": 12, "half": 2, "score": 8, "small": 1}


def mds_values(number: int) -> dict[str, Any]:
    return {
        "array": np.arange(number + 1, dtype=np.uint16),
        "blob": bytes([number, 0, 255]),
        "class": -number,
        "deep": {"a": [number]},
        "fixed": np.arange(6, dtype=np.int16).reshape(2, 3) + number,
        "half": number / 2,
        "photo": b"\xff\xd8" + bytes([number]),
        "score": number / 3,
        "small": number,
        "text": f"é{number}",
        "typed": np.full((2, number + 1), number / 4, np.float32),
        "wide": 10**12 + number,
    }


def mds_fields(values: dict[str, Any]) -> list[bytes]:
    """Encode each column. An array without a fixed type or shape stores both before its numbers."""
    array, typed = values["array"], values["typed"]
    return [
        bytes([16, (1 << 2) | 0, len(array)]) + array.tobytes(),
        values["blob"],
        struct.pack("<q", values["class"]),
        json.dumps(values["deep"]).encode(),
        values["fixed"].tobytes(),
        np.float16(values["half"]).tobytes(),
        values["photo"],
        struct.pack("<d", values["score"]),
        bytes([values["small"]]),
        values["text"].encode(),
        bytes([(2 << 2) | 0, *typed.shape]) + typed.tobytes(),
        str(values["wide"]).encode(),
    ]


def write_mds(folder: Path, shards: Sequence[Sequence[bytes]], compression: str | None = None, **changes: Any) -> None:
    folder.mkdir()
    listed = []
    for number, samples in enumerate(shards):
        data = chunk(samples, b'{"format": "mds"}')
        name = f"shard.{number:05d}.mds"
        packed = None
        if compression is None:
            (folder / name).write_bytes(data)
        else:
            squeeze: dict[str, Callable[[bytes], bytes]] = {
                "gz": gzip.compress,
                "bz2": bz2.compress,
                "zstd:3": lambda raw: bytes(pa.compress(raw, "zstd", asbytes=True)),
            }
            file = f"{name}.{compression.partition(':')[0]}"
            (folder / file).write_bytes(squeeze[compression](data))
            packed = {"basename": file, "bytes": (folder / file).stat().st_size, "hashes": {}}
        listed.append(
            {
                "column_encodings": list(MDS.values()),
                "column_names": list(MDS),
                "column_sizes": [SIZES.get(name) for name in MDS],
                "compression": compression,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
                "samples": len(samples),
                "size_limit": 2**26,
                "version": 2,
                "zip_data": packed,
                **changes,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))


def mds_samples(numbers: Sequence[int]) -> list[bytes]:
    sizes = [SIZES.get(name) for name in MDS]
    return [mds_sample(mds_fields(mds_values(number)), sizes) for number in numbers]


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def rows_of(path: Path) -> list[dict[str, Any]]:
    store = Store(path)
    return store.__getitems__(range(len(store)))


@pytest.mark.parametrize("compression", [None, "gz", "bz2", "zstd:3"])
def test_mds_shards_come_back_value_by_value(tmp_path: Path, compression: str | None) -> None:
    write_mds(tmp_path / "mds", [mds_samples(range(5)), mds_samples(range(5, 7))], compression)
    assert reader_for(tmp_path / "mds").name == "mds"
    convert(tmp_path / "mds", tmp_path / "s", processes=1)
    assert rows_of(tmp_path / "s") == [plain(mds_values(number)) for number in range(7)]
    types = {part.name: part.type for part in Store(tmp_path / "s").manifest.schema}
    assert (types["array"], types["typed"]) == (pa.list_(pa.uint16()), pa.list_(pa.list_(pa.float32())))


def test_a_damaged_sample_is_quarantined_and_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    samples = mds_samples(range(30))
    at = samples[3].index("é3".encode())
    samples[3] = samples[3][:at] + b"\xff" + samples[3][at + 1 :]
    write_mds(tmp_path / "mds", [samples])
    made = convert(tmp_path / "mds", tmp_path / "s", max_bad_frac=0.1)
    assert (made.num_records, made.num_bad) == (29, 1)
    assert made.quarantine is not None
    told = json.loads(made.quarantine.read_text())
    assert (told["position"], told["reason"]) == (
        "sample 3",
        "field 9: UnicodeDecodeError: its bytes do not match its type",
    )
    whole = (tmp_path / "mds" / "shard.00000.mds").read_bytes()
    (tmp_path / "mds" / "shard.00000.mds").write_bytes(whole[:-5])
    with pytest.raises(DataError, match="is truncated or is not a chunk file: copy or download it again"):
        convert(tmp_path / "mds", tmp_path / "t")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "of format 'mds', version 1: only MDS version 2 is supported"),
        ({"column_encodings": ["pkl", *list(MDS.values())[1:]]}, "'pkl', which is not supported: pickles can run any code"),
        ({"column_encodings": ["pil", *list(MDS.values())[1:]]}, "'pil', which is not supported. Write the dataset"),
        ({"raw_data": {"basename": "../other", "bytes": 1}}, "the file is listed in index.json but does not exist"),
    ],
)
def test_shards_that_cannot_be_read_are_refused(tmp_path: Path, changes: dict[str, Any], words: Any) -> None:
    (tmp_path / "other").write_bytes(b"")
    write_mds(tmp_path / "mds", [mds_samples(range(3))], **changes)
    with pytest.raises(DataError, match=words):
        convert(tmp_path / "mds", tmp_path / "s", processes=1)


LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def write_litdata(folder: Path, formats: list[str], names: list[str] | None, chunks: Sequence[Sequence[bytes]]) -> None:
    folder.mkdir()
    tree: dict[str, Any] = LEAF
    if names is not None:
        tree = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [LEAF] * len(names)}
    listed = []
    for number, items in enumerate(chunks):
        (folder / f"chunk-0-{number}.bin").write_bytes(chunk(items))
        size = sum(map(len, items))
        listed.append({"chunk_bytes": size, "chunk_size": len(items), "dim": None, "filename": f"chunk-0-{number}.bin"})
    config = {"compression": None, "chunk_size": None, "chunk_bytes": 2**26, "data_format": formats}
    spec = json.dumps([1, tree])
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": {**config, "data_spec": spec}}))


def litdata_item(*leaves: bytes) -> bytes:
    return u32(*map(len, leaves)) + b"".join(leaves)


@pytest.mark.parametrize("order", ["<", ">"])  # byte order of a tensor's header: newer versions use big-endian
def test_litdata_chunks_come_back_value_by_value(tmp_path: Path, order: str) -> None:
    def item(number: int) -> bytes:
        matrix = np.arange(4, dtype=np.float32).reshape(2, 2) + number
        return litdata_item(
            f"é{number}".encode(),
            struct.pack("<q", -number),
            struct.pack("<d", number / 3),
            bytes([number % 2]),
            b"\xff\xd8" + bytes([number]),
            struct.pack(f"{order}4I", 0, 2, 2, 2) + matrix.tobytes(),  # a tensor: type, number of dimensions, shape
            u32(4, 2, 1, 3) + bytes([number, 1, 2]),  # an array
            np.arange(number, dtype=np.int32).tobytes(),  # a tensor of one dimension has no header
        )

    names = ["text", "class", "score", "on", "photo", "matrix", "array", "tokens"]
    formats = ["str", "int", "float", "bool", "jpeg", "tensor", "numpy", "no_header_tensor:15"]
    write_litdata(tmp_path / "lit", formats, names, [[item(n) for n in range(3)], [item(n) for n in range(3, 5)]])
    assert reader_for(tmp_path / "lit").name == "litdata"
    convert(tmp_path / "lit", tmp_path / "s", processes=1)
    assert rows_of(tmp_path / "s") == [
        {
            "text": f"é{n}",
            "class": -n,
            "score": n / 3,
            "on": bool(n % 2),
            "photo": b"\xff\xd8" + bytes([n]),
            "matrix": [[n, n + 1.0], [n + 2.0, n + 3.0]],
            "array": [[n, 1, 2]],
            "tokens": list(range(n)),
        }
        for n in range(5)
    ]


def test_litdata_items_that_are_not_dictionaries(tmp_path: Path) -> None:
    write_litdata(tmp_path / "text", ["str"], None, [[litdata_item(b"one"), litdata_item(b"two")]])
    convert(tmp_path / "text", tmp_path / "s")
    assert rows_of(tmp_path / "s") == [{"data": "one"}, {"data": "two"}]
    tokens = [np.arange(3, dtype=np.uint16), np.arange(5, dtype=np.uint16)]
    write_litdata(tmp_path / "tokens", ["no_header_tensor:20"], None, [[row.tobytes() for row in tokens]])
    convert(tmp_path / "tokens", tmp_path / "t")
    assert rows_of(tmp_path / "t") == [{"data": row.tolist()} for row in tokens]


@pytest.mark.parametrize(
    ("formats", "names", "words"),
    [
        (["pickle"], None, "'pickle', which is not supported: pickles can run any code"),
        (["no_header_tensor:4"], None, "'no_header_tensor:4', which is not supported"),
        (["str"], ["a", "b"], "lists 2 fields but contains 1"),
    ],
)
def test_litdata_folders_that_cannot_be_read_are_refused(
    tmp_path: Path, formats: list[str], names: list[str] | None, words: Any
) -> None:
    write_litdata(tmp_path / "lit", formats, names, [[litdata_item(b"x")]])
    with pytest.raises(DataError, match=words):
        convert(tmp_path / "lit", tmp_path / "s", processes=1)


def test_chunks_are_read_without_their_libraries() -> None:
    assert {all_readers()[name].needs for name in ("mds", "litdata")} == {""}


SAMPLES = [{"text": f"é{n}", "class": n, "score": n / 3, "tokens": np.arange(n + 1, dtype=np.int32)} for n in range(20)]


@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_streaming_wrote(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming needs torchvision, which no extra brings")
    columns = {"text": "str", "class": "int", "score": "float64", "tokens": "ndarray:int32"}
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns=columns, size_limit=400) as out:
        for sample in SAMPLES:
            out.write(sample)
    convert(tmp_path / "mds", tmp_path / "s", processes=1)
    assert rows_of(tmp_path / "s") == [dict(sorted(plain(sample).items())) for sample in SAMPLES]


@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_litdata_wrote(tmp_path: Path) -> None:
    pytest.importorskip("litdata", reason="litdata is of the extra bench-data")
    from litdata.streaming.writer import BinaryWriter

    (tmp_path / "lit").mkdir()
    writer = BinaryWriter(str(tmp_path / "lit"), chunk_size=7)
    for number, sample in enumerate(SAMPLES):
        writer[number] = {**sample, "matrix": torch.full((2, 2), number, dtype=torch.int64)}
    writer.done()
    writer.merge(1)
    convert(tmp_path / "lit", tmp_path / "s", processes=1)
    assert rows_of(tmp_path / "s") == [{**plain(s), "matrix": [[n, n], [n, n]]} for n, s in enumerate(SAMPLES)]
