"""Conversions give the same rows in all circumstances: interruptions, bad records, several processes."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.convert import job
from hasten.data.convert.choose import all_readers, reader_for
from hasten.data.convert.job import convert
from hasten.data.convert.readers import json_array, jsonl
from hasten.data.convert.tokenizing import Tokenizing
from hasten.data.store.publish import clean
from hasten.data.store.verify import verify


def all_rows(path: Path) -> list[dict[str, Any]]:
    store = Store(path)
    return store.__getitems__(range(len(store)))


def write_jsonl(path: Path, count: int) -> list[dict[str, object]]:
    records = [{"id": n, "text": f"text {n} é", "tags": ["a"] * (n % 3), "score": n / 2} for n in range(count)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return records


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 3_001)
    records = write_jsonl(tmp_path / "a.jsonl", 500)
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=processes)
    assert (made.num_records, made.num_bad, made.quarantine) == (500, 0, None)
    assert all_rows(tmp_path / "s") == records
    assert len(Store(tmp_path / "s").manifest.shards) > 5
    assert verify(Store(tmp_path / "s")) == []
    assert Store(tmp_path / "s").manifest.provenance["records"] == 500


def test_a_file_without_a_last_newline_and_with_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n  \n{"a": 2}', encoding="utf-8")
    convert(tmp_path / "a.jsonl", tmp_path / "s")
    assert all_rows(tmp_path / "s") == [{"a": 1}, {"a": 2}]


def test_bad_records_are_quarantined_and_no_message_shows_their_content(tmp_path: Path) -> None:
    records = write_jsonl(tmp_path / "a.jsonl", 500)
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    lines[100:100] = [b'{"id": 7, "text": "SECRET\n', b'["SECRET"]\n', b'{"id": "SECRET", "text": "x"}\n']
    lines.append(b'{"text": "\xff SECRET"}\n')
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    made = convert(tmp_path / "a.jsonl", tmp_path / "s")
    assert (made.num_records, made.num_bad) == (500, 4)
    assert all_rows(tmp_path / "s") == records
    assert made.quarantine is not None
    entries = [json.loads(line) for line in made.quarantine.read_text().splitlines()]
    assert [entry["reason"].split(" at ")[0].split(":")[0] for entry in entries] == [
        "invalid JSON",
        "not a record {...} but a list",
        "field 'id' is not of type int64",
        "invalid UTF-8",
    ]
    assert entries[0]["position"] == f"byte {sum(map(len, lines[:100]))}"
    assert base64.b64decode(entries[1]["record_base64"]) == b'["SECRET"]\n'
    assert stat.S_IMODE(made.quarantine.stat().st_mode) == 0o600


def test_a_field_that_only_late_records_have_is_not_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_INFERRED_RECORDS", 10)
    records = [{"id": n} for n in range(200)]
    text = "".join(json.dumps(record if n != 100 else {**record, "late": 1}) + "\n" for n, record in enumerate(records))
    (tmp_path / "a.jsonl").write_text(text)
    made = convert(tmp_path / "a.jsonl", tmp_path / "s")
    assert made.quarantine is not None
    assert "unknown field 'late': it is not in the records that the types were inferred from" in made.quarantine.read_text()
    convert(tmp_path / "a.jsonl", tmp_path / "t", columns=["id"])  # with explicit columns, the others are omitted on purpose
    assert all_rows(tmp_path / "t") == records


def test_too_many_bad_records_fail_and_publish_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", 50)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("SECRET\n" * 10)
    with pytest.raises(DataError, match=r"10 of 60 records are bad, more than 1\.00%") as error:
        convert(tmp_path / "a.jsonl", tmp_path / "s")
    assert "SECRET" not in str(error.value)
    with pytest.raises(DataError, match="is not a store"):
        Store(tmp_path / "s")
    (kept,) = (tmp_path / "s").rglob("bad.jsonl")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600  # only the owner can read them, even during the conversion
    assert convert(tmp_path / "a.jsonl", tmp_path / "s", max_bad_frac=0.2).num_bad == 10


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_an_array_of_json(tmp_path: Path, encoding: str) -> None:
    records = [{"id": n, "text": "x" * n, "deep": {"a": [n]}} for n in range(3000)]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=1), encoding=encoding)
    convert(tmp_path / "a.json", tmp_path / "s")
    assert all_rows(tmp_path / "s") == records


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}', "is not one array"),
        ('[\n{"a": 1},\n{"a": ', "last record does not end; it begins in line 3"),
        ('[{"a": 1} {"a": 2}]', "contains no records"),
        ('[{"a": 1}', "the array does not end after line 1"),
        ("[" + '{"a": 1},\n' * 20_000 + '{"secret', "last record does not end; it begins in line 20001. Fix"),
        ('[{"a": 1}]\n\nsecret', "other text follows the array in line 3"),
        ("[]", "contains no records"),
    ],
)
def test_an_invalid_array_is_refused(tmp_path: Path, text: str, words: Any) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words) as told:
        convert(tmp_path / "a.json", tmp_path / "s")
    assert "secret" not in str(told.value)


def test_comma_separated_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"two\nlines, and more"\n2,plain\n3,too,many\n4,end\n', encoding="utf-8")
    made = convert(tmp_path / "a.csv", tmp_path / "s", max_bad_frac=0.5)
    assert all_rows(tmp_path / "s") == [
        {"id": 1, "text": "two\nlines, and more"},
        {"id": 2, "text": "plain"},
        {"id": 4, "text": "end"},
    ]
    assert made.quarantine is not None
    assert json.loads(made.quarantine.read_text())["reason"] == "3 fields, but the header has 2"


def test_parquet(tmp_path: Path) -> None:
    table = pa.table({"id": range(1000), "text": [f"t{n}" for n in range(1000)], "list": [[n] for n in range(1000)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    convert(tmp_path / "a.parquet", tmp_path / "s", columns=["list", "id"])
    assert all_rows(tmp_path / "s") == table.select(["list", "id"]).to_pylist()


def test_half_a_surrogate_pair_and_a_huge_integer_in_an_array_are_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "_INFERRED_RECORDS", 2)
    bad = ['{"text": "\\ud800", "number": 1}', '{"text": "a", "number": 123456789012345678901234567890}']
    records = ['{"text": "good", "number": 1}'] * 300
    records[100:100] = bad
    (tmp_path / "a.json").write_text(f"[{','.join(records)}]", encoding="utf-8")
    made = convert(tmp_path / "a.json", tmp_path / "s")
    assert (made.num_records, made.num_bad) == (300, 2)
    assert {row["text"] for row in all_rows(tmp_path / "s")} == {"good"}


def test_arrays(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (700, 4, 5), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", x=array, y=np.arange(700))
    convert(tmp_path / "a.npy", tmp_path / "s")
    assert np.array_equal(Store(tmp_path / "s").take(np.arange(700))["data"], array)
    convert(tmp_path / "b.npz", tmp_path / "t")
    assert np.array_equal(Store(tmp_path / "t").take(np.arange(700))["x"], array)
    assert Store(tmp_path / "t").take([699])["y"].tolist() == [699]


def test_what_follows_an_array_is_not_lost_silently(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.save(file, np.arange(4))
        np.save(file, np.arange(5))
    with pytest.raises(DataError, match="contains other data after its array"):
        convert(tmp_path / "a.npy", tmp_path / "s")
    np.savez(tmp_path / "b.npz", x=np.arange(3), scale=np.array(2.0))
    with pytest.raises(DataError, match=r"its array 'scale' contains float64 with 0 dimensions.*--columns"):
        convert(tmp_path / "b.npz", tmp_path / "s")
    with zipfile.ZipFile(tmp_path / "b.npz", "a") as archive:
        archive.writestr("notes.txt", "text")
    made = convert(tmp_path / "b.npz", tmp_path / "s", columns=["x"])
    assert (made.remarks, all_rows(tmp_path / "s")[2]) == (("skipped files in archives that are not arrays: 1",), {"x": 2})
    with zipfile.ZipFile(tmp_path / "b.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(DataError, match="several arrays of the same name"):
        convert(tmp_path / "b.npz", tmp_path / "t", columns=["x"])


def test_arrays_of_a_folder_with_equally_many_rows_are_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.data.convert.readers.numpy._UNIT_BYTES", 100)
    (tmp_path / "a").mkdir()
    features = np.random.default_rng(0).random((1000, 4), np.float32)
    np.save(tmp_path / "a/X.npy", features)
    np.save(tmp_path / "a/y.npy", np.arange(1000))
    made = convert(tmp_path / "a", tmp_path / "s", processes=1)
    store = Store(tmp_path / "s")
    assert made.remarks == ("read as columns of the same rows: X.npy, y.npy",)
    assert len(store) == 1000
    assert all(
        np.array_equal(row["X"], features[row["y"]]) and row["y"] == n
        for n, row in enumerate(store.__getitems__(range(1000)))
    )
    convert(tmp_path / "a", tmp_path / "t", processes=1, columns=["y"])
    assert list(Store(tmp_path / "t")[3]) == ["y"]


def test_arrays_of_one_shape_follow_each_other_which_is_reported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("images", "masks"):
        np.save(tmp_path / f"in/{name}.npy", np.zeros((3, 4, 4), np.uint8))
    made = convert(tmp_path / "in", tmp_path / "s", processes=1)
    assert made.num_records == 6
    assert made.remarks == (
        "read one after another, as rows of one column, because their type and shape are equal: images.npy, masks.npy",
    )


@pytest.mark.parametrize("names", [("X", "y"), ("X", "a/y"), ("X", "y", "z")])
def test_arrays_that_are_no_columns_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "a").mkdir()
    arrays: dict[str, Any] = {
        "X": np.zeros((10, 4), np.float32),
        "y": np.arange(9),
        "a/y": np.arange(10),
        "z": np.arange(10),
    }
    for name in names:
        np.save(tmp_path / f"{name}.npy", arrays[name])
    with pytest.raises(DataError, match=r"X\.npy \(float32\[10, 4\]\) .*have rows of different types"):
        convert(tmp_path, tmp_path / "s")


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="is not a NumPy array of plain numbers"):
        convert(tmp_path / "a.npy", tmp_path / "s")


def jpeg_file(seed: int, size: tuple[int, int] = (64, 48)) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(out, "JPEG", quality=90)
    return out.getvalue()


def test_folders_of_images(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(20):
        path = tmp_path / "images" / f"class{number % 2}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_file(number))
    (tmp_path / "images" / "class0" / "bad.jpg").write_bytes(b"no image")
    made = convert(tmp_path / "images", tmp_path / "s", max_bad_frac=0.1)
    rows = all_rows(tmp_path / "s")
    assert (len(rows), made.num_bad) == (20, 1)
    assert rows[0]["image"] == jpeg_file(0)
    assert {(row["label"], row["height"], row["width"]) for row in rows} == {("class0", 48, 64), ("class1", 48, 64)}
    convert(tmp_path / "images", tmp_path / "t", max_bad_frac=0.1, pixels="decoded", size=(24, 32))
    images = Store(tmp_path / "t").take([0])["image"]
    want = np.asarray(Image.open(io.BytesIO(jpeg_file(0))).convert("RGB").reduce(2))
    assert np.array_equal(images[0], want)


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(jpeg_file(0))
    (tmp_path / "images" / "b.jpg").write_bytes(jpeg_file(0, (32, 32)))
    with pytest.raises(DataError, match="the images have different sizes"):
        convert(tmp_path / "images", tmp_path / "s", pixels="decoded")


def test_webdataset(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(20):
            for ending, data in (
                ("jpg", jpeg_file(number)),
                ("cls", str(number).encode()),
                ("json", json.dumps({"a": number}).encode()),
                ("txt", f"é{number}".encode()),
            ):
                member = tarfile.TarInfo(f"folder/{number:03d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    convert(tmp_path / "a.tar", tmp_path / "s")
    rows = all_rows(tmp_path / "s")
    assert rows[3] == {"__key__": "folder/003", "jpg": jpeg_file(3), "cls": 3, "json": {"a": 3}, "txt": "é3"}
    assert len(rows) == 20


def test_a_saved_dataset_of_hugging_face(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    table = pa.table({"id": range(100), "text": [f"t{n}" for n in range(100)]})
    with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    convert(folder, tmp_path / "s")
    assert all_rows(tmp_path / "s") == table.to_pylist()


@pytest.mark.parametrize("damage", [b"offsets", b"name", b"file"])
def test_a_damaged_dataset_of_hugging_face_is_refused(tmp_path: Path, damage: bytes) -> None:
    """Fuzzing found each: Arrow aborts the process for wrong offsets, and names may be no text or no file's."""
    table = pa.table({"name": ["a", "bc", "def"]})
    file = tmp_path / "in" / "data.arrow"
    file.parent.mkdir()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = file.read_bytes()
    if damage == b"offsets":
        data = data.replace(np.array([0, 1, 3, 6], np.int32).tobytes(), np.array([0, 1, 2**30, 6], np.int32).tobytes())
    elif damage == b"name":
        data = data.replace(b"name\0", b"\x84ame\0")
    assert (data != file.read_bytes()) == (damage != b"file")
    file.write_bytes(data)
    listed = "n" * 5_000 if damage == b"file" else "data.arrow"
    (tmp_path / "in" / "state.json").write_text(json.dumps({"_data_files": [{"filename": listed}]}))
    with pytest.raises(DataError):
        convert(tmp_path / "in", tmp_path / "s", processes=1)


