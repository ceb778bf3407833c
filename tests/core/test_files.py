"""After any failure, a file is either the complete old one or the complete new one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hasten.core.files import write_atomically


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("data", "expected"), [("héllo\n", "héllo\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_a_file_is_written_with_its_folders(tmp_path: Path, data: str | bytes, expected: bytes) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomically(path, data)
    assert path.read_bytes() == expected
    assert entries(path.parent) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_is_replaced_completely(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "a long old content")
    write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert entries(tmp_path) == ["file"]


def test_the_old_content_survives_an_encoding_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert entries(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "interrupted"])
def test_the_old_content_survives_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def fail(handle: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert entries(tmp_path) == ["file"]


def test_a_folder_in_the_way_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file" / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file", "new")
    assert entries(tmp_path) == ["file"]


@pytest.mark.slow
def test_the_old_content_survives_a_kill_in_the_midst_of_writing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    program = """
        import os, signal, sys
        from pathlib import Path
        from hasten.core.files import write_atomically
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        write_atomically(Path(sys.argv[1]), "new" * 100_000)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text(encoding="utf-8") == "old"
