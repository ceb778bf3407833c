"""`hasten recipes`: reference workloads for your own data, and `hasten data synth` for users without data."""

from __future__ import annotations

import enum
import json
import keyword
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.command import Verbs
from hasten.cli.say import narrated, progress_bar, say
from hasten.core.doing import doing_shown
from hasten.core.errors import DataError, HastenError
from hasten.core.files import write_atomically
from hasten.recipes.findings import many, printable
from hasten.recipes.known import RECIPES, Recipe, recipe_of

recipes = Verbs(help="List the reference workloads, and start one on your own data.")


class RecipeName(enum.StrEnum):
    """The reference workloads."""

    DETECTION = "detection"
    OCR = "ocr"
    DIALOGUE = "dialogue"


_JOB = '''"""{words}"""

from pathlib import Path

from {module} import {job}

HERE = Path(__file__).parent


class {name}({job}):
    """Settings are class attributes: see {job}."""

    images = {images}
    labels = {labels}
{more}'''


_DIALOGUE_JOB = '''"""Train a chat model on your own conversations."""

from pathlib import Path

from hasten.recipes.dialogue import DialogueJob, PreferenceJob

HERE = Path(__file__).parent


class {name}(DialogueJob):
    """Settings are class attributes: see DialogueJob."""

    prepared = {prepared}
{more}    bias_counts = True  # which groups are mentioned, in bias.json of a run


class Prefer{name}(PreferenceJob):
    """For conversations with a rejected answer: what the model should not say. Settings: see PreferenceJob."""

    prepared = {prepared}
{more}    start = str(HERE / "{name}.safetensors")  # hasten checkpoints export RUN {name}.safetensors
'''


@recipes.command("list")
def list_() -> None:
    """List the reference workloads."""
    for recipe in RECIPES.values():
        say(f"{recipe.name}: {recipe.target} (naive: {recipe.naive})")


