"""`hasten demo`: tune a real job that ships with Hasten."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer

import hasten
from hasten.cli.say import console, parse_duration
from hasten.cli.tune import DEFAULT_OUT, run_session
from hasten.core.errors import HastenError
from hasten.recipes.known import RECIPES
from hasten.tune.request import TuneRequest


class Example(enum.StrEnum):
    """The jobs that ship."""

    TEXT = "text"
    IMAGE = "image"
    DETECTION = "detection"
    OCR = "ocr"


JOBS = {Example.TEXT: "text.py:TextJob", Example.IMAGE: "image.py:DigitsJob"}
BUDGET = "5m"
BUDGETS = {Example.DETECTION: "10m", Example.OCR: "10m"}
"""What takes longer to start and to train gets longer."""
WORDS = {
    Example.TEXT: "a byte-level GPT on the English text that every Python carries, written naively",
    Example.IMAGE: "an image classifier on scikit-learn's handwritten digits, written naively",
}


def demo(
    example: Annotated[Example, typer.Argument(help="Which job.")] = Example.TEXT,
    budget: Annotated[str | None, typer.Option(help="Time to spend; 5m, and 10m for detection and ocr.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for plan, evidence and report.")] = DEFAULT_OUT,
) -> None:
    """Tune a real training job that ships with Hasten; no data, no download, no server."""
    spend = budget or BUDGETS.get(example, BUDGET)
    if example in JOBS:
        target, words = example_target(JOBS[example]), WORDS[example]
    else:
        recipe = RECIPES[example.value]
        recipe.load()
        target, words = recipe.demo_target, recipe.words
    console.print(f"Tuning {target}: {words}. Budget {spend}.", soft_wrap=True)
    run_session(TuneRequest(target=target, out=out, budget_s=parse_duration(spend)))


def example_target(job: str) -> str:
    """Where an example lies: inside the installed package, or beside it in a checkout."""
    package = Path(hasten.__file__).parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / job.split(":", maxsplit=1)[0]).exists():
            inside = folder.is_relative_to(Path.cwd())
            return str(Path(os.path.relpath(folder) if inside else folder) / job)
    raise HastenError("The examples are not installed with this Hasten; get them from its source and tune them there.")
