"""Compressed text files are read like plain ones, and damaged ones keep what was read before the damage."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hasten.core.errors import DataError
from hasten.data.convert.job import convert
from hasten.data.store.store import Store

RECORDS = [{"id": number, "text": f"é {number}"} for number in range(30_000)]
TEXTS = {
    "jsonl": "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode(),
    "json": json.dumps(RECORDS).encode(),
    "csv": ("id,text\n" + "".join(f"{record['id']},{record['text']}\n" for record in RECORDS)).encode(),
    "tsv": ("id\ttext\n" + "".join(f"{record['id']}\t{record['text']}\n" for record in RECORDS)).encode(),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("packing", PACK)
def test_compressed_files_are_read(tmp_path: Path, kind: str, packing: str) -> None:
    path = tmp_path / f"a.{kind}.{packing}"
    path.write_bytes(PACK[packing](TEXTS[kind]))
    made = convert(path, tmp_path / "s", processes=1)
    assert made.num_bad == 0
    assert Store(tmp_path / "s").__getitems__(range(len(RECORDS))) == RECORDS


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_compressed_file_in_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(TEXTS["jsonl"].decode().encode(encoding)))
    convert(tmp_path / "a.jsonl.gz", tmp_path / "s", processes=1)
    assert Store(tmp_path / "s")[29_999] == RECORDS[-1]


@pytest.mark.parametrize("kind", TEXTS)
def test_what_precedes_damage_is_kept_and_the_rest_quarantined(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    data = gzip.compress(TEXTS[kind])
    (tmp_path / f"in/a.{kind}").write_bytes(TEXTS[kind])
    (tmp_path / f"in/b.{kind}.gz").write_bytes(data[: len(data) // 2])
    made = convert(tmp_path / "in", tmp_path / "s", processes=1, max_bad_frac=1.0)
    assert len(RECORDS) <= made.num_records < 2 * len(RECORDS)
    assert list(made.reasons) == ["the file is truncated"]


def test_bad_lines_have_their_number(tmp_path: Path) -> None:
    lines = TEXTS["jsonl"].splitlines()
    lines[20_000] = b"{"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    made = convert(tmp_path / "a.jsonl.gz", tmp_path / "s", processes=1)
    assert made.num_records == len(RECORDS) - 1
    assert made.quarantine is not None
    assert '"line 20001"' in made.quarantine.read_text()


def test_a_compressed_copy_is_not_read_twice(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(TEXTS["csv"])
    (tmp_path / "in/a.csv.gz").write_bytes(gzip.compress(TEXTS["csv"]))
    made = convert(tmp_path / "in", tmp_path / "s", processes=1)
    assert made.num_records == len(RECORDS)
    assert "skipped compressed copies of other files: 1" in made.remarks


def test_a_zip_file_is_refused_with_the_command_that_extracts_it(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="is a zip file: extract it"):
        convert(tmp_path / "a.zip", tmp_path / "s")
