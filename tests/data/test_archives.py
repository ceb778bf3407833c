"""Archives: other files are skipped and counted, and samples are never joined, split or lost without a message."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.convert import tar
from hasten.data.convert.job import Result, convert

PAIRS = [(f"{number:04d}.{ending}", b"%d" % number) for number in range(20) for ending in ("bin", "cls")]


def tar_bytes(members: Iterable[Any], mode: Any = "w", form: int = tarfile.GNU_FORMAT) -> bytes:
    """Write an archive of names with bytes, and of headers alone."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            entry = tarfile.TarInfo(member[0])
            entry.size = len(member[1])
            archive.addfile(entry, io.BytesIO(member[1]))
    return out.getvalue()


def converted(folder: Path, max_bad_frac: float = 1.0, **archives: bytes) -> tuple[Result, list[dict[str, Any]]]:
    """Convert archives, named with underscores for dots."""
    (folder / "in").mkdir()
    for name, data in archives.items():
        (folder / "in" / name.replace("_", ".")).write_bytes(data)
    made = convert(folder / "in", folder / "s", processes=1, max_bad_frac=max_bad_frac)
    store = Store(folder / "s")
    return made, store.__getitems__(range(len(store)))


def rows_of(pairs: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, data in pairs:
        key, ending = name.split(".")
        rows.setdefault(key, {"__key__": key})[ending] = int(data) if ending == "cls" else data
    return list(rows.values())


def test_what_is_no_sample_is_skipped_and_counted(tmp_path: Path) -> None:
    system = (
        ".DS_Store",
        "a/._0001.bin",
        "__MACOSX/0001.bin",
        ".git/x.bin",
        "a/Thumbs.db",
        "desktop.ini",
        "__index__/a.json",
    )
    others = ("README", "a/README.md", "LICENSE.txt", "0001", "0002.")
    folder = tarfile.TarInfo("folder.bin")
    folder.type = tarfile.DIRTYPE
    made, rows = converted(tmp_path, a_tar=tar_bytes([*((name, b"x") for name in (*system, *others)), folder, *PAIRS]))
    assert rows == rows_of(PAIRS)
    assert made.remarks == (
        "skipped hidden or system files in archives: 7",
        "skipped files such as README and LICENSE in archives: 3",
        "skipped files without an ending in archives: 2",
    )


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz", "zst"])
def test_compressed_archives(tmp_path: Path, mode: str) -> None:
    data: bytes = pa.compress(tar_bytes(PAIRS), "zstd", asbytes=True) if mode == "zst" else tar_bytes(PAIRS, f"w:{mode}")
    made, rows = converted(tmp_path, 0.01, **{f"a_tar_{mode}": data})
    assert rows == rows_of(PAIRS)
    assert (made.num_bad, made.remarks) == (0, ())


def test_long_names_folders_and_upper_case(tmp_path: Path) -> None:
    names = [f"{'x' * 300}/0", "a/0", "b/0", "é/ü", "/etc/0", "../0", "./0"]
    members = [(f"{name}.{ending}", b"1") for name in names for ending in ("BIN", "Cls")]
    made, rows = converted(tmp_path, a_tar=tar_bytes(members), b_tar=tar_bytes(members, form=tarfile.PAX_FORMAT))
    assert rows == [{"__key__": name, "bin": b"1", "cls": 1} for name in names] * 2
    assert made.remarks == ("files in archives with absolute names or `..`, used as keys only: 8",)


def test_leading_zeros_of_labels_are_reported(tmp_path: Path) -> None:
    labels = (b"007", b"7", b"0", b"+01")
    made, rows = converted(tmp_path, a_tar=tar_bytes([(f"{n}.cls", label) for n, label in enumerate(labels)]))
    assert [row["cls"] for row in rows] == [7, 7, 0, 1]
    assert made.remarks == ("WARNING: numbers in cls files with leading zeros, which are not kept: 2",)


def test_files_of_a_sample_that_are_far_apart_are_joined(tmp_path: Path) -> None:
    made, rows = converted(tmp_path, a_tar=tar_bytes([*PAIRS[::2], *PAIRS[1::2]]))
    assert rows == rows_of(PAIRS)
    assert made.remarks == ("samples whose files are not next to each other, joined: 20",)


def test_files_far_apart_in_a_compressed_archive_are_quarantined(tmp_path: Path) -> None:
    made, rows = converted(tmp_path, a_tar_gz=tar_bytes([*PAIRS[:1], *PAIRS[2:], PAIRS[1]], "w:gz"))
    assert rows == rows_of(PAIRS[2:])
    assert list(made.reasons) == ["its files are not next to each other in a compressed archive: decompress the archive"]


def test_a_key_that_occurs_again_is_another_sample(tmp_path: Path) -> None:
    made, rows = converted(tmp_path, a_tar=tar_bytes([*PAIRS, *PAIRS[:3]]))
    assert rows == [*rows_of(PAIRS), *rows_of(PAIRS[:2]), {"__key__": "0001", "bin": b"1", "cls": None}]
    assert made.remarks == (
        "samples with the key of an earlier one in the archive, kept as rows of their own: 2",
        "samples without cls: 1",
    )


def entry(name: str, kind: bytes) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, "0001.bin"
    return made


LABEL = ("a.cls", b"1")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("a.bin", b"1"), LABEL, ("a.bin", b"2")], "several files are named bin"),
        ([("a.bin", b"1"), LABEL, ("a.BIN", b"2")], "several files are named bin"),
        ([entry("a.bin", tarfile.SYMTYPE), LABEL], "bin is a link or a device, which is not followed"),
        ([entry("a.bin", tarfile.LNKTYPE), LABEL], "bin is a link or a device, which is not followed"),
        ([entry("a.bin", tarfile.FIFOTYPE), LABEL], "bin is a link or a device, which is not followed"),
        ([entry("a.bin", tarfile.CHRTYPE), LABEL], "bin is a link or a device, which is not followed"),
        ([("a.bin", b""), LABEL], "bin: the file is empty"),
        ([("a.bin", b"1"), ("a.cls", b"")], "cls: not an integer"),
        ([("a.bin", b"1"), ("a.cls", b"9" * 30)], "cls: not an integer"),
        ([("\udcff.bin", b"1"), ("\udcff.cls", b"1")], "the name of a file is not UTF-8"),
        ([("a.\udcff", b"1"), LABEL], "the name of a file is not UTF-8"),
        ([("a.bin", b"1" * 41), LABEL], "bin is larger than 40 bytes"),
    ],
)
def test_a_sample_that_cannot_be_used_is_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[Any], reason: str
) -> None:
    monkeypatch.setattr(tar, "MAX_MEMBER_BYTES", 40)
    made, rows = converted(tmp_path, max_bad_frac=0.01, a_tar=tar_bytes([*PAIRS[:20], *members, *PAIRS[20:]]))
    assert rows == rows_of(PAIRS)
    assert dict(made.reasons) == {reason: 1}


