"""A stopped run continues from its newest intact checkpoint as if it had not stopped, bit for bit."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from hasten import Job, Loss
from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.train.build import build
from hasten.train.checkpoints.file import SnapshotMemory, lay_out, read_layout
from hasten.train.checkpoints.folder import CheckpointFolder, file_checksum
from hasten.train.checkpoints.read import open_file
from hasten.train.checkpoints.resume import resume_run
from hasten.train.checkpoints.saver import Costs, Pace, Saver
from hasten.train.checkpoints.writer import WriterProcess
from hasten.train.checkpoints.writer_process import BLOCK, PART, write_file
from hasten.train.loop import Loop

CPU = torch.device("cpu")


class Everything(Job):
    """Dropout, a running statistic, a tied weight, a random transform, a schedule, and a partial accumulation window."""

    batch_size, accumulation, epochs, seed = 4, 3, 50, 5

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 6), nn.Linear(6, 1))
        model[3].weight = model[0].weight
        model.register_buffer("kept", torch.zeros(2), persistent=False)
        return model

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(43, 6, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def random_transform(self, sample: Any) -> Any:
        return sample[0] + 0.1 * torch.randn(6), sample[1]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 9, 14])

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        kept: Any = model.kept
        kept += 1
        found = nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum")
        return Loss(found, len(batch[0]))


def made(job: Job | None = None) -> Loop:
    return Loop(build(job or Everything(), device=CPU))


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    live = loop.live
    found = {name: value.clone() for name, value in live.model.state_dict().items()}
    for number, parameter in enumerate(live.model.parameters()):
        for key, value in live.optimizer.state[parameter].items():
            found[f"{number}.{key}"] = value.clone()
    kept: Any = live.model.kept
    return {**found, "kept": kept.clone()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def saved_after(updates: int, run: Path, **more: Any) -> Loop:
    loop = made()
    saver = Saver(loop, run, Pace(), **more)
    loop.run(updates)
    assert saver.save(wait=True) is not None
    saver.close()
    return loop


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 11, 20])
def test_it_resumes_bit_for_bit(tmp_path: Path, stop: int) -> None:
    whole = made()
    whole.run(25)
    first = saved_after(stop, tmp_path)
    first.close()
    again = made()
    torch.rand(100)  # random numbers drawn in the meantime
    saved = resume_run(again, tmp_path, {}, print)
    assert saved is not None
    assert (saved.update, again.position.update) == (stop, stop)
    again.run(25 - stop)
    assert same(weights(whole), weights(again))
    assert whole.losses[stop:] == again.losses
    assert whole.live.scheduler.get_last_lr() == again.live.scheduler.get_last_lr()  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_the_number_of_workers_may_change(tmp_path: Path, before: int, after: int) -> None:
    def with_workers(count: int) -> Loop:
        live = build(Everything(), device=CPU)
        live.loader.num_workers = count
        return Loop(live)

    whole = with_workers(0)
    whole.run(12)
    first = with_workers(before)
    saver = Saver(first, tmp_path, Pace())
    first.run(5)
    saver.save(wait=True)
    saver.close()
    first.close()
    again = with_workers(after)
    resume_run(again, tmp_path, {}, print)
    again.run(7)
    again.close()
    assert same(weights(whole), weights(again))


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "Adadelta", "NAdam"])
def test_every_optimizer_resumes(tmp_path: Path, name: str) -> None:
    class Other(Everything):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            more = {"momentum": 0.9} if name == "SGD" else {}
            found: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **more)
            return found

    whole = made(Other())
    whole.run(9)
    first = made(Other())
    saver = Saver(first, tmp_path, Pace())
    first.run(4)
    saver.save(wait=True)
    saver.close()
    again = made(Other())
    resume_run(again, tmp_path, {}, print)
    again.run(5)
    assert same(weights(whole), weights(again))


def test_the_file_is_one_of_safetensors_and_the_same_for_the_same_weights(tmp_path: Path) -> None:
    saved_after(3, tmp_path / "a")
    saved_after(3, tmp_path / "b")
    files = [next((tmp_path / run).rglob("*.safetensors")).read_bytes() for run in "ab"]
    assert files[0] == files[1]
    loaded = load_file(next((tmp_path / "a").rglob("*.safetensors")))
    opened = open_file(next((tmp_path / "a").rglob("*.safetensors")))
    assert loaded.keys() == opened.tensors.keys()
    assert all(torch.equal(loaded[name], opened.tensors[name]) for name in loaded)


def test_types_of_all_widths_keep_their_bits() -> None:
    random = np.random.default_rng(0)
    tensors = {
        str(dtype): torch.from_numpy(random.integers(0, 2, 24, dtype=np.uint8)).to(dtype)
        for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.int64, torch.uint8)
    }
    tensors |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "strided": torch.arange(12.0).reshape(3, 4).T}
    memory = SnapshotMemory()
    size = memory.take(tensors, {"a": [1, "é", math.inf]})
    data = bytearray(os.pread(memory.handle, size, 0))
    layout, meta = read_layout(data, size, "here")
    assert meta == {"a": [1, "é", math.inf]}
    from hasten.train.checkpoints.file import views_of

    found = views_of(data, layout)
    assert all(torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype for name in tensors)
    memory.close()


def test_a_snapshot_is_of_its_moment(tmp_path: Path) -> None:
    loop = made()
    saver = Saver(loop, tmp_path, Pace())
    loop.run(3)
    now = weights(loop)
    saver.save()
    loop.run(5)  # while it is written
    saver.close()
    again = made()
    resume_run(again, tmp_path, {}, print)
    assert same(weights(again), now)


def test_a_damaged_checkpoint_is_skipped_with_a_message(tmp_path: Path) -> None:
    loop = made()
    saver = Saver(loop, tmp_path, Pace(keep=9))
    for _ in range(4):
        loop.run(1)
        saver.save(wait=True)
    saver.close()
    folder = tmp_path / "checkpoints"
    files = {update: folder / f"{update:08d}" / "rank0.safetensors" for update in (2, 3, 4)}
    files[4].write_bytes(files[4].read_bytes()[:-7])
    data = bytearray(files[3].read_bytes())
    data[len(data) // 2] ^= 1
    files[3].write_bytes(data)
    (folder / f"{5:08d}").mkdir()
    said: list[str] = []
    saved = CheckpointFolder(tmp_path).newest_valid(said.append)
    assert saved is not None
    assert saved.update == 2
    assert [line.partition(":")[0] for line in said] == [f"checkpoint {n:08d} is skipped" for n in (5, 4, 3)]
    assert "it is incomplete" in said[0]
    assert "bytes instead of" in said[1]
    assert "checksum differs" in said[2]


def test_another_model_is_refused_with_the_differences(tmp_path: Path) -> None:
    saved_after(2, tmp_path)

    class Wider(Everything):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 1))

    with pytest.raises(DataError, match=r"The checkpoint does not match the model: .*which the model does not have"):
        resume_run(made(Wider()), tmp_path, {}, print)

    class Plain(Everything):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.01)

    with pytest.raises(DataError, match="the optimizer is AdamW there and SGD here"):
        resume_run(made(Plain()), tmp_path, {}, print)


def test_changed_code_or_data_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    saved_after(2, tmp_path, facts={"code": "a", "data": "b"})
    with pytest.raises(DataError, match="code was 'a' and is now 'c'"):
        resume_run(made(), tmp_path, {"code": "c", "data": "b"}, print)
    said: list[str] = []
    assert resume_run(made(), tmp_path, {"code": "c", "data": "b"}, said.append, anyway=True) is not None
    assert "although code changed" in said[0]


def test_without_a_checkpoint_the_run_begins(tmp_path: Path) -> None:
    assert resume_run(made(), tmp_path, {}, print) is None


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    saved_after(2, tmp_path)
    manifest = next(tmp_path.rglob("manifest.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(DataError, match="written by a newer version of Hasten"):
        resume_run(made(), tmp_path, {}, print)


def test_old_checkpoints_are_removed_and_the_best_is_kept(tmp_path: Path) -> None:
    loop = made()
    saver = Saver(loop, tmp_path, Pace(keep=2))
    for update in range(1, 7):
        loop.run(1)
        saver.save(best=update == 2, wait=True)
    saver.close()
    folder = CheckpointFolder(tmp_path)
    assert [saved.update for saved in folder.all()] == [2, 5, 6]
    best = folder.best()
    assert best is not None
    assert best.update == 2
    assert (tmp_path / "checkpoints" / "latest").read_text() == "00000006\n"


def test_a_full_disk_is_reported_and_retried_and_finally_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = made()
    said: list[str] = []
    saver = Saver(loop, tmp_path, Pace(every=1), say=said.append)
    loop.run(1)
    saver.save(wait=True)
    usage = type("Usage", (), {"free": 10})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    for _ in range(2):
        loop.run(1)
        saver.after_update()
    loop.run(1)
    with pytest.raises(MachineError, match=r"Writing a checkpoint failed 3 times in a row: .* has 10 bytes free"):
        saver.after_update()
    assert len(said) == 2
    assert "It will be retried" in said[0]
    monkeypatch.undo()
    saver.close()
    saved = CheckpointFolder(tmp_path).newest_valid(said.append)
    assert saved is not None
    assert saved.update == 1


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    loop = made()
    said: list[str] = []
    saver = Saver(loop, tmp_path, Pace(), say=said.append)
    loop.run(1)
    assert saver.save() is None
    assert "cannot be written" in said[0]
    saver.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, PART, PART + BLOCK, 2 * PART + 5])
def test_a_file_of_any_size_is_written_completely(
    tmp_path: Path, size: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.delattr(os, "O_DIRECT")
    data = np.random.default_rng(size).bytes(size)
    handle = os.memfd_create("test")
    try:
        os.write(handle, data)
        digest = write_file(handle, size, tmp_path / "file")
    finally:
        os.close(handle)
    assert (tmp_path / "file").read_bytes() == data
    assert digest == file_checksum(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_takes_no_direct_writes_gets_them_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    write = os.write

    def picky(handle: int, data: Any) -> int:
        if len(refused) == 0:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(handle, data)

    handle = os.memfd_create("test")
    try:
        write(handle, b"7" * (PART + 3))
        monkeypatch.setattr("hasten.train.checkpoints.writer_process.fcntl.fcntl", lambda *_: 0)  # claims support
        monkeypatch.setattr("hasten.train.checkpoints.writer_process.os.write", picky)
        write_file(handle, PART + 3, tmp_path / "file")
    finally:
        os.close(handle)
    assert refused == [PART]
    assert (tmp_path / "file").read_bytes() == b"7" * (PART + 3)


def test_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    loop = made()
    said: list[str] = []
    saver = Saver(loop, tmp_path, Pace(every=1), say=said.append)
    loop.run(1)
    saver.save(wait=True)
    process = saver._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    loop.run(1)
    saved = saver.save(wait=True)
    assert saved is not None
    assert saved.update == 2
    saver.close()


def test_the_writer_finishes_when_the_run_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, torch\nfrom pathlib import Path\n"
        "from hasten.train.checkpoints.file import SnapshotMemory\n"
        "from hasten.train.checkpoints.writer import WriterProcess\n"
        "memory = SnapshotMemory()\nsize = memory.take({'x': torch.arange(10**7)}, {})\n"
        "process = WriterProcess(memory.handle)\nprocess.write(Path(sys.argv[1]), size)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "x.safetensors"
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    until = time.monotonic() + 20
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert torch.equal(open_file(path).tensors["x"], torch.arange(10**7))
    assert [part.name for part in tmp_path.iterdir()] == ["x.safetensors"]


def test_the_interval_keeps_the_cost_within_its_share() -> None:
    assert Costs(stall_s=0.03, dip_s=0.07, update_s=0.1).interval(0.02) == 50
    assert Costs(stall_s=0.0, update_s=0.1).interval(0.02) == 1
    assert Costs(stall_s=1e-6, update_s=10.0).interval(0.02) == 1


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"1234", b"\xff" * 100, lay_out({"x": torch.zeros(3)}, {}).header):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(CorruptError):
            open_file(tmp_path / "x")


def test_the_writer_does_not_import_torch() -> None:
    code = "import sys, hasten.train.checkpoints.writer_process; print('torch' in sys.modules, 'numpy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "False False\n"


def test_one_order_at_a_time(tmp_path: Path) -> None:
    memory = SnapshotMemory()
    size = memory.take({"x": torch.zeros(10)}, {})
    process = WriterProcess(memory.handle)
    process.write(tmp_path / "a", size)
    with pytest.raises(Exception, match="A checkpoint is being written"):
        process.write(tmp_path / "b", size)
    done = process.poll(None)
    assert done is not None
    assert (done.num_bytes, done.error) == (size, "")
    process.close()
    memory.close()


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.train.records.lock._PATIENCE_S", 0.3)
    saver = Saver(made(), tmp_path, Pace())
    said: list[str] = []
    with pytest.raises(DataError, match="Another run is active in"):
        Saver(made(), tmp_path, Pace(), say=said.append)
    assert "waiting for another run" in said[0]
    saver.close()
    Saver(made(), tmp_path, Pace()).close()


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards(datetime):
        hours = 24

        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            Backwards.hours -= 1
            return datetime(2030, 1, 1, Backwards.hours, tzinfo=tz)

    monkeypatch.setattr("hasten.train.checkpoints.folder.datetime", Backwards)
    folder = CheckpointFolder(tmp_path)
    for update in range(1, 5):
        folder.place(update)
        folder.commit(update, {})
    folder.prune(2)
    found = CheckpointFolder(tmp_path).all()
    assert [saved.update for saved in found] == [3, 4]
    assert found[0].created > found[1].created
    newest = CheckpointFolder(tmp_path).newest_valid(print)
    assert newest is not None
    assert newest.update == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_writer_ends_though_a_fork_holds_its_pipe(tmp_path: Path) -> None:
    memory = SnapshotMemory()
    size = memory.take({"x": torch.arange(10)}, {})
    process = WriterProcess(memory.handle)
    process.start()
    context = multiprocessing.get_context("fork")
    fork = context.Process(target=time.sleep, args=(60,))
    fork.start()
    try:
        process.write(tmp_path / "a", size)
        ended = threading.Thread(target=process.close)
        ended.start()
        ended.join(20)
        assert not ended.is_alive()
        assert (tmp_path / "a").exists()
    finally:
        fork.kill()
        fork.join()
        memory.close()
