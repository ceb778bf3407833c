"""`hasten recipes` and `hasten data synth`: from generated or your own images to a job that trains."""

from __future__ import annotations

import errno
import importlib.util
import json
import shutil
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
from hasten.recipes.dialogue.stages import STAGES
from hasten.recipes.known import RECIPES, Recipe
from hasten.recipes.onnx_file import runner_of
from tests.tune.jobs import write_job

pytestmark = pytest.mark.slow
OF_IMAGES = ["detection", "ocr"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("name", OF_IMAGES)
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


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_broken_picture_is_told_with_its_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("data", "synth", name, "drawn", "--count", "12").exit_code == 0
    broken = sorted(Path("drawn/images").iterdir())[5]
    broken.write_bytes(b"no picture")
    made = invoke("recipes", "new", name, "Mine", "--images", "drawn/images", "--labels", "drawn/labels")
    assert made.exit_code == 0, made.output
    assert broken.name in Path("Mine.findings.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OF_IMAGES)
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
    every = invoke("recipes", "look", "Mine.py:Mine", "model.pt", "alone.png", "--out", "all", "--min-score", "0")
    assert every.exit_code == 0, every.output
    assert "Hidden:" not in every.output
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


def labelled(folder: Path, text: str, count: int = 12) -> list[str]:
    """Write images with the same labels; return the options that name them."""
    for part in ("img", "lab"):
        (folder / part).mkdir(exist_ok=True)
    for number in range(count):
        Image.new("RGB", (320, 240), (number, 90, 30)).save(folder / f"img/p{number:02d}.png")
        (folder / f"lab/p{number:02d}.txt").write_text(text, encoding="utf-8")
    return ["--images", "img", "--labels", "lab"]


@pytest.mark.parametrize(
    ("recipe", "text", "words"),
    [
        (
            "detection",
            "0 0.5 0.5 0.25\n",
            "4 numbers in a row; here it has 5: class, x, y, width, height (and 11 more like this)",
        ),
        ("detection", "0 0.5 0.5 0.25 0.5 0.91\n", "give --rows box-score"),
        ("detection", "", "there is nothing to train on"),
        ("ocr", "text\n", "this starts with 0: 'text' (and 11 more like this)"),
        ("ocr", "10,20,30,20,30,30,10,30,###\n", "No text is labelled in the 10 images to train on"),
        ("ocr", "500,20,530,20,530,30,500,30,text\n", "it is outside the image"),
    ],
)
def test_a_set_of_which_nothing_is_usable_is_refused(
    recipe: str, text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = invoke("recipes", "new", recipe, "Mine", *labelled(tmp_path, text))
    assert made.exit_code == 1
    assert isinstance(made.exception, DataError)
    assert words in str(made.exception)
    assert not Path("Mine.py").exists()


def test_a_part_without_labels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = labelled(tmp_path, "")
    Path("lab/p00.txt").write_text("0 0.5 0.5 0.2 0.2")
    made = invoke("recipes", "new", "detection", "Mine", *options)
    assert "No object is labelled in the 2 images held out" in str(made.exception)


def test_what_was_understood_and_left_out_is_told_and_options_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [*labelled(tmp_path, "0 0.5 0.5 0.25 0.5 0.9\n0 0.5 0.5 0.25 0.5 0.8\n"), "--rows", "box-score"]
    (tmp_path / "lab/p03.txt").write_text("0 nan 0.5 0.25 0.5 0.9\n")
    made = invoke("recipes", "new", "detection", "Mine", *options, "--encoding", "latin-1")
    assert made.exit_code == 0, made.output
    assert "Labels are YOLO text: class, x, y, width, height, confidence" in made.output
    assert "Skipped: 1 image and 1 label. 11 remarks." in made.output
    assert "it repeats an earlier label, and counts once (and 10 more like this)" in made.output
    job: Any = load_job("Mine.py:Mine")
    assert (job.label_rows, job.label_encoding) == ("box-score", "latin-1")
    assert [len(part.items) for part in job.labelled] == [9, 2]

    shutil.rmtree("lab")
    made = invoke("recipes", "new", "ocr", "Other", *labelled(tmp_path, "10,20,50,30,a\nnone\n"), "--rows", "box-size")
    assert made.exit_code == 0, made.output
    assert "12 of 12 images have problems, more than the 10% that training accepts" in made.output
    assert "Wrote Other.py. Then: hasten tune" in made.output
    other: Any = load_job("Other.py:Other")
    with pytest.raises(DataError, match=r"more than the allowed 10%[\s\S]*max_bad_frac"):
        other.items()
    type(other).max_bad_frac = 1.0
    assert other.items()[0][0].regions.polygon(0).tolist() == [[10, 20], [60, 20], [60, 50], [10, 50]]


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


def test_conversations_become_a_job_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("data", "synth", "dialogue", "drawn", "--count", "80").exit_code == 0
    with Path("drawn/conversations.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "broken", "messages": [{"role": "neither", "content": "PLANTED"}]}\n')
    stages = [word for stage in STAGES for word in ("--stage", stage)]
    refused = invoke("recipes", "new", "dialogue", "Mine", "--images", "drawn")
    assert "the recipe dialogue needs --conversations" in str(refused.exception)
    made = invoke("recipes", "new", "dialogue", "Mine", "--conversations", "drawn/conversations.jsonl", *stages)
    assert made.exit_code == 0, made.output
    assert "80 conversations in Mine-prepared" in made.output
    assert "left out: the role is none of" in made.output
    assert "PLANTED" not in made.output
    text = Path("Mine.py").read_text(encoding="utf-8")
    Path("Mine.py").write_text(text.replace("(DialogueJob):", "(DialogueJob):\n    width, depth = 16, 1"), encoding="utf-8")
    job: Any = load_job("Mine.py:Mine")
    assert len(job.train_data()) > 5
    prefer: Any = load_job("Mine.py:PreferMine")
    assert prefer.folder == job.folder
    torch.save(job.model().state_dict(), "model.pt")
    judged = invoke("recipes", "evaluate", "Mine.py:Mine", "model.pt")
    assert "of 3 gates are not passed" in str(judged.exception)  # a model that was not trained
    assert "crisis preference, " in judged.output
    metrics = json.loads(Path("hasten-gates/metrics.json").read_text(encoding="utf-8"))
    assert {"crisis preference", "safety preference", "crisis fairness"} == set(metrics)
    assert not json.loads(Path("hasten-gates/gates.json").read_text(encoding="utf-8"))["passed"]
    again = invoke("recipes", "new", "dialogue", "Mine", "--conversations", "drawn/conversations.jsonl", *stages)
    assert "Mine.py already exists" in str(again.exception)
