"""`torch.save` in the background gives the same file, which is complete whenever it is accessed."""
# ruff: noqa: PTH104, PTH105, PTH110, PTH116, PTH202, PTH207, PTH208, PTH211
# The functions of `os` are tested on purpose.

from __future__ import annotations

import copy
import glob
import io
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hasten.core.card import StepTrace
from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from hasten.script.entry.isolation import isolate
from hasten.script.output import file_writer
from hasten.script.output.background_save import BackgroundSaving
from hasten.script.output.zip_snapshot import ZipSnapshot
from hasten.script.patches import Patches
from hasten.script.plan.live import script_live
from hasten.train.snapshot import StorageBuffers


class Gate:
    """Blocks the writer thread before a file is complete, while the gate is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.opened.set()
        fsync = file_writer._FSYNC

        def gated(handle: int) -> None:
            assert self.opened.wait(20)
            fsync(handle)

        monkeypatch.setattr(file_writer, "_FSYNC", gated)

    def shut(self) -> None:
        self.opened.clear()

    def open_soon(self) -> None:
        threading.Timer(0.05, self.opened.set).start()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def saving(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundSaving]:
    monkeypatch.chdir(tmp_path)
    live, patches = script_live(), Patches()
    live.around.checkpoint_background = True
    saving = BackgroundSaving(live)
    saving.install(patches)
    yield saving
    gate.opened.set()
    saving.close()
    patches.restore()


def count(saving: BackgroundSaving) -> int:
    return int(saving.live.counters.get("checkpoints_in_background", 0))


class Uncopied:
    """Raises an error when it is deep-copied."""

    def __init__(self) -> None:
        self.weight = torch.arange(3.0)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not to be copied")


def trained() -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    weight = net[0].get_parameter("weight")
    net[2].weight = weight
    optimizer = torch.optim.AdamW(net.parameters())
    loss = net(torch.ones(2, 8)).sum()
    loss.backward()
    optimizer.step()
    return {
        "net": net, "state": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "words": "as they are",
        "part": weight[2:4], "turned": torch.arange(6.0).reshape(2, 3).t(), "with gradient": loss,
        "rng": torch.get_rng_state(), "array": np.arange(4), "empty": torch.empty(0), "half": torch.ones(3).bfloat16(),
        "sparse": torch.eye(3).to_sparse(), "own": Uncopied(), "storage": torch.ones(2).untyped_storage(),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["model.pt", "model", "a.b.pth.tar", "modèle.pt"])
def test_the_file_is_what_it_would_have_been_to_the_byte(saving: BackgroundSaving, tmp_path: Path, name: str) -> None:
    given, folder = trained(), tmp_path / "plain"
    folder.mkdir()
    saving.live.around.checkpoint_background = False
    torch.save(given, folder / name)
    saving.live.around.checkpoint_background = True
    torch.save(given, name)
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert count(saving) == 1
    assert sorted(os.listdir()) == sorted([name, "plain"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_what_lies_on_a_gpu_is_saved_as_such_and_as_it_was_at_the_call(saving: BackgroundSaving, gate: Gate) -> None:
    tensor = torch.arange(1000.0, device="cuda")
    given = {"tensor": tensor, "part": tensor[10:20]}
    saving.live.around.checkpoint_background = False
    torch.save(given, "a.pt")
    os.rename("a.pt", "plain")
    saving.live.around.checkpoint_background = True
    gate.shut()
    torch.save(given, "a.pt")
    tensor.zero_()
    gate.opened.set()
    assert Path("a.pt").read_bytes() == Path("plain").read_bytes()
    assert torch.load("a.pt")["part"].device.type == "cuda"


def test_what_is_written_is_what_was_there_at_the_call(saving: BackgroundSaving, gate: Gate) -> None:
    tensor, kept = torch.ones(1000), {"n": 1}
    gate.shut()
    torch.save([tensor, kept], "a.pt")
    tensor.zero_()
    kept["n"] = 2
    gate.opened.set()
    found, words = torch.load("a.pt")
    assert found.eq(1).all()
    assert words == {"n": 1}


def begun(saving: BackgroundSaving) -> None:
    """Wait until the thread starts to write a file."""
    for _ in range(1000):
        if saving._writer._begun is not None:
            return
        time.sleep(0.01)
    raise AssertionError("the thread did not begin")


def test_a_newer_save_to_a_path_takes_the_place_of_one_that_was_not_begun(saving: BackgroundSaving, gate: Gate) -> None:
    gate.shut()
    torch.save(torch.zeros(1), "a.pt")
    begun(saving)
    for value in (1.0, 2.0, 3.0):
        torch.save(torch.full((1,), value), "a.pt")
    assert not gate.opened.is_set()
    assert len(saving._writer.waiting) == 2
    gate.open_soon()
    assert torch.load("a.pt").item() == 3.0
    assert os.listdir() == ["a.pt"]
    assert count(saving) == 4


def test_a_path_that_was_written_just_now_rests_until_somebody_asks(
    saving: BackgroundSaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "PAUSES", 10**6)
    torch.save(torch.zeros(1), "a.pt")
    saving.finish()
    torch.save(torch.ones(1), "a.pt")
    torch.save(torch.ones(1), "b.pt")  # another path does not have to wait
    for _ in range(1000):
        if len(saving._writer.waiting) == 1:
            break
        time.sleep(0.01)
    assert [part.path for part in saving._writer.waiting] == [os.path.realpath("a.pt")]
    assert torch.load("a.pt").item() == 1.0
    assert not saving._writer.waiting


def test_one_that_cannot_go_to_the_background_comes_after_those_that_did(
    saving: BackgroundSaving, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.shut()
    torch.save(torch.zeros(1), "a.pt")
    begun(saving)
    monkeypatch.setattr("hasten.script.output.background_save.create_temporary", _full)
    gate.open_soon()
    torch.save(torch.ones(1), "a.pt")
    assert gate.opened.is_set()
    assert torch.load("a.pt").item() == 1.0


def test_no_more_than_the_largest_is_on_its_way_while_another_is_copied(saving: BackgroundSaving, gate: Gate) -> None:
    torch.save(torch.zeros(5000), "a.pt")
    saving.finish()
    gate.shut()
    torch.save(torch.zeros(5000), "b.pt")
    torch.save(torch.zeros(5000), "c.pt")
    assert len(saving._writer.waiting) == 2
    gate.open_soon()
    torch.save(torch.zeros(5000), "d.pt")
    assert gate.opened.is_set()


def loads(path: Path) -> Any:
    return torch.load(path).tolist()


def is_left_of_its_folder(path: Path) -> bool:
    shutil.rmtree(path.parent)
    return path.parent.exists()


def done(act: Callable[..., None], *paths: Any) -> Path:
    """Apply an action to paths, and return the last one."""
    act(*paths)
    return Path(paths[-1])


READERS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "torch.load": (loads, [1.0]),
    "torch.load, mapped": (lambda path: torch.load(path, mmap=True).tolist(), [1.0]),
    "a relative name": (lambda path: torch.load(path.name).tolist(), [1.0]),
    "an open file": (lambda path: torch.load(io.BytesIO(path.read_bytes())).tolist(), [1.0]),
    "bytes": (lambda path: os.path.getsize(os.fsencode(path)) > 0, True),
    "os.path.exists": (os.path.exists, True),
    "Path.is_file": (Path.is_file, True),
    "os.listdir": (lambda path: os.listdir(path.parent), ["a.pt"]),
    "glob": (lambda path: [Path(name).name for name in glob.glob(f"{path.parent}/*")], ["a.pt"]),
    "a walk from above": (lambda path: [files for _, _, files in os.walk(path.parent.parent)][-1], ["a.pt"]),
    "shutil.copyfile": (lambda path: loads(Path(shutil.copyfile(path, "best.pt"))), [1.0]),
    "os.replace": (lambda path: loads(done(os.replace, path, "final.pt")), [1.0]),
    "os.rename of the folder": (lambda path: loads(done(os.rename, path.parent, "moved") / "a.pt"), [1.0]),
    "shutil.rmtree": (is_left_of_its_folder, False),
    "os.remove": (lambda path: done(os.remove, path).exists(), False),
    "os.link": (lambda path: loads(done(os.link, path, "same.pt")), [1.0]),
    "another process": (lambda path: subprocess.run(["ls", path.parent], capture_output=True).stdout, b"a.pt\n"),  # noqa: PLW1510
}


@pytest.mark.parametrize("how", READERS)
def test_access_to_a_file_waits_until_it_is_written(saving: BackgroundSaving, gate: Gate, how: str) -> None:
    Path("out").mkdir()
    path = Path("out/a.pt").absolute()
    gate.shut()
    torch.save(torch.ones(1), path)
    gate.open_soon()
    ask, expected = READERS[how]
    assert ask(path if how != "a relative name" else _here(path)) == expected
    assert gate.opened.is_set()


def _here(path: Path) -> Path:
    os.chdir(path.parent)
    return path


def test_the_file_is_waited_for_by_a_name_that_is_a_link(saving: BackgroundSaving, gate: Gate) -> None:
    gate.shut()
    torch.save(torch.ones(1), "a.pt")
    os.symlink("a.pt", "latest.pt")
    gate.open_soon()
    assert torch.load("latest.pt").item() == 1.0


def test_a_worker_of_a_loader_is_not_kept_waiting(saving: BackgroundSaving, gate: Gate) -> None:
    gate.shut()
    torch.save(torch.ones(1), "a.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking in a multi-threaded process
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(4)), num_workers=1)
        assert [batch[0].item() for batch in loader] == [0, 1, 2, 3]
        assert len(saving._writer.waiting) == 1
        gate.open_soon()
        child = multiprocessing.get_context("fork").Process(target=print)
        child.start()
        child.join()
    assert gate.opened.is_set()


def test_other_files_are_not_waited_for(saving: BackgroundSaving, gate: Gate) -> None:
    Path("other.txt").write_text("here")
    gate.shut()
    torch.save(torch.ones(1), "a.pt")
    assert Path("other.txt").read_text() == "here"
    assert os.path.exists("other.txt")
    assert not os.path.exists("a.pt.bak")
    assert len(saving._writer.waiting) == 1


def test_from_now_on_a_save_of_another_thread_is_plain_and_in_order(saving: BackgroundSaving, gate: Gate) -> None:
    gate.shut()
    torch.save(torch.zeros(1), "a.pt")
    gate.open_soon()
    thread = threading.Thread(target=torch.save, args=(torch.ones(1), "a.pt"))
    thread.start()
    thread.join()
    assert torch.load("a.pt").item() == 1.0
    assert count(saving) == 1


def test_open_files_and_the_old_format_are_written_as_without_us(saving: BackgroundSaving) -> None:
    held = io.BytesIO()
    torch.save(torch.ones(1), held)
    with Path("b.pt").open("wb") as file:
        torch.save(torch.ones(1), file)
    torch.save(torch.ones(1), "c.pt", _use_new_zipfile_serialization=False)
    held.seek(0)
    assert torch.load(held).item() == loads(Path("b.pt"))[0] == loads(Path("c.pt"))[0] == 1.0
    assert count(saving) == 0


def test_where_ranks_train_together_and_where_the_plan_does_not_ask_it_is_plain(
    saving: BackgroundSaving,
) -> None:
    with pytest.MonkeyPatch.context() as patch:  # a separate context: undoing the fixture's would leave the folder
        patch.setattr("hasten.script.output.background_save._ranks", lambda: 2)
        torch.save(torch.ones(1), "a.pt")
    assert count(saving) == 0
    saving.close()
    torch.save(torch.ones(1), "a.pt")
    assert count(saving) == 0


def test_a_link_stays_a_link_and_permissions_stay(saving: BackgroundSaving, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target = tmp_path / "store" / "a.pt"
    target.write_bytes(b"old")
    target.chmod(0o640)
    os.symlink(target, "a.pt")
    torch.save(torch.ones(1), "a.pt")
    assert loads(target) == [1.0]
    assert Path("a.pt").is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert count(saving) == 1
    os.link(target, "b.pt")  # a file with two hard links is written in place
    torch.save(torch.zeros(1), "b.pt")
    assert loads(target) == [0.0]
    torch.save(torch.zeros(1), os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert count(saving) == 1


@pytest.mark.parametrize("name", ["nowhere/a.pt", ".pt", "n" * 300])
def test_what_cannot_be_saved_is_told_at_the_call_as_without_us(saving: BackgroundSaving, name: str) -> None:
    with pytest.raises((RuntimeError, OSError)) as ours:
        torch.save(torch.ones(1), name)
    saving.live.around.checkpoint_background = False
    with pytest.raises((RuntimeError, OSError)) as plain:
        torch.save(torch.ones(1), name)
    assert ours.type is plain.type
    assert str(ours.value).splitlines()[0] == str(plain.value).splitlines()[0]


def test_an_object_that_cannot_be_pickled_leaves_the_old_file(saving: BackgroundSaving) -> None:
    torch.save(torch.ones(1), "a.pt")
    with pytest.raises((AttributeError, TypeError), match=r"pickle|local object"):
        torch.save({"tensor": torch.zeros(1), "odd": lambda: None}, "a.pt")
    assert torch.load("a.pt").item() == 1.0
    assert os.listdir() == ["a.pt"]


def test_what_fails_in_the_thread_is_raised_by_the_next_save(
    saving: BackgroundSaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(torch.ones(1), "a.pt")
    saving.finish()
    with monkeypatch.context() as patched:
        patched.setattr(file_writer, "_FSYNC", _full)
        torch.save(torch.zeros(1), "a.pt")
        saving.finish()
    with pytest.raises(OSError, match="disk is full") as raised:
        torch.save(torch.zeros(1), "b.pt")
    assert "a.pt was saved" in raised.value.__notes__[0]
    assert os.listdir() == ["a.pt"]
    assert torch.load("a.pt").item() == 1.0
    torch.save(torch.zeros(1), "b.pt")  # the error is raised only once
    assert torch.load("b.pt").item() == 0.0


def _full(_handle: int) -> None:
    raise OSError("disk is full")


def test_what_fails_at_the_end_is_told(
    saving: BackgroundSaving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(file_writer, "_FSYNC", _full)
        torch.save(torch.ones(1), "a.pt")
        saving.close()
    assert "a.pt could not be saved in the background: OSError: disk is full" in capsys.readouterr().err


def test_short_memory_and_a_zip_file_asked_for_more_are_written_plainly(
    saving: BackgroundSaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [torch.arange(4.0), torch.arange(5.0)]
    saving.live.around.checkpoint_background = False
    torch.save(given, "plain")
    saving.live.around.checkpoint_background = True
    os.rename("plain", "kept")
    times = []

    def short(self: StorageBuffers, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        times.append(1)
        if len(times) == 2:
            raise RuntimeError("not enough memory")
        return torch.UntypedStorage(storage.nbytes()).copy_(storage)

    with monkeypatch.context() as patched:
        patched.setattr(StorageBuffers, "copy", short)
        torch.save(given, "plain")
    assert Path("plain").read_bytes() == Path("kept").read_bytes()
    assert sorted(os.listdir()) == ["kept", "plain"]
    assert count(saving) == 0
    with torch.serialization._open_zipfile_writer("other.pt") as file:
        assert isinstance(file, ZipSnapshot)
        file.write_record("words", "abc", 3)
        assert "words" in "".join(file.get_all_written_records())
    assert b"abc" in Path("other.pt").read_bytes()


def test_buffers_are_used_again_and_bounded() -> None:
    buffers = StorageBuffers()
    first = [buffers.copy(torch.full((size,), 1.0).untyped_storage()) for size in (10, 10, 20)]
    addresses = {storage.data_ptr() for storage in first}
    buffers.put_back(copy.copy(first))
    again = [buffers.copy(torch.full((size,), 2.0).untyped_storage()) for size in (20, 10, 10)]
    assert {storage.data_ptr() for storage in again} == addresses
    assert all(set(storage.float().tolist()) == {2.0} for storage in map(_floats, again))
    buffers.put_back(again)
    buffers.put_back([torch.UntypedStorage(100)])
    buffers.put_back([torch.UntypedStorage(160)])
    assert buffers._num_bytes <= 320
    assert buffers._num_bytes == sum(size * len(free) for size, free in buffers._free.items())


def _floats(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0).set_(storage)


def test_everything_is_put_back(saving: BackgroundSaving) -> None:
    before = (open, os.stat, os.replace, os.listdir, subprocess.Popen.__init__)
    torch.save(torch.ones(1), "a.pt")
    assert saving._patches is not None
    assert os.stat is not before[1]
    saving.close()
    saving._patches.restore()
    assert (open, os.stat, os.replace, os.listdir, subprocess.Popen.__init__) == before
    assert torch.save is torch.serialization.save
    assert torch.save.__closure__ is None


def test_a_rehearsal_is_the_evidence(saving: BackgroundSaving) -> None:
    technique = BackgroundCheckpoint()
    assert not technique.evidence(saving.live, StepTrace(counters=dict(saving.live.counters)))[0].passed
    saving.rehearse()
    assert technique.evidence(saving.live, StepTrace(counters=dict(saving.live.counters)))[0].passed
    assert os.listdir() == []
    saving.live.around.checkpoint_background = False
    saving.rehearse()
    assert count(saving) == 1


def test_in_a_trial_the_file_goes_to_scratch_and_is_waited_for_there(gate: Gate, tmp_path: Path) -> None:
    live, scratch, home = script_live(), tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    live.around.checkpoint_background = True
    saving, patches, harmless = BackgroundSaving(live), Patches(), Patches()
    isolate(harmless, scratch, silent=False)
    saving.install(patches)
    try:
        gate.shut()
        torch.save(torch.ones(1), home / "a.tmp")
        gate.open_soon()
        os.replace(home / "a.tmp", home / "a.pt")
        assert gate.opened.is_set()
        assert loads(home / "a.pt") == [1.0]
        gate.shut()
        torch.save(torch.zeros(1), home / "a.pt")
        gate.open_soon()
        assert os.path.getsize(home / "a.pt") > 0
        assert loads(home / "a.pt") == [0.0]
        assert count(saving) == 2
    finally:
        gate.opened.set()
        saving.close()
        patches.restore()
        harmless.restore()
    assert list(home.iterdir()) == []


PRELUDE = """
import os, signal, subprocess, sys, threading, time
import torch
from hasten.script.output import file_writer
from hasten.script.plan.live import script_live
from hasten.script.patches import Patches
from hasten.script.output.background_save import BackgroundSaving
live = script_live()
live.around.checkpoint_background = True
BackgroundSaving(live).install(Patches())
fsync, slow = file_writer._FSYNC, 0.3
def slowly(handle):
    time.sleep(slow)
    fsync(handle)
