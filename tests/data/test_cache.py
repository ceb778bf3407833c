"""All cache backends return exactly what was stored, or nothing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from hasten.core.errors import DataError
from hasten.data.cache import (
    Cache,
    CachedDataset,
    LmdbCache,
    MemoryCache,
    RedisCache,
    cached,
    key_of,
    known_metadata,
    known_validation,
)
from hasten.data.cache.contract import MISSING

HOMES = ["memory", "lmdb", "redis"]
REDIS = shutil.which("redis-server")
NO_REDIS = "redis-server is not installed: apt-get install redis-server"


class Server:
    """Run a private Redis server on a free port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([*command, "--dir", str(self.folder)], stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if REDIS is None:
        if os.environ.get("HASTEN_CI"):
            raise AssertionError(NO_REDIS)
        pytest.skip(NO_REDIS)
    server = Server(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=HOMES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Cache]:
    """Return a function that creates a cache of one kind, or reopens the same one if it can be shared."""

    def made(max_bytes: int = 10**6) -> Cache:
        if request.param == "memory":
            return MemoryCache(max_bytes)
        if request.param == "lmdb":
            return LmdbCache(tmp_path / "lmdb", max_bytes)
        return RedisCache(request.getfixturevalue("server").url, prefix=f"{tmp_path}:")

    made.kind = request.param  # type: ignore[attr-defined]
    return made


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (pa.Table, pa.RecordBatch, pa.Array)):
        return type(one) is type(other) and one.equals(other)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


VALUES = {
    "none": None,
    "number": 3,
    "text": "é" * 1000,
    "array": np.arange(12, dtype=np.float32).reshape(3, 4),
    "scalar": torch.tensor(2.5),
    "nested": {"a": [1, (2.0, "b")], "t": torch.arange(5)},
    "table": pa.table({"a": [1, None], "b": ["x", "y"]}),
    "batch": pa.RecordBatch.from_pydict({"a": [1, 2]}),
    "empty": pa.RecordBatch.from_pydict({"a": pa.array([], pa.int32())}),
    "strings": pa.array(["a", None, "c"]),
}


def test_what_is_put_in_comes_out(make: Any) -> None:
    with make() as cache:
        assert cache.get("nothing") is MISSING
        for name, value in VALUES.items():
            assert cache.put(name, value)
        for name, value in VALUES.items():
            assert same(value, cache.get(name)), name
        assert len(cache) == len(VALUES)
        assert cache.num_bytes > 1000
        found = cache.get_many(["text", "nothing", "number"])
        assert found[0] == VALUES["text"]
        assert (found[1], found[2]) == (MISSING, 3)
        assert (cache.stats.hits, cache.stats.misses, cache.stats.puts) == (len(VALUES) + 2, 2, len(VALUES))
        cache.put("number", 4)
        assert (cache.get("number"), len(cache)) == (4, len(VALUES))
        cache.clear()
        assert len(cache) == 0
        assert cache.get("number") is MISSING
        cache.put("number", 5)
        assert cache.get("number") == 5


def test_a_value_is_a_copy(make: Any) -> None:
    with make() as cache:
        cache.put("a", np.zeros(3))
        cache.get("a")[:] = 1
        assert cache.get("a").tolist() == [0, 0, 0]


def test_values_that_are_not_plain_data_are_refused(make: Any) -> None:
    with make() as cache:
        assert not cache.put("a", object())
        assert not cache.put("a", {"f": lambda: 0})
        assert cache.stats.refused == 2


def test_it_keeps_within_its_bound(make: Any) -> None:
    if make.kind == "redis":
        pytest.skip("Redis servers have their own limit (maxmemory)")
    with make(100_000) as cache:
        for number in range(100):
            cache.put(str(number), np.full(5_000, number, np.uint8))
        assert cache.num_bytes <= 100_000
        kept = [number for number in range(100) if cache.get(str(number)) is not MISSING]
        assert 5 <= len(kept) <= 20
        assert (99 in kept) == (make.kind == "memory")  # LMDB keeps the first values, memory the last
        assert not cache.put("large", np.zeros(200_000, np.uint8))
        for number in kept:
            assert (cache.get(str(number)) == number).all()


def test_the_least_recently_used_goes_first() -> None:
    cache = MemoryCache(30_000)
    for number in range(5):
        cache.put(str(number), np.zeros(5_000, np.uint8))
    cache.get("0")
    cache.put("5", np.zeros(5_000, np.uint8))
    assert cache.get("1") is MISSING
    assert cache.get("0") is not MISSING


