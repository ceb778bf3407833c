"""A disk that fills up, for real: a small disk in memory. Each case says so, believes nothing half-written, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hasten.core.errors import MachineError
from hasten.pipeline.backup import backup, drill, restore
from hasten.pipeline.control import state_of
from hasten.pipeline.release import Releases
from tests.pipeline.conftest import fill
from tests.pipeline.described import command, described
from tests.pipeline.test_run import count, run, start, until

LARGE = """\
[stages.large]
needs = ["a"]
command = ["python", "-c", "import sys; open(sys.argv[1] + '/x', 'wb').write(bytes(6 * 2**20))", "{out}"]
gives = ["x"]
cores = 1
memory = "100 MiB"
"""
WAITS = """\
[stages.waits]
needs = ["a"]
command = ["python", "-c", "import sys, time, pathlib as p; p.Path(sys.argv[1], 'x').touch()\\nwhile not p.Path(sys.argv[2]).exists(): time.sleep(0.1)", "{{out}}", "{go}"]
gives = ["x"]
cores = 1
memory = "100 MiB"
"""  # noqa: E501


@pytest.fixture(autouse=True)
def _leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_LEASES", str(tmp_path / "leases"))


@pytest.mark.slow
def test_a_stage_or_the_engine_that_fills_the_disk(disk: Path) -> None:
    pipeline = described(disk / "p", command("a") + LARGE)
    for free, words in ((0, "No space left on device"), (2**16, "is full"), (2**22, "is full")):
        ballast = fill(disk, free)
        done = run(pipeline)
        assert done.returncode == 1, done.stdout
        assert f"{pipeline.work}" in done.stderr
        assert words in done.stderr
        assert "Free some space" in done.stderr
        assert not state_of(pipeline).views["large"].done
        ballast.unlink()
    done = run(pipeline)
    assert done.returncode == 0, done.stderr
    assert (pipeline.work / "stages" / "large" / "latest" / "x").stat().st_size == 6 * 2**20
    assert count(pipeline, "a") == 1


@pytest.mark.long
def test_a_disk_that_fills_while_records_are_written(disk: Path) -> None:
    pipeline = described(disk / "p", command("a") + WAITS.format(go=disk.parent / "go") + command("b", needs="waits"))
    with start(pipeline) as process:
        until(pipeline, lambda state: state.words("waits") == "running")
        ballast = fill(disk, 0)
        (disk.parent / "go").touch()
        _, errors = process.communicate(timeout=200)
    assert process.returncode == 1
    assert f"{pipeline.work}" in errors
    assert "Free some space" in errors
    ballast.unlink()
    done = run(pipeline)
    assert done.returncode == 0, done.stderr
    assert (count(pipeline, "a"), count(pipeline, "b")) == (1, 1)


def failures(disk: Path, copy: Callable[[], object]) -> Iterator[None]:
    """Call it with more and more room on the disk until it fits. Yield after each failure, when the disk is free again."""
    for pages in range(100):
        ballast = fill(disk, pages * 4096)
        try:
            copy()
        except MachineError as error:
            words = str(error)
        else:
            words = ""
        finally:
            ballast.unlink()
        if not words:
            assert pages > 1, "it failed in several places before it fit"
            return
        assert str(disk) in words
        assert "No space left on device" in words
        yield
    raise AssertionError(words)


def test_a_disk_that_fills_while_a_model_is_released(disk: Path, runs: list[Path]) -> None:
    releases = Releases(disk / "releases")
    one = releases.promote(runs[0]).used
    for _ in failures(disk, lambda: releases.promote(runs[1])):
        assert releases.verify() >= 1
        assert releases.choose().name == one
    two = releases.pointer.used
    assert {path.name for path in releases.path("").iterdir()} == {one, two}
    ballast = fill(disk, 0)
    with pytest.raises(MachineError, match="No space left"):
        releases.rollback("the history cannot be written")
    ballast.unlink()
    assert releases.pointer.used == two
    assert releases.rollback("it can be written").used == one


def test_a_disk_that_fills_while_a_backup_is_copied(disk: Path, tmp_path: Path, runs: list[Path]) -> None:
    releases, there = Releases(tmp_path / "releases"), str(disk / "backup")
    one = releases.promote(runs[0]).used
    backup(releases, there)
    two = releases.promote(runs[1]).used
    for _ in failures(disk, lambda: backup(releases, there)):
        assert drill(there).keys() >= {one}, "the earlier backup, or the new one"
    assert drill(there).keys() == {one, two}
    for _ in failures(disk, lambda: restore(there, disk / "restored")):
        assert [path.name for path in disk.iterdir()] == ["backup"]
    assert Releases(disk / "restored").verify() == 2
