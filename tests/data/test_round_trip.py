"""What the usual library of a format writes comes back equal, or is refused.

`test_csv.py` and `test_exact_values.py` have the same tests for CSV and JSON.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from PIL import Image

from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.convert.job import convert
from hasten.data.convert.readers.sound import Sound
from hasten.data.pictures import decode
from hasten.recipes.detection.labels.read import read_labels
from hasten.recipes.findings import Findings
from hasten.recipes.ocr.regions import read_regions
from tests.data.reading import read
from tests.data.test_chunks import litdata_item, u32, write_litdata, write_mds

Factory = pytest.TempPathFactory
EXAMPLES = settings(max_examples=20, deadline=None)


def stored(source: Path, folder: Path, **chosen: Any) -> list[dict[str, Any]] | None:
    """Return the rows of the store that a source becomes, or None if it is refused."""
    try:
        made = convert(source, folder / "store", processes=1, **chosen)
    except DataError:
        return None
    store = Store(folder / "store")
    assert len(store) == made.num_records
    assert made.num_bad == 0
    return store.__getitems__(range(len(store)))


def exact(value: Any) -> str:
    """Return a text that is equal for equal values of equal types, NaN included."""
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(st.characters(codec="utf-8"))),
    "large": (pa.large_string(), st.text(st.characters(codec="utf-8"))),
    "binary": (pa.binary(), st.binary(max_size=20)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),  # noqa: DTZ001  without a zone
    "decimal": (pa.decimal128(20, 3), st.decimals(-(10**12), 10**12, places=3)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.string()}),
        st.fixed_dictionaries({"a": st.integers(-5, 5), "b": st.none()}),
    ),
    "map": (pa.map_(pa.string(), pa.int8()), st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 9)), max_size=2)),
    "null": (pa.null(), st.none()),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a table of a few columns with any names and types."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4))
    rows = draw(st.integers(0, 6))
    columns = []
    for _ in names:
        kind, values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
        column = pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        is_encoded = pa.types.is_string(kind) and draw(st.booleans())
        columns.append(column.dictionary_encode() if is_encoded else column)
    return pa.table(columns, names=names)


def write_parquet(folder: Path, table: pa.Table) -> None:
    pa.parquet.write_table(table, folder / "a.parquet", row_group_size=4)


def write_arrow(folder: Path, table: pa.Table) -> None:
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
@EXAMPLES
@given(table=tables())
def test_tables(tmp_path_factory: Factory, write: Callable[[Path, pa.Table], None], table: pa.Table) -> None:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "in").mkdir()
    write(folder / "in", table)
    rows = stored(folder / "in", folder)
    if rows is None:
        assert len(set(table.column_names)) < table.num_columns or not table.num_rows
    else:
        assert exact(rows) == exact(table.to_pylist())


ARRAYS = st_numpy.arrays(
    st_numpy.boolean_dtypes()
    | st_numpy.integer_dtypes(endianness="?")
    | st_numpy.unsigned_integer_dtypes(endianness="?")
    | st_numpy.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
)


@EXAMPLES
@given(array=ARRAYS, is_packed=st.booleans(), is_fortran=st.booleans())
def test_arrays(tmp_path_factory: Factory, array: Any, is_packed: bool, is_fortran: bool) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    array = np.asfortranarray(array) if is_fortran else array
    if is_packed:
        np.savez(folder / "a.npz", x=array, y=np.arange(len(array)))
    else:
        np.save(folder / "a.npy", array)
    rows = stored(folder / ("a.npz" if is_packed else "a.npy"), folder)
    if rows is None:
        assert 0 in array.shape or (is_packed and is_fortran)
        return
    assert [exact(row["x" if is_packed else "data"]) for row in rows] == [exact(row) for row in array]
    if is_packed:
        assert [row["y"] for row in rows] == list(range(len(array)))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@EXAMPLES
@given(
    samples=st.lists(
        st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1), st.binary(min_size=1, max_size=20)), min_size=1, max_size=8
    )
)
def test_samples_of_tar_files(tmp_path_factory: Factory, samples: list[tuple[str, int, bytes]]) -> None:
    folder = tmp_path_factory.mktemp("tar")
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, (text, label, data) in enumerate(samples):
            for ending, content in (("txt", text.encode()), ("cls", str(label).encode()), ("bin", data)):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    want = [{"__key__": str(n), "txt": t, "cls": label, "bin": data} for n, (t, label, data) in enumerate(samples)]
    assert stored(folder / "a.tar", folder) == want


FIELDS = st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20), st.floats())


@pytest.mark.parametrize("library", ["mds", "litdata"])
@EXAMPLES
@given(samples=st.lists(FIELDS, min_size=1, max_size=6))
def test_samples_of_chunks(tmp_path_factory: Factory, library: str, samples: list[tuple[str, int, bytes, float]]) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    names = ["blob", "class", "score", "text"]
    if library == "mds":
        parts = [(data, struct.pack("<qd", label, score), text.encode()) for text, label, data, score in samples]
        items = [u32(len(data), len(text)) + data + numbers + text for data, numbers, text in parts]
        kinds: dict[str, Any] = {"column_encodings": ["bytes", "int", "float64", "str"], "column_sizes": [None, 8, 8, None]}
        write_mds(folder / "in", [items], column_names=names, **kinds)
    else:
        items = [
            litdata_item(data, struct.pack("<q", label), struct.pack("<d", score), text.encode())
            for text, label, data, score in samples
        ]
        write_litdata(folder / "in", ["bytes", "int", "float", "str"], names, [items])
    want = [{"blob": data, "class": label, "score": score, "text": text} for text, label, data, score in samples]
    assert exact(stored(folder / "in", folder)) == exact(want)


PIXELS = st_numpy.arrays(
    np.uint8,
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4])),
    elements=st.integers(0, 255),
    fill=st.nothing(),
)


@settings(max_examples=60, deadline=None)
@given(pixels=PIXELS, kind=st.sampled_from(["PNG", "TIFF", "WEBP", "BMP", "GIF"]))
def test_pixels(pixels: Any, kind: str) -> None:
    channels = pixels.shape[2]
    if kind == "GIF":
        pixels = pixels[..., :1]  # others would be quantized
    elif kind == "BMP" and channels == 4:
        pixels = pixels[..., :3]
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(
        file, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})
    )
    colours = pixels[..., :3].astype(float)
    alpha = pixels[..., 3:] / 255 if pixels.shape[2] == 4 else 1.0
    want = np.broadcast_to(colours * alpha + 255 * (1 - alpha), (*pixels.shape[:2], 3))
    assert np.abs(decode(file.getvalue()) - want).max() <= 0.5 + 1e-6


SUBTYPES = {"PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32, "FLOAT": 24, "DOUBLE": 53}


ODD = ("AIFF", "PCM_U8")
"""libsndfile itself reads a sample too much if their number is odd."""


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(["WAV", "WAVEX", "RF64", "AIFF", "FLAC"]),
    rate=st.integers(1, 600_000),
    channels=st.integers(1, 8),
)
def test_sound(tmp_path_factory: Factory, data: st.DataObject, kind: str, rate: int, channels: int) -> None:
    subtype = data.draw(
        st.sampled_from([name for name in SUBTYPES if soundfile.check_format(kind, name) and (kind, name) != ODD])
    )
    if kind == "FLAC" and rate > 65_535:
        rate -= rate % 10  # libFLAC writes no others
    frames = data.draw(st.integers(1, 50))
    bits = SUBTYPES[subtype]
    integers = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    samples = data.draw(st_numpy.arrays(np.float64, (frames, channels), elements=integers.map(float))) / 2 ** (bits - 1)
    folder = tmp_path_factory.mktemp("sound")
    soundfile.write(folder / "a.wav", samples, rate, format=kind, subtype=subtype)
    _, rows, bad = read(Sound, folder)
    assert not bad
    (row,) = rows
    assert (row["rate"], row["channels"]) == (rate, channels)
    scale = 2**15 if bits <= 16 else 1  # up to 16 bits are stored as int16
    np.testing.assert_array_equal(np.array(row["samples"]).reshape(frames, channels) / scale, samples)


@st.composite
def boxes(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Draw boxes that differ, in an image of 64 x 48 pixels: left, top, right, bottom."""
    one = st.tuples(st.integers(0, 60), st.integers(0, 44), st.integers(2, 4), st.integers(2, 4))
    drawn = draw(st.lists(one, min_size=1, max_size=4, unique=True))
    return [(left, top, left + wide, top + high) for left, top, wide, high in drawn]


