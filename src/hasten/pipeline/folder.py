"""Where the state of a pipeline is, and how to read it, also while it runs.

Files alone decide what is done: Dagster's database is a record of what happened, and may be lost.

    hasten-pipeline/
      stages/NAME/KEY/        what the stage gave for these inputs; for a job, its run folder
      stages/NAME/KEY/stage.json   written when the stage has ended: inputs, hashes of what it gave, seconds, memory
      stages/NAME/now.json    what is happening to the stage
      stages/NAME/latest      link to the folder of the last end
      logs/NAME.log           what the stage printed
      dagster/                DAGSTER_HOME
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hasten.core.errors import MachineError
from hasten.core.files import write_atomically
from hasten.core.lock import is_held
from hasten.pipeline.description import Pipeline, Stage
from hasten.pipeline.inputs import Digests, FileHashes, changes, inputs_of, key_of

DONE, NOW, LATEST, HOLD = "stage.json", "now.json", "latest", ".running"
ENGINE_LOCK, ENGINE_ERROR, HISTORY = ".engine", "engine-error.txt", "history.jsonl"
_FULL_BYTES = 2**20
INCOMPLETE = 5
"""Exit status of an engine whose stages did not all end and pass."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A stage at this moment.

    Attributes:
        stage: The stage.
        key: Name of the folder for its present inputs; empty if a stage that it needs has to run first.
        inputs: Its present inputs; empty as above.
        done: What was recorded when it ended with these inputs; empty if it has not.
        last: What was recorded when it last ended, with any inputs; empty if it never has.
        running: Whether a process works on it.
        now: The contents of `now.json`.
    """

    stage: Stage
    key: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    done: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    running: bool = False
    now: Mapping[str, Any] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Why the stage has to run, or that it does not."""
        if self.done:
            return "unchanged"
        if not self.key:
            return "waits for what it needs"
        if not self.last:
            return "never ended"
        return "; ".join(changes(self.last["inputs"], self.inputs)) or "what it gave was removed or changed"


def stage_folder(pipeline: Pipeline, name: str) -> Path:
    """Return the folder of a stage, with one folder for each set of inputs."""
    return pipeline.work / "stages" / name


def out_of(pipeline: Pipeline, name: str, key: str) -> Path:
    """Return the folder into which a stage writes with these inputs."""
    return stage_folder(pipeline, name) / key


def log_of(pipeline: Pipeline, name: str) -> Path:
    """Return the file with what a stage printed."""
    return pipeline.work / "logs" / f"{name}.log"


def hashes_of(pipeline: Pipeline) -> FileHashes:
    """Return the hashes of files that this pipeline keeps."""
    return FileHashes(pipeline.work / "hashes.json")


def view_all(pipeline: Pipeline, *, save: bool = False) -> dict[str, View]:
    """Return all stages at this moment. `save`: keep the hashes of files that were read."""
    hashes, views = hashes_of(pipeline), dict[str, View]()
    for stage in pipeline.stages.values():
        views[stage.name] = view_of(pipeline, stage, views, hashes)
    if save:
        hashes.save()
    return views


def view_of(pipeline: Pipeline, stage: Stage, before: Mapping[str, View], hashes: FileHashes) -> View:
    """Return a stage at this moment, given those that it needs."""
    folder = stage_folder(pipeline, stage.name)
    last, now = read_json(folder / LATEST / DONE), read_json(folder / NOW)
    running = is_held(folder / HOLD)
    if not all(before[name].done for name in stage.needs):
        return View(stage=stage, last=last, now=now, running=running)
    given = {name: before[name].done["gave"] for name in stage.needs}
    inputs = inputs_of(pipeline, stage, given, hashes)
    key = key_of(inputs)
    done = read_json(folder / key / DONE)
    if done and not gave(folder / key, stage, done["gave"], hashes):
        done = {}
    return View(stage=stage, key=key, inputs=inputs, done=done, last=last, now=now, running=running)


def gave(out: Path, stage: Stage, expected: Digests, hashes: FileHashes) -> bool:
    """Whether all that a stage gave is still there, unchanged."""
    return all((out / name).exists() and hashes.of(out / name) == expected.get(name) for name in stage.gives)


def check_disk(pipeline: Pipeline) -> None:
    """Raise MachineError if the disk is full, which explains any other error better than its own words."""
    if (free := shutil.disk_usage(pipeline.work).free) < _FULL_BYTES:
        raise MachineError(f"the disk of {pipeline.work} is full: {free:,} bytes are left. Free some space, and run again.")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or damaged, as all these files can be made again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def note(pipeline: Pipeline, name: str, **facts: Any) -> None:
    """Say what is happening to a stage."""
    write_atomically(stage_folder(pipeline, name) / NOW, json.dumps({"at": time.time(), **facts}))


def link_latest(pipeline: Pipeline, name: str, key: str) -> None:
    """Point `latest` at the folder of these inputs."""
    folder = stage_folder(pipeline, name)
    new = folder / f".{LATEST}.{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(key)
    new.replace(folder / LATEST)
