"""A store contains exactly the rows that were written, or nothing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from hasten.core.errors import CorruptError, DataError
from hasten.data import ShardWriter, Store, StoreWriter, publish_written
from hasten.data.store.publish import clean
from hasten.data.store.verify import verify

NOBODY_UID = 65534


def rows(first: int, count: int) -> dict[str, Any]:
    ids = np.arange(first, first + count)
    return {
        "id": pa.array(ids),
        "text": [f"row {number} " + "é" * (number % 7) for number in ids],
        "tokens": [list(range(number % 5)) for number in ids],
        "messages": [[{"role": "user", "content": f"{number}"}] * (number % 3) for number in ids],
        "image": (ids[:, None, None] % 251 + np.zeros((count, 2, 3))).astype(np.uint8),
        "score": ids.astype(np.float32) / 2,
    }


def write(path: Path, count: int, **more: Any) -> None:
    with StoreWriter(path, **more) as writer:
        for first in range(0, count, 37):
            writer.write(rows(first, min(37, count - first)))


def test_rows_come_back_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "s", 500, block_rows=64, shard_bytes=20_000)
    store = Store(tmp_path / "s")
    assert len(store) == 500
    assert len(store.manifest.shards) > 1
    picked = np.random.default_rng(0).integers(0, 500, 200)
    taken = store.take(picked)
    for at, number in enumerate(picked.tolist()):
        want = rows(number, 1)
        assert taken["id"][at].as_py() == number
        assert taken["text"][at].as_py() == want["text"][0]
        assert taken["tokens"][at].as_py() == want["tokens"][0]
        assert taken["messages"][at].as_py() == want["messages"][0]
        assert np.array_equal(taken["image"][at], want["image"][0])
        assert taken["score"][at] == want["score"][0]
    for column in taken.values():
        if isinstance(column, pa.Array):
            column.validate(full=True)


def test_a_row_is_a_dictionary_of_plain_values(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    row = Store(tmp_path / "s")[-1]
    assert (row["id"], row["text"], row["tokens"]) == (9, "row 9 éé", [0, 1, 2, 3])
    assert row["image"].shape == (2, 3)


def test_rows_and_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    store = Store(tmp_path / "s")
    with pytest.raises(IndexError, match="row 10 is out of range: the store has 10 rows"):
        store.take([10])
    with pytest.raises(DataError, match="has no column 'words'; its columns are id, text"):
        store.take([0], ["words"])


def test_nulls_and_rare_types_come_back(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["a", None, "ccc", None] * 25),
            "number": pa.array([1, None, 3, 4] * 25),
            "flag": pa.array([True, None, False, True] * 25),
            "lists": pa.array([[1, None], None, [], [4]] * 25),
            "nested": pa.array([{"a": 1, "b": [None, "x"]}, None, {"a": None, "b": []}, {"a": 4, "b": None}] * 25),
            "kind": pa.array(["x", "y", "x", None] * 25).dictionary_encode(),
            "map": pa.array([[("k", 1)], [], None, [("l", 2), ("m", 3)]] * 25, pa.map_(pa.string(), pa.int64())),
            "day": pa.array([0, 1, None, 3] * 25, pa.date32()),
            "large": pa.array(["a", "", None, "dddd"] * 25, pa.large_string()),
            "bytes": pa.array([b"a", b"", None, b"\xff"] * 25),
        }
    )
    with StoreWriter(tmp_path / "s", block_rows=16) as writer:
        writer.write(table)
    store = Store(tmp_path / "s")
    picked = np.random.default_rng(1).permutation(100)
    taken = store.take(picked)
    for name, column in taken.items():
        column.validate(full=True)
        whole = table.column(name).to_pylist()
        assert column.to_pylist() == [whole[number] for number in picked.tolist()], name


def test_an_empty_selection_is_empty(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    taken = Store(tmp_path / "s").take([])
    assert [len(column) for column in taken.values()] == [0] * 6


def stop_within(path: Path) -> None:
    with StoreWriter(path, block_rows=8) as writer:
        writer.write(rows(0, 100))
        raise RuntimeError("stop")


def test_nothing_is_seen_before_the_end_nor_after_an_error(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", block_rows=8) as writer:
        writer.write(rows(0, 100))
        with pytest.raises(DataError, match="is not a store"):
            Store(tmp_path / "s")
    with pytest.raises(RuntimeError, match="stop"):
        stop_within(tmp_path / "t")
    with pytest.raises(DataError, match="is not a store"):
        Store(tmp_path / "t")
    assert [part.name for part in (tmp_path / "t").rglob("*") if part.is_file()] == []


def test_appending_makes_a_version_and_old_readers_keep_theirs(tmp_path: Path) -> None:
    write(tmp_path / "s", 100, block_rows=16)
    old = Store(tmp_path / "s")
    with StoreWriter(tmp_path / "s", mode="append") as writer:
        writer.write(rows(100, 50))
    new = Store(tmp_path / "s")
    assert (len(old), old.manifest.version, len(new), new.manifest.version) == (100, 1, 150, 2)
    assert new.take([149], ["id"])["id"].to_pylist() == [149]
    with StoreWriter(tmp_path / "s", mode="replace", block_rows=16) as writer:
        writer.write(rows(7, 3))
    assert Store(tmp_path / "s").take([0], ["id"])["id"].to_pylist() == [7]
    assert old.take([99], ["id"])["id"].to_pylist() == [99]
    assert len(Store(tmp_path / "s", version=2)) == 150


def test_a_store_in_the_way_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    with pytest.raises(DataError, match=r"already is a store of 10 rows \(version 1\): append to it"):
        StoreWriter(tmp_path / "s")


def test_other_columns_cannot_be_appended(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    with (
        pytest.raises(DataError, match="are missing in some rows"),
        StoreWriter(tmp_path / "s", mode="append") as writer,
    ):
        writer.write({"id": [1], "words": ["a"]})


def test_columns_must_stay_as_they_began(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="different numbers of rows"), StoreWriter(tmp_path / "s") as writer:
        writer.write({"id": np.arange(3), "text": ["a"]})
    with StoreWriter(tmp_path / "t") as writer:
        writer.write({"image": np.zeros((3, 2), np.uint8)})
        with pytest.raises(DataError, match="the raw columns changed"):
            writer.write({"image": np.zeros((3, 3), np.uint8)})


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match="several columns have the name 'a'"), StoreWriter(tmp_path / "s") as writer:
        writer.write(table)


def test_a_column_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a valid name for a raw column"), StoreWriter(tmp_path / "s") as writer:
        writer.write({"../image": np.zeros(3)})


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    manifest = tmp_path / "s" / "manifest.json"
    name = Store(tmp_path / "s").manifest.shards[0].files[0].path
    manifest.write_text(manifest.read_text().replace(name, "shards/../../secret"))
    with pytest.raises(CorruptError, match="is not in the store's folder of shards"):
        Store(tmp_path / "s")


def part(path: Path, first: int) -> None:
    with ShardWriter(path, block_rows=16) as writer:
        writer.write(rows(first, 100))
        done = writer.finish()
        publish_written(path, [done], mode="append")


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=part, args=(tmp_path / "s", first)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    store = Store(tmp_path / "s")
    assert sorted(store.take(np.arange(300), ["id"])["id"].to_pylist()) == list(range(300))
    assert store.manifest.version == 3
    assert verify(store) == []
    assert not (tmp_path / "s" / "writing").exists()


def test_a_killed_writer_is_never_seen_and_is_swept_away(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    script = (
        "import sys, time, numpy as np\nfrom hasten.data import StoreWriter\n"
        f"with StoreWriter({str(tmp_path / 's')!r}, mode='append') as writer:\n"
        "    for _ in range(10**6):\n"
        "        writer.write({'id': [1] * 64, 'text': ['a'] * 64, 'tokens': [[1]] * 64, 'messages': [[]] * 64,\n"
        "                      'image': np.zeros((64, 2, 3), np.uint8), 'score': np.zeros(64, np.float32)})\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script])
    while not list((tmp_path / "s").glob("writing/*/*.raw")):
        assert writer.poll() is None
        time.sleep(0.05)
    assert clean(tmp_path / "s") == []  # its process is running
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert len(Store(tmp_path / "s")) == 10
    assert len(clean(tmp_path / "s")) == 1
    assert not (tmp_path / "s" / "writing").exists()
    assert verify(Store(tmp_path / "s")) == []


@pytest.mark.parametrize("seed", range(8))
def test_any_flipped_bit_is_found_and_its_shard_named(tmp_path: Path, seed: int) -> None:
    write(tmp_path / "s", 200, block_rows=32, shard_bytes=4_000)
    store = Store(tmp_path / "s")
    assert verify(store) == []
    random = np.random.default_rng(seed)
    shard = store.manifest.shards[int(random.integers(len(store.manifest.shards)))]
    file = shard.files[int(random.integers(len(shard.files)))]
    path = tmp_path / "s" / file.path
    data = bytearray(path.read_bytes())
    data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
    path.write_bytes(data)
    assert [(damage.shard, damage.path) for damage in verify(Store(tmp_path / "s"))] == [(shard.name, file.path)]


def test_truncated_and_missing_files_have_different_errors(tmp_path: Path) -> None:
    write(tmp_path / "s", 20, block_rows=8)
    store = Store(tmp_path / "s")
    path = tmp_path / "s" / store.manifest.shards[0].file("").path
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(CorruptError, match="bytes instead of"):
        Store(tmp_path / "s").take([0])
    path.unlink()
    with pytest.raises(CorruptError, match="is missing, although the manifest lists it"):
        Store(tmp_path / "s").take([0])
    assert len(verify(Store(tmp_path / "s"))) == 1


@contextmanager
def without_rights() -> Iterator[None]:
    """Drop root's privileges, because root can read and write files without permission."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_lost_permission_is_an_error_and_loses_no_data() -> None:
    with tempfile.TemporaryDirectory(prefix="hasten-test-") as folder:  # pytest's folders are not accessible to other users
        Path(folder).chmod(0o755)
        path = Path(folder) / "s"
        write(path, 20, block_rows=8)
        store, shard = Store(path), path / Store(path).manifest.shards[0].file("").path
        shard.chmod(0)
        with (
            without_rights(),
            pytest.raises(DataError, match=r"cannot be opened \(Permission denied\): check its permissions"),
        ):
            store.take([0])
        shard.chmod(0o644)
        assert store.take([0], ["id"])["id"].to_pylist() == [0]
        path.chmod(0o555)
        with without_rights(), pytest.raises((DataError, PermissionError), match="Permission denied") as told:
            write(path, 20, mode="append", block_rows=8)
        assert str(path) in str(told.value)
        path.chmod(0o755)
        assert (len(Store(path)), Store(path).manifest.version) == (20, 1)
        assert not (path / "writing").exists()
        (path / "manifest.json").chmod(0)
        with without_rights(), pytest.raises(DataError, match=r"manifest\.json cannot be read: .*Permission denied"):
            Store(path)


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "s", 10, block_rows=8)
    script = (
        "import resource, signal, sys, numpy as np\nfrom hasten.data import StoreWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try:\n"
        f"    with StoreWriter({str(tmp_path / 's')!r}, mode='replace', block_rows=64) as writer:\n"
        "        for _ in range(100):\n"
        "            writer.write({'image': np.zeros((64, 20, 30), np.uint8)})\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "File too large" in said.stdout
    assert (len(Store(tmp_path / "s")), Store(tmp_path / "s").manifest.version) == (10, 1)
    assert not (tmp_path / "s" / "writing").exists()


def test_a_store_travels_to_other_processes(tmp_path: Path) -> None:
    write(tmp_path / "s", 50, block_rows=8)
    store = pickle.loads(pickle.dumps(Store(tmp_path / "s")))
    assert store[3]["id"] == 3
    loader = DataLoader(
        store, batch_size=8, num_workers=2, shuffle=False, collate_fn=lambda batch: [row["id"] for row in batch]
    )
    assert [number for batch in loader for number in batch] == list(range(50))


def test_tensors_are_written_like_arrays(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.write({"x": torch.arange(12).reshape(4, 3)})
    assert Store(tmp_path / "s").take([3, 0])["x"].tolist() == [[9, 10, 11], [0, 1, 2]]
