"""`hasten recipes`: reference workloads for data of one's own, and `hasten data synth` for who has none yet."""

from __future__ import annotations

import enum
import json
import keyword
import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.say import console, progress_bar
from hasten.core.errors import DataError, HastenError
from hasten.core.files import write_atomically
from hasten.core.target import load_job
from hasten.recipes.known import RECIPES, recipe_of
from hasten.recipes.pictures import list_pictures, read_picture, write_picture

recipes = typer.Typer(
    help="Reference workloads: list them, and begin one on your own data.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class RecipeName(enum.StrEnum):
    """The recipes."""

    DETECTION = "detection"
    OCR = "ocr"


_JOB = '''"""{words}"""

from pathlib import Path

from {module} import {job}

HERE = Path(__file__).parent


class {name}({job}):
    """Everything that can be set is an attribute: see {job}."""

    images = {images}
    labels = {labels}
'''


@recipes.command("list")
def list_() -> None:
    """List the recipes."""
    for recipe in RECIPES.values():
        console.print(f"{recipe.name}: {recipe.target} (naive: {recipe.naive})", soft_wrap=True)


@recipes.command()
def new(
    recipe: Annotated[RecipeName, typer.Argument(help="Which recipe.")],
    name: Annotated[str, typer.Argument(help="Name of the job; NAME.py is written here.")],
    images: Annotated[Path, typer.Option(help="Folder of pictures.")],
    labels: Annotated[Path, typer.Option(help="Folder or file of labels; the format is found from the files.")],
) -> None:
    """Look through pictures and labels, and write a job that trains on them."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise HastenError(f"{name!r} cannot name a class: take letters, digits and underscores, no digit first.")
    path = Path(f"{name}.py")
    if path.exists():
        raise HastenError(f"{path} is there already: take another name, or move it away.")
    for given in (images, labels):
        if not given.exists():
            raise DataError(f"there is no {given}.")
    chosen = RECIPES[recipe.value]
    job = type(name, (getattr(chosen.load(), chosen.job),), {"images": str(images), "labels": str(labels)})
    findings = job().look_through()
    if not findings.items:
        console.print("Nothing is wrong with the pictures and their labels.")
    else:
        console.print(findings.words(), markup=False, soft_wrap=True)
        aside = path.with_suffix(".findings.jsonl")
        findings.write(aside)
        console.print(f"Each with file and line: {aside}")
    written = _JOB.format(
        words=f"{name}: {chosen.name} on pictures of one's own.", module=chosen.module, job=chosen.job, name=name,
        images=_beside(images), labels=_beside(labels),
    )  # fmt: skip
    try:
        write_atomically(path, written)
    except OSError as error:
        raise HastenError(f"{path} cannot be written ({error.strerror}): go to a folder that takes files.") from error
    console.print(f"Wrote {path}. Next: hasten tune {path}:{name}", soft_wrap=True)


@recipes.command()
def look(
    target: Annotated[str, typer.Argument(help="The job: FILE.py:NAME.")],
    weights: Annotated[Path, typer.Argument(help="Of a run of it: model.pt, or FILE.safetensors of `checkpoints export`.")],
    pictures: Annotated[list[Path], typer.Argument(help="Pictures, or folders of pictures.")],
    out: Annotated[Path, typer.Option(help="A folder that is new or empty.")] = Path("hasten-seen"),
) -> None:
    """Look at pictures with a trained model: OUT gets each with what was found drawn in, and found.jsonl."""
    paths = [path for given in pictures for path in (list_pictures(given) if given.is_dir() else [given])]
    if twice := sorted({path.stem for path in paths if sum(other.stem == path.stem for other in paths) > 1}):
        raise DataError(f"pictures of one name would overwrite each other: {', '.join(twice[:3])}. Look at them apart.")
    _refuse_full(out)
    job: Any = load_job(target)
    predict = recipe_of(job).load("predict")
    model = predict.trained(job, weights)
    rows, bad = [], []
    try:
        out.mkdir(parents=True, exist_ok=True)
        with progress_bar("looking", len(paths)) as advance:
            for path in paths:
                try:
                    picture = read_picture(path)
                except DataError as error:
                    bad.append(str(error))
                else:
                    found, drawn = predict.look(model, picture, job)
                    write_picture(out / f"{path.stem}.jpg", drawn)
                    rows.append(json.dumps({"picture": str(path), "found": found}, ensure_ascii=False))
                advance(1)
        write_atomically(out / "found.jsonl", "".join(f"{row}\n" for row in rows))
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}): make room, or name another folder.") from error
    for words in bad:
        console.print(f"left out: {words}", markup=False, soft_wrap=True)
    if not rows:
        raise DataError("none of the pictures could be read.")
    console.print(f"Looked at {len(rows)} pictures: {out}, what was found in {out / 'found.jsonl'}", soft_wrap=True)


@recipes.command()
def export(
    target: Annotated[str, typer.Argument(help="The job: FILE.py:NAME.")],
    weights: Annotated[Path, typer.Argument(help="Of a run of it: model.pt, or FILE.safetensors of `checkpoints export`.")],
    file: Annotated[Path, typer.Argument(help="The ONNX file; replaced only by one that agrees with the model.")],
) -> None:
    """Write a trained model as an ONNX file, and keep it only where it gives what the model gives."""
    job: Any = load_job(target)
    recipe_of(job)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of parts of torch that it uses itself
        differences = job.export(str(weights), str(file))
    told = ", ".join(f"{name} within {value:.1g}" for name, value in differences.items())
    console.print(f"Wrote {file}; run beside the model it gives the same: {told}.", soft_wrap=True)


def synth(
    recipe: Annotated[RecipeName, typer.Argument(help="Which recipe to draw for.")],
    folder: Annotated[Path, typer.Argument(help="A folder that is new or empty.")],
    count: Annotated[int, typer.Option(min=1, help="Pictures to draw.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same pictures.")] = 0,
) -> None:
    """Draw pictures with labels, for who has no data of their own yet: FOLDER/images and FOLDER/labels."""
    _refuse_full(folder)
    try:
        with progress_bar("drawing", count) as advance:
            RECIPES[recipe.value].synthesise(folder, count, seed, lambda: advance(1))
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}): make room, or name another folder.") from error
    console.print(f"Drew {count} pictures: {folder / 'images'}, {folder / 'labels'}", soft_wrap=True)


def _refuse_full(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is there and not empty: name a new folder.")


def _beside(path: Path) -> str:
    """A path in the job's own file: from its folder on where that is above it, else whole."""
    whole, here = path.resolve(), Path.cwd().resolve()
    if whole.is_relative_to(here):
        return f"str(HERE / {_quoted(whole.relative_to(here))})"
    return _quoted(whole)


def _quoted(path: Path) -> str:
    """A path as source shows it."""
    return json.dumps(os.fspath(path), ensure_ascii=False)
