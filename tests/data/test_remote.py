"""A store behind a URL returns the same rows and fetches each part once, despite stalls and failures."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten.core.errors import CorruptError, DataError, GoneError
from hasten.data import Patience, Store, StoreWriter, Stream, Url
from hasten.data.remote.blocks import BlockCache
from hasten.data.store.verify import verify
from tests.data.servers import FileServer

ROWS = 4000
QUICK = Patience(answer_s=2.0, gone_s=20.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    random = np.random.default_rng(0)
    with StoreWriter(path / "store", block_rows=64, shard_bytes=3_000_000) as writer:
        for first in range(0, ROWS, 500):
            texts = [f"{n} " + "x" * int(random.integers(500, 2500)) for n in range(first, first + 500)]
            writer.write({"id": list(range(first, first + 500)), "text": texts, "raw": np.arange(first, first + 500)})
    return path


@pytest.fixture
def server(folder: Path) -> Iterator[FileServer]:
    made = FileServer(folder)
    yield made
    made.stop()


def flat(lists: list[list[int]]) -> list[int]:
    """Flatten lists into one."""
    return list(itertools.chain.from_iterable(lists))


def ids(stream: Stream) -> list[list[int]]:
    return [batch["id"].to_pylist() for batch in stream]


def test_rows_come_over_http_each_part_once(folder: Path, server: FileServer, tmp_path: Path) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path))
    assert ids(Stream(store, batch_size=100, seed=1)) == ids(Stream(folder / "store", batch_size=100, seed=1))
    ranges = [request for request in server.requests if request[1]]
    assert len(ranges) == len(set(ranges))
    assert store.take([7, 3999])["raw"].tolist() == [7, 3999]
    before = len(server.requests)
    other = Store(Url(f"{server.url}/store", cache_dir=tmp_path))
    assert ids(Stream(other, batch_size=100, seed=2)) == ids(Stream(folder / "store", batch_size=100, seed=2))
    assert len(server.requests) == before + 1  # only the manifest
    assert verify(other) == []


def test_a_little_is_fetched_for_a_little(server: FileServer, tmp_path: Path) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path))
    assert store.take([1000], ["id"])["id"].to_pylist() == [1000]
    assert len(server.requests) <= 3


def test_a_server_without_ranges_serves_too(server: FileServer, tmp_path: Path) -> None:
    server.ranges = False
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path))
    assert store.take([3999], ["id"])["id"].to_pylist() == [3999]


def test_failures_are_tried_again(server: FileServer, tmp_path: Path) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path, patience=QUICK))
    server.fail = 3
    assert store.take([0], ["id"])["id"].to_pylist() == [0]


def test_a_hanging_request_is_abandoned_and_repeated(server: FileServer, tmp_path: Path) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path, patience=Patience(answer_s=0.3, gone_s=20)))
    server.stall_s = 30.0
    timer = threading.Timer(0.5, lambda: setattr(server, "stall_s", 0.0))
    timer.start()
    start = time.monotonic()
    assert store.take([0], ["id"])["id"].to_pylist() == [0]
    assert time.monotonic() - start < 20
    timer.join()
    server.released.set()
    until = time.monotonic() + 30
    while any(thread.name.startswith("hasten-remote") for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.02)  # the thread of the abandoned request ends with its response


def test_training_goes_on_when_the_store_comes_back(folder: Path, server: FileServer, tmp_path: Path) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path, patience=QUICK))
    seen = []
    near: dict[str, Any] = {"window_blocks": 1, "read_ahead": 1}  # the first batch needs only a small part of the store
    for number, batch in enumerate(Stream(store, batch_size=100, seed=1, **near)):
        seen.append(batch["id"].to_pylist())
        if number == 0:
            server.stop()
            back, asked = threading.Timer(1.0, server.start), len(server.requests)
            back.start()
    back.join()  # otherwise it would start a server that is never stopped
    assert len(server.requests) > asked
    assert seen == ids(Stream(folder / "store", batch_size=100, seed=1, **near))


def test_an_unavailable_store_fails_clearly_and_fetched_data_is_kept(
    folder: Path, server: FileServer, tmp_path: Path
) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path, patience=Patience(answer_s=0.5, gone_s=0.6)))
    stream = Stream(store, batch_size=100, seed=1)
    seen: list[list[int]] = []
    server.stop()
    try:
        with pytest.raises(GoneError, match=r"does not respond: \d+ tries in .* the run can be resumed"):
            seen.extend(batch["id"].to_pylist() for batch in stream)
        state = stream.state_dict()
    finally:
        server.start()
    again = Stream(store, batch_size=100, seed=1)
    again.load_state_dict(state)
    assert seen + ids(again) == ids(Stream(folder / "store", batch_size=100, seed=1))


def test_a_url_without_a_store_is_refused(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/nothing is not a store: it has no manifest\.json"):
        Store(Url(f"{server.url}/nothing", cache_dir=tmp_path))
    with pytest.raises(DataError, match="cache_bytes must be above 0"):
        Url(f"{server.url}/store", cache_dir=tmp_path, cache_bytes=0)


def test_modified_and_missing_files_are_refused(folder: Path, server: FileServer, tmp_path: Path) -> None:
    path = folder / "store" / Store(folder / "store").manifest.shards[0].file("").path
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        store = Store(Url(f"{server.url}/store", cache_dir=tmp_path))
        with pytest.raises(CorruptError, match=r"bytes 0 to 1,048,576 of .* do not match their checksum after two attempts"):
            store.take([0])
        path.unlink()
        with pytest.raises(CorruptError, match="is missing, although the manifest lists it"):
            store.take([0])
    finally:
        path.write_bytes(whole)


def test_a_damaged_cache_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    Store(Url(f"{server.url}/store", cache_dir=tmp_path)).take(np.arange(ROWS))
    for part in tmp_path.glob("*.part"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 4
        part.write_bytes(data)
    before = len(server.requests)
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path))
    assert store.take(np.arange(ROWS))["id"].to_pylist() == list(range(ROWS))
    assert before + 1 < len(server.requests) <= before + 1 + len(list(tmp_path.glob("*.part")))


def test_the_cache_keeps_within_its_bound(server: FileServer, tmp_path: Path) -> None:
    store = Store(Url(f"{server.url}/store", cache_dir=tmp_path, cache_bytes=3_000_000))
    assert sorted(flat(ids(Stream(store, batch_size=100, shuffle=False)))) == list(range(ROWS))
    assert BlockCache(tmp_path, 1).size() <= 3_000_000 + 2**20


def read_all(url: str, cache: Path) -> None:
    assert sorted(flat(ids(Stream(Store(Url(url, cache_dir=cache)), batch_size=100)))) == list(range(ROWS))


@pytest.mark.long
@pytest.mark.slow
def test_ranks_share_the_cache_and_no_part_is_fetched_twice(server: FileServer, tmp_path: Path) -> None:
    server.stall_s = 0.02  # long enough for the processes to overlap
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=read_all, args=(f"{server.url}/store", tmp_path)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    ranges = [request for request in server.requests if request[1]]
    assert len(ranges) == len(set(ranges))


@pytest.mark.slow
def test_a_killed_reader_leaves_a_cache_that_serves(server: FileServer, tmp_path: Path) -> None:
    server.stall_s = 0.05
    url = f"{server.url}/store"
    code = f"from tests.data.test_remote import Path, read_all\nread_all({url!r}, Path({str(tmp_path)!r}))"
    reader = subprocess.Popen([sys.executable, "-c", code])
    while len(server.requests) < 5:
        time.sleep(0.01)
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    server.stall_s = 0.0
    read_all(f"{server.url}/store", tmp_path)


def put_into_bucket(folder: Path, url: str) -> dict[str, Any]:
    """Copy the store to a bucket of an S3 server, and return the options to read it."""
    import s3fs

    endpoint = {"endpoint_url": url, "region_name": "us-west-1"}
    options = {"key": "test", "secret": "test", "client_kwargs": endpoint}
    system = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    system.mkdir("bucket", LocationConstraint="us-west-1")
    system.put(str(folder / "store"), "bucket/", recursive=True)
    return options


@pytest.mark.slow
def test_rows_come_from_s3(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    s3 = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    s3.start()
    try:
        host, port = s3.get_host_and_port()
        options = put_into_bucket(folder, f"http://{host}:{port}")
        store = Store(Url("s3://bucket/store", options=options, cache_dir=tmp_path, patience=QUICK))
        assert ids(Stream(store, batch_size=100, seed=1)) == ids(Stream(folder / "store", batch_size=100, seed=1))
        with pytest.raises(DataError, match="s3://bucket/other is not a store"):
            Store(Url("s3://bucket/other", options=options, cache_dir=tmp_path, patience=QUICK))
    finally:
        s3.stop()


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_s3_that_stands_still_for_a_while_loses_nothing(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*moto, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + 60
            while not answers(port) and time.monotonic() < until:
                time.sleep(0.1)
            options = put_into_bucket(folder, f"http://127.0.0.1:{port}")
            patience = Patience(answer_s=0.5, gone_s=60)
            store = Store(Url("s3://bucket/store", options=options, cache_dir=tmp_path, patience=patience))
            seen = []
            for number, batch in enumerate(Stream(store, batch_size=100, seed=1)):
                seen.append(batch["id"].to_pylist())
                if number == 2:
                    server.send_signal(signal.SIGSTOP)
                    threading.Timer(2.0, server.send_signal, [signal.SIGCONT]).start()
            assert seen == ids(Stream(folder / "store", batch_size=100, seed=1))
            assert not verify(store)
        finally:
            server.kill()
