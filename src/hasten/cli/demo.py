"""`hasten demo`: tune a real job that ships with Hasten."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer

import hasten
from hasten.cli.say import MIN_BUDGET_S, parse_duration, say
from hasten.cli.tune import DEFAULT_OUT, AllOption, run_session
from hasten.core.errors import HastenError
from hasten.recipes.known import RECIPES


class Example(enum.StrEnum):
    """The jobs that ship with Hasten."""

    TEXT = "text"
    IMAGE = "image"
    DETECTION = "detection"
    OCR = "ocr"
    DATACUBE = "datacube"
    DIALOGUE = "dialogue"


JOBS = {Example.TEXT: "text.py:TextJob", Example.IMAGE: "image.py:DigitsJob"}
BUDGET = "5m"
BUDGETS = dict.fromkeys((Example.DETECTION, Example.OCR, Example.DATACUBE, Example.DIALOGUE), "10m")
"""Default budgets of jobs that take longer to start and to train."""
WORDS = {
    Example.TEXT: "a byte-level GPT on English text from Python's own files, without optimizations",
    Example.IMAGE: "an image classifier on scikit-learn's handwritten digits, without optimizations",
}


def demo(
    example: Annotated[Example, typer.Argument(help="Which job.")] = Example.TEXT,
    budget: Annotated[
        str | None, typer.Option(help="Time to spend. Default: 5m; 10m for detection, ocr, datacube and dialogue.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for plan, evidence and report.")] = DEFAULT_OUT,
    every: AllOption = False,
) -> None:
    """Tune a real training job that ships with Hasten. Needs no data, no download and no server."""
    from hasten.tune.request import TuneRequest

    spend = budget or BUDGETS.get(example, BUDGET)
    budget_s = parse_duration(spend, least_s=MIN_BUDGET_S)
    if example in JOBS:
        target, words = example_target(JOBS[example]), WORDS[example]
    else:
        recipe = RECIPES[example.value]
        recipe.load()
        target, words = recipe.demo_target, recipe.words
    say(f"Tuning {target}: {words}. Budget {spend}.")
    run_session(TuneRequest(target=target, out=out, budget_s=budget_s), every=every)


def example_target(job: str) -> str:
    """Return the target of an example: in the installed package, or in the `examples` folder of a checkout."""
    package = Path(hasten.__file__).parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / job.split(":", maxsplit=1)[0]).exists():
            inside = folder.is_relative_to(Path.cwd())
            return str(Path(os.path.relpath(folder) if inside else folder) / job)
    raise HastenError("The examples are not installed with this Hasten. Get them from its source and tune them there.")
