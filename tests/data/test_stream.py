"""Every sample comes once per epoch, in the same order for any workers, ranks and interruptions."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hasten.core.errors import CorruptError, DataError
from hasten.data import MixedStream, PackedStream, Store, StoreWriter, Stream
from hasten.data.store.window import Window
from hasten.data.stream.packed import best_fit


@functools.cache
def folder() -> Path:
    """Create stores once for all tests of this process."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix="hasten-test-"))


@functools.cache
def numbers(count: int, block: int = 16) -> Store:
    path = folder() / f"numbers-{count}-{block}"
    with StoreWriter(path, block_rows=block, shard_bytes=2_000) as writer:
        ids = np.arange(count)
        writer.write({"id": pa.array(ids), "text": [f"{n:04d}" * (1 + n % 9) for n in ids], "raw": ids.astype(np.int32)})
    return Store(path)


@functools.cache
def documents(count: int) -> Store:
    path = folder() / f"documents-{count}"
    lengths = np.random.default_rng(0).integers(0, 50, count)
    with StoreWriter(path, block_rows=16) as writer:
        writer.write({"tokens": pa.array([np.arange(n, dtype=np.uint16) + 100 * i % 60_000 for i, n in enumerate(lengths)])})
    return Store(path)


def flat(lists: Any) -> list[Any]:
    """Flatten lists into one."""
    return list(itertools.chain.from_iterable(lists))


def ids(batch: Any) -> list[int]:
    found: list[int] = batch["id"].to_pylist()
    return found


def rest(stream: Stream) -> list[list[int]]:
    return [ids(batch) for batch in stream]


def global_batches(store: Store, ranks: int, batch: int, **more: Any) -> list[list[int]]:
    """Return the batches of an epoch, merged over all ranks."""
    streams = [Stream(store, batch_size=batch, rank=rank, world_size=ranks, **more) for rank in range(ranks)]
    return [flat(parts) for parts in zip(*(rest(stream) for stream in streams), strict=True)]


@functools.cache
def uninterrupted(count: int, batch: int, **more: Any) -> list[list[int]]:
    """Return the batches of an uninterrupted epoch."""
    return global_batches(numbers(count), 1, batch, **more)


def test_an_epoch_holds_every_sample_once_in_a_new_order_each_time() -> None:
    stream = Stream(numbers(1000), batch_size=32, seed=3)
    first, second = rest(stream), rest(stream)
    assert len(first) == len(stream) == 32
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(1000))
    assert first != second
    assert rest(Stream(numbers(1000), batch_size=32, seed=3)) == first
    assert rest(Stream(numbers(1000), batch_size=32, seed=4)) != first
    stream.set_epoch(0)
    assert rest(stream) == first