@pytest.mark.parametrize("data", [b'"\xff"', b"[" * 100_000, b'{"a": 1, "a": 2}', b"", b'{"a": ' + b"1" * 5_000 + b"}"])
def test_json_within_an_archive(tmp_path: Path, data: bytes) -> None:
    good = [(f"{number}.json", b'{"a": 1}') for number in range(20)]
    made, rows = converted(tmp_path, max_bad_frac=0.01, a_tar=tar_bytes([*good, ("bad.json", data)]))
    assert [row["json"] for row in rows] == [{"a": 1}] * 20
    assert next(iter(made.reasons)).startswith("json: invalid")


PLAIN, PACKED = tar_bytes(PAIRS), tar_bytes(PAIRS, "w:gz")
HALF = len(PACKED) // 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param("b_tar", PLAIN[: 512 * 20 + 100], id="cut in a header"),
        pytest.param("b_tar", PLAIN[: 512 * 21 + 1], id="cut in a file"),
        pytest.param("b_tar", PLAIN[: 512 * 22], id="cut between the files of a sample"),
        pytest.param("b_tar", PLAIN[: 512 * 22] + b"\x55" * 512 + PLAIN[512 * 23 :], id="header overwritten"),
        pytest.param("b_tar_gz", PACKED[:HALF], id="compressed, cut"),
        pytest.param("b_tar_gz", PACKED[:HALF] + b"\xff" * 9 + PACKED[HALF + 9 :], id="compressed, overwritten"),
        pytest.param("b_tar", b"", id="empty"),
        pytest.param("b_tar", b"text" * 1_000, id="text"),
    ],
)
def test_a_damaged_archive_is_one_quarantined_file(tmp_path: Path, name: str, data: bytes) -> None:
    made, rows = converted(tmp_path, max_bad_frac=0.01, a_tar=PLAIN, **{name: data})
    good = rows_of(PAIRS)
    assert rows[:20] == good
    assert rows[20:] == good[: len(rows) - 20]  # samples before the damage
    assert made.num_bad == 1
    assert len(rows) < 40
    assert "truncated" in next(iter(made.reasons)) or "not a tar file" in next(iter(made.reasons))


