"""List the available recipes without importing them: each needs the extra `recipes` and takes seconds to import."""

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
        name: Name on the command line.
        module: Module of its jobs.
        job: Class name of the optimized job.
        naive: Class name of the baseline: the same job written naively.
        demo: Class name of a small naive job in the recipe's module `demo`.
        words: What the recipe trains.
    """

    name: str
    module: str
    job: str
    naive: str
    demo: str
    words: str

    @property
    def target(self) -> str:
        """The job in the form every command accepts."""
        return f"{self.module}:{self.job}"

    @property
    def naive_target(self) -> str:
        """The naive job in the form every command accepts."""
        return f"{self.module}:{self.naive}"

    @property
    def demo_target(self) -> str:
        """The small job that `hasten demo` tunes."""
        return f"{self.module}.demo:{self.demo}"

    def load(self, part: str = "") -> Any:
        """Import the recipe or one of its modules.

        Raises:
            MachineError: A package that recipes need is not installed.
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
        """Generate labelled images in a new or empty folder; `told` is called after each image."""
        self.load("synth").write(folder, count, seed, told=told)


def recipe_of(job: object) -> Recipe:
    """Return the recipe that a job belongs to.

    Raises:
        JobError: The job belongs to no recipe.
    """
    homes = {base.__module__ for base in type(job).__mro__}
    for recipe in RECIPES.values():
        if f"{recipe.module}.job" in homes:
            return recipe
    jobs = ", ".join(f"{recipe.naive} and {recipe.job}" for recipe in RECIPES.values())
    raise JobError(
        f"{type(job).__name__} belongs to none of the recipes {', '.join(RECIPES)}: derive it from one of {jobs}."
    )


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="detection",
            module="hasten.recipes.detection",
            job="DetectionJob",
            naive="NaiveDetectionJob",
            demo="NaiveDrawnNotes",
            words="an object detector on generated images of banknotes, written naively",
        ),
        Recipe(
            name="ocr",
            module="hasten.recipes.ocr",
            job="OcrJob",
            naive="NaiveOcrJob",
            demo="NaiveDrawnPages",
            words="a DBNet text detector on generated pages, written naively",
        ),
        Recipe(
            name="datacube",
            module="hasten.recipes.datacube",
            job="DatacubeJob",
            naive="NaiveDatacubeJob",
            demo="NaiveDrawnWeather",
            words="a forecaster of gridded fields on a generated atmosphere, written naively",
        ),
        Recipe(
            name="dialogue",
            module="hasten.recipes.dialogue",
            job="DialogueJob",
            naive="NaiveDialogueJob",
            demo="NaiveDrawnCounsel",
            words="a chat model on generated counselling conversations, written naively",
        ),
    )
}
