"""What the system reports about this process agrees with what the process did."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.core import system

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_allocators_are_found_by_file_one_of_each_the_preferred_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, name in ((first, "libtcmalloc.so.4"), (second, "libtcmalloc_minimal.so.4"), (second, "libjemalloc.so.2")):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    found, reason = system.read_allocators([first, second])
    assert found == (str(second / "libtcmalloc_minimal.so.4"), str(second / "libjemalloc.so.2"))
    assert str(first) in reason
    assert system.read_allocators([tmp_path])[0] == ()


def test_folders_begin_with_those_of_the_user() -> None:
    folders = system.library_folders({"LD_LIBRARY_PATH": "/mine::/other"})
    assert folders[:2] == [Path("/mine"), Path("/other")]
    assert Path(sys.prefix, "lib") in folders
    assert len(folders) == len(set(folders))


@LINUX
def test_the_first_environment_is_what_the_process_was_started_with() -> None:
    code = (
        "import os; os.environ['LATE'] = '1'; os.environ['EARLY'] = 'changed'\n"
        "from hasten.core.system import started_with\n"
        "found = started_with(); print(found.get('LATE'), found['EARLY'], found['GLIBC_TUNABLES'])"
    )
    started = {**os.environ, "EARLY": "a=b", "GLIBC_TUNABLES": "glibc.malloc.perturb=0:glibc.malloc.top_pad=1"}
    done = subprocess.run([sys.executable, "-c", code], env=started, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "a=b", started["GLIBC_TUNABLES"]]


def test_without_proc_the_current_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_SELF", tmp_path)
    assert system.started_with() is os.environ
    (tmp_path / "environ").write_text("a title that overwrote it")
    assert system.started_with() is os.environ
    assert system.mapping_at(1) == ""


@LINUX
def test_a_function_is_in_its_library() -> None:
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert "libc" in system.mapping_at(address or 0)
    assert system.mapping_at(0) == ""