def test_bytes_as_tokens(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", 50)
    convert(tmp_path / "a.jsonl", tmp_path / "s", tokenizing=Tokenizing(tokenizer="bytes", column="text", end=256))
    row = Store(tmp_path / "s")[3]
    assert bytes(row["tokens"][:-1]).decode() == row["text"]
    assert row["tokens"][-1] == 256
    convert(tmp_path / "a.jsonl", tmp_path / "t", tokenizing=Tokenizing(tokenizer="bytes", column="text", flat=True))
    store = Store(tmp_path / "t")
    tokens = store.take(np.arange(len(store)))["tokens"]
    assert tokens.dtype == np.uint16
    texts = bytes(np.where(tokens == 256, 10, tokens).astype(np.uint8)).decode().splitlines()
    assert texts == [f"text {n} é" for n in range(50)]


def test_messages_and_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"user": 0, ":": 1, "hello": 2, "?": 3}, unk_token="?"))  # noqa: S106  a token of text
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "hello you"}]}\n')
    convert(
        tmp_path / "a.jsonl",
        tmp_path / "s",
        tokenizing=Tokenizing(tokenizer=str(tmp_path / "tokenizer.json"), column="messages"),
    )
    assert Store(tmp_path / "s")[0]["tokens"] == [0, 1, 2, 3]