def test_the_order_is_far_from_the_stored_one() -> None:
    order = flat(rest(Stream(numbers(1000), batch_size=10, seed=0)))
    assert np.mean(np.abs(np.array(order) - np.arange(1000))) > 200
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.3
    assert len({number // 16 for number in order[:10]}) > 3  # a batch mixes blocks


def test_without_shuffling_samples_come_as_stored() -> None:
    assert flat(rest(Stream(numbers(100), batch_size=7, shuffle=False))) == list(range(100))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_run_goes_on_where_it_stopped_under_any_workers_and_ranks(data: Any) -> None:
    count = data.draw(st.sampled_from([40, 97, 180, 256]))
    whole = data.draw(st.sampled_from([4, 12, 24]))  # size of a global batch, which the number of ranks must divide
    before = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if whole % n == 0]))
    after = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if whole % n == 0]))
    common = {
        "seed": data.draw(st.integers(0, 5)),
        "shuffle": data.draw(st.booleans()),
        "window_blocks": data.draw(st.sampled_from([1, 3, 16])),
        "bucket_by": data.draw(st.sampled_from([None, "text"])),
        "columns": ("id",),
    }
    store = numbers(count)
    want = uninterrupted(count, whole, **common)
    stop = data.draw(st.integers(0, len(want) - 1))
    seen: list[list[int]] = [[] for _ in range(stop)]
    states = []
    for rank in range(before):
        workers = data.draw(st.integers(0, 4))
        stream = Stream(store, batch_size=whole // before, rank=rank, world_size=before, workers=workers, **common)
        for number, batch in zip(range(stop), stream, strict=False):
            seen[number] += ids(batch)
        states.append(json.loads(json.dumps(stream.state_dict())))
    assert all(state == states[0] for state in states)
    parts = []
    for rank in range(after):
        workers = data.draw(st.integers(0, 4))
        stream = Stream(store, batch_size=whole // after, rank=rank, world_size=after, workers=workers, **common)
        stream.load_state_dict(states[0])
        parts.append(rest(stream))
        assert stream.epoch == 1
    assert len({len(part) for part in parts}) == 1
    seen += [flat(batches) for batches in zip(*parts, strict=True)]
    assert sorted(flat(seen)) == list(range(count))
    if common["bucket_by"] is None:
        assert seen[: len(want) - 2] == want[: len(want) - 2]  # equal batches, except at the end of the epoch
        assert flat(seen) == flat(want)
    else:
        assert [sorted(batch) for batch in seen[: len(want) - 2]] == [sorted(batch) for batch in want[: len(want) - 2]]


KILLED = """
import json, os, random, signal, sys, time, traceback
from pathlib import Path
from hasten.core.files import write_atomically
from hasten.data import Stream
store, state, workers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
def train(permits, told):
    stream, seen = Stream(store, batch_size=7, seed=3, workers=workers, read_ahead=3), []
    if state.exists():
        saved = json.loads(state.read_text())
        stream.load_state_dict(saved["stream"])
        seen = saved["seen"]
    while stream.epoch < 2:
        for number, batch in enumerate(stream):
            os.read(permits, 1)
            seen += batch["id"].to_pylist()
            os.write(told, b".")
            if number % 3 == 0:
                write_atomically(state, json.dumps({"stream": stream.state_dict(), "seen": seen}))
    write_atomically(state, json.dumps({"stream": stream.state_dict(), "seen": seen}))
chance, kills, code = random.Random(workers), 0, -signal.SIGKILL
while code == -signal.SIGKILL:
    permits, give = os.pipe()
    hear, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(hear), os.close(give)
        try:
            train(permits, told)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(3)
    os.close(told), os.close(permits)
    batches = chance.randint(1, 12)
    os.write(give, b"." * batches)
    while batches > 1 and os.read(hear, 1):
        batches -= 1
    time.sleep(chance.random() * 0.004)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kills += code == -signal.SIGKILL
    os.close(hear), os.close(give)
print(json.dumps([kills, code]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.long), "2"])
def test_a_process_that_is_killed_goes_on_from_what_it_saved_last(tmp_path: Path, workers: str) -> None:
    """Progress after the last saved state is lost with the process. No other progress is lost, and no sample comes twice."""
    store = folder() / "numbers-333-16"
    numbers(333)
    command = [sys.executable, "-c", KILLED, str(store), str(tmp_path / "state.json"), workers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    kills, code = json.loads(done.stdout)
    assert (kills >= 8, code) == (True, 0)
    stream = Stream(numbers(333), batch_size=7, seed=3)
    assert json.loads((tmp_path / "state.json").read_text())["seen"] == flat(rest(stream)) + flat(rest(stream))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [40, 41, 42, 43, 48, 49])
@pytest.mark.parametrize("batch", [1, 2, 6])
def test_no_rank_starves(ranks: int, count: int, batch: int) -> None:
    streams = [Stream(numbers(count), batch_size=batch, rank=rank, world_size=ranks) for rank in range(ranks)]
    batches = [rest(stream) for stream in streams]
    assert {len(part) for part in batches} == {len(streams[0])}
    assert all(part for parts in batches for part in parts)
    assert sorted(number for parts in batches for part in parts for number in part) == list(range(count))
    assert max(len(part) for parts in batches for part in parts) <= max(batch, 2)


def test_dropping_the_last_keeps_all_batches_full() -> None:
    batches = global_batches(numbers(97), 2, 5, drop_last=True)
    assert [len(batch) for batch in batches] == [10] * 9


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(DataError, match="10 samples are fewer than the 16 ranks"):
        Stream(numbers(10), batch_size=1, rank=0, world_size=16)


def test_more_ranks_than_samples_left_give_empty_batches_and_no_rank_waits() -> None:
    stream = Stream(numbers(41), batch_size=2, seed=1)
    state = [stream.state_dict() for _ in stream][-2]  # one sample left
    parts = []
    for rank in range(4):
        resumed = Stream(numbers(41), batch_size=2, seed=1, rank=rank, world_size=4)
        resumed.load_state_dict(state)
        parts.append([(ids(batch), batch.num_rows) for batch in resumed])
    assert [len(part) for part in parts] == [1] * 4
    assert sorted(len(found) for part in parts for found, _ in part) == [0, 0, 0, 1]
    assert all(len(found) == rows for part in parts for found, rows in part)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_processes_of_a_dataloader_give_the_same_batches(workers: Any) -> None:
    stream = Stream(numbers(333), batch_size=16, seed=2, form="torch")
    want = [batch["id"].tolist() for batch in Stream(numbers(333), batch_size=16, seed=2, form="torch")]
    loader = DataLoader(stream, batch_size=None, num_workers=workers, persistent_workers=True)
    assert len(loader) == len(want)
    assert [batch["id"].tolist() for batch in loader] == want
    second = [batch["id"].tolist() for batch in loader]
    assert second != want
    assert sorted(flat(second)) == list(range(333))


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_receive_the_epoch(persistent: bool) -> None:
    stream = Stream(numbers(333), batch_size=16, seed=2, form="torch")
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=persistent)
    for epoch in (0, 3, 1, 1):
        stream.set_epoch(epoch)
        want = Stream(numbers(333), batch_size=16, seed=2, form="torch")
        want.set_epoch(epoch)
        assert [batch["id"].tolist() for batch in loader] == [batch["id"].tolist() for batch in want]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_goes_on_where_it_stopped(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def made() -> Any:
        stream = Stream(numbers(333), batch_size=16, seed=2, form="torch")
        return stateful.StatefulDataLoader(stream, batch_size=None, num_workers=workers)

    want = [batch["id"].tolist() for batch in made()]
    loader = made()
    seen = [batch["id"].tolist() for _, batch in zip(range(9), loader, strict=False)]
    state = loader.state_dict()
    again = made()
    again.load_state_dict(state)
    assert seen + [batch["id"].tolist() for batch in again] == want


def test_a_worker_resumes_from_its_own_state() -> None:
    """Load and save the state in each worker process, as a StatefulDataLoader does."""
    from torch.utils.data import _utils

    stream = Stream(numbers(333), batch_size=16, seed=2)
    want = rest(Stream(numbers(333), batch_size=16, seed=2))

    def worker(number: int, state: dict[str, Any] | None) -> Iterator[tuple[list[int], dict[str, Any]]]:
        mine = pickle.loads(pickle.dumps(stream))
        if state:
            mine.load_state_dict(state)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(id=number, num_workers=3, seed=0, dataset=mine)
        try:
            iterator = iter(mine)
        finally:
            _utils.worker._worker_info = None
        for batch in iterator:
            yield ids(batch), mine.state_dict()

    running = [worker(number, None) for number in range(3)]
    seen: list[list[int]] = []
    states: list[dict[str, Any] | None] = [None] * 3
    for number in range(7):
        batch, states[number % 3] = next(running[number % 3])
        seen.append(batch)
    running = [worker(number, states[number]) for number in range(3)]
    seen.extend(next(running[number % 3])[0] for number in range(7, len(want)))
    assert seen == want


def mixed() -> MixedStream:
    return MixedStream([numbers(333), numbers(97)], weights=(2, 1), batch_size=16, num_steps=9, seed=2, form="torch")


def plain() -> Stream:
    return Stream(numbers(333), batch_size=16, seed=2, form="torch")


def in_workers(stream: Any, seeds: list[int], workers: int, *, persistent: bool, stop: int = 10**6) -> list[Any]:
    """Return each epoch's batches from copies of a stream, which represent the worker processes of a loader."""
    from torch.utils.data import _utils

    copies: list[Any] = []
    epochs = []
    for seed in seeds:
        if not copies or not persistent:
            copies = [copy.copy(stream) for _ in range(workers)]  # the copies share memory, like forked processes
        running: list[Iterator[Any]] = []
        for number in reversed(range(workers)):  # workers can start in any order
            worker = _utils.worker.WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=stream)
            _utils.worker._worker_info = worker
            try:
                running.insert(0, iter(copies[number]))
            finally:
                _utils.worker._worker_info = None
        turns = itertools.zip_longest(*running)
        found = [batch["id"].tolist() for batch in itertools.islice(flat_lazily(turns), stop) if batch is not None]
        epochs.append(found)
    return epochs


def flat_lazily(lists: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(lists)


@pytest.mark.parametrize("made", [plain, mixed])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seeds", [[5, 6, 7, 8], [5, 5, 5, 5], [5, 6, 5, 6]])
@pytest.mark.parametrize("stop", [10**6, 5])
def test_epochs_continue_in_workers_without_set_epoch(made: Any, persistent: bool, seeds: list[int], stop: int) -> None:
    one = made()
    want = [[batch["id"].tolist() for batch in itertools.islice(one, stop)] for _ in seeds]
    assert want[0] != want[1] != want[2]
    stream = made()
    assert in_workers(stream, seeds, 2, persistent=persistent, stop=stop) == want
    assert in_workers(stream, [9], 3, persistent=False, stop=stop) == [
        [batch["id"].tolist() for batch in itertools.islice(one, stop)]
    ]
    one.set_epoch(0)
    stream.set_epoch(0)
    assert in_workers(stream, seeds, 3, persistent=persistent, stop=stop) == want


def test_workers_and_their_parent_take_turns() -> None:
    one, stream = plain(), plain()
    want = [[batch["id"].tolist() for batch in one] for _ in range(6)]
    got = in_workers(stream, [3, 4], 2, persistent=False)
    with pytest.raises(DataError, match="this process does not know its position"):
        stream.state_dict()
    got.append([batch["id"].tolist() for batch in stream])
    got += in_workers(stream, [5, 6], 2, persistent=False)
    got.append([batch["id"].tolist() for batch in stream])
    assert got == want


def test_a_loaded_state_holds_for_one_epoch() -> None:
    one = plain()
    want = [[batch["id"].tolist() for batch in one] for _ in range(3)]
    one = plain()
    state = [one.state_dict() for _ in itertools.islice(one, 7)][-1]
    stream = plain()
    stream.load_state_dict(state)
    assert in_workers(stream, [1, 2, 3], 2, persistent=False) == [want[0][7:], *want[1:]]


def test_a_worker_that_gives_epoch_after_epoch_is_followed_from_its_first_one() -> None:
    from torch.utils.data import _utils

    stream = plain()
    first: list[Any] = []
    for number, epochs in ((0, 3), (1, 1)):  # worker 1 starts when worker 0 is in its third epoch
        mine = copy.copy(stream)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(id=number, num_workers=2, seed=7 + number, dataset=stream)
        try:
            begun = [[batch["id"].tolist() for batch in mine] for _ in range(epochs)]
        finally:
            _utils.worker._worker_info = None
        first += begun[0]
    assert sorted(flat(first)) == list(range(333))
    one = plain()
    one.set_epoch(3)
    assert in_workers(stream, [9], 2, persistent=False) == [[batch["id"].tolist() for batch in one]]


@pytest.mark.slow
@pytest.mark.parametrize("made", [plain, mixed])
def test_worker_processes_that_live_one_epoch_go_on_with_the_next(made: Any) -> None:
    one, loader = made(), DataLoader(made(), batch_size=None, num_workers=2)
    for _ in range(2):
        assert [batch["id"].tolist() for batch in loader] == [batch["id"].tolist() for batch in one]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_count_epochs_that_were_stopped_early(start: str, persistent: bool) -> None:
    one = plain()
    loader = DataLoader(
        plain(), batch_size=None, num_workers=2, multiprocessing_context=start, persistent_workers=persistent
    )
    for stop in (3, 10**6, 1, 10**6):
        got = [batch["id"].tolist() for batch in itertools.islice(loader, stop)]
        assert got == [batch["id"].tolist() for batch in itertools.islice(one, stop)]


def test_a_state_of_another_stream_is_refused() -> None:
    stream = Stream(numbers(100), batch_size=8, seed=1)
    state = stream.state_dict()
    with pytest.raises(DataError, match="the state was taken with seed=1, but this stream has 2"):
        Stream(numbers(100), batch_size=8, seed=2).load_state_dict(state)
    with pytest.raises(DataError, match="the state was taken with num_samples=100"):
        Stream(numbers(97), batch_size=8, seed=1).load_state_dict(state)
    with pytest.raises(DataError, match="this is not the state of a stream: it contains a"):
        stream.load_state_dict({"a": 1})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size and window_blocks must be at least 1"),
        ({"batch_size": 1, "rank": 0}, "rank and world_size must be given together"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank must be between 0 and world_size - 1"),
        ({"batch_size": 1, "form": "pandas"}, "form must be one of arrow, numpy, torch"),
        ({"batch_size": 1, "workers": -1}, "workers must be at least 0"),
        ({"batch_size": 1, "columns": ["x"]}, "has no column 'x'"),
        ({"batch_size": 1, "columns": ["id"], "strings": ["text"]}, "strings contains 'text'"),
        ({"batch_size": 1, "bucket_by": "nothing"}, "has no column 'nothing'"),
        ({"batch_size": 1, "length": 4}, "windows need exactly one column"),
        ({"batch_size": 1, "length": 4, "columns": ["text"]}, "windows need a raw column, whose rows all have one shape"),
        ({"batch_size": 1, "stride": 4}, "stride applies to windows"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: Any) -> None:
    with pytest.raises(DataError, match=words):
        Stream(numbers(100), **arguments)


def test_forms() -> None:
    arrow = next(iter(Stream(numbers(100), batch_size=4, shuffle=False)))
    assert isinstance(arrow["text"], pa.Array)
    arrays = next(iter(Stream(numbers(100), batch_size=4, shuffle=False, form="numpy")))
    assert arrays["id"].tolist() == [0, 1, 2, 3]
    arrays["id"][0] = 7  # the memory belongs to the caller
    tensors = next(iter(Stream(numbers(100), batch_size=4, shuffle=False, form="torch", strings=["text"])))
    assert torch.equal(tensors["raw"], torch.arange(4, dtype=torch.int32))
    assert tensors["text"] == ["0000", "00010001", "000200020002", "0003" * 4]


def test_batches_that_are_held_keep_their_content() -> None:
    with StoreWriter(folder() / "images", block_rows=8) as writer:
        writer.write({"image": np.arange(64, dtype=np.uint8)[:, None] + np.zeros((64, 400_000), np.uint8)})
    stream = Stream(folder() / "images", batch_size=2, shuffle=False, form="torch", workers=2)
    held = [batch["image"] for batch in stream]
    assert [image[:, 0].tolist() for image in held] == [[2 * n, 2 * n + 1] for n in range(32)]
    assert all((image == image[:, :1]).all() for image in held)
    large = Stream(folder() / "images", batch_size=8, form="torch")  # too large for a shared buffer
    addresses = {batch["image"].data_ptr() for batch in large}
    assert len(addresses) <= 3  # released buffers are reused


def test_views_are_the_rows_in_place() -> None:
    stream = Stream(numbers(200), batch_size=64, shuffle=False, views=["raw"])
    batch = next(iter(stream))
    assert [int(value) for value in batch["raw"]] == list(range(64))
    assert not batch["raw"][0].flags.writeable
    with pytest.raises(DataError, match="views contains 'text', which is not a raw column"):
        Stream(numbers(100), batch_size=1, views=["text"])


def test_a_damaged_block_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", block_rows=64) as writer:
        writer.write({"text": [f"{number:05d}" for number in range(128)]})
    offsets = np.arange(0, 5 * 65, 5, dtype=np.int32).tobytes()
    (path,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and offsets in path.read_bytes()]
    data = bytearray(path.read_bytes())
    at = data.find(offsets)
    data[at + 40 : at + 44] = (2**31 - 5).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(
        CorruptError, match=r"column 'text' of .*store is damaged: a row .* beyond the block.*hasten data verify"
    ):
        list(Stream(tmp_path / "store", batch_size=8))


def test_windows_of_tokens_cross_shards() -> None:
    path = folder() / "tokens"
    with StoreWriter(path, block_rows=16, shard_bytes=100) as writer:
        writer.write({"tokens": np.arange(1000, dtype=np.uint16)})
    store = Store(path)
    assert len(store.manifest.shards) > 5
    batches = [batch["tokens"] for batch in Stream(store, batch_size=4, length=33, seed=1, form="numpy")]
    windows = np.concatenate(batches)
    assert sorted(windows[:, 0].tolist()) == [33 * n for n in range(30)]
    assert (windows == windows[:, :1] + np.arange(33)).all()
    overlapping = np.concatenate([b["tokens"] for b in Stream(store, batch_size=5, length=10, stride=3, form="numpy")])
    assert sorted(overlapping[:, 0].tolist()) == list(range(0, 991, 3))


@pytest.mark.parametrize("stride", [33, 66, 20])
@pytest.mark.parametrize("batch_size", [1, 4, 9])
def test_windows_that_lie_in_one_shard_begin_anywhere_in_it(tmp_path: Path, stride: int, batch_size: int) -> None:
    with StoreWriter(tmp_path, block_rows=16, shard_bytes=1000) as writer:
        writer.write({"tokens": np.arange(3000, dtype=np.uint16)})
    stream = Stream(tmp_path, batch_size=batch_size, length=33, stride=stride, shuffle=False, form="numpy")
    assert len(stream.store.manifest.shards) > 3
    windows = np.concatenate([batch["tokens"] for batch in stream])
    assert np.array_equal(windows, np.arange(0, 3000 - 32, stride)[:, None] + np.arange(33))


def test_an_error_of_the_transform_comes_where_its_batch_would_have() -> None:
    def transform(batch: Any) -> Any:
        if 50 in ids(batch):
            raise ValueError("fifty")
        return ids(batch)

    for workers in (0, 3):
        seen: list[list[int]] = []
        with pytest.raises(ValueError, match="fifty"):
            seen.extend(Stream(numbers(100), batch_size=10, shuffle=False, workers=workers, transform=transform))
        assert len(seen) == 5


def test_times_are_measured() -> None:
    stream = Stream(numbers(100), batch_size=10, transform=lambda batch: batch)
    list(stream)
    times = stream.times
    assert (times.batches, times.samples) == (10, 100)
    assert min(times.gather_s, times.form_s, times.transform_s, times.wait_s) > 0


def test_one_window_of_all_blocks_serves_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    begin = Window.__init__

    def counted(window: Window, reader: Any, blocks: Any) -> None:
        opened.append(len(blocks))
        begin(window, reader, blocks)

    monkeypatch.setattr(Window, "__init__", counted)
    stream = Stream(numbers(100), batch_size=10, window_blocks=1000)
    first, second = (flat(map(ids, stream)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert len(opened) == 1
    assert flat(map(ids, pickle.loads(pickle.dumps(stream)))) not in (first, second)
    assert len(opened) == 2  # another process opens its own window
    list(Stream(numbers(100), batch_size=10, window_blocks=2))
    assert set(opened[2:]) == {1, 2}


def test_bucketed_batches_hold_samples_of_one_length() -> None:
    def waste(**more: Any) -> float:
        lengths = [
            [len(text) for text in batch["text"]] for batch in Stream(numbers(1000), batch_size=16, strings=["text"], **more)
        ]
        return 1 - sum(map(sum, lengths)) / sum(max(batch) * len(batch) for batch in lengths)

    assert waste() > 0.3
    assert waste(bucket_by="text") < 0.1
    order = [ids(batch) for batch in Stream(numbers(1000), batch_size=16, bucket_by="text", seed=1)]
    means = [np.mean([number % 9 for number in batch]) for batch in order]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.4  # long samples do not come last


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 100), max_size=200))
def test_packing_uses_every_length_once_and_no_row_overflows(lengths: list[int]) -> None:
    rows = best_fit(lengths, 100)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= 100 for row in rows)
    if lengths:
        assert len(rows) <= 1 + 1.7 * sum(lengths) / 100  # best fit decreasing is close to the optimum


def pieces(batch: Any) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for tokens, documents in zip(batch["tokens"].tolist(), batch["documents"].tolist(), strict=True):
        found.extend(
            tuple(t for t, d in zip(tokens, documents, strict=True) if d == number)
            for number in range(1, max(documents) + 1)
        )
    return found


def test_packed_rows_hold_every_document_once_and_little_padding() -> None:
    store = documents(300)
    stream = PackedStream(store, column="tokens", length=64, batch_size=4, pad=7, pool=100)
    batches = list(stream)
    want = sorted(tuple(row) for row in store.take(np.arange(300))["tokens"].to_pylist() if row)
    assert sorted(piece for batch in batches for piece in pieces(batch)) == want
    filled = sum(int((batch["documents"] > 0).sum()) for batch in batches)
    assert filled / sum(batch["documents"].numel() for batch in batches) > 0.9
    batch = batches[0]
    assert (batch["tokens"][batch["documents"] == 0] == 7).all()
    starts = (batch["positions"] == 0) & (batch["documents"] > 0)
    assert int(starts.sum()) == sum(int(row.max()) for row in batch["documents"])


def test_long_documents_are_cut_into_rows() -> None:
    with StoreWriter(folder() / "long", block_rows=8) as writer:
        writer.write({"tokens": [list(range(150)), [1, 2]]})
    batches = list(PackedStream(folder() / "long", column="tokens", length=64, batch_size=8, shuffle=False))
    found = sorted(piece for batch in batches for piece in pieces(batch))
    assert found == sorted([tuple(range(64)), tuple(range(64, 128)), tuple(range(128, 150)), (1, 2)])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_packed_run_goes_on_where_it_stopped(data: Any) -> None:
    common = {
        "column": "tokens",
        "length": 64,
        "pool": data.draw(st.sampled_from([16, 100, 400])),
        "seed": data.draw(st.integers(0, 3)),
    }
    store = documents(200)
    want = [piece for batch in PackedStream(store, batch_size=12, **common) for piece in pieces(batch)]
    before, after = data.draw(st.sampled_from([1, 2, 3, 4])), data.draw(st.sampled_from([1, 2, 3, 4]))
    streams = [
        PackedStream(store, batch_size=12 // before, rank=rank, world_size=before, **common) for rank in range(before)
    ]
    stop = data.draw(st.integers(0, 5))
    seen = []
    for stream in streams:
        seen += [piece for _, batch in zip(range(stop), stream, strict=False) for piece in pieces(batch)]
    counts = []
    for rank in range(after):
        stream = PackedStream(store, batch_size=12 // after, rank=rank, world_size=after, workers=rank, **common)
        stream.load_state_dict(json.loads(json.dumps(streams[0].state_dict())))
        batches = list(stream)
        counts.append(len(batches))
        seen += [piece for batch in batches for piece in pieces(batch)]
    assert len(set(counts)) == 1
    assert sorted(seen) == sorted(want)


def test_a_mixture_follows_its_weights_even_as_they_change() -> None:
    stores = [numbers(100), numbers(333)]
    stream = MixedStream(stores, weights=lambda step: (1, 3) if step < 20 else (1, 0), batch_size=10, num_steps=40, seed=1)
    batches = list(stream)
    shares = [float(np.mean(batch["source"].to_numpy() == 0)) for batch in batches]
    assert np.mean(shares[:20]) == pytest.approx(0.25)
    assert set(shares[21:]) == {1.0}
    first = [
        number
        for batch in batches
        for number, source in zip(ids(batch), batch["source"].to_pylist(), strict=True)
        if source == 0
    ]
    assert sorted(first[:100]) == list(range(100))  # each store completes its own epochs
    assert len({tuple(first[:100]), tuple(first[100:200])}) == 2


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_mixture_goes_on_where_it_stopped(ranks: int) -> None:
    stores = [numbers(100), numbers(333)]
    common: dict[str, Any] = {"weights": (0.3, 0.7), "num_steps": 30, "seed": 4}
    whole = MixedStream(stores, batch_size=10, **common)
    want = [sorted(ids(batch)) for batch in whole] + [sorted(ids(batch)) for batch in whole]
    streams = [MixedStream(stores, batch_size=10 // ranks, rank=rank, world_size=ranks, **common) for rank in range(ranks)]
    seen: list[list[int]] = [[] for _ in want]
    for stream in streams:
        for number, batch in zip(range(13), stream, strict=False):
            seen[number] += ids(batch)
    state = json.loads(json.dumps(streams[0].state_dict()))
    for rank in range(ranks):
        stream = MixedStream(stores, batch_size=10 // ranks, rank=rank, world_size=ranks, workers=2, **common)
        stream.load_state_dict(state)
        for number, batch in enumerate(list(stream) + list(stream), 13):
            seen[number] += ids(batch)
    assert [sorted(batch) for batch in seen] == want


def test_a_mixture_of_different_columns_is_refused() -> None:
    with pytest.raises(DataError, match="has no column 'id'"):
        MixedStream([numbers(100), documents(200)], weights=(1, 1), batch_size=4)
    with pytest.raises(DataError, match="weights must be one number per store"):
        MixedStream([numbers(100), numbers(97)], weights=(1,), batch_size=4)