def image_folder(folder: Path) -> tuple[Path, Path]:
    """Return folders with an image of 64 x 48 pixels, and for its labels."""
    for name in ("img", "lab"):
        (folder / name).mkdir()
    Image.new("RGB", (64, 48)).save(folder / "img" / "p.png")
    return folder / "img", folder / "lab"


@pytest.mark.parametrize("kind", ["yolo", "voc", "coco"])
@EXAMPLES
@given(drawn=boxes(), name=st.text("ab é<&", min_size=1, max_size=5).map(str.strip).filter(bool))
def test_boxes(tmp_path_factory: Factory, kind: str, drawn: list[tuple[int, int, int, int]], name: str) -> None:
    images, labels = image_folder(tmp_path_factory.mktemp("boxes"))
    if kind == "yolo":
        lines = [f"0 {(x1 + x2) / 128} {(y1 + y2) / 96} {(x2 - x1) / 64} {(y2 - y1) / 48}\n" for x1, y1, x2, y2 in drawn]
        (labels / "p.txt").write_text("".join(lines))
        (labels / "classes.txt").write_text(name, encoding="utf-8")
    elif kind == "voc":
        root = ET.Element("annotation")
        for corners in drawn:
            one = ET.SubElement(root, "object")
            ET.SubElement(one, "name").text = name
            box = ET.SubElement(one, "bndbox")
            for part, value in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True):
                ET.SubElement(box, part).text = str(value)
        ET.ElementTree(root).write(labels / "p.xml", encoding="utf-8")
    else:
        annotations = [
            {"id": n, "image_id": 7, "category_id": 3, "bbox": [x1, y1, x2 - x1, y2 - y1]}
            for n, (x1, y1, x2, y2) in enumerate(drawn)
        ]
        listed = [{"id": 7, "file_name": "p.png", "width": 64, "height": 48}]
        content = {"images": listed, "annotations": annotations, "categories": [{"id": 3, "name": name}]}
        (labels / "a.json").write_text(json.dumps(content))
    findings = Findings()
    found = read_labels(images, labels, findings, max_bad_frac=1.0)
    assert (found.classes, len(findings)) == ((name,), 0)
    np.testing.assert_allclose(found.items[0].boxes, drawn, rtol=0, atol=1e-4)


@EXAMPLES
@given(drawn=boxes(), text=st.text("ab1 é,\"'-", max_size=6))
def test_outlines(tmp_path_factory: Factory, drawn: list[tuple[int, int, int, int]], text: str) -> None:
    images, labels = image_folder(tmp_path_factory.mktemp("outlines"))
    quads = [(x1, y1, x2, y1, x2, y2, x1, y2) for x1, y1, x2, y2 in drawn]
    lines = "".join(f"{','.join(map(str, quad))},x{text}\n" for quad in quads)
    (labels / "gt_p.txt").write_text(lines, encoding="utf-8")
    findings = Findings()
    (item,) = read_regions(images, labels, findings)
    outlines = np.split(item.regions.points, item.regions.offsets[1:-1])
    read_back = [tuple(outline.reshape(-1).astype(int).tolist()) for outline in outlines]
    assert len(read_back) + len(findings) == len(quads)
    assert set(read_back) <= set(quads)
