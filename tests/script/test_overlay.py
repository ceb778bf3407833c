"""A trial writes to copies of the user's files, and the script finds what it wrote."""
# ruff: noqa: PTH101, PTH105, PTH107, PTH108, PTH110, PTH116, PTH121, PTH123, PTH202, PTH204, PTH207, PTH208, PTH211
# The functions of `os` are tested on purpose.

from __future__ import annotations

import glob
import io
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.script.entry import overlay
from hasten.script.entry.isolation import Checkpoints
from hasten.script.entry.overlay import Overlay
from hasten.script.patches import Patches

OLD = "as it was"
SCANDIR = os.scandir
"""The original function, which shows the real files."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's files, in a process whose writes are redirected."""
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    for folder in (home, scratch, home / "out", home / ".cache"):
        folder.mkdir()
    kept = dict.fromkeys((home / "log.txt", home / "out" / "best.json", home / ".cache" / "state"), OLD)
    for path, words in kept.items():
        path.write_text(words)
    torch.save(torch.zeros(1), home / "out" / "model.pt")
    checkpoint = (home / "out" / "model.pt").read_bytes()
    monkeypatch.chdir(home)
    monkeypatch.setattr(overlay, "MARGIN_S", 0.015)
    time.sleep(0.03)  # file systems have a coarse clock
    patches, found = Patches(), Overlay(scratch)
    found.install(patches)
    checkpoints = Checkpoints(found)
    patches.put(torch, "save", checkpoints.save)
    patches.put(torch, "load", checkpoints.load)
    yield home
    patches.restore()
    assert (home / "log.txt").read_text() == OLD
    assert (home / "out" / "best.json").read_text() == OLD
    assert (home / "out" / "model.pt").read_bytes() == checkpoint
    assert open is io.open
    assert "seam" not in f"{os.stat.__name__} {os.scandir.__name__} {os.open.__name__} {open.__name__}"


def written(path: Any) -> Any:
    """Return what the script finds under a name. Several ways of access must agree."""
    with open(path) as file:
        words = file.read()
    assert Path(path).read_text() == words
    assert os.path.getsize(path) == Path(path).stat().st_size == len(words)
    assert os.path.exists(path)
    return words


@pytest.mark.parametrize(
    ("mode", "expected"), [("w", "new"), ("a", "as it wasnew"), ("r+", "newit was"), ("w+", "new")]
)  # fmt: skip
def test_a_file_that_was_there_is_written_elsewhere_and_found(home: Path, mode: str, expected: str) -> None:
    for name in ("log.txt", home / "out" / "best.json", os.fsencode("log.txt")):
        with open(name, mode) as file:
            file.write("new")
    assert written("out/best.json") == expected
    assert written("log.txt")[:3] == expected[:3]


def test_a_file_that_was_not_there_is_made_where_it_is_wanted(home: Path) -> None:
    with open("new.txt", "w") as file:
        file.write("new")
    with open("new.txt", "a") as file:
        file.write("er")
    assert [path.name for path in home.iterdir() if path.name.startswith("new")] == ["new.txt"]
    os.replace("new.txt", "newer.txt")
    assert written("newer.txt") == "newer"
    os.remove("newer.txt")
    assert not os.path.exists("newer.txt")
    with tempfile.NamedTemporaryFile(dir=home) as file:
        assert Path(file.name).exists()


def test_the_state_of_tools_and_what_lies_elsewhere_is_left_to_them(home: Path) -> None:
    elsewhere = home.parent / "elsewhere.txt"
    elsewhere.write_text("old")
    for name in (home / ".cache" / "state", elsewhere):
        with open(name, "w") as file:
            file.write("new")
    assert os.path.samefile(elsewhere, home.parent / "elsewhere.txt")
    assert all(path.read_bytes() == b"new" for path in (home / ".cache" / "state", elsewhere))
    assert not any((home.parent / "scratch").iterdir())


def test_what_is_too_large_to_copy_is_changed_in_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "MAX_COPY_BYTES", len(OLD) - 1)
    with open("log.txt", "r+") as file:
        file.write(OLD)
    assert not any((home.parent / "scratch").iterdir())


def test_an_exclusive_mode_finds_what_is_there(home: Path) -> None:
    with pytest.raises(FileExistsError):
        open("log.txt", "x")  # noqa: SIM115
    os.remove("log.txt")
    with open("log.txt", "x") as file:
        file.write("new")
    assert written("log.txt") == "new"


def test_a_file_that_was_there_is_not_removed_but_may_be_again(home: Path) -> None:
    for _ in range(2):  # like a log rotation that lists the folder each time
        for path in glob.glob("out/*.json"):
            os.remove(path)
    Path("log.txt").unlink()
    with open("log.txt", "w") as file:
        file.write("new")
    os.unlink("log.txt")  # that one
    assert written("log.txt") == OLD