KILLED = """
import sys, time
from pathlib import Path
from typing import Any
from hasten.data.convert import unit
from hasten.data.convert.readers import jsonl
import hasten.data.convert.job as job
jsonl.UNIT_BYTES = 3001
whole = unit.convert_unit
def slow(task):
    done = whole(task)
    print(task.number, flush=True)
    time.sleep(0.2)
    return done
job.convert_unit = slow
job.convert(sys.argv[1], sys.argv[2], processes=1)
"""


@contextmanager
def slow_conversion(source: Path, store: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a conversion of small units in its own process, which prints the number of each completed unit."""
    command = [sys.executable, "-c", KILLED, str(source), str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def kill_after(process: subprocess.Popen[str], units: int) -> None:
    for _ in range(units):
        assert line_of(process)
    os.kill(process.pid, signal.SIGKILL)


def test_a_killed_conversion_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 3_001)
    records = write_jsonl(tmp_path / "a.jsonl", 500)
    with slow_conversion(tmp_path / "a.jsonl", tmp_path / "s") as process:
        kill_after(process, 4)
    with pytest.raises(DataError, match="is not a store"):
        Store(tmp_path / "s")
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert made.num_resumed >= 3
    assert all_rows(tmp_path / "s") == records
    assert not (tmp_path / "s" / "writing").exists()


KILLED_AT = """
import os, signal, sys
from pathlib import Path
import hasten.data.convert.job as job
import hasten.data.store.publish as publish
from hasten.data.convert.readers import jsonl
jsonl.UNIT_BYTES = 3001
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def patch(moment):
    if moment == "bad records written":
        job.publish_written = die
    elif moment == "shards moved":
        publish.write_atomically = die
    elif moment == "published":
        whole = job.publish_written
        job.publish_written = lambda *given, **named: (whole(*given, **named), die())
    else:
        replace, moved = Path.replace, []
        def third(self, target):
            moved.extend([target] if Path(target).parent.name == "shards" else [])
            return die() if len(moved) == 3 else replace(self, target)
        Path.replace = third
for moment in sys.argv[2:]:
    child = os.fork()
    if not child:
        patch(moment)
        job.convert(sys.argv[1] + "/a.jsonl", sys.argv[1] + "/" + moment, processes=1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
MOMENTS = ["bad records written", "some shards moved", "shards moved", "published"]


def test_bad_records_are_found_whenever_the_publisher_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 3_001)
    records = write_jsonl(tmp_path / "a.jsonl", 500)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("one\ntwo\n")
    command = [sys.executable, "-c", KILLED_AT, str(tmp_path), *MOMENTS]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert ended == [str(-signal.SIGKILL)] * len(MOMENTS)
    for moment in MOMENTS:
        store = tmp_path / moment
        assert (store / "manifest.json").exists() == (moment == "published")
        made = convert(tmp_path / "a.jsonl", store, processes=1)
        assert (made.num_bad, made.num_resumed) == (2, made.manifest.provenance["units"])
        assert made.manifest.version == 1
        assert made.quarantine == store / Store(store).manifest.provenance["quarantine"]
        assert made.quarantine is not None
        lines = [json.loads(line) for line in made.quarantine.read_text().splitlines()]
        assert [base64.b64decode(line["record_base64"]) for line in lines] == [b"one\n", b"two\n"]
        assert list((store / "quarantine").iterdir()) == [made.quarantine]
        assert not (store / "writing").exists()
        assert all_rows(store) == records
        assert verify(Store(store)) == []
        with pytest.raises(DataError, match="already is a store of 500 rows"):
            convert(tmp_path / "a.jsonl", store, processes=1)


def test_bad_records_of_an_abandoned_conversion_are_cleaned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "a.jsonl", 200)
    (tmp_path / "b.jsonl").write_text((tmp_path / "a.jsonl").read_text() + "one\n")
    kept = convert(tmp_path / "b.jsonl", tmp_path / "s", processes=1).quarantine

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(job, "publish_written", full)
    with pytest.raises(OSError, match="no space left"):
        convert(tmp_path / "b.jsonl", tmp_path / "s", mode="append", processes=1)
    assert len(list((tmp_path / "s" / "quarantine").iterdir())) == 2
    removed = clean(tmp_path / "s")
    assert [name.split("/")[0] for name in removed] == ["writing", "quarantine"]
    assert list((tmp_path / "s" / "quarantine").iterdir()) == [kept]