def fill(cache: Cache, first: int) -> None:
    for number in range(first, first + 200):
        cache.put(str(number), np.full(number % 50, number))


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("spawn", marks=pytest.mark.long), "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_share_it(make: Any, how: str) -> None:
    if make.kind == "memory":
        pytest.skip("a memory cache is not shared")
    cache = make(10**7)
    cache.put("before", 1)
    context: Any = multiprocessing.get_context(how)
    writers = [context.Process(target=fill, args=(cache, first)) for first in (0, 100, 300)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(cache) == 501
    for number in range(500):
        assert (cache.get(str(number)) == np.full(number % 50, number)).all()
    cache.close()


KILLED = """
import pickle, sys
import numpy as np
cache = pickle.loads(bytes.fromhex(sys.argv[1]))
print("here", flush=True)
for number in range(10**9):
    cache.put(str(number), np.full(20_000 + number % 7, number % 251, np.uint8))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_killed_writer_leaves_nothing_wrong(make: Any, seed: int) -> None:
    if make.kind == "memory":
        pytest.skip("a memory cache ends with its process")
    cache = make(10**8)
    with subprocess.Popen([sys.executable, "-c", KILLED, pickle.dumps(cache).hex()], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        until = time.monotonic() + 30
        while len(cache) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05 * seed)
        os.kill(writer.pid, signal.SIGKILL)
    found = 0
    for number in range(5_000):
        value = cache.get(str(number))
        if value is not MISSING:
            found += 1
            assert (value == np.full(20_000 + number % 7, number % 251, np.uint8)).all()
    assert found
    assert cache.put("after", 1)  # no lock is held
    assert cache.get("after") == 1
    cache.close()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_is_a_miss(tmp_path: Path, bit: int) -> None:
    with LmdbCache(tmp_path, 10**6) as cache:
        for number in range(20):
            cache.put(str(number), np.full(1000, number))
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    data[data.index(np.full(900, 7).tobytes()) + 1000] ^= 1 << bit
    (tmp_path / "data.mdb").write_bytes(data)
    other = LmdbCache(tmp_path, 10**6)
    values = [other.get(str(number)) for number in range(20)]
    assert [number for number, value in enumerate(values) if value is MISSING] == [7]
    assert all(value is MISSING or (value == number).all() for number, value in enumerate(values))
    assert other.stats.damaged == 1


def test_a_folder_that_is_not_a_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"something else" * 1000)
    with pytest.raises(DataError, match="remove the folder, or use another one"):
        LmdbCache(tmp_path, 10**6)
    for kind in (MemoryCache, lambda size: LmdbCache(tmp_path / "new", size)):
        with pytest.raises(DataError, match="max_bytes must be above 0"):
            kind(0)


def test_a_full_disk_keeps_existing_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lmdb = pytest.importorskip("lmdb")
    cache = LmdbCache(tmp_path, 10**6)
    cache.put("a", 1)

    def full() -> Any:
        raise lmdb.DiskError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_environment", full)
        assert not cache.put("b", np.zeros(1000))
    assert (cache.get("a"), cache.stats.refused) == (1, 1)


def test_redis_going_away_costs_one_warning_and_no_value(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from hasten.data.cache import redis

    monkeypatch.setattr(redis, "_RETRY_S", 0.3)
    cache = RedisCache(server.url, prefix="away:", timeout_s=0.5)
    cache.put("a", 1)
    server.kill()
    try:
        with pytest.warns(RuntimeWarning, match=f"Redis at {server.url} does not respond") as warned:
            assert cache.get("a") is MISSING
        assert len(warned) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no second warning
            assert cache.is_away
            assert cache.put("b", np.arange(3))
            assert cache.get("b").tolist() == [0, 1, 2]
            time.sleep(0.4)
            assert cache.get("b").tolist() == [0, 1, 2]
    finally:
        server.start()
    time.sleep(0.4)
    assert cache.put("c", 3)
    back: bool = cache.is_away
    assert not back
    assert RedisCache(server.url, prefix="away:").get("c") == 3
    assert cache.get("b").tolist() == [0, 1, 2]  # values stored meanwhile are still found


def test_redis_forgets_after_its_time_and_prefixes_do_not_meet(server: Server) -> None:
    short = RedisCache(server.url, prefix="short:", expire_s=4)
    other = RedisCache(server.url, prefix="other[*]:")
    short.put("a", 1)
    other.put("a", 2)
    assert (short.get("a"), other.get("a"), len(short), len(other)) == (1, 2, 1, 1)
    other.clear()
    assert (short.get("a"), len(other)) == (1, 0)
    until = time.monotonic() + 30
    while short.get("a") is not MISSING and time.monotonic() < until:
        time.sleep(0.05)
    assert short.get("a") is MISSING


def test_a_password_is_in_no_message() -> None:
    cache = RedisCache("redis://user:SECRET@127.0.0.1:1/0", timeout_s=0.2)
    with pytest.warns(RuntimeWarning) as warned:
        cache.get("a")
    assert "SECRET" not in str(warned[0].message)
    with pytest.raises(DataError, match="is not the URL of a Redis server") as error:
        RedisCache("http://user:SECRET@host")
    assert "SECRET" not in str(error.value)


def test_keys_differ_for_different_content() -> None:
    keys = [
        key_of(part)
        for part in (
            1, 1.0, True, "1", b"1", None, [1], (1,), {"a": 1}, {"a": 2}, {"b": 1}, {1}, Path("1"),
            np.array([1]), np.array([1], np.int32), np.array([[1]]), torch.tensor([1]), torch.tensor([1.0]), torch.tensor(1),
            pa.array([1]), pa.array(["1"]), pa.table({"a": [1]}), pa.table({"b": [1]}), ["a", "b"], ["ab"], [["a"], "b"],
        )
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of(torch.arange(6).reshape(2, 3).T) == key_of(torch.arange(6).reshape(2, 3).T.contiguous())
    with pytest.raises(DataError, match="cannot be hashed"):
        key_of(object())


def test_a_function_is_computed_once_for_each_argument_and_again_when_its_code_changes() -> None:
    calls: list[int] = []
    cache = MemoryCache(10**6)

    def source(body: str) -> Any:
        import linecache

        text = f"def area(width, height=2):\n    calls.append(width)\n    return {body}\n"
        name = f"<area {body}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        found: dict[str, Any] = {"calls": calls, "__name__": "areas"}
        exec(compile(text, name, "exec"), found)  # noqa: S102  the source is what this test changes
        return cached(cache)(found["area"])

    area = source("width * height")
    assert (area(3), area(3), area(4), area(3, height=5)) == (6, 6, 8, 15)
    assert calls == [3, 4, 3]
    assert source("width + height")(3) == 5
    assert source("width * height")(3) == 6
    assert calls == [3, 4, 3, 3]


class Squares(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.made: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        self.made.append(index)
        return {"x": torch.tensor(index**2), "index": index}


def test_a_dataset_is_prepared_once(make: Any) -> None:
    inner = Squares()
    dataset = CachedDataset(inner, make(), version="1")
    assert [dataset[index]["index"] for index in (3, 4, 3)] == [3, 4, 3]
    assert [sample["index"] for sample in dataset.__getitems__([4, 5, 3, 6])] == [4, 5, 3, 6]
    assert inner.made == [3, 4, 5, 6]
    again = CachedDataset(Squares(), dataset.cache, version="2")
    again[3]
    assert again.dataset.made == [3]
    dataset.cache.clear()
    dataset.cache.close()


def test_a_dataset_needs_a_length_and_a_version() -> None:
    with pytest.raises(DataError, match="the dataset has no length"):
        CachedDataset(iter([]), MemoryCache(10), version="1")
    with pytest.raises(DataError, match="version must not be empty"):
        CachedDataset(Squares(), MemoryCache(10), version="")


def describe(sample: Any) -> dict[str, float]:
    return {"length": float(len(sample)), "first": float(sample[0])}


class Words(Squares):
    def __getitem__(self, index: int) -> Any:
        self.made.append(index)
        return list(range(index, 2 * index + 1))


def test_metadata_is_found_out_once(make: Any) -> None:
    cache = make()
    words = Words()
    found = known_metadata(words, describe, cache, version="1")
    assert found["length"].tolist() == [float(n + 1) for n in range(10)]
    assert len(words.made) == 10
    again = known_metadata(words, describe, cache, version="1")
    assert {name: values.tolist() for name, values in again.items()} == {k: v.tolist() for k, v in found.items()}
    assert len(words.made) == 10
    known_metadata(words, describe, cache, version="2")
    assert len(words.made) == 20
    with pytest.raises(DataError, match="version must not be empty"):
        known_metadata(words, describe, cache, version="")
    cache.clear()
    cache.close()


VALIDATED: list[float] = []


def validate(model: torch.nn.Module) -> dict[str, float]:
    VALIDATED.append(1.0)
    with torch.no_grad():
        return {"loss": float(model(torch.ones(1, 3)).sum())}


def test_a_validation_is_made_once_for_the_same_weights(make: Any) -> None:
    cache = make()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()
    VALIDATED.clear()
    first = known_validation(model, validate, cache, version="1")
    assert known_validation(model, validate, cache, version="1") == first
    assert len(VALIDATED) == 1
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert known_validation(model, validate, cache, version="1") != first
    assert len(VALIDATED) == 2
    cache.clear()
    cache.close()


SHARED = """
import sys, torch
from tests.data import test_cache
from hasten.data.cache import RedisCache, known_metadata, known_validation
cache = RedisCache(sys.argv[1], prefix="shared:")
words = test_cache.Words()
torch.manual_seed(0)
known_metadata(words, test_cache.describe, cache, version="1")
known_validation(torch.nn.Linear(3, 2), test_cache.validate, cache, version="1")
print(len(words.made), len(test_cache.VALIDATED))
"""


@pytest.mark.slow
def test_two_processes_share_what_one_found_out_through_redis(server: Server) -> None:
    said = [
        subprocess.run([sys.executable, "-c", SHARED, server.url], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["10 1\n", "0 0\n"]
