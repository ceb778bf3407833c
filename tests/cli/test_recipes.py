"""`hasten recipes` and `hasten data synth`: from generated or your own images to a job that trains."""

from __future__ import annotations

import errno
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.core.errors import DataError, HastenError
from hasten.core.target import load_job
from hasten.recipes.known import RECIPES, Recipe
from hasten.recipes.onnx_file import runner_of
from tests.tune.jobs import write_job

pytestmark = pytest.mark.slow


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("name", RECIPES)
def test_pictures_drawn_become_a_job_that_names_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = invoke("data", "synth", name, "drawn", "--count", "3")
    assert drawn.exit_code == 0, drawn.output
    assert len(list(Path("drawn/images").iterdir())) == 3
    made = invoke("recipes", "new", name, "Mine", "--images", "drawn/images", "--labels", "drawn/labels")
    assert made.exit_code == 0, made.output
    assert "hasten tune Mine.py:Mine" in made.output
    job: Any = load_job("Mine.py:Mine")
    assert job.images == str(tmp_path / "drawn" / "images")
    assert len(job.train_data()) + len(job.valid_data()) == 3


@pytest.mark.parametrize("name", RECIPES)
def test_a_broken_picture_is_told_with_its_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("data", "synth", name, "drawn", "--count", "12").exit_code == 0
    broken = sorted(Path("drawn/images").iterdir())[5]
    broken.write_bytes(b"no picture")
    made = invoke("recipes", "new", name, "Mine", "--images", "drawn/images", "--labels", "drawn/labels")
    assert made.exit_code == 0, made.output
    assert broken.name in Path("Mine.findings.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_a_trained_model_looks_at_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("data", "synth", name, "drawn", "--count", "3").exit_code == 0
    assert invoke("recipes", "new", name, "Mine", "--images", "drawn/images", "--labels", "drawn/labels").exit_code == 0
    job: Any = load_job("Mine.py:Mine")
    torch.save(job.model().state_dict(), "model.pt")
    Path("drawn/images/zz-broken.jpg").write_bytes(b"no picture")
    Path("alone.png").write_bytes(min(Path("drawn/images").iterdir()).read_bytes())

    done = invoke("recipes", "look", "Mine.py:Mine", "model.pt", "drawn/images", "alone.png", "--out", "seen")
    assert done.exit_code == 0, done.output
    assert "skipped: " in done.output
    assert "zz-broken.jpg" in done.output
    rows = [json.loads(line) for line in Path("seen/found.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 4
    for row in rows:
        with Image.open(row["picture"]) as before, Image.open(f"seen/{Path(row['picture']).stem}.jpg") as after:
            assert before.size == after.size

    again = invoke("recipes", "look", "Mine.py:Mine", "model.pt", "alone.png", "--out", "seen")
    assert isinstance(again.exception, DataError)
    assert "not empty" in str(again.exception)
    twice = invoke("recipes", "look", "Mine.py:Mine", "model.pt", "alone.png", "alone.png", "--out", "other")
    assert "would overwrite each other" in str(twice.exception)
    wrong = invoke("recipes", "look", "Mine.py:Mine", "nowhere.pt", "alone.png", "--out", "other")
    assert "there is no file nowhere.pt" in str(wrong.exception)
    assert not Path("other").exists()


@pytest.mark.long
@pytest.mark.parametrize(("name", "outputs"), [("detection", ["boxes", "scores"]), ("ocr", ["probability"])])
def test_a_trained_model_becomes_an_onnx_file(
    name: str, outputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("data", "synth", name, "drawn", "--count", "3").exit_code == 0
    assert invoke("recipes", "new", name, "Mine", "--images", "drawn/images", "--labels", "drawn/labels").exit_code == 0
    source = Path("Mine.py").read_text(encoding="utf-8").replace("    images", "    size = 96\n    images")
    Path("Small.py").write_text(source, encoding="utf-8")
    job: Any = load_job("Small.py:Mine")
    torch.save(job.model().state_dict(), "model.pt")
    done = invoke("recipes", "export", "Small.py:Mine", "model.pt", "mine.onnx")
    assert done.exit_code == 0, done.output
    assert all(f"{name} within" in done.output for name in outputs)
    (seen, *_) = runner_of(Path("mine.onnx"), outputs)(np.zeros((2, 3, 96, 96), np.float32))
    assert len(seen) == 2


def test_a_job_of_no_recipe_is_refused(tmp_path: Path) -> None:
    target = write_job(tmp_path)
    done = invoke("recipes", "export", target, "model.pt", "mine.onnx")
    assert isinstance(done.exception, HastenError)
    assert "belongs to none of the recipes detection, ocr" in str(done.exception)


def test_what_cannot_begin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    Image.new("RGB", (8, 8)).save("pictures/a.png")
    Path("There.py").touch()
    for name, images, words in (
        ("3d", "pictures", "is not a class name"),
        ("class", "pictures", "is not a class name"),
        ("There", "pictures", "already exists"),
        ("Mine", "nowhere", "nowhere does not exist"),
    ):
        done = invoke("recipes", "new", "detection", name, "--images", images, "--labels", "pictures")
        assert isinstance(done.exception, HastenError), name
        assert words in str(done.exception)
    full = invoke("data", "synth", "ocr", "pictures")
    assert isinstance(full.exception, DataError)
    assert "not empty" in str(full.exception)
    assert sorted(path.name for path in Path("pictures").iterdir()) == ["a.png"]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    assert invoke("data", "synth", "detection", "drawn", "--count", "3").exit_code == 0
    monkeypatch.setattr("hasten.cli.recipes.write_atomically", full)
    made = invoke("recipes", "new", "detection", "Mine", "--images", "drawn/images", "--labels", "drawn/labels")
    monkeypatch.setattr("hasten.recipes.detection.synth.write", full)
    drawn = invoke("data", "synth", "detection", "more")
    for done, what in ((made, "Mine.py"), (drawn, "more")):
        assert isinstance(done.exception, HastenError)
        assert f"{what} cannot be written (No space left on device)" in str(done.exception)
    assert not Path("Mine.py").exists()


def test_the_list_names_what_can_be_trained() -> None:
    shown = invoke("recipes", "list").output
    for recipe in RECIPES.values():
        assert recipe.target in shown
        assert importlib.util.find_spec(recipe.module)
        assert type(load_job(recipe.target)).__name__ == recipe.job
        assert type(load_job(recipe.naive_target)).__name__ == recipe.naive
        assert type(load_job(recipe.demo_target)).__name__ == recipe.demo


def test_a_package_that_lacks_is_named() -> None:
    odd = Recipe(name="odd", module="tests.cli.needs_a_package", job="A", naive="B", demo="C", words="")
    with pytest.raises(HastenError, match=r"the recipe odd needs the package no_such_package.*hasten\[recipes\]"):
        odd.load()
