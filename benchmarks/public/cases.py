"""The scripts in scripts.toml: where each comes from and how it is started."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.public.makers import MAKERS
from hasten.core.errors import HastenError

TABLE = Path(__file__).parent / "scripts.toml"
NEEDED = frozenset({"repository", "licence", "field", "loader", "script", "about", "changed"})
KEYS = NEEDED | {"files", "folder", "arguments", "shorter", "path", "environment", "data", "unseen", "varies"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script of a public repository.

    Attributes:
        name: Name in this benchmark.
        repository: `owner/name` on GitHub.
        licence: SPDX name; NONE if the repository names none.
        field: Kind of training: vision, language, ...
        loader: Where batches come from.
        files: Files of the repository that a run needs, as git path specifications.
        folder: Folder in the copy to start the script in.
        script: Script, relative to the folder.
        arguments: Arguments of the script.
        shorter: Further arguments for whole runs.
        path: Folders for PYTHONPATH, relative to the folder.
        environment: Variables to set; a value that starts with ./ is a path relative to the folder.
        maker: Function that creates the data, a name of `MAKERS`; empty if the script needs none.
        into: Folder of the data, relative to the folder.
        about: What is trained.
        changed: Differences from the script's defaults.
        unseen: Whether its first run here is the recorded one.
        varies: Why two whole runs train for different numbers of steps, so that their times cannot be compared, or empty.
    """

    name: str
    repository: str
    licence: str
    field: str
    loader: str
    files: tuple[str, ...]
    folder: str
    script: str
    arguments: tuple[str, ...]
    shorter: tuple[str, ...]
    path: tuple[str, ...]
    environment: Mapping[str, str]
    maker: str
    into: str
    about: str
    changed: tuple[str, ...]
    unseen: bool
    varies: str

    @property
    def clone(self) -> str:
        """The folder of the clone in the sources folder."""
        return self.repository.split("/")[1]


def load_cases(only: Sequence[str] | None = None) -> dict[str, Case]:
    """Return all scripts, or these, by name.

    Raises:
        HastenError: An entry is invalid or a name is unknown.
    """
    table: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    found = {name: read_case(name, entry) for name, entry in table.items()}
    if unknown := sorted(set(only or ()) - set(found)):
        raise HastenError(f"There is no public script {', '.join(unknown)}. Choose from: {', '.join(found)}.")
    return {name: case for name, case in found.items() if not only or name in only}


def read_case(name: str, entry: Mapping[str, Any]) -> Case:
    """Read one entry of the table.

    Raises:
        HastenError: A key is missing or unknown, or the data has an unknown maker.
    """
    if wrong := sorted((NEEDED - set(entry)) | (set(entry) - KEYS)):
        raise HastenError(f"{name}: missing or unknown in scripts.toml: {', '.join(wrong)}.")
    data = entry.get("data", {"make": "", "into": "."})
    if data["make"] and data["make"] not in MAKERS:
        raise HastenError(f"{name}: the data maker {data['make']} is unknown. Choose from: {', '.join(MAKERS)}.")
    return Case(
        name=name,
        repository=entry["repository"],
        licence=entry["licence"],
        field=entry["field"],
        loader=entry["loader"],
        files=tuple(entry.get("files", ["."])),
        folder=entry.get("folder", "."),
        script=entry["script"],
        arguments=tuple(entry.get("arguments", ())),
        shorter=tuple(entry.get("shorter", ())),
        path=tuple(entry.get("path", ())),
        environment=dict(entry.get("environment", {})),
        maker=data["make"],
        into=data["into"],
        about=entry["about"],
        changed=tuple(entry["changed"]),
        unseen=entry.get("unseen", False),
        varies=entry.get("varies", ""),
    )