def replace_by_new(home: Path) -> None:
    with open("out/best.tmp", "w") as file:
        json.dump({"new": 1}, file)
    os.replace("out/best.tmp", "out/best.json")
    assert json.loads(written("out/best.json")) == {"new": 1}
    assert not os.path.exists("out/best.tmp")


def move_away(home: Path) -> None:
    shutil.move("log.txt", "out/old.txt")
    assert written("out/old.txt") == OLD


def save_and_replace(home: Path) -> None:
    torch.save(torch.ones(1), "out/model.tmp")
    os.replace("out/model.tmp", home / "out" / "model.pt")
    assert torch.load("out/model.pt").item() == 1.0
    assert torch.load(home / "out" / "model.pt", mmap=True).item() == 1.0
    assert not os.path.exists("out/model.tmp")


def copy_the_best(home: Path) -> None:
    torch.save(torch.ones(1), "last.pt")
    shutil.copyfile("last.pt", "out/model.pt")
    shutil.copy("last.pt", "out/again.pt")
    assert torch.load("out/model.pt").item() == torch.load("out/again.pt").item() == 1.0


def link_the_latest(home: Path) -> None:
    torch.save(torch.ones(1), "out/step-1.pt")
    os.symlink("step-1.pt", "out/latest.pt")
    os.link("out/step-1.pt", "out/same.pt")
    os.remove("out/step-1.pt")
    assert torch.load("out/latest.pt").item() == torch.load("out/same.pt").item() == 1.0


def keep_two(home: Path) -> None:
    for step in range(5):
        torch.save(torch.full((1,), float(step)), f"out/step-{step}.pt")
        for path in sorted(glob.glob("out/step-*.pt"), key=os.path.getmtime)[:-2]:
            os.remove(path)
    assert sorted(os.listdir("out")) == ["best.json", "model.pt", "step-3.pt", "step-4.pt"]
    assert sorted(path.name for path in Path("out").glob("step-*")) == ["step-3.pt", "step-4.pt"]
    assert [sorted(files) for folder, _, files in os.walk(home) if folder.endswith("out")] == [sorted(os.listdir("out"))]
    with os.scandir("out") as entries:
        (entry,) = (entry for entry in entries if entry.name == "step-4.pt")
    assert (entry.is_file(), entry.is_dir(), entry.is_symlink()) == (True, False, False)
    assert entry.stat().st_ino == entry.inode() == os.stat(entry).st_ino
    assert torch.load(entry.path).item() == 4.0


def numbers_and_pictures(home: Path) -> None:
    shutil.copyfile("log.txt", "out/values.npy")
    np.save("out/values.npy", np.arange(3))
    assert np.load("out/values.npy").tolist() == [0, 1, 2]
    np.savez("log.txt.npz", one=np.ones(2))
    with np.load("log.txt.npz") as found:
        assert found["one"].tolist() == [1.0, 1.0]
    mapped = np.memmap("out/best.json", dtype=np.uint8, mode="w+", shape=(4,))
    mapped[:] = 7
    mapped.flush()
    assert Path("out/best.json").read_bytes() == bytes([7] * 4)


def low_level(home: Path) -> None:
    handle = os.open("log.txt", os.O_WRONLY | os.O_APPEND)
    os.write(handle, b" new")
    os.close(handle)
    assert written("log.txt") == OLD + " new"
    handle = os.open("out/best.json", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.close(handle)
    assert written("out/best.json") == ""
    os.chmod("log.txt", 0o600)
    os.utime("log.txt", (1, 1))
    assert os.path.getmtime("log.txt") == 1


def log_to_a_file(home: Path) -> None:
    handler = logging.FileHandler("log.txt", mode="w")
    handler.emit(logging.makeLogRecord({"msg": "new"}))
    handler.close()
    assert written("log.txt") == "new\n"


WAYS: tuple[Callable[[Path], None], ...] = (
    replace_by_new, move_away, save_and_replace, copy_the_best, link_the_latest, keep_two, numbers_and_pictures, low_level,
    log_to_a_file,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_scripts_do_with_files_works_and_changes_none(home: Path, way: Callable[[Path], None]) -> None:
    way(home)
    made = {"copy_the_best": {"again.pt"}, "numbers_and_pictures": {"values.npy"}}.get(way.__name__, set())
    assert {entry.name for entry in SCANDIR(home / "out")} == {"best.json", "model.pt"} | made


def test_a_checkpoint_is_saved_once_where_nothing_is_to_be_saved(tmp_path: Path) -> None:
    saved: list[Any] = []
    found = Overlay(tmp_path, home=tmp_path / "home")
    save = Checkpoints(found, skip=True).save(lambda obj, f, **_: saved.append((obj, f)))
    for obj in (1, 2):
        save(obj, tmp_path / "a.pt")
        save(obj, io.BytesIO())
    assert [obj for obj, _ in saved] == [1]
    assert Path(saved[0][1]).parent == tmp_path


def test_where_a_copy_cannot_be_made_the_script_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(shutil, "copyfile", full)
    with open("log.txt", "r+") as file:
        assert file.read() == OLD
