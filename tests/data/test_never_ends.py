"""One record or file never ends a conversion: it is quarantined with its reason, and the others are converted."""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import wave
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from hasten.core.errors import DataError, MachineError
from hasten.data import Store
from hasten.data.convert import contract, job, json_text, typing
from hasten.data.convert.contract import Bad, Choices, Unit
from hasten.data.convert.job import Result, convert
from hasten.data.convert.listing import listed
from hasten.data.convert.processes import in_processes
from hasten.data.convert.readers import images, jsonl
from hasten.data.convert.readers.jsonl import Jsonl
from hasten.data.convert.readers.parquet import Parquet
from hasten.data.convert.reasons import in_words, reason_of, tallied
from hasten.data.convert.unit import convert_unit
from hasten.data.pictures import check


def png(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path, "PNG")


def wav(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8_000)
        file.writeframes(bytes(200))


def bomb() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"x": range(100)}), path)


def lines(path: Path) -> None:
    path.write_text('{"x": 1}\n' * 100)


def table(path: Path) -> None:
    path.write_text("x,y\n" + "1,2\n" * 100)


def array(path: Path) -> None:
    np.save(path, np.arange(100))


def arrays(path: Path) -> None:
    np.savez(path, x=np.arange(100), y=np.zeros((100, 2)))


def records(path: Path) -> None:
    path.write_text(json.dumps([{"x": 1}] * 100))


def objects(path: Path) -> None:
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)


WRITERS: dict[str, Callable[[Path], None]] = {
    ".parquet": parquet, ".jsonl": lines, ".csv": table, ".npy": array, ".npz": arrays, ".json": records, ".png": png,
    ".wav": wav,
}  # fmt: skip
ONE_AND_A_HALF = b'[{"x": 1}, {"x"'
HUGE_HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1000000000000), }\n"


def among_good_files(folder: Path, ending: str, data: bytes | Callable[[Path], None]) -> Result:
    """Convert five good files and a bad one between them."""
    (folder / "in").mkdir()
    for name in "abdef":
        WRITERS[ending](folder / "in" / f"{name}{ending}")
    bad = folder / "in" / f"c{ending}"
    data(bad) if callable(data) else bad.write_bytes(data)
    return convert(folder / "in", folder / "s", processes=1)


