"""TensorBoard and Weights & Biases in a script: timed as logging, isolated from user folders, never imported by Hasten."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hasten.script.entry.isolation import isolate
from hasten.script.patches import Patches
from hasten.script.watch.profile import logging_writes
from hasten.script.watch.trackers import TRACKERS, Tracker, Trackers, silence_tracker

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def standins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the stand-ins importable, and forget them afterwards."""
    monkeypatch.syspath_prepend(SCRIPTS / "standins")
    before = list(sys.meta_path)
    yield
    assert sys.meta_path == before
    for name in [name for name in sys.modules if name.split(".")[0] in {"tensorboardX", "wandb"}]:
        del sys.modules[name]


def imported(name: str) -> Any:
    return importlib.import_module(name)


def seen(trackers: list[tuple[str, str]]) -> Trackers:
    return Trackers(lambda tracker, owner: trackers.append((tracker.label, owner.__module__)))


def test_a_class_is_met_when_the_script_loads_it_and_once(standins: None) -> None:
    met: list[tuple[str, str]] = []
    trackers = seen(met)
    trackers.begin()
    assert met == []
    assert "wandb" not in sys.modules
    imported("wandb")
    imported("tensorboardX")
    assert met == [("wandb", "wandb.sdk.wandb_run"), ("tensorboard", "tensorboardX.writer")]
    importlib.reload(imported("wandb.sdk.wandb_run"))
    assert len(met) == 2
    trackers.end()


def test_a_class_that_is_loaded_already_is_met_at_once(standins: None) -> None:
    imported("wandb")
    met: list[tuple[str, str]] = []
    trackers = seen(met)
    trackers.begin()
    assert met == [("wandb", "wandb.sdk.wandb_run")]
    trackers.end()
    imported("tensorboardX")
    assert len(met) == 1


def test_several_wait_for_the_same_module(standins: None) -> None:
    met: list[tuple[str, str]] = []
    both = seen(met), seen(met)
    for trackers in both:
        trackers.begin()
    imported("wandb")
    assert len(met) == 2
    assert "exec_module" not in vars(sys.modules["wandb.sdk.wandb_run"].__loader__)
    for trackers in both:
        trackers.end()


def test_what_fails_in_ours_is_told_and_the_import_goes_on(standins: None) -> None:
    told: list[str] = []

    def broken(_tracker: Tracker, _owner: Any) -> None:
        raise ValueError("odd")

    trackers = Trackers(broken, lambda: told.append(str(sys.exc_info()[1])))
    trackers.begin()
    assert imported("wandb").init().log_artifact("kept") == "kept"
    assert told == ["odd"]
    trackers.end()


def test_a_module_that_fails_to_load_fails_as_without_us(standins: None, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "tensorboardX").mkdir()
    (tmp_path / "tensorboardX" / "__init__.py").write_text("from . import writer")
    (tmp_path / "tensorboardX" / "writer.py").write_text("import not_there")
    monkeypatch.syspath_prepend(tmp_path)
    met: list[tuple[str, str]] = []
    trackers = seen(met)
    trackers.begin()
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        imported("tensorboardX")
    assert met == []
    trackers.end()


def test_what_takes_metrics_and_what_does_not() -> None:
    class Writer:
        add_scalar = add_text = flush = close = get_logdir = len
        add_nothing = 3

    class Run:
        log = log_artifact = finish = len

    tensorboard, wandb = TRACKERS[0], TRACKERS[-1]
    assert sorted(tensorboard.methods(Writer)) == ["add_scalar", "add_text", "flush"]
    assert wandb.methods(Run) == ["log"]
    patches = Patches()
    silence_tracker(patches, wandb, Run)
    assert Run.log("abc") is None
    assert Run.log_artifact("abc") == 3
    patches.restore()
    assert Run.log("abc") == 3


def test_a_trial_writes_events_to_scratch_and_forgets_the_rest(
    standins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    monkeypatch.chdir(home)
    patches = Patches()
    isolate(patches, scratch, silent=False)
    try:
        made: ModuleType = imported("tensorboardX")
        for arguments, more in (((), {}), (("runs/a", "of mine"), {}), ((), {"log_dir": "runs/b", "comment": "of mine"})):
            writer = made.SummaryWriter(*arguments, **more)
            writer.add_scalar("loss", 1.0, 3)
            assert Path(writer.logdir).parent == scratch
    finally:
        patches.restore()
    assert list(home.iterdir()) == []
    assert [(path / "events").read_text() for path in sorted(scratch.glob("events-*"))] == ["loss 1.0 3\n"] * 3
    writer = made.SummaryWriter("runs")
    assert writer.logdir == "runs"


def test_the_words_say_whether_values_are_read_or_written() -> None:
    def found(*places: tuple[str, float]) -> dict[str, Any]:
        return {"places": [[what, "train.py", 7, 10, seconds] for what, seconds in places]}

    assert logging_writes(found(("print", 2.0), (".item()", 1.0)))
    assert logging_writes(found(("wandb", 2.0), ("dataset", 9.0)))
    assert logging_writes(found(("_LoggerConnector.log_metrics", 2.0)))
    assert not logging_writes(found(("tensorboard", 1.0), (".item()", 2.0)))
    assert not logging_writes(found(("dataset", 9.0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "label"),
    [
        pytest.param("tensorboard", "tensorboard", marks=pytest.mark.long),
        pytest.param("tensorboardX", "tensorboard", marks=pytest.mark.long),
        pytest.param("wandb", "wandb", marks=pytest.mark.long),
    ],
)
def test_a_script_that_reports_too_much_is_told_where(tmp_path: Path, which: str, label: str) -> None:
    for file in ("reports.py", "common.py", "standins"):
        (shutil.copytree if file == "standins" else shutil.copy)(SCRIPTS / file, tmp_path / file)
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "profile", "reports.py", "--json", "found.json", "--seconds", "0.2", "--", which],
        capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["bottleneck"]["name"] == "logging"
    assert "Printing, logging and reporting metrics take" in found["bottleneck"]["words"]
    place = found["where"][0]
    assert (place["what"], Path(place["file"]).name) == (label, "reports.py")
    calls = {"tensorboard": "writer.add_scalar(", "tensorboardX": "writer.add_scalars(", "wandb": "wandb.log("}
    assert calls[which] in (SCRIPTS / "reports.py").read_text().splitlines()[place["line"] - 1]
    assert found["ceilings"]["logging"] > 1.5
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {
        "reports.py",
        "common.py",
        "standins",
        "found.json",
    }
