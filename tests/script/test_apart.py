"""A measured run leaves every file and folder unchanged, however it writes and however it ends."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hasten.core.plan import Plan
from hasten.script.entry import apart, mounts
from hasten.script.entry.apart import Apart, places
from hasten.script.entry.launch import Watch, run_watched
from hasten.script.entry.snapshot import Snapshot
from hasten.tune.trials.trial import Trial, TrialSetting

SCRIPT = Path(__file__).parent / "scripts" / "writes.py"
PROFILE = Watch(mode="profile", updates=40, seconds=20.0)


def tree(folder: Path) -> dict[str, object]:
    """Return every path below a folder, with its type, permissions, time and content."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else path.is_symlink() and path.readlink()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the user that contains the working folder."""
    home = tmp_path / "home"
    (home / "kept").mkdir(parents=True)
    (home / "old_run").mkdir()
    for name in ("log.txt", "gone.txt", "../old_run/log.txt"):
        (home / "kept" / name).write_text("as it was")
    save_file({"w": torch.ones(3)}, home / "kept" / "old.safetensors")
    torch.save({"w": torch.ones(3)}, home / "kept" / "model.pt")
    with sqlite3.connect(home / "kept" / "runs.db") as database:
        database.execute("CREATE TABLE runs (step)")
    shutil.copy(SCRIPT, home / "train.py")
    monkeypatch.chdir(home)
    time.sleep(0.15)  # file systems have a coarse clock
    return home


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate location for this test's scratch folders."""
    with tempfile.TemporaryDirectory(dir=apart.SCRATCH) as folder:
        monkeypatch.setattr(apart, "SCRATCH", Path(folder))
        yield Path(folder)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not permit mounts."""
    monkeypatch.setattr(apart, "why_not", lambda *_: ("not permitted", ()))


def allowed() -> bool:
    """Return whether this machine permits mounts."""
    found = Apart((str(SCRIPT),), [], os.environ)
    found.end()
    return found.private


needs_mounts = pytest.mark.skipif(not allowed(), reason="this machine does not permit mounts")


@needs_mounts
@pytest.mark.slow
def test_a_profiling_run_leaves_nothing(
    home: Path, scratch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before, told = tree(tmp_path), list[str]()
    seen = run_watched(("train.py", "--outside", str(elsewhere)), PROFILE, say=told.append)
    assert (seen.code, seen.failures, told) == (0, {}, [])
    assert seen.ranks[0]["steps"] == 40
    assert capfd.readouterr().out == "written\n"
    assert tree(tmp_path) == before
    assert not list(scratch.iterdir()), "the scratch folder was not removed"


@pytest.mark.long
def test_without_mounts_it_is_said_before_and_everything_is_put_back(
    home: Path, refused: None, capfd: pytest.CaptureFixture[str]
) -> None:
    before, told = tree(home), list[str]()

    def say(words: str) -> None:
        told.append(f"{words} [{'after' if 'written' in capfd.readouterr().out else 'before'} the run]")

    seen = run_watched(("train.py",), PROFILE, say=say)
    assert (seen.code, seen.failures) == (0, {})
    after = tree(home)
    assert {name: found for name, found in after.items() if before.get(name) != found} == {}
    assert before.keys() == after.keys()
    assert "not permitted" in told[0]
    assert told[0].endswith("[before the run]")
    assert told[1].startswith("Files created by the run were moved to ")
    assert all(str(home / name) in told[1] for name in ("run", "kept/from_shell.txt", "kept/old.safetensors"))


@needs_mounts
@pytest.mark.slow
def test_trials_see_nothing_of_one_another(home: Path, tmp_path: Path) -> None:
    before = tree(home)
    setting = TrialSetting(target="train.py", folder=tmp_path / "trials", hang_s=60.0, command=("train.py",))
    with Trial(setting, Plan()) as first:
        first.call("warm", updates=5)
        with Trial(setting, Plan()) as second:
            losses = [len(trial.call("run", updates=3)["losses"]) for trial in (first, second)]
            second.call("warm", updates=5)
    assert losses == [3, 3]
    assert tree(home) == before


@needs_mounts
@pytest.mark.long
@pytest.mark.parametrize("mounts_allowed", [True, False])
def test_a_run_that_is_killed_leaves_nothing(home: Path, mounts_allowed: bool, request: pytest.FixtureRequest) -> None:
    if not mounts_allowed:
        request.getfixturevalue("refused")
    before = tree(home)
    assert run_watched(("train.py", "--killed"), PROFILE).code == -signal.SIGKILL
    assert tree(home) == before


@needs_mounts
@pytest.mark.long
def test_a_launcher_that_is_killed_leaves_a_scratch_folder_until_the_next_run(home: Path, scratch: Path) -> None:
    words = (
        "from hasten.script.entry.launch import *; from hasten.script.entry import apart;"
        f"apart.SCRATCH = Path({str(scratch)!r});"
        "run_watched(('train.py',), Watch(mode='profile', updates=10**9, seconds=1e9))"
    )
    (home / "train.py").write_text((home / "train.py").read_text().replace("range(400)", "range(10**9)"))
    before = tree(home)
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"written\n"
        launcher.kill()
        assert launcher.stdout.read() == b"", "the script did not end with the launcher"
    assert tree(home) == before
    assert list(scratch.iterdir())
    Apart(("train.py",), [], os.environ).end()
    assert not list(scratch.iterdir())


@needs_mounts
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_without_rights_gets_files_of_their_own_too(tmp_path: Path) -> None:
    scratch, home = Path("/var/tmp/hasten-test-apart"), Path("/tmp/hasten-test-home")  # noqa: S108 - folders open to all
    for folder in (scratch, home):
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
    (scratch / "plan.json").write_text(f'{{"covered": ["{home}"], "through": []}}')
    command = ["/bin/sh", "-c", "id -u; echo new > made; mkdir folder; mv folder moved; ls"]
    try:
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-I", "-S", shutil.copy(mounts.__file__, home), str(scratch), *command],
            capture_output=True, text=True, check=False, user=65534, group=65534, extra_groups=[], cwd=home,
        )  # fmt: skip
        assert (done.stdout.split(), done.stderr) == (["65534", "made", "mounts.py", "moved"], "")
        assert [path.name for path in home.iterdir()] == ["mounts.py"]
    finally:
        for folder in (scratch, home):
            shutil.rmtree(folder)


def test_the_folders_of_a_script_are_those_it_names(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    command = ("train.py", f"--out={other}/run", "--data", str(home / "kept"), "--root", "/", "name")
    assert places(command) == (str(home), str(other))


def test_a_snapshot_names_what_it_cannot_put_back(home: Path) -> None:
    before = tree(home)
    first, second = Snapshot.of((str(home),), []), Snapshot.of((str(home),), [])
    assert first is second
    (home / "new").mkdir()
    (home / "new" / "file").write_text("new")
    (home / "train.py").write_text("edited by the user")
    (home / "kept" / "log.txt").write_text("changed")
    shutil.rmtree(home / "old_run")
    assert first.release() == ""
    words = second.release()
    assert words.count(str(home / "new")) == 1
    assert words.endswith(f"not restored: {home / 'train.py'}.")
    after = tree(home)
    assert after.pop("train.py") != before.pop("train.py")
    assert after == before


def test_copies_stay_where_the_disk_is_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot.of((str(home),), [])
    (home / "kept" / "log.txt").write_text("changed by the run")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hasten.script.entry.snapshot.shutil.copy2", full)
        words = snapshot.release()
    assert "No space left on device" in words
    copies = Path(words.rpartition(" are in ")[2].rstrip("."))
    assert (copies / str(home / "kept" / "log.txt").lstrip("/")).read_text() == "as it was"
    shutil.rmtree(copies)
