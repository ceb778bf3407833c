"""Read `pipeline.toml`: stages, what each needs and gives, devices and memory, gates. Checked wholly before anything starts.

    [stages.corpus]
    command = ["python", "corpus.py", "{out}"]
    gives = ["train.txt"]

    [stages.foundation]
    job = "stages.py:Stage"
    needs = ["corpus"]
    env = { TEXT = "{corpus}/train.txt" }
    cores = 1
    memory = "2 GiB"

A stage writes into a folder of its own, `{out}`. The folder of a stage that it needs is `{NAME}`.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError, model_validator

from hasten.core.errors import HastenError
from hasten.core.gates import Gate
from hasten.core.plan_file import read_plan_text, read_tables

FILE, SCHEMA = "pipeline.toml", 1
WORK = "hasten-pipeline"
"""Folder beside the description that holds what the stages give, Dagster's home and the logs."""
WEIGHTS, METRICS = "model.pt", "metrics.json"
"""What a job gives (`hasten.train.periodic.WEIGHTS`, which would load torch), and what an evaluation gives."""
KINDS = ("job", "script", "command", "evaluate", "merge")
OWN = {"plan": "job script", "updates": "job", "options": "job", "arguments": "script", "folder": "script command evaluate",
       "how": "merge", "weights": "merge", "file": "merge", "judge": "merge", "baseline": "merge"}  # fmt: skip
"""Keys that only some kinds of stages have."""
_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")


class PipelineError(HastenError):
    """A description of a pipeline, or its state, cannot be used."""


def _inside(value: Any) -> Any:
    if isinstance(value, str) and (Path(value).is_absolute() or ".." in Path(value).parts or value in ("", ".")):
        raise ValueError(f"{value!r} is outside the folder: write a path below it")
    return value


def _words(value: Any) -> Any:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Inside = Annotated[str, BeforeValidator(_inside)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words), Field(min_length=1)]
Size = Annotated[ByteSize, Field(ge=2**20)]  # a number alone, such as 8 for 8 GiB, is too small
Count = Annotated[int, Field(ge=0, strict=True)]


