"""Rows copied side by side are the rows."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from hasten.data import StoreWriter, Stream
from hasten.data.store import copying, sharing
from hasten.data.store.copying import take_rows
from hasten.data.store.later import made
from hasten.data.store.sharing import Arriving
from hasten.data.stream.samples import WindowSamples


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each copy by several threads was asked for; there are several here."""
    seen: list[int] = []
    select = torch.index_select

    def counted(table: torch.Tensor, dim: int, at: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.append(len(at))
        return select(table, dim, at, out=out)

    monkeypatch.setattr(torch, "index_select", counted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return seen


def mapped(folder: Path, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As a store gives it: read-only."""
    np.save(folder / "values.npy", values)
    found: np.ndarray[Any, Any] = np.load(folder / "values.npy", mmap_mode="r")
    return found


def rows_of(values: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty((len(at), *values.shape[1:]), values.dtype.newbyteorder("="))
    take_rows(values, at, out)
    return out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["u1", "?", "<u2", "<f4", "<f8", ">i4"])
@pytest.mark.parametrize("shape", [(900, 700), (900, 7, 5, 20)])
def test_any_rows_of_any_type(tmp_path: Path, shared: list[int], dtype: str, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    values = mapped(tmp_path, generator.integers(0, 2 if dtype == "?" else 100, shape).astype(dtype))
    at = generator.integers(0, len(values), 800)
    assert np.array_equal(rows_of(values, at), values[at])
    assert shared == ([] if dtype == ">i4" else [800])


def test_a_little_is_copied_by_one(tmp_path: Path, shared: list[int]) -> None:
    values = mapped(tmp_path, np.arange(40, dtype=np.int64).reshape(10, 4))
    assert rows_of(values, np.array([3, 3, 9, 0])).tolist() == values[[3, 3, 9, 0]].tolist()
    assert not shared


def test_another_thread_copies_alone_and_so_does_the_child_of_a_fork(
    tmp_path: Path, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values, at = mapped(tmp_path, np.arange(600_000, dtype=np.int32).reshape(600, 1000)), np.arange(599, -1, -1)
    found: list[np.ndarray[Any, Any]] = []
    thread = threading.Thread(target=lambda: found.append(rows_of(values, at)))
    thread.start()
    thread.join()
    assert np.array_equal(found[0], values[::-1])
    assert not shared
    monkeypatch.setattr(copying, "_PROCESS", os.getpid() + 1)
    assert np.array_equal(rows_of(values, at), values[::-1])
    assert not shared


def test_a_row_that_is_not_there_is_no_memory_of_others(tmp_path: Path, shared: list[int]) -> None:
    values = mapped(tmp_path, np.zeros((600, 1000), np.int32))
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        rows_of(values, np.full(600, 600))
    assert shared == [600]


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has copied a lot, of several threads."""
    pytest.importorskip("numba")
    monkeypatch.setattr(copying, "_WORTH_LOADING", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<f8"])
@pytest.mark.parametrize("width", [256, 257, 1000, 2048, 65536])
def test_kernels_copy_any_rows_in_threads_and_alone(
    tmp_path: Path, with_kernels: None, monkeypatch: pytest.MonkeyPatch, shared: list[int], dtype: str, width: int
) -> None:
    generator = np.random.default_rng(width)
    shape = (300, max(width // np.dtype(dtype).itemsize, 1))
    values = mapped(tmp_path, generator.integers(0, 100, shape).astype(dtype))
    at = generator.integers(0, len(values), 600)
    out = np.zeros((len(at), shape[1]), dtype)
    begun = copying.begin_rows(values, at, out)
    assert isinstance(begun, Arriving)
    assert (len(begun), begun.nbytes) == (600, out.nbytes)
    assert np.array_equal(begun[599:].made(), values[at[599:]])  # the last first: all before it is copied on the way
    assert np.array_equal(begun[100:300][50:].made(), values[at[150:300]])
    assert begun.made() is out
    assert np.array_equal(out, values[at])
    monkeypatch.setattr(copying, "_PROCESS", os.getpid() + 1)
    assert np.array_equal(rows_of(values, at), values[at])
    assert not shared


def test_many_copies_at_once_are_all_whole(tmp_path: Path, with_kernels: None) -> None:
    values = mapped(tmp_path, np.arange(400_000, dtype=np.int64).reshape(2000, 200))
    orders = [np.random.default_rng(number).permutation(2000) for number in range(20)]
    outs = [np.zeros(values.shape, values.dtype) for _ in orders]
    begun = [copying.begin_rows(values, at, out) for at, out in zip(orders, outs, strict=True)]
    for one, at in zip(begun, orders, strict=True):
        for start in range(0, 2000, 300):
            assert np.array_equal(made(one[start : start + 300]), values[at[start : start + 300]])


def test_a_batch_that_was_given_out_is_not_written_to_again(tmp_path: Path, with_kernels: None) -> None:
    values = mapped(tmp_path, np.ones((2000, 1000), np.int64))
    for _ in range(30):
        begun = copying.begin_rows(values, np.arange(2000), np.zeros(values.shape, values.dtype))
        first = made(begun[:700])
        first[:] = 7
        made(begun[700:])
        assert (first == 7).all()


@pytest.mark.parametrize("row", [-1, 600, 2**62])
def test_kernels_refuse_a_row_that_is_not_there(tmp_path: Path, with_kernels: None, row: int) -> None:
    values, at = mapped(tmp_path, np.ones((600, 1000), np.int32)), np.arange(600)
    at[400] = row
    out = np.zeros(values.shape, values.dtype)
    with pytest.raises(IndexError, match=f"{row}.* out of range: there are 600"):
        copying.begin_rows(values, at, out)
    assert not out.any()


def test_kernels_are_loaded_once_enough_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: list[int]
) -> None:
    pytest.importorskip("numba")
    values = mapped(tmp_path, np.arange(600_000, dtype=np.int32).reshape(600, 1000))
    monkeypatch.setattr(copying._Copied, "num_bytes", 0)
    monkeypatch.setattr(copying, "_WORTH_LOADING", 3 * values.nbytes)
    begun = [copying.begin_rows(values, np.arange(600), np.empty_like(values)) for _ in range(3)]
    assert [isinstance(one, Arriving) for one in begun] == [False, False, True]
    assert shared == [600, 600]
    assert all(np.array_equal(made(one), values) for one in begun)


def test_without_numba_rows_are_copied_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: list[int]) -> None:
    values = mapped(tmp_path, np.arange(600_000, dtype=np.int32).reshape(600, 1000))
    monkeypatch.setattr(copying, "_WORTH_LOADING", 0)
    monkeypatch.setitem(sys.modules, "hasten.data.store.kernels", None)
    sharing.kernels.cache_clear()
    try:
        assert np.array_equal(rows_of(values, np.arange(599, -1, -1)), values[::-1])
    finally:
        sharing.kernels.cache_clear()
    assert shared == [600]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_gives_the_same_windows_with_kernels_and_without(
    tmp_path: Path, with_kernels: None, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    with StoreWriter(tmp_path / "store") as writer:
        writer.write({"tokens": np.random.default_rng(0).integers(0, 60_000, 4_000_000).astype(np.uint16)})
    epochs = []
    for worth in (0, 2**62):
        monkeypatch.setattr(copying, "_WORTH_LOADING", worth)
        stream = Stream(tmp_path / "store", batch_size=256, length=1024, form="numpy", workers=workers, seed=3)
        epochs.append([batch["tokens"].copy() for batch in stream])
        epochs.append([batch["tokens"] for batch in stream])  # all held: none of them is filled again
    for one, other in zip(epochs[:2], epochs[2:], strict=True):
        assert all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))
    assert not np.array_equal(epochs[0][0], epochs[1][0])


def test_a_thread_that_would_wait_copies_what_comes_next(tmp_path: Path, with_kernels: None) -> None:
    kernels = sharing.kernels()
    values, at = mapped(tmp_path, np.arange(64 * 512, dtype=np.uint8).reshape(64, 512)), np.arange(64)
    out, state = np.zeros_like(values), np.zeros(kernels.DONE + 8, np.int64)
    state[kernels.TAKEN] = 8  # another thread has taken the first part, and did not copy it yet
    rows = sharing.rows_of(kernels, values, at)
    starts, ends = sharing._read_only(rows.starts), sharing._read_only(rows.ends)
    told = (rows.base, starts, ends, out.reshape(-1), state, 8)
    assert kernels.copy_rows(*told, 0, 8) == kernels.NOT_YET
    assert np.array_equal(out[8:], values[8:])
    assert not out[:8].any()
    out[:8], state[kernels.DONE] = values[:8], kernels.THERE
    assert kernels.copy_rows(*told, 0, 64) == kernels.THERE


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A store of 3,906 windows of 1,024."""
    with StoreWriter(tmp_path / "store") as writer:
        writer.write({"tokens": np.random.default_rng(0).integers(0, 60_000, 4_000_000).astype(np.uint16)})
    return tmp_path / "store"


@pytest.mark.parametrize("window_blocks", [1, 1000])
def test_an_epoch_left_in_the_middle_of_a_copy_is_gone_on_with_and_the_next_one_is_right(
    tokens: Path, with_kernels: None, monkeypatch: pytest.MonkeyPatch, window_blocks: int
) -> None:
    def opened() -> Stream:
        return Stream(tokens, batch_size=64, length=1024, form="numpy", seed=3, window_blocks=window_blocks)

    epochs = []
    for worth in (2**62, 0):
        monkeypatch.setattr(copying, "_WORTH_LOADING", worth)
        stream = opened()
        epochs.append([(batch["tokens"].copy(), stream.state_dict()) for _ in range(2) for batch in stream])
    assert len(epochs[0]) == len(epochs[1]) > 100
    for (one, state), (other, other_state) in zip(*epochs, strict=True):
        assert np.array_equal(one, other)
        assert state == other_state  # of the batch that was given out, however far helpers are ahead
    for stop in (1, 9, 40):
        stream = opened()
        held = [batch["tokens"] for _, batch in zip(range(stop), stream, strict=False)]
        again = opened()
        again.load_state_dict(stream.state_dict())
        rest = [batch["tokens"] for epoch in range(2) for batch in again]
        assert all(np.array_equal(one, other) for one, (other, _) in zip(held + rest, epochs[0], strict=True))
        anew = [batch["tokens"].copy() for epoch in range(2) for batch in stream]  # one left begins from its start
        assert all(np.array_equal(one, other) for one, (other, _) in zip(anew, epochs[0], strict=True))
        assert all(np.array_equal(one, other) for one, (other, _) in zip(held, epochs[0], strict=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_group_that_was_begun_ahead_comes_where_its_batch_would_have(
    tokens: Path, with_kernels: None, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    take = WindowSamples.take

    def damaged(samples: WindowSamples, opened: None, numbers: Any, buffers: Any) -> Any:
        if 2000 in numbers:
            raise ValueError("two thousand")
        return take(samples, opened, numbers, buffers)

    monkeypatch.setattr(WindowSamples, "take", damaged)
    stream = Stream(tokens, batch_size=64, length=1024, form="numpy", shuffle=False, window_blocks=1000, workers=workers)
    seen: list[Any] = []
    with pytest.raises(ValueError, match="two thousand"):
        seen.extend(batch["tokens"][:, 0].copy() for batch in stream)
    assert len(seen) == 2000 // 64
    assert stream.state_dict()["position"] == {"sample": 64 * (2000 // 64)}


def test_a_copy_that_helpers_have_not_begun_keeps_no_memory(
    tmp_path: Path, with_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = sharing.Helpers(sharing.kernels(), 3)  # none of them comes to it
    monkeypatch.setattr(copying, "helpers", lambda: late)
    values, out = mapped(tmp_path, np.ones((600, 1000), np.int32)), np.zeros((600, 1000), np.int32)
    free = sys.getrefcount(out)
    begun = copying.begin_rows(values, np.arange(600), out)
    assert (made(begun) == 1).all()
    del begun
    assert sys.getrefcount(out) == free


def test_helpers_end_before_the_interpreter_does() -> None:
    """Otherwise one that lets go of mapped memory late ends the process with an abort (seen in 8 of 25 processes)."""
    pytest.importorskip("numba")
    code = """
        import atexit, threading
        import numpy as np, torch
        from hasten.data.store import copying, sharing

        def alive():
            print(sum(thread.name.startswith("hasten-copy") for thread in threading.enumerate()), flush=True)

        atexit.register(alive)  # what is registered first runs last
        copying._WORTH_LOADING = 0
        torch.set_num_threads(3)
        begun = copying.begin_rows(np.ones((600, 4096), np.uint8), np.arange(6000) % 600, np.empty((6000, 4096), np.uint8))
        alive()
        del begun
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0"]


def test_rows_are_copied_although_the_helpers_have_ended(
    tmp_path: Path, with_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = sharing.Helpers(sharing.kernels(), 2).start()
    monkeypatch.setattr(copying, "helpers", lambda: ended)
    values = mapped(tmp_path, np.arange(600_000, dtype=np.int32).reshape(600, 1000))
    assert np.array_equal(rows_of(values, np.arange(600)), values)
    ended.close()
    assert not any(thread.is_alive() for thread in ended._threads)
    assert np.array_equal(rows_of(values, np.arange(599, -1, -1)), values[::-1])


@pytest.fixture
def several(with_kernels: None) -> Iterator[sharing.Helpers]:
    """Two helpers of this test."""
    found = sharing.Helpers(sharing.kernels(), 2).start()
    yield found
    found.close()
    assert not any(thread.is_alive() for thread in found._threads)


def copy_of(values: np.ndarray[Any, Any], at: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> sharing.Copy:
    kernels = sharing.kernels()
    return sharing.Copy(kernels, sharing.rows_of(kernels, values, at), out.reshape(-1))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_helpers_copy_all_by_themselves_and_sleep_and_wake(several: sharing.Helpers) -> None:
    values = np.random.default_rng(0).integers(0, 255, (4000, 1024), np.uint8)
    for number in range(4):
        at = np.random.default_rng(number).permutation(4000)
        out = np.zeros_like(values)
        copy = copy_of(values, at, out)
        several.ask(copy)
        until(lambda out=out, at=at: np.array_equal(out, values[at]))  # type: ignore[misc]
        sleeps = several._board[8 + 2 :: 8][:2]
        until(lambda sleeps=sleeps: sleeps.all())  # type: ignore[misc]  # nothing to do for a while


def test_every_copy_finds_a_place_while_helpers_are_idle(with_kernels: None) -> None:
    asleep = sharing.Helpers(sharing.kernels(), 2)  # none of them comes to it
    values, out = np.ones((600, 1024), np.uint8), np.zeros((600, 1024), np.uint8)
    copies = [copy_of(values, np.arange(600), out) for _ in range(3 * sharing.kernels().JOBS)]
    for copy in copies:
        asleep.ask(copy)
    assert all(copy._taken_down is not None for copy in copies)


def test_more_copies_than_there_is_room_for_are_all_made(several: sharing.Helpers) -> None:
    values = np.random.default_rng(0).integers(0, 255, (2000, 1024), np.uint8)
    orders = [np.random.default_rng(number).permutation(2000) for number in range(50)]
    outs = [np.zeros_like(values) for _ in orders]
    copies = [copy_of(values, at, out) for at, out in zip(orders, outs, strict=True)]
    for copy in copies:
        several.ask(copy)
    for copy, at, out in zip(copies[::-1], orders[::-1], outs[::-1], strict=True):
        copy.need(0, 2000)
        assert np.array_equal(out, values[at])


def test_a_copy_that_is_dropped_is_not_written_to_any_more(several: sharing.Helpers) -> None:
    values = np.ones((4000, 1024), np.uint8)
    at = np.arange(4000)
    for number in range(300):
        out = np.zeros_like(values)
        copy = copy_of(values, at, out)
        several.ask(copy)
        if number % 3:
            copy.need(0, number % 50 * 50)
        del copy
        out[:] = 7
        assert (out == 7).all()
    assert not several._board[8::8][:2].any()  # no helper looks at any of them


def test_a_copy_that_is_interrupted_while_it_is_put_up_is_taken_down(several: sharing.Helpers) -> None:
    values, at = np.ones((4000, 1024), np.uint8), np.arange(4000)

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(sharing.kernels(), name)

        def put_up(self, *arguments: Any) -> int:
            sharing.kernels().put_up(*arguments)
            raise KeyboardInterrupt

    for _ in range(100):
        out = np.zeros_like(values)
        copy = sharing.Copy(Interrupted(), sharing.rows_of(sharing.kernels(), values, at), out.reshape(-1))
        with pytest.raises(KeyboardInterrupt):
            several.ask(copy)
        del copy
        out[:] = 7
        assert (out == 7).all()


def test_copies_are_dropped_in_the_child_of_a_fork_too(several: sharing.Helpers) -> None:
    values, at = np.ones((4000, 1024), np.uint8), np.arange(4000)
    os.register_at_fork(after_in_child=several.forget)
    out = np.zeros_like(values)
    copy = copy_of(values, at, out)
    several.ask(copy)
    several._board[8] = several._number  # as if the first helper looked at it just then
    pid = os.fork()
    if not pid:
        del copy  # would wait for a helper that is not there
        os._exit(0)
    several._board[8] = 0
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended[0] == pid
    assert ended[1] == 0