file_writer._FSYNC = slowly
torch.save(torch.ones(1), "a.pt")
"""

FORKS = """
child = os.fork()
if child == 0:
    os._exit(0 if os.path.exists("a.pt") else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
ENDS = {
    "it ends": ("", 0),
    "it raises": ("raise ValueError('odd')", 1),
    "it exits": ("sys.exit(3)", 3),
    "it exits at once": ("os._exit(4)", 4),
    "it forks": (FORKS, 0),
    "a handler saves": ("import atexit; atexit.register(lambda: torch.save(torch.ones(1), 'b.pt'))", 0),
}  # fmt: skip


QUICK = {"it raises", "it forks", "a handler saves"}
"""Ways to end that `make test` covers."""


@pytest.mark.slow
@pytest.mark.parametrize("how", [how if how in QUICK else pytest.param(how, marks=pytest.mark.long) for how in ENDS])
def test_however_a_script_ends_the_file_is_whole(tmp_path: Path, how: str) -> None:
    words, code = ENDS[how]
    done = run(tmp_path, PRELUDE + words)
    assert done.returncode == code, done.stderr
    assert loads(tmp_path / "a.pt") == [1.0]
    assert {path.name for path in tmp_path.glob("*.*")} == {"a.pt", "script.py"} | ({"b.pt"} if "handler" in how else set())


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_script_that_is_killed_leaves_the_old_file_and_the_next_one_clears_up(tmp_path: Path) -> None:
    torch.save(torch.zeros(1), tmp_path / "a.pt")
    killed = "slow = 30\ntorch.save(torch.ones(1), 'b.pt')\nthreading.Event().wait(0.2)\nkill(os.getpid(), signal.SIGKILL)\n"
    script = PRELUDE.partition("torch.save")[0] + "kill = os.kill\n" + killed
    assert run(tmp_path, script).returncode == -signal.SIGKILL
    assert loads(tmp_path / "a.pt") == [0.0]
    assert not (tmp_path / "b.pt").exists()
    (left,) = tmp_path.glob("b.tmp-hasten-*")
    assert run(tmp_path, PRELUDE).returncode == 0
    assert not left.exists()
    assert loads(tmp_path / "a.pt") == [1.0]


WHOLE = """
import logging, os, shutil, sys, threading
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
handlers = [logging.FileHandler("log.txt"), logging.StreamHandler()]
logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers)
net = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for step in range(12):
    loss = net(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=step % 5 == 0)
    logging.info("step %d", step)
    if step % 3 == 2:
        torch.save({"net": net.state_dict(), "step": step}, "last.tmp")
        os.replace("last.tmp", "last.pt")
        shutil.copyfile("last.pt", "best.pt")
        torch.save(optimizer.state_dict(), f"optimizer-{step}.pt")
        net.load_state_dict(torch.load("last.pt")["net"])
with open("threads", "w") as file:
    print(*sorted(thread.name for thread in threading.enumerate()), file=file)
if sys.argv[1] == "raises":
    raise ValueError("odd")
if sys.argv[1] == "exits":
    sys.exit(3)
if sys.argv[1] == "exits at once":
    sys.stdout.flush()
    os._exit(4)
"""
PLAN = "schema = 1\n[optimizations.background_checkpoint]\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["ends", *(pytest.param(how, marks=pytest.mark.long) for how in ("raises", "exits", "exits at once"))]
)
def test_a_run_that_saves_in_the_background_prints_and_leaves_the_same(tmp_path: Path, how: str) -> None:
    found: list[Any] = []
    for name, before, after in (("alone", [], []), ("ours", ["-m", "hasten", "run"], ["--plan", "../plan.toml", "--"])):
        folder = tmp_path / name
        folder.mkdir()
        (tmp_path / "plan.toml").write_text(PLAN)
        (folder / "train.py").write_text(WHOLE)
        done = subprocess.run(
            [sys.executable, *before, "train.py", *after, how], cwd=folder, capture_output=True, text=True, timeout=100,
            check=False,
        )  # fmt: skip
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        found.append((done.returncode, done.stdout, _said(done.stderr), files.pop("threads").decode()))
        found.append(files)
    alone, files, ours, same = found
    assert "last.pt" in files
    assert same == files
    assert ours[:3] == alone[:3]
    assert "hasten" not in alone[3]
    assert "hasten-saving" in ours[3]


def _said(errors: str) -> str:
    """Return stderr without the traceback, whose first frames differ, and without the launcher's own message."""
    return errors.partition("Traceback")[0].partition("hasten:")[0]


def test_the_thread_ends_where_nothing_is_saved_for_a_while_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "IDLE_S", 0.02)
    writer = file_writer.FileWriter()
    for number in range(2):
        path = str(tmp_path / f"{number}.pt")
        writer.add(
            file_writer.PendingFile(
                path=path, names=frozenset({path}), temporary=file_writer.create_temporary(path), num_bytes=1,
                fill=lambda _name: None, done=lambda: None,
            )
        )  # fmt: skip
        writer.wait(lambda: bool(writer.waiting))
        assert Path(path).exists()
        until = time.monotonic() + 10
        while writer._thread is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert writer._thread is None
