"""Versions of a real git repository, checked out into worktrees and removed again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hasten.check import repository as module
from hasten.check.repository import PREFIX, Repository
from hasten.core.errors import HastenError
from tests.check.repositories import commit, git, new_repository, worktrees


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repo", train__py="one = 1\n", __gitignore="data/\n*.log\n__pycache__/\n.venv/\n")


def test_the_base_is_the_merge_base_with_the_main_branch(folder: Path) -> None:
    first = git(folder, "rev-parse", "HEAD")
    git(folder, "switch", "-q", "-c", "feature")
    commit(folder, "of the branch", train__py="one = 2\n")
    git(folder, "switch", "-q", "main")
    commit(folder, "of main", other__py="x = 1\n")
    git(folder, "switch", "-q", "feature")
    repository = Repository(folder)
    assert repository.base(None).commit == first
    assert repository.base("main").commit == first
    assert repository.base("main").name == f"{first[:12]} (merge base with main)"
    assert repository.base(git(folder, "rev-parse", "main")).commit == git(folder, "rev-parse", "main")


def test_on_the_main_branch_the_base_is_the_parent_or_the_last_commit_under_changes(folder: Path) -> None:
    repository = Repository(folder)
    first = git(folder, "rev-parse", "HEAD")
    with pytest.raises(HastenError, match=r"has no parent to compare with. Name a revision: --against REV"):
        repository.base(None)
    second = commit(folder, "two", train__py="one = 2\n")
    assert repository.base(None).commit == first
    assert not repository.candidate().changed
    (folder / "train.py").write_text("one = 3\n")
    assert repository.base(None).commit == second
    assert repository.candidate().changed
    assert repository.candidate().name == f"{second[:12]} with the changes of the working tree"


def test_a_tag_is_compared_with_itself(folder: Path) -> None:
    git(folder, "tag", "v1")
    tagged = git(folder, "rev-parse", "v1")
    commit(folder, "two", train__py="one = 2\n")
    assert Repository(folder).base("v1").commit == tagged


def test_head_is_compared_as_a_commit(folder: Path) -> None:
    head = git(folder, "rev-parse", "HEAD")
    assert Repository(folder).base("HEAD").name == f"{head[:12]} (HEAD)"
    assert Repository(folder).base("@").commit == head


def test_files_of_hasten_are_no_change(folder: Path) -> None:
    (folder / ".hasten").mkdir()
    (folder / ".hasten" / "history.jsonl").write_text("{}")
    assert not Repository(folder).candidate().changed


def test_changes_belong_to_the_candidate_and_ignored_files_to_both(folder: Path) -> None:
    commit(folder, "two", gone__py="", kept__py="")
    for name in ("data/rows.txt", ".venv/pyvenv.cfg", "__pycache__/x.pyc", "own/pyvenv.cfg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("here")
    (folder / "run.log").write_text("a log")
    (folder / "gone.py").unlink()
    (folder / "train.py").write_text("one = 2\n")
    (folder / "new.py").write_text("new = 1\n")
    git(folder, "mv", "kept.py", "moved.py")
    repository = Repository(folder)
    before = git(folder, "status", "--porcelain", "--ignored")
    with repository.checked_out([repository.base(None), repository.candidate()]) as (base, candidate):
        assert (base / "train.py").read_text() == "one = 1\n"
        assert (candidate / "train.py").read_text() == "one = 2\n"
        assert {path.name for path in base.glob("*.py")} == {"train.py", "gone.py", "kept.py"}
        assert {path.name for path in candidate.glob("*.py")} == {"train.py", "new.py", "moved.py"}
        for tree in (base, candidate):
            assert (tree / "data" / "rows.txt").read_text() == "here"
            assert (tree / "run.log").is_file()
            assert not (tree / ".venv").exists()
            assert not (tree / "__pycache__").exists()
        assert worktrees(folder) == 3
    assert worktrees(folder) == 1
    assert not base.exists()
    assert (folder / "data" / "rows.txt").read_text() == "here"
    assert git(folder, "status", "--porcelain", "--ignored") == before


def test_untracked_data_is_linked_and_untracked_code_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 100)
    for name in ("images/a.png", "package/part.py", "package/settings.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("here")
    (folder / "weights.bin").write_text("x" * 101)
    (folder / "link").symlink_to("nowhere")
    commit_before = git(folder, "rev-parse", "HEAD")
    repository = Repository(folder)
    with repository.checked_out([repository.base(commit_before), repository.candidate()]) as (base, candidate):
        for tree in (base, candidate):
            assert (tree / "images").is_symlink()
            assert (tree / "weights.bin").is_symlink()
        assert not (base / "package").exists()
        assert (candidate / "package" / "settings.toml").read_text() == "here"
        assert not (candidate / "package" / "part.py").is_symlink()
        assert (candidate / "link").is_symlink()


def test_data_alone_is_no_change(folder: Path) -> None:
    (folder / "images").mkdir()
    (folder / "images" / "a.png").write_text("")
    assert not Repository(folder).candidate().changed


def test_a_hook_of_the_user_does_not_run(folder: Path) -> None:
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    hook.chmod(0o755)
    repository = Repository(folder)
    with repository.checked_out([repository.candidate()]):
        pass
    assert not (folder / "ran").exists()


def test_git_variables_of_a_hook_do_not_redirect_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = new_repository(tmp_path / "other", train__py="other = 1\n")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert Repository(folder).root == folder.resolve()


def test_worktrees_are_removed_after_an_error_within(folder: Path) -> None:
    repository = Repository(folder)
    with pytest.raises(KeyboardInterrupt), repository.checked_out([repository.candidate()]):
        raise KeyboardInterrupt
    assert worktrees(folder) == 1


def test_worktrees_of_a_killed_check_are_removed_by_the_next(folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hasten.check.repository import Repository\n"
        "r = Repository(Path(sys.argv[1]))\n"
        "with r.checked_out([r.candidate()]) as trees: print(trees[0], flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    tree = Path(process.stdout.readline().strip())
    repository = Repository(folder)
    with repository.checked_out([repository.candidate()]):
        assert tree.exists(), "the worktree of a living check was removed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert tree.exists()
    with repository.checked_out([repository.candidate()]):
        assert worktrees(folder) == 2
    assert not tree.parent.exists()


def test_what_is_no_repository_or_no_revision_is_explained(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(HastenError, match=r"is not in a git repository .* Use --baseline FILE"):
        Repository(outside)
    git(outside, "init", "-q")
    with pytest.raises(HastenError, match=r"has no commit yet"):
        Repository(outside)
    with pytest.raises(HastenError, match=r"'nowhere' is not a revision of .* Give a branch, a tag or a commit"):
        Repository(folder).base("nowhere")


def test_a_shallow_clone_is_told_to_fetch(folder: Path, tmp_path: Path) -> None:
    commit(folder, "two", train__py="one = 2\n")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "clone")
    with pytest.raises(HastenError, match=r"This clone is shallow: fetch the history first .*fetch-depth: 0"):
        Repository(tmp_path / "clone").base(None)


def test_a_missing_git_is_explained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HastenError, match=r"git was not found"):
        Repository(folder)


@pytest.mark.slow
def test_a_full_disk_is_explained_and_leaves_nothing(folder: Path) -> None:
    """The temporary folder is a file system of 64 KiB, in a namespace of its own."""
    commit(folder, "large", big__bin=os.urandom(100_000).hex())
    code = (
        "import sys; from pathlib import Path; from hasten.check.repository import Repository\n"
        "from hasten.core.errors import HastenError\n"
        "r = Repository(Path(sys.argv[1]))\n"
        "try:\n"
        "    with r.checked_out([r.candidate()]): pass\n"
        "except HastenError as error: print(error)\n"
        "print('left:', list(Path(sys.argv[2]).iterdir()))"
    )
    small = folder.parent / "small"
    small.mkdir()
    inner = (
        f'mount -t tmpfs -o size=64k none "{small}" && TMPDIR="{small}" "{sys.executable}" -c "$CODE" "{folder}" "{small}"'
    )
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this machine allows no namespace")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inner], env={**os.environ, "CODE": code}, capture_output=True, text=True, check=True
    )
    assert "unable to write file" in done.stdout, done.stdout + done.stderr
    assert "TMPDIR chooses another folder" in done.stdout
    assert "left: []" in done.stdout
    assert worktrees(folder) == 1


def test_nothing_is_left_in_the_temporary_folder(folder: Path) -> None:
    repository = Repository(folder)
    with repository.checked_out([repository.candidate()]):
        assert list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