def test_the_first_bytes_say_how_an_archive_is_compressed(tmp_path: Path) -> None:
    _, rows = converted(tmp_path, a_tar=PACKED, b_tar_gz=PLAIN)
    assert rows == rows_of(PAIRS) * 2


def test_an_archive_after_the_end_of_another_is_not_lost_without_a_word(tmp_path: Path) -> None:
    made, rows = converted(tmp_path, max_bad_frac=0.01, a_tar=PLAIN, b_tar=PLAIN + PLAIN)
    assert rows == rows_of(PAIRS) * 2
    assert list(made.reasons) == ["other data follows the end of the archive, perhaps a second archive"]


def test_an_archive_without_the_mark_of_its_end(tmp_path: Path) -> None:
    made, rows = converted(tmp_path, a_tar=PLAIN[: 512 * 80])
    assert rows == rows_of(PAIRS)
    assert made.remarks == ("archives without the mark of their end, perhaps truncated: 1",)


def test_a_truncated_archive_alone_is_an_error(tmp_path: Path) -> None:
    many = [(f"{number:04d}.bin", b"x") for number in range(400)]
    with pytest.raises(DataError, match=r"1 of 1 parts of the source are bad, more than 1.00%: the archive is truncated"):
        converted(tmp_path, max_bad_frac=0.01, a_tar=tar_bytes(many)[: 512 * 700 + 1])


def test_names_with_dots_are_joined_with_a_warning(tmp_path: Path) -> None:
    made, rows = converted(tmp_path, a_tar=tar_bytes([(f"train.v1/22.05_{name}", data) for name, data in PAIRS]))
    assert (len(rows), len(rows[0])) == (1, 41)
    assert "WARNING: the key ends at the first dot of a name" in made.remarks[0]


def test_endings_with_dots_are_columns_without_a_warning(tmp_path: Path) -> None:
    endings = ("left.png", "right.png", "seg.png", "depth.png", "v2.cls")
    made, rows = converted(tmp_path, a_tar=tar_bytes([(f"{number}.{end}", b"1") for number in range(5) for end in endings]))
    assert (len(rows), rows[0]["v2.cls"], made.remarks) == (5, 1, ())


def test_too_many_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than 256 files have the same name before the first dot"):
        converted(tmp_path, a_tar=tar_bytes([(f"v1.{number}.bin", b"1") for number in range(300)]))


def test_sparse_files(tmp_path: Path) -> None:
    hole = tarfile.TarInfo("a.bin")
    hole.type, hole.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(hole.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (1024, 512)  # the bytes that are present: 512 at 1024
    header[483:495] = b"%011o\0" % 1536
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    made, rows = converted(tmp_path, a_tar=bytes(header) + b"x" * 512 + tar_bytes([LABEL]))
    assert rows == [{"__key__": "a", "bin": bytes(1024) + b"x" * 512, "cls": 1}]
    assert made.num_bad == 0