@pytest.mark.parametrize(
    ("ending", "data", "reason"),
    [
        (".parquet", b"", "is not a Parquet file"),
        (".parquet", b"PAR1", "is not a Parquet file"),
        (".parquet", b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1", "is not a Parquet file"),
        (".csv", b"", "contains no records"),
        (".csv", "x,y\n1,é\n".encode("latin-1"), "is not UTF-8"),
        (".csv", b'x,y\n1,"open\n', "quote that opens in line 2"),
        (".jsonl", "{}".encode("utf-16-le") * 40, "looks like UTF-16"),
        (".json", b"", "is not one array"),
        (".json", ONE_AND_A_HALF, "last record does not end"),
        (".json", b"[" * 100_000, "last record does not end"),
        (".npy", b"", "is not a NumPy array"),
        (".npy", b"\x93NUMPY\x01\x00\xff\xff{", "is not a NumPy array"),
        (".npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(HUGE_HEADER)) + HUGE_HEADER, "is not a NumPy array"),
        (".npy", objects, "is not a NumPy array of plain numbers"),
        (".npz", b"PK\x03\x04" + bytes(100), "is not a NumPy archive"),
        (".png", b"", "the file is empty"),
        (".png", b"text", "cannot be decoded"),
        (".png", bomb(), "decompression bomb|too large|pixels"),
        (".wav", b"", "cannot be decoded|empty"),
        (".wav", b"RIFF" + bytes(60), "."),
    ],
)  # fmt: skip
def test_a_bad_file_among_good_ones(tmp_path: Path, ending: str, data: bytes | Callable[[Path], None], reason: str) -> None:
    made = among_good_files(tmp_path, ending, data)
    before = 1 if data == ONE_AND_A_HALF else 0
    assert made.num_records == 5 * (1 if ending in {".png", ".wav"} else 100) + before
    assert made.num_bad == 1
    assert made.quarantine is not None
    entry = json.loads(made.quarantine.read_text())
    assert re.search(reason, entry["reason"])
    assert Path(entry["source"]).name == f"c{ending}"
    assert list(made.reasons.values()) == [1]


@pytest.mark.parametrize("ending", list(WRITERS))
def test_what_is_not_a_readable_file_is_quarantined(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        WRITERS[ending](folder / f"{number}{ending}")
    os.mkfifo(folder / f"pipe{ending}")
    (folder / f"dead{ending}").symlink_to("/nowhere")
    (folder / f"folder{ending}").mkdir()
    made = convert(folder, tmp_path / "s", processes=1, max_bad_frac=1.0)
    assert made.num_records == 5 * (1 if ending in {".png", ".wav"} else 100)
    assert sorted(made.reasons) == [
        "a folder that contains no data",
        "a link to nothing",
        "not a regular file but a pipe, a socket or a device",
    ]


def test_what_is_skipped_is_counted(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "a/._0.png", "__MACOSX/a/0.png", ".git/x.png", "shared/2.png"):
        png(tmp_path / "in" / name)
    for name in (".DS_Store", "Thumbs.db", "README", "notes.txt", "a/labels.TXT"):
        (tmp_path / "in" / name).write_bytes(b"x")
    (tmp_path / "in" / "a" / "loop").symlink_to("..")
    (tmp_path / "in" / "b").symlink_to(tmp_path / "in" / "shared")
    made = convert(tmp_path / "in", tmp_path / "s", processes=1)
    store = Store(tmp_path / "s")
    assert [row["path"] for row in store.__getitems__(range(len(store)))] == [
        "a/0.png",
        "a/1.png",
        "b/2.png",
        "shared/2.png",
    ]
    assert sorted(made.remarks) == [
        "skipped files with the ending .txt: 2",
        "skipped files without an ending: 1",
        "skipped hidden or system files and folders: 5",
        "skipped links to a folder that contains them: 1",
    ]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    for number in range(3):
        png(tmp_path / "in" / f"{number}.png")
    png(tmp_path / "in" / "\udcff.png")
    made = convert(tmp_path / "in", tmp_path / "s", processes=1)
    assert (made.num_records, dict(made.reasons)) == (3, {"its name is not UTF-8": 1})
    lines(tmp_path / "\udcff.jsonl")
    assert convert(tmp_path / "\udcff.jsonl", tmp_path / "t", processes=1).num_records == 100


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file")])
def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    for name in "abc":
        lines(tmp_path / f"{name}.jsonl")
        png(tmp_path / f"{name}.png")
    whole = Path.open

    def refuse(self: Path, *given: Any, **named: Any) -> Any:
        if self.stem == "b" and self.parent == tmp_path:
            raise error
        return whole(self, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)
    for kind in ("jsonl", "images"):
        made = convert(tmp_path, tmp_path / kind, format=kind, processes=1)
        assert dict(made.reasons) == {error.strerror: 1}


@pytest.mark.parametrize(
    "error",
    [RecursionError(), MemoryError(), OverflowError("secret"), KeyError("secret"), RuntimeError("secret")],
)
def test_whatever_a_record_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    for name in "abc":
        png(tmp_path / "in" / f"{name}.png", shade=ord(name))
    bad = (tmp_path / "in" / "b.png").read_bytes()

    def fail(data: bytes) -> tuple[int, int]:
        if data == bad:
            raise error
        return check(data)

    monkeypatch.setattr(images, "check", fail)
    made = convert(tmp_path / "in", tmp_path / "s", processes=1)
    assert (made.num_records, made.num_bad) == (2, 1)
    assert "secret" not in next(iter(made.reasons))


def test_ctrl_c_and_missing_packages_end_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    png(tmp_path / "a.png")
    for error in (KeyboardInterrupt(), MachineError("images need Pillow")):
        monkeypatch.setattr(images, "check", lambda _data, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            convert(tmp_path, tmp_path / "s", format="images", processes=1)


def test_a_unit_that_fails_halfway_keeps_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        parquet(tmp_path / f"{name}.parquet")

    def fail(unit: Unit, choices: Choices) -> Iterator[pa.Table | Bad]:
        yield pa.table({"x": range(10)})
        if unit.path.endswith("b.parquet"):
            raise RuntimeError("secret")

    monkeypatch.setattr(Parquet, "read", fail)
    made = convert(tmp_path, tmp_path / "s", format="parquet", processes=1)
    assert (made.num_records, dict(made.reasons)) == (20, {"it cannot be read (RuntimeError)": 1})
    assert made.quarantine is not None
    assert json.loads(made.quarantine.read_text())["position"] == "after 10 records"


def test_a_record_that_arrow_refuses_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "_misfit", lambda *_: "")
    monkeypatch.setattr(jsonl, "_by_arrow", lambda *_: None)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 50 + '{"x": "secret"}\n' + '{"x": 2}\n' * 50)
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert (made.num_records, dict(made.reasons)) == (100, {"it cannot be read (ArrowInvalid)": 1})


def test_absurdly_long_lines_and_files_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 2_000)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 700)
    for module in (jsonl, json_text):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 1_000)
    good = '{"x": 1}\n'
    (tmp_path / "a.jsonl").write_text(good * 50 + '{"x": "' + "y" * 10_000 + '"}\n' + good * 350 + "[" * 3_000)
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert (made.num_records, dict(made.reasons)) == (400, {"longer than 1,000 bytes": 2})
    sampled = list(Jsonl.units(tmp_path / "a.jsonl", Choices()))
    assert len(sampled) > 5
    monkeypatch.setattr(contract, "MAX_FILE_BYTES", 500)
    for number in range(3):
        png(tmp_path / "in" / f"{number}.png")
    (tmp_path / "in" / "large.png").write_bytes(bytes(501))
    made = convert(tmp_path / "in", tmp_path / "t", processes=1)
    assert dict(made.reasons) == {"the file is larger than 500 bytes": 1}