class Strict(BaseModel):
    """Frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StageGate(Strict):
    """A condition on a stage: what depends on it starts only if it passes.

    Attributes:
        metric: Name in `metrics.json`, or of a held-out result.
        threshold: What the metric's confidence bound must reach; None if `within` alone decides.
        at_most: Whether it must be at most the threshold.
        slices: What must pass, each by itself.
        confidence: Of the interval.
        margin: As in `hasten.core.gates.Gate`.
        min_samples: Items that each slice must have been measured on.
        exact: Whether a number without an interval is compared as it is, such as a loss over a fixed held-out set.
        within: For a merge: how much worse than the sequential form the metric may be.
    """

    metric: str = Field(min_length=1)
    threshold: float | None = Field(default=None, allow_inf_nan=False)
    at_most: bool = False
    slices: tuple[str, ...] = ("all",)
    confidence: float = 0.95
    margin: float = 0.05
    min_samples: Count = 0
    exact: bool = False
    within: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.threshold is None and self.within is None:
            raise ValueError("no threshold: write threshold = NUMBER")
        try:
            _ = self.gate  # checks its values
        except HastenError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def gate(self) -> Gate:
        """The condition. Without a threshold, any finite number passes."""
        anything = sys.float_info.max if self.at_most else -sys.float_info.max
        threshold = anything if self.threshold is None else self.threshold
        return Gate(
            metric=self.metric, threshold=threshold, at_most=self.at_most, slices=self.slices, confidence=self.confidence,
            margin=self.margin,
        )  # fmt: skip


class Stage(Strict):
    """A stage, as described. Exactly one of `job`, `script`, `command`, `evaluate` and `merge` is given.

    Attributes:
        name: Its name.
        job: Target of a job.
        script: An unmodified script.
        command: A command, such as a data step.
        evaluate: A command that writes `{out}/metrics.json`.
        merge: Stages whose weights are merged.
        after: The stage whose weights it starts from, `{start}`; empty for none.
        needs: Stages that must have ended before; `after` and merged ones are added.
        reads: Files and folders whose content is an input.
        gives: Files and folders that it must have written into `{out}`; what its kind always gives is added.
        env: Environment variables.
        plan: Plan of a job or script.
        updates: Updates of a job; 0 for its own length.
        options: More options of `hasten run` for a job.
        arguments: Arguments of a script.
        folder: Working folder of a command or script.
        cores: CPU cores; 0 for all, or for a share of each device.
        devices: GPUs.
        memory: Main memory in bytes; None if it is not stated.
        device_memory: Bytes of each device; None for whole devices.
        retries: How often a failed stage is started again.
        gates: Name -> gate.
        how: For a merge: `average` or `adapters`.
        weights: For a merge: share of each branch; empty for equal shares.
        file: For a merge: the file that each branch gives.
        judge: For a merge: the command that measures `{merged}`.
        baseline: For a merge: file with metrics of the sequential form; empty to train that too.
    """

    name: Name
    job: Annotated[str, Field(pattern=r"^[^:]+:\w+$")] | None = None
    script: Inside | None = None
    command: Words | None = None
    evaluate: Words | None = None
    merge: Annotated[tuple[Name, ...], Field(min_length=2)] | None = None
    after: str = ""
    needs: tuple[Name, ...] = ()
    reads: tuple[str, ...] = ()
    gives: tuple[Inside, ...] = ()
    env: Mapping[str, str | int | float] = {}
    plan: Inside | None = None
    updates: Count = 0
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    folder: str = "."
    cores: Count = 0
    devices: Count = 0
    memory: Size | None = None
    device_memory: Size | None = None
    retries: Count = 0
    gates: Mapping[Name, StageGate] = {}
    how: Literal["average", "adapters"] = "average"
    weights: tuple[float, ...] = ()
    file: Inside = WEIGHTS
    judge: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    baseline: Inside | None = None

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, table: Any) -> Any:
        """Add what follows from the kind."""
        if not isinstance(table, dict):
            raise ValueError("not a table: write [stages.NAME]")  # noqa: TRY004 - pydantic takes no TypeError
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise ValueError(f"needs one of {', '.join(KINDS)}; found {' and '.join(kinds) or 'none'}")
        for key in table:
            if key in OWN and kinds[0] not in OWN[key].split():
                raise ValueError(f"`{key}` is not a key of a stage with `{kinds[0]}`")
        for key in ("needs", "merge", "gives"):
            values = table.get(key, [])
            if isinstance(values, list) and (twice := [text for text in values if values.count(text) > 1]):
                raise ValueError(f"`{key}` names {twice[0]!r} twice: remove one of them")
        given = {"job": WEIGHTS, "evaluate": METRICS, "merge": table.get("file", WEIGHTS)}.get(kinds[0])
        more = [table["after"]] if table.get("after") else []
        needs = [*table.get("needs", []), *more, *(table["merge"] if kinds == ["merge"] else [])]
        gives = [*([given] if given else []), *table.get("gives", [])]
        return {**table, "needs": list(dict.fromkeys(needs)), "gives": list(dict.fromkeys(gives))}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        nested = [(one, two) for one in self.gives for two in self.gives if Path(one) in Path(two).parents]
        whole = len(self.weights) == len(self.merge or ()) and math.isclose(sum(self.weights), 1, abs_tol=1e-9)
        owned = {"--out", "--plan", "--resume", "--updates"} & set(self.options)
        for wrong, words in (
            (self.name in ("out", "start", "merged"), f"{self.name!r} is a placeholder: choose another name"),
            (self.name in self.needs, f"needs itself: remove {self.name!r} from its needs"),
            (nested, f"makes {nested[0][1]} twice, as it is a part of {nested[0][0]}: remove one" if nested else ""),
            (owned, f"options: the pipeline sets {', '.join(sorted(owned))}: remove it"),
            (self.evaluate and not self.gates, "evaluates, but has no gates: add some, or use `command`"),
            (self.device_memory and not self.devices, "device_memory needs devices: write devices = 1"),
            (self.weights and not whole, "weights: give one share for each branch, 1 in total"),
            (self.merge and not (self.gates and self.judge), "a merge needs gates, and `judge`, which measures {merged}"),
            (not self.merge and any(gate.within is not None for gate in self.gates.values()), "`within` is for a merge"),
        ):  # fmt: skip
            if wrong:
                raise ValueError(words)
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each branch of a merge."""
        return self.weights or tuple(1 / len(self.words) for _ in self.words)

    @property
    def kind(self) -> str:
        """What it is, one of `KINDS`."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The target of a job, the script with its arguments, the words of a command, or the branches of a merge."""
        given = getattr(self, self.kind)
        return (given, *self.arguments) if isinstance(given, str) else given

    def environ(self, places: Mapping[str, Path]) -> dict[str, str]:
        """Return its environment variables, filled in."""
        return dict(zip(self.env, filled(map(str, self.env.values()), places), strict=True))


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline, checked.

    Attributes:
        path: The description. Paths in it are relative to its folder.
        stages: Name -> stage, each after those that it needs.
    """

    path: Path
    stages: Mapping[str, Stage]

    @property
    def root(self) -> Path:
        """The folder of the description."""
        return self.path.parent

    @property
    def work(self) -> Path:
        """The folder of results and state."""
        return self.root / WORK

    def stage(self, name: str) -> Stage:
        """Return a stage. Raises PipelineError if there is none of this name."""
        if name not in self.stages:
            raise PipelineError(f"{self.path.name} has no stage {name!r}.{_near(name, self.stages)}")
        return self.stages[name]

    def upstream(self, stage: Stage) -> list[str]:
        """Return the names of all stages that a stage needs, directly or not, in their order."""
        found: set[str] = set()
        queue = list(stage.needs)
        while queue:
            if (name := queue.pop()) not in found:
                found.add(name)
                queue += self.stages[name].needs
        return [name for name in self.stages if name in found]


def read_pipeline(path: Path) -> Pipeline:
    """Read and check a description.

    Args:
        path: The file, or the folder that has `pipeline.toml`.

    Raises:
        PipelineError: It cannot be read, or is wrong: names the stage, the key, and what to do.
    """
    path = (path / FILE if path.is_dir() else path).absolute()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PipelineError(f"There is no {path}. Name the file: hasten pipeline run path/to/{FILE}.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PipelineError(f"{path.name} is not valid TOML: {error}.") from error
    tables = data.get("stages")
    if data.get("schema") != SCHEMA or not isinstance(tables, dict) or not tables or set(data) > {"schema", "stages"}:
        raise PipelineError(
            f"{path.name} needs `schema = {SCHEMA}` at the top and one or more [stages.NAME], and nothing else beside them."
        )
    stages = {name: _stage(path, name, table) for name, table in tables.items()}
    for stage in stages.values():
        _check_places(path, stage, stages)
    order = TopologicalSorter({name: stage.needs for name, stage in stages.items()})
    try:
        pipeline = Pipeline(path=path, stages={name: stages[name] for name in order.static_order()})
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise PipelineError(f"{path.name}: stages need each other in a circle: {circle}. Remove one need.") from error
    for stage in stages.values():
        _check_branches(pipeline, stage)
    return pipeline


def filled(texts: Iterable[str], places: Mapping[str, Path]) -> list[str]:
    """Return texts with their placeholders filled in."""
    return [_PLACE.sub(lambda match: str(places.get(match[1], match[0])), text) for text in texts]


def module_file(root: Path, name: str) -> Path:
    """Return the file of a module, in the folder of the pipeline or installed. It is not run.

    Raises:
        PipelineError: It cannot be found.
    """
    local = root.joinpath(*name.split("."))
    for file in (local.with_suffix(".py"), local / "__init__.py"):
        if file.is_file():
            return file
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        raise PipelineError(f"no module named {name!r} can be found from {root}. Correct the name, or install it.")
    return Path(spec.origin)


def _stage(path: Path, name: str, table: Any) -> Stage:
    try:
        return Stage.model_validate({**table, "name": name} if isinstance(table, dict) else table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")
        words = first["msg"].removeprefix("Value error, ").rstrip(".")
        if first["type"] == "extra_forbidden":
            known = StageGate.model_fields if key.startswith("gates.") else Stage.model_fields
            words = f"is not a key here.{_near(key.rpartition('.')[2], set(known) - {'name'})}".rstrip(".")
        elif first["type"] == "missing":
            words = f"is missing: write {key.rpartition('.')[2]} = ..."
        elif not first["type"].startswith("value_error"):
            words = f"is {first['input']!r}: {words[0].lower()}{words[1:]}"
        raise PipelineError(f"{path.name}: stages.{name}{'.' if key else ''}{key}: {words}.") from error


def _check_places(path: Path, stage: Stage, stages: Mapping[str, Stage]) -> None:
    """Check the stages and placeholders that a stage names, and then its files."""
    where = f"{path.name}: stages.{stage.name}"
    for name in stage.needs:
        if name not in stages:
            raise PipelineError(f"{where}.needs: {name!r} is not a stage.{_near(name, stages)}")
    allowed = {"out", *stage.needs, *(["start"] if stage.after else []), *(["merged"] if stage.judge else [])}
    for text in (*stage.words, *stage.judge, *stage.options, *map(str, stage.env.values()), stage.folder):
        for name in _PLACE.findall(text):
            if name not in allowed:
                raise PipelineError(
                    f"{where}: {{{name}}} in {text!r} is not known. Add {name!r} to its needs, or use one of "
                    f"{', '.join(sorted(allowed))}."
                )
    _check_files(path, stage, where)


def _check_files(path: Path, stage: Stage, where: str) -> None:
    """Check the files, the module and the plan that a stage names."""
    module = (stage.job or "").rpartition(":")[0]
    file = module if module.endswith(".py") else None
    files = [("plan", stage.plan), ("baseline", stage.baseline), ("script", stage.script), ("job", file)]
    for key, named in [*files, *(("reads", name) for name in stage.reads)]:
        if named and (".." in Path(named).parts or not (path.parent / named).exists()):
            raise PipelineError(f"{where}.{key}: there is no {named!r} in {path.parent}. Correct the name.")
    try:
        if module and not file:
            module_file(path.parent, module)
        if stage.plan:
            read_tables(read_plan_text(path.parent / stage.plan), where=stage.plan)
    except HastenError as error:
        raise PipelineError(f"{where}: {error}") from error


def _check_branches(pipeline: Pipeline, stage: Stage) -> None:
    """Check that the branches of a merge can be trained one after another."""
    branches = [pipeline.stages[name] for name in stage.merge or ()]
    for branch in branches:
        where = f"{pipeline.path.name}: stages.{branch.name}"
        if not branch.after or branch.after != branches[0].after:
            raise PipelineError(
                f"{where}: branches of {stage.name} must start from the same stage, to be trained one after another "
                f'if the merge fails. Write after = "STAGE" in each, and use {{start}}.'
            )
        if stage.file not in branch.gives:
            raise PipelineError(f"{where} does not give {stage.file!r}, which {stage.name} merges. Add it to its gives.")


def _near(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(known)}."
