"""Folders that the user allows, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import JobError, MachineError
from hasten.core.job import check_job
from hasten.core.scratch import SCRATCH_VARIABLE, allow_scratch, allowed_scratch
from tests.train.jobs import Plain


class Allowing(Plain):
    scratch = ("/fast", "/faster")


def test_nothing_is_allowed_unless_somebody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    assert allowed_scratch(Plain()) == ()
    assert allowed_scratch(Allowing()) == (Path("/fast"), Path("/faster"))


def test_folders_of_the_command_line_come_first_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, "")
    allow_scratch([tmp_path])
    allow_scratch([])
    monkeypatch.setattr(Allowing, "scratch", (str(tmp_path), "/fast"))
    assert allowed_scratch(Allowing()) == (tmp_path.resolve(), Path("/fast"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="missing is no folder that can be written"):
        allow_scratch([tmp_path / "missing"])


@pytest.mark.parametrize("scratch", ["/fast", (1,), ("",)])
def test_what_is_no_list_of_folders_is_refused(scratch: Any) -> None:
    kind = type("Odd", (Plain,), {"scratch": scratch})
    with pytest.raises(JobError, match="scratch must be a tuple of folder names"):
        check_job(kind())
