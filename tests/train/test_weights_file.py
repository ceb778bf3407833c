"""Weights files under every setting: the same weights, complete at any moment, errors reported."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import HastenError, MachineError
from hasten.core.files import replaced
from hasten.core.live import AroundSettings
from hasten.train.snapshot import StateSnapshot
from hasten.train.weights_file import WeightsFile


class Tied(nn.Module):
    """Everything a state_dict may hold: tied weights, views, a 16-bit type, an empty tensor, a scalar, extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        flat = torch.arange(12.0)
        self.register_buffer("left", flat[:6].view(2, 3).t())
        self.register_buffer("right", flat[6:])
        self.register_buffer("brief", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("none", torch.zeros(0, 5))
        self.register_buffer("count", torch.tensor(3))

    def get_extra_state(self) -> Any:
        return {"seen": 5, "values": [torch.ones(2)]}

    def set_extra_state(self, state: Any) -> None:
        assert state["seen"] == 5


def equal(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    assert one._metadata == other._metadata
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype, name
            assert value.stride() == other[name].stride(), name
            assert torch.equal(value, other[name]), name
    assert torch.equal(one["_extra_state"]["values"][0], other["_extra_state"]["values"][0])


@pytest.mark.parametrize("background", [False, True])
def test_it_loads_and_equals_the_plain_one(tmp_path: Path, background: bool) -> None:
    model = Tied()
    expected = tmp_path / "plain.pt"
    torch.save(model.state_dict(), expected)
    plain = torch.load(expected, weights_only=True)
    writer = WeightsFile(tmp_path / "run" / "model.pt", AroundSettings(checkpoint_background=background))
    writer.save(model.state_dict())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(99)  # training continues immediately
    writer.wait()
    found = torch.load(writer.path, weights_only=True)
    equal(found, plain)
    assert found["embedding.weight"].data_ptr() == found["head.weight"].data_ptr()
    assert found["left"].untyped_storage().data_ptr() == found["right"].untyped_storage().data_ptr()
    Tied().load_state_dict(found)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["model.pt", "plain.pt"]
    writer.save(model.state_dict())
    writer.wait()
    assert float(torch.load(writer.path, weights_only=True)["embedding.weight"].min()) == 99


def test_buffers_are_used_again_and_follow_a_change_of_shape() -> None:
    snapshot = StateSnapshot()
    first = snapshot.take({"a": torch.ones(3), "b": torch.zeros(2)})
    addresses = [tensor.data_ptr() for tensor in first.values()]
    again = snapshot.take({"a": torch.full((3,), 2.0), "b": torch.ones(2)})
    assert [tensor.data_ptr() for tensor in again.values()] == addresses
    assert again["a"].tolist() == [2.0] * 3
    grown = snapshot.take({"a": torch.full((4,), 5.0), "b": torch.ones(2), "c": torch.full((1,), 7.0)})
    assert [tensor.tolist() for tensor in grown.values()] == [[5.0] * 4, [1.0] * 2, [7.0]]


def test_only_one_write_is_in_progress_and_the_next_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WeightsFile(tmp_path / "model.pt", AroundSettings(checkpoint_background=True))
    go, at_once, most = threading.Event(), [0], [0]
    save = torch.save

    def slow(state: Any, file: Any) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        assert go.wait(10)
        save(state, file)
        at_once[0] -= 1

    monkeypatch.setattr(torch, "save", slow)
    writer.save({"a": torch.ones(2)})
    assert not writer.path.exists()
    threading.Timer(0.1, go.set).start()
    writer.save({"a": torch.full((2,), 2.0)})
    assert torch.load(writer.path, weights_only=True)["a"].tolist() in ([1.0, 1.0], [2.0, 2.0])
    writer.wait()
    assert most[0] == 1
    assert torch.load(writer.path, weights_only=True)["a"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("background", [False, True])
def test_a_write_error_is_raised_by_the_next_call_and_the_old_file_stays(tmp_path: Path, background: bool) -> None:
    folder = tmp_path / "run"
    writer = WeightsFile(folder / "model.pt", AroundSettings(checkpoint_background=background))
    writer.save({"a": torch.ones(2)})
    writer.wait()
    shutil.move(folder, tmp_path / "kept")
    folder.write_text("a file where the folder was")
    with pytest.raises(MachineError, match=r"Cannot write .*model\.pt"):
        _save_twice(writer)
    assert torch.load(tmp_path / "kept" / "model.pt", weights_only=True)["a"].tolist() == [1.0, 1.0]


def test_an_error_in_the_background_is_raised_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("odd")

    writer = WeightsFile(tmp_path / "model.pt", AroundSettings(checkpoint_background=True))
    monkeypatch.setattr(torch, "save", broken)
    writer.save({"a": torch.ones(2)})
    with pytest.raises(HastenError, match="raised ValueError: odd"):
        writer.wait()
    writer.wait()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_flushed_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(number: int) -> None:
        seen.append("folder" if Path(f"/proc/self/fd/{number}").resolve() == tmp_path.resolve() else "file")
        fsync(number)

    def spy_replace(self: Path, target: Any) -> Path:
        seen.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    WeightsFile(tmp_path / "model.pt", AroundSettings()).save({"a": torch.ones(2)})
    assert seen == ["file", "rename", "folder"]


def test_a_block_that_fails_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="odd"):
        _write_half(path)
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["model.pt"]


def test_files_of_dead_processes_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [f".model.pt.{platform.node()}-{number}-0.part" for number in (dead.pid, os.getppid())]
    other = ".model.pt.elsewhere-1.part"
    for name in (*names, other):
        (tmp_path / name).write_bytes(b"half")
    WeightsFile(tmp_path / "model.pt", AroundSettings())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[1], other])


@pytest.mark.slow
@pytest.mark.parametrize("background", ["-", "background"])
def test_a_kill_at_any_moment_leaves_a_complete_file(tmp_path: Path, background: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    script = Path(__file__).with_name("weights_file_script.py")
    command = [sys.executable, str(script), str(folder), background]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    *found, left = done.stdout.splitlines()
    assert len(found) == 8
    assert all(line.isdigit() for line in found), found
    assert int(found[-1]) > 1  # the child saved between the kills
    assert left == "['model.pt']"


def _save_twice(writer: WeightsFile) -> None:
    for _ in range(2):
        writer.save({"a": torch.zeros(2)})


def _write_half(path: Path) -> None:
    with replaced(path) as file:
        file.write(b"new")
        raise ValueError("odd")