def test_a_large_bad_record_is_kept_in_part(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 100 + "y" * (2**20 + 10) + "\n")
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert made.quarantine is not None
    entry = json.loads(made.quarantine.read_text())
    assert (entry["record_bytes"], len(entry["record_base64"])) == (2**20 + 11, -(-(2**20) // 3) * 4)
    assert stat.S_IMODE(made.quarantine.stat().st_mode) == 0o600


def test_one_bad_record_is_allowed_unless_none_is(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\nno\n')
    with pytest.raises(DataError, match=r"1 of 3 records are bad, more than 0.00%: invalid JSON: Expecting value"):
        convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1, max_bad_frac=0)
    assert convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1).num_bad == 1


def test_many_lost_files_are_too_many_even_if_others_have_many_records(tmp_path: Path) -> None:
    for name in "abc":
        pyarrow.parquet.write_table(pa.table({"x": range(10_000)}), tmp_path / f"{name}.parquet")
    for name in "de":
        (tmp_path / f"{name}.parquet").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"2 of 5 parts of the source are bad, more than 1.00%: 2 x the file is not a Parquet"
    ):
        convert(tmp_path, tmp_path / "s", format="parquet", processes=1)


def test_nothing_usable_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.npy").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read: 2 x the file is not a NumPy array of plain numbers"):
        convert(tmp_path, tmp_path / "s", processes=1)
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.png").write_bytes(b"text")
    with pytest.raises(DataError, match="nothing can be used: 2 x the image cannot be decoded"):
        convert(tmp_path / "in", tmp_path / "s", processes=1, max_bad_frac=1.0)


