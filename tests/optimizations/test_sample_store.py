"""Test that the sample store is shared by processes, bounded, never stale, and removed with a temporary folder."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.core.errors import JobError
from hasten.optimizations.loader_threads import LoaderThreads
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.parts.sample_caching import CHECKED_HITS, FOLDER_VARIABLE, MISSING, fingerprint
from hasten.optimizations.sample_store import SampleStore, Store
from hasten.train.trace import trace_step
from tests.optimizations.contract import Prepared, facts, make_loop, run
from tests.optimizations.test_sample_cache import Counted

AT_START = 3
"""Number of samples prepared to check that they can be stored, and for the fingerprint of the job."""


def record(index: int) -> dict[str, torch.Tensor]:
    return {"x": torch.full((100,), float(index))}


def test_each_sample_is_prepared_once() -> None:
    job = Counted()
    losses = run(job, 12, SampleStore())  # three epochs of 14 samples
    assert job.prepared == AT_START + 14 + CHECKED_HITS
    assert losses == run(Counted(), 12)


def test_the_hit_rate_is_shown() -> None:
    item = SampleStore()
    loop = make_loop(Counted(), item)
    assert [check.seen for check in item.evidence(loop.live, trace_step(loop))] == [
        "8 hits in 12 reads (67%), 4 samples cached"
    ]
    loop.live.undo_all()


@pytest.mark.parametrize("others", [LoaderWorkers(num_workers=2), LoaderThreads(num_threads=3)])
@pytest.mark.slow
def test_workers_and_threads_share_it(others: Any) -> None:
    loop = make_loop(Counted(), SampleStore(), others)
    loop.run(12)
    load: Any = loop.live.pipeline.load
    assert len(load._shelf) == 14
    loop.close()
    assert loop.losses == run(Counted(), 12)
    loop.live.undo_all()


def fill(folder: Path, numbers: list[int], repeats: int) -> None:
    store = Store(folder, 200, 1 << 30)
    for _ in range(repeats):
        for index in numbers:
            if store.get(index) is MISSING:
                store.put(index, record(index))
            found = store.get(index)
            assert found is not MISSING
            assert torch.equal(found["x"], record(index)["x"])


@pytest.mark.long
@pytest.mark.slow
def test_many_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    numbers = [list(range(200)), list(reversed(range(200))), list(range(0, 200, 3))]
    writers = [context.Process(target=fill, args=(tmp_path, these, 2)) for these in numbers]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    store = Store(tmp_path, 200, 1 << 30)
    assert len(store) == 200
    assert all(torch.equal(store.get(index)["x"], record(index)["x"]) for index in range(200))
    assert (tmp_path / "data").stat().st_size < 201 * 1024  # no sample is stored twice


def test_it_takes_at_most_the_limit(tmp_path: Path) -> None:
    store = Store(tmp_path, 200, 5000)
    for index in range(200):
        store.put(index, record(index))
    kept = len(store)
    assert 0 < kept < 10
    assert (tmp_path / "data").stat().st_size <= 5000
    assert [store.get(index) is MISSING for index in range(200)] == [False] * kept + [True] * (200 - kept)
    job = Counted()
    run(job, 12, SampleStore(max_gib=1e-9))
    assert job.prepared == AT_START + 3 * 14


def test_a_damaged_record_is_not_there_and_is_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path, 4, 1 << 20)
    for index in range(3):
        store.put(index, record(index))
    data = bytearray((tmp_path / "data").read_bytes())
    at = data.find(np.float32(1.0).tobytes() * 100)
    data[at + 5] ^= 0xFF
    (tmp_path / "data").write_bytes(data[: data.find(np.float32(2.0).tobytes() * 100)])  # the last record is truncated
    again = Store(tmp_path, 4, 1 << 20)
    assert [again.get(index) is MISSING for index in range(4)] == [False, True, True, True]
    again.put(1, record(1))
    assert torch.equal(again.get(1)["x"], record(1)["x"])
    assert len(again) == 3


def test_a_full_disk_stops_the_keeping_and_not_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    write = os.pwrite
    store = Store(tmp_path, 4, 1 << 20)
    store.put(0, record(0))
    monkeypatch.setattr(os, "pwrite", lambda _file, data, _start: os.write(full, data))
    store.put(1, record(1))
    monkeypatch.setattr(os, "pwrite", write)
    os.close(full)
    store.put(2, record(2))
    assert [store.get(index) is MISSING for index in range(4)] == [False, True, True, True]


def test_the_sample_is_a_copy_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path, 4, 1 << 20)
    store.put(0, record(3))
    store.get(0)["x"] += 1.0
    assert torch.equal(store.get(0)["x"], record(3)["x"])


def test_samples_other_than_plain_data_are_refused_or_prepared_again(tmp_path: Path) -> None:
    class Odd(Prepared):
        def deterministic_transform(self, sample: Any) -> Any:
            return {**super().deterministic_transform(sample), "path": Path("x")}

    with pytest.raises(JobError, match=r"cannot store these samples: a pathlib.*PosixPath is not plain data"):
        make_loop(Odd(), SampleStore())
    store = Store(tmp_path, 4, 1 << 20)
    store.put(0, object())
    assert store.get(0) is MISSING


class Random(Prepared):
    """Returns another result each time, against its declaration."""

    def deterministic_transform(self, sample: Any) -> Any:
        kept = super().deterministic_transform(sample)
        return {**kept, "x": kept["x"] + torch.rand(6)}


def test_a_wrong_declaration_is_detected() -> None:
    with pytest.raises(JobError, match="or remove sample_store from the plan"):
        run(Random(), 12, SampleStore())


# The folder.


def folders(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())


def test_the_undo_removes_the_folder_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loop = make_loop(Counted(), SampleStore())
    loop.run(2)
    assert len(folders(tmp_path)) == 1
    loop.live.undo_all()
    assert folders(tmp_path) == []


@pytest.mark.slow
def test_the_end_of_the_process_removes_the_folder_of_a_run(tmp_path: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from tests.optimizations.contract import Prepared, make_loop
        from hasten.optimizations.sample_store import SampleStore
        loop = make_loop(Prepared(), SampleStore())
        loop.run(2)
        if os.fork() == 0:
            sys.exit(0)  # the end of a forked process removes nothing
        os.wait()
        assert len(list(Path(sys.argv[1]).glob("hasten-samples-*"))) == 1
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop(FOLDER_VARIABLE, None)
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], env=environment, check=True, timeout=100)
    assert [name for name in folders(tmp_path) if name.startswith("hasten-samples-")] == []


def test_a_kept_store_serves_the_next_run_of_the_same_job_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    run(Counted(), 4, SampleStore())
    again = Counted()
    run(again, 4, SampleStore())
    assert again.prepared == AT_START + CHECKED_HITS
    assert len(folders(tmp_path)) == 1

    class Changed(Counted):
        def deterministic_transform(self, sample: Any) -> Any:
            kept = super().deterministic_transform(sample)
            return {**kept, "x": kept["x"] * 2}

    losses = run(Changed(), 4, SampleStore())
    assert losses == run(Changed(), 4)
    assert len(folders(tmp_path)) == 2


def test_the_fingerprint_follows_source_length_and_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live = make_loop(Prepared()).live
    first = fingerprint(live, [1])
    assert len(first) == 24
    assert fingerprint(live, [1]) == first
    assert fingerprint(live, [2]) != first
    live.num_samples = 15
    assert fingerprint(live, [1]) != first
    live.num_samples = 14
    source = tmp_path / "job.py"
    source.write_text("one")
    monkeypatch.setattr("inspect.getfile", lambda _: str(source))
    before = fingerprint(live, [1])
    source.write_text("two")
    assert before != fingerprint(live, [1])


def test_a_job_without_source_is_kept_for_the_run_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("inspect.getfile", lambda _: str(tmp_path / "nowhere.py"))
    run(Prepared(), 4, SampleStore())
    assert folders(tmp_path) == []


# Fit.


@pytest.mark.parametrize(
    ("sample_bytes", "expected", "share"), [(1000, 0.1, 1.0), (2**30, 64.0, 64 / 125), (2**26, 7.9, 1.0)]
)
def test_its_size_follows_the_samples_up_to_a_limit(sample_bytes: int, expected: float, share: float) -> None:
    fit = SampleStore.fit(facts(sample_bytes=sample_bytes))
    assert fit.settings == (SampleStore(max_gib=expected),)
    assert fit.max_gain_frac == pytest.approx(SampleStore.fit(facts()).max_gain_frac * share)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_size_of_zero_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="max_gib must be above 0"):
        SampleStore(max_gib=value)