@recipes.command()
def new(
    recipe: Annotated[RecipeName, typer.Argument(help="Which recipe.")],
    name: Annotated[str, typer.Argument(help="Name of the job. NAME.py is written to the current folder.")],
    images: Annotated[Path | None, typer.Option(help="detection, ocr: folder of images.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="detection, ocr: folder or file of labels. The format is detected.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="What a row of the label files holds, if that is not clear. detection: box, box-score, polygon, pose. "
            "ocr: box, box-size, quad, quad-script, quad-score, quad-difficult, polygon."
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of label files that are not UTF-8, such as latin-1 or cp1252.")
    ] = None,
    conversations: Annotated[
        Path | None, typer.Option(help="dialogue: a file of conversations, or a folder of such files.")
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="dialogue: a stage, in the order of training (repeatable). Conversations without one get the first."
        ),
    ] = None,
    chat_model: Annotated[
        Path | None,
        typer.Option(help="dialogue: folder of a model and tokenizer to start from. Default: a small new model."),
    ] = None,
    voices: Annotated[
        Path | None, typer.Option(help="dialogue: folder of the recordings that `voice_signature` of conversations names.")
    ] = None,
    private: Annotated[
        Path | None,
        typer.Option(
            help="dialogue: replace identifiers and encrypt by the plan in this folder, made by `hasten data private`."
        ),
    ] = None,
) -> None:
    """Check your data, and write a job that trains on it. Exits with 1 if nothing usable is left."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise HastenError(f"{name!r} is not a class name: use letters, digits and underscores, and no digit first.")
    path = Path(f"{name}.py")
    if path.exists():
        raise HastenError(f"{path} already exists: choose another name, or move the file.")
    needs = {"conversations": conversations} if recipe == RecipeName.DIALOGUE else {"images": images, "labels": labels}
    for option, given in needs.items():
        if given is None:
            raise HastenError(f"the recipe {recipe.value} needs --{option}.")
        if not given.exists():
            raise DataError(f"{given} does not exist.")
    if conversations is not None:
        folders = {"chat_model": chat_model, "voices": voices, "private": private}
        _new_dialogue(path, name, conversations, stage, folders)
    elif images is not None and labels is not None:
        _new_pictures(path, name, RECIPES[recipe.value], images, labels, {"label_rows": rows, "label_encoding": encoding})


def _new_pictures(
    path: Path, name: str, chosen: Recipe, images: Path, labels: Path, settings: dict[str, str | None]
) -> None:
    with narrated() as step:
        step(f"checking the images in {printable(images)} and the labels in {printable(labels)}")
        base = getattr(chosen.load(), chosen.job)
        job = type(name, (base,), {"images": str(images), "labels": str(labels), **settings})()
        findings = job.look_through(lambda done, total: step(f"  {done} of {total} images"))
    for sentence in findings.understood:
        say(sentence)
    if not findings.items:
        say("No problems found in the images and labels.")
    else:
        say(findings.words())
        list_file = path.with_suffix(".findings.jsonl")
        findings.write(list_file)
        say(f"{list_file} lists each with file and line.")
    written = _JOB.format(
        words=f"Train {chosen.name} on your own images.", module=chosen.module, job=chosen.job, name=name,
        images=_in_job(images), labels=_in_job(labels),
        more="".join(f"    {key} = {json.dumps(value)}\n" for key, value in settings.items() if value is not None),
    )  # fmt: skip
    _write_job(path, written)
    if findings.too_many(job.max_bad_frac):
        problems = f"{findings.num_affected()} of {findings.num_images} images have problems"
        say(f"{problems}, more than the {job.max_bad_frac:.0%} that training accepts: fix them, or set max_bad_frac.")
        say(f"Wrote {path}. Then: hasten tune {path}:{name}")
    else:
        say(f"Wrote {path}. Next: hasten tune {path}:{name}")


def _new_dialogue(
    path: Path, name: str, conversations: Path, stages: list[str] | None, folders: Mapping[str, Path | None]
) -> None:
    from hasten.data.private.plan import PrivatePlan

    prepare, private = RECIPES["dialogue"].load("prepare"), folders["private"]
    folder = Path(f"{name}-prepared")
    with narrated() as step, doing_shown(step):
        step(f"preparing {printable(conversations)}")
        settings: dict[str, Any] = {"stages": stages, "default": stages[0]} if stages else {}
        settings |= {"tokenizer": folders["chat_model"], "voices": folders["voices"]}
        result = prepare.prepare(conversations, folder, private=PrivatePlan.load(private) if private else None, **settings)
    say(f"{result.num_records:,} conversations in {folder}.")
    for reason, count in result.reasons.items():
        say(f"  left out: {reason} ({count:,})")
    given = {key: value for key, value in folders.items() if value is not None and key != "voices"}
    more = "".join(f"    {key} = {_in_job(value)}\n" for key, value in given.items())
    _write_job(path, _DIALOGUE_JOB.format(name=name, prepared=_in_job(folder), more=more))
    say(f"Wrote {path}. Next: hasten tune {path}:{name}")


def _write_job(path: Path, written: str) -> None:
    try:
        write_atomically(path, written)
    except OSError as error:
        raise HastenError(
            f"{path} cannot be written ({error.strerror}): change to a folder that you can write to."
        ) from error


@recipes.command()
def look(
    target: Annotated[str, typer.Argument(help="The job: FILE.py:NAME.")],
    weights: Annotated[
        Path, typer.Argument(help="Weights of a run: model.pt, or FILE.safetensors from `checkpoints export`.")
    ],
    pictures: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option(help="A new or empty folder.")] = Path("hasten-seen"),
    min_score: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Smallest score of a result. Default: 0.25 for detection, the job's box_thresh for ocr."
        ),
    ] = None,
) -> None:
    """Apply a trained model to images. OUT gets each image with the results drawn in, and found.jsonl."""
    from hasten.core.target import load_job
    from hasten.recipes.pictures import list_pictures, read_picture, write_picture

    paths = [path for given in pictures for path in (list_pictures(given) if given.is_dir() else [given])]
    if twice := sorted({path.stem for path in paths if sum(other.stem == path.stem for other in paths) > 1}):
        raise DataError(
            f"images of equal names would overwrite each other: {', '.join(twice[:3])}. Give them in separate calls."
        )
    _refuse_full(out)
    with narrated() as step:
        step(f"loading {target} and {printable(weights)}")
        with doing_shown(step):
            job: Any = load_job(target)
            predict = recipe_of(job).load("predict")
            model = predict.trained(job, weights)
        step(f"looking at {many(len(paths), 'image')}")
    rows, bad, num_hidden = [], [], 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        with progress_bar("images", len(paths)) as advance:
            for path in paths:
                try:
                    picture = read_picture(path)
                except DataError as error:
                    bad.append(str(error))
                else:
                    found, drawn, hidden = predict.look(model, picture, job, min_score)
                    num_hidden += hidden
                    write_picture(out / f"{path.stem}.jpg", drawn)
                    rows.append(json.dumps({"picture": printable(path), "found": found}, ensure_ascii=False))
                advance(1)
        write_atomically(out / "found.jsonl", "".join(f"{row}\n" for row in rows))
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}): free disk space, or choose another folder.") from error
    for words in bad:
        say(f"skipped: {words}")
    if not rows:
        raise DataError("none of the images could be read.")
    say(f"Wrote {len(rows)} images to {out}, and the results to {out / 'found.jsonl'}.")
    if num_hidden:
        least = predict.default_min_score(job) if min_score is None else min_score
        say(f"Hidden: {many(num_hidden, 'result')} with a score below {least:g}. Give a lower --min-score to see more.")


@recipes.command()
def evaluate(
    target: Annotated[str, typer.Argument(help="The job: FILE.py:NAME. A job of the recipe dialogue.")],
    weights: Annotated[
        Path, typer.Argument(help="Weights of a run: model.pt, or FILE.safetensors from `checkpoints export`.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for gates.json and metrics.json.")] = Path("hasten-gates"),
) -> None:
    """Judge a trained chat model by its gates, slice by slice. Exits with 1 if one is not passed."""
    from hasten.core.target import load_job

    with narrated() as step:
        step(f"loading {target} and {printable(weights)}")
        with doing_shown(step):
            job: Any = load_job(target)
            if not hasattr(job, "checks"):
                raise HastenError(f"{target} has no gates: only jobs of the recipe dialogue have.")
            made = RECIPES["dialogue"].load("evaluation.of_job").evaluate_weights(job, weights, out)
    for gate in made.gates:
        for words in gate["words"]:
            say(words)
        if gate["problem"]:
            say(f"  {gate['problem']}")
    say(f"{out / 'gates.json'} has all slices, and {out / 'metrics.json'} what pipelines and releases judge.")
    if not made.passed:
        failed = sum(not gate["passed"] for gate in made.gates)
        raise HastenError(f"{failed} of {len(made.gates)} gates are not passed.")


@recipes.command()
def export(
    target: Annotated[str, typer.Argument(help="The job: FILE.py:NAME.")],
    weights: Annotated[
        Path, typer.Argument(help="Weights of a run: model.pt, or FILE.safetensors from `checkpoints export`.")
    ],
    file: Annotated[Path, typer.Argument(help="The ONNX file. Replaced only if the new one agrees with the model.")],
) -> None:
    """Export a trained model to ONNX. The file is written only if its outputs equal those of the model."""
    from hasten.core.target import load_job

    with narrated() as step, doing_shown(step), warnings.catch_warnings():
        step(f"loading {target}")
        job: Any = load_job(target)
        recipe_of(job)
        step(f"exporting to {printable(file)}, and comparing its outputs")
        warnings.simplefilter("ignore")  # torch's exporter warns about parts of torch that it uses itself
        differences = job.export(str(weights), str(file))
    agreement = ", ".join(f"{name} within {value:.1g}" for name, value in differences.items())
    say(f"Wrote {file}. Its outputs agree with the model: {agreement}.")


def synth(
    recipe: Annotated[RecipeName, typer.Argument(help="Which recipe the samples are for.")],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed. Equal seeds give equal samples.")] = 0,
) -> None:
    """Generate samples for users without their own data: FOLDER/images and FOLDER/labels, or FOLDER/conversations.jsonl."""
    _refuse_full(folder)
    what = "conversation" if recipe == RecipeName.DIALOGUE else "image"
    with narrated() as step:
        step(f"generating {many(count, what)}")
    try:
        with progress_bar(f"{what}s", count) as advance:
            RECIPES[recipe.value].synthesise(folder, count, seed, lambda: advance(1))
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror}): free disk space, or choose another folder."
        ) from error
    say(f"Wrote {many(count, what)}: {', '.join(str(path) for path in sorted(folder.iterdir()))}")


def _refuse_full(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty: choose a new folder.")


def _in_job(path: Path) -> str:
    """Return a path as the source of a job: relative to the job's folder if below it, else absolute."""
    whole, here = path.resolve(), Path.cwd().resolve()
    if whole.is_relative_to(here):
        return f"str(HERE / {_quoted(whole.relative_to(here))})"
    return _quoted(whole)


def _quoted(path: Path) -> str:
    """Return a path as a Python string literal."""
    return json.dumps(os.fspath(path), ensure_ascii=False)