def test_a_record_of_very_many_keys(tmp_path: Path) -> None:
    wide = json.dumps({f"k{number}": number for number in range(20_000)})
    good = '{"x": {"a": 1}}\n'
    (tmp_path / "a.jsonl").write_text(good * 50 + wide + "\n" + f'{{"x": {wide}}}\n' + good * 250)
    made = convert(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert dict(made.reasons) == {"more than 10,000 keys": 1, "field 'x' is not of type struct<a: int64>": 1}
    (tmp_path / "b.jsonl").write_text("".join(f'{{"x": {{"k{number}": 1}}}}\n' for number in range(2_000)))
    assert convert(tmp_path / "b.jsonl", tmp_path / "t", processes=1).num_records == 2_000


def kills_its_process(task: int) -> int:
    if task == 3:
        os.abort()
    return task


@pytest.mark.slow
def test_a_task_that_kills_its_process_is_given_up_alone() -> None:
    made = in_processes(kills_its_process, range(8), 2, killed=lambda task: -task)
    assert sorted(made) == [-3, 0, 1, 2, 4, 5, 6, 7]


def threads_of_torch(_: int) -> int:
    return torch.get_num_threads()


@pytest.mark.slow
def test_processes_share_the_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        assert set(in_processes(threads_of_torch, range(3), 2, killed=int)) == {3}
    finally:
        torch.set_num_threads(before)


def test_a_unit_that_kills_its_process_is_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_one_that_dies(_work: Any, tasks: Any, _count: int, *, killed: Callable[[Any], Any]) -> Iterator[Any]:
        return (killed(task) if task.number == 1 else convert_unit(task) for task in tasks)

    monkeypatch.setattr(job, "in_processes", of_one_that_dies)
    for name in "abc":
        parquet(tmp_path / f"{name}.parquet")
    made = convert(tmp_path, tmp_path / "s", format="parquet", processes=2)
    assert (made.num_records, dict(made.reasons)) == (200, {"reading it kills the process": 1})


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("mds", {"index.json": '{"shards": 5}'}),
        ("mds", {"index.json": '{"shards": [{}]}'}),
        ("mds", {}),
        ("litdata", {"index.json": '{"chunks": null}'}),
        ("litdata", {"index.json": '{"chunks": [], "config": 7}'}),
        ("litdata", {}),
        ("huggingface", {"state.json": '{"_data_files": [{"filename": 5}]}'}),
        ("huggingface", {"state.json": "[1]"}),
    ],
)
def test_a_damaged_index_is_refused_in_words(tmp_path: Path, kind: str, files: dict[str, str]) -> None:
    lines(tmp_path / "a.jsonl")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(
        DataError, match=f"no valid index of the format {kind}|MDS version|does not exist|not written by save_to_disk"
    ):
        convert(tmp_path if files else tmp_path / "a.jsonl", tmp_path / "s", format=kind, processes=1)


def test_decoded_images_of_two_sizes_are_refused_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(130):
        side = 8 if number < 100 else 9
        Image.new("RGB", (side, side)).save(tmp_path / f"{number:03d}.png")
    for num_files, words in ((512, "the images have different sizes"), (100, "rows of different types or shapes")):
        monkeypatch.setattr(images.Images, "unit_files", num_files)
        with pytest.raises(DataError, match=words):
            convert(tmp_path, tmp_path / f"s{num_files}", format="images", pixels="decoded", processes=1)


def test_a_pipe_as_the_source_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for chosen in (None, "jsonl"):
        with pytest.raises(DataError, match="is neither a file nor a folder"):
            convert(tmp_path / "a.jsonl", tmp_path / "s", format=chosen)


def test_an_unreadable_folder_is_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/0.png", "b/1.png"):
        png(tmp_path / name)
    whole = os.listdir

    def refuse(path: Path) -> list[str]:
        if path.name == "b":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(os, "listdir", refuse)
    found = listed(tmp_path, (".png",))
    assert found.files == [tmp_path / "a/0.png"]
    assert found.problems == [(tmp_path / "b", "the folder cannot be listed: Permission denied")]


def test_reasons_that_differ_in_numbers_are_counted_together() -> None:
    one = [("bad byte 7 in 'a2' of int64", 1), ("empty", 2), ("bad byte 12 in 'a2' of int64", 3)]
    assert tallied(one) == {"bad byte N in 'a2' of int64": 4, "empty": 2}
    assert tallied([*tallied(one).items(), ("bad byte 9 in 'a2' of int64", 1)]) == {
        "bad byte N in 'a2' of int64": 5,
        "empty": 2,
    }
    assert in_words(tallied(one), shown=1) == "4 x bad byte N in 'a2' of int64; 2 x other reasons"
    assert tallied([("at 5", 2)]) == {"at 5": 2}
    assert len(tallied((f"reason {'x' * n}", 1) for n in range(2_000))) == 1_001


def test_reasons_hold_no_content() -> None:
    assert reason_of(pa.ArrowInvalid("CSV parse error: secret")) == "it cannot be read (ArrowInvalid)"
    assert reason_of(UnicodeDecodeError("utf-8", b"secret", 0, 1, "invalid")) == "invalid UTF-8"
