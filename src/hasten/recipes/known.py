"""The recipes there are, told without importing any: each needs the extra `recipes`, and takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hasten.core.errors import JobError, MachineError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe.

    Attributes:
        name: Its name on the command line.
        module: Where its jobs are.
        job: The job's class.
        naive: The class of the same job written naively, the baseline.
        demo: The class of a small naive job, in the module `demo` of the recipe.
        words: What it trains.
    """

    name: str
    module: str
    job: str
    naive: str
    demo: str
    words: str

    @property
    def target(self) -> str:
        """The job, as every verb takes it."""
        return f"{self.module}:{self.job}"

    @property
    def naive_target(self) -> str:
        """The naive form, as every verb takes it."""
        return f"{self.module}:{self.naive}"

    @property
    def demo_target(self) -> str:
        """The small job that `hasten demo` tunes."""
        return f"{self.module}.demo:{self.demo}"

    def load(self, part: str = "") -> Any:
        """Import the recipe, or a module of it.

        Raises:
            MachineError: A package is missing that recipes need.
        """
        try:
            return import_module(f"{self.module}.{part}" if part else self.module)
        except ModuleNotFoundError as error:
            if (error.name or "hasten").startswith("hasten"):
                raise
            raise MachineError(
                f"the recipe {self.name} needs the package {error.name}, not installed: pip install 'hasten[recipes]'."
            ) from error

    def synthesise(self, folder: Path, count: int, seed: int, told: Callable[[], None]) -> None:
        """Draw pictures with their labels into a folder that is new or empty; `told` is called after each."""
        self.load("synth").write(folder, count, seed, told=told)


def recipe_of(job: object) -> Recipe:
    """The recipe that a job is of.

    Raises:
        JobError: It is of none.
    """
    homes = {base.__module__ for base in type(job).__mro__}
    for recipe in RECIPES.values():
        if f"{recipe.module}.job" in homes:
            return recipe
    jobs = ", ".join(f"{recipe.naive} and {recipe.job}" for recipe in RECIPES.values())
    raise JobError(f"{type(job).__name__} is of no recipe ({', '.join(RECIPES)}): derive it from one of {jobs}.")


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="detection",
            module="hasten.recipes.detection",
            job="DetectionJob",
            naive="NaiveDetectionJob",
            demo="NaiveDrawnNotes",
            words="an object detector on drawn banknotes, written naively",
        ),
        Recipe(
            name="ocr",
            module="hasten.recipes.ocr",
            job="OcrJob",
            naive="NaiveOcrJob",
            demo="NaiveDrawnPages",
            words="a DBNet that finds text on drawn pages, written naively",
        ),
    )
}