def test_a_source_that_changed_is_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 3_001)
    write_jsonl(tmp_path / "a.jsonl", 500)
    with slow_conversion(tmp_path / "a.jsonl", tmp_path / "s") as process:
        kill_after(process, 2)
    time.sleep(0.02)
    records = write_jsonl(tmp_path / "a.jsonl", 400)
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert made.num_resumed == 0
    assert all_rows(tmp_path / "s") == records


def test_the_same_conversion_twice_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 3_001)
    write_jsonl(tmp_path / "a.jsonl", 500)
    with slow_conversion(tmp_path / "a.jsonl", tmp_path / "s") as other:
        line_of(other)
        with pytest.raises(DataError, match="is running in another process: wait until it ends"):
            convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
        other.communicate()
    assert other.returncode == 0
    assert len(Store(tmp_path / "s")) == 500


def test_conversions_append(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", 30)
    convert(tmp_path / "a.jsonl", tmp_path / "s")
    with pytest.raises(DataError, match="already is a store of 30 rows"):
        convert(tmp_path / "a.jsonl", tmp_path / "s")
    (tmp_path / "b.jsonl").write_text('{"id": 9, "text": "b", "tags": [], "score": 1}\n')
    convert(tmp_path / "b.jsonl", tmp_path / "s", mode="append")
    assert all_rows(tmp_path / "s") == [*first, {"id": 9, "text": "b", "tags": [], "score": 1.0}]


def test_formats_are_detected_and_ambiguous_ones_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", 3)
    (tmp_path / "b.csv").write_text("a\n1\n")
    assert reader_for(tmp_path / "a.jsonl").name == "jsonl"
    with pytest.raises(DataError, match="can be read as csv, jsonl: choose one"):
        reader_for(tmp_path)
    with pytest.raises(DataError, match=r"nothing does not exist"):
        reader_for(tmp_path / "nothing")
    (tmp_path / "c.xyz").write_text("")
    with pytest.raises(DataError, match="no reader accepts"):
        reader_for(tmp_path / "c.xyz")
    with pytest.raises(DataError, match="unknown format 'xml': use one of conversations, csv, grid, huggingface"):
        convert(tmp_path / "a.jsonl", tmp_path / "s", format="xml")


def test_every_reader_says_what_it_reads() -> None:
    assert list(all_readers()) == [
        "conversations",
        "csv",
        "grid",
        "huggingface",
        "images",
        "json",
        "jsonl",
        "litdata",
        "mds",
        "numpy",
        "parquet",
        "sound",
        "webdataset",
        "zarr",
    ]
    assert all(kind.words for kind in all_readers().values())
