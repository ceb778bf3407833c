"""Hash what a stage depends on: its code, data, plan, settings and what the stages before it gave.

The hash names the stage's folder. So a stage whose inputs did not change is found again and not run, and a half-done run is
resumed only with the inputs that it began with. What a stage gave is hashed too, by content: if a stage ran again and gave
the same bytes, what follows it is unchanged.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hasten.core.errors import DataError
from hasten.core.files import write_atomically
from hasten.pipeline.description import Pipeline, Stage, module_file

Digests = dict[str, str]


class FileHashes:
    """SHA-256 of files and folders. A file of the same size, time and inode as before is not read again.

    Args:
        path: Where the hashes are kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._known: dict[str, list[object]] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}
        self._changed = False

    def of(self, path: Path) -> str:
        """Return the hash of a file, or of a folder: names and contents of all files in it.

        Raises:
            DataError: It cannot be read.
        """
        try:
            if path.is_dir():
                files = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
                lines = "".join(f"{self._file(file)} {file.relative_to(path)}\n" for file in files)
                return hashlib.sha256(lines.encode()).hexdigest()
            return self._file(path)
        except OSError as error:
            raise DataError(f"{error.filename or path} cannot be read: {error.strerror}.") from error

    def save(self) -> None:
        """Keep the hashes for the next time."""
        if self._changed:
            write_atomically(self._path, json.dumps(self._known))
            self._changed = False

    def _file(self, path: Path) -> str:
        facts = path.stat()
        now = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]
        *before, digest = self._known.get(str(path), [None])
        if before != now or not isinstance(digest, str):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._known[str(path)] = [*now, digest]
            self._changed = True
        return digest


def inputs_of(pipeline: Pipeline, stage: Stage, given: Mapping[str, Digests], hashes: FileHashes) -> Digests:
    """Return all inputs of a stage: name, such as `code train.py` -> hash or value.

    `given` has the hashes of what each stage that it needs gave. Raises DataError if a file cannot be read.
    """
    # Neither what it leases nor, but for a merge, its gates change what a stage gives.
    apart = {"name", "needs", "cores", "memory", "device_memory", "retries", "env", *([] if stage.merge else ["gates"])}
    settings = stage.model_dump(mode="json", exclude=apart, exclude_defaults=True)
    found = {f"setting {name}": json.dumps(value) for name, value in settings.items()}
    found |= {f"setting env.{name}": str(value) for name, value in stage.env.items()}
    for file in sorted(_code_of(pipeline.root, stage)):
        found[f"code {os.path.relpath(file, pipeline.root)}"] = hashes.of(file)
    files = [("plan", stage.plan), ("baseline", stage.baseline), *(("data", name) for name in stage.reads)]
    found |= {f"{kind} {name}": hashes.of(pipeline.root / name) for kind, name in files if name}
    for name in stage.needs:
        found |= {f"{name}/{file}": digest for file, digest in given[name].items()}
    return found


def key_of(inputs: Mapping[str, str]) -> str:
    """Return the name of the folder for these inputs."""
    return hashlib.sha256(json.dumps(sorted(inputs.items())).encode()).hexdigest()[:16]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe what differs between two sets of inputs, such as `code train.py changed`."""
    return [
        f"{name} {'is new' if name not in before else 'was removed' if name not in now else 'changed'}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _code_of(root: Path, stage: Stage) -> set[Path]:
    """Return the files of code that a stage runs: what its words name, and the modules beside them that these import."""
    words = stage.judge if stage.merge else stage.words
    if stage.job:
        where = stage.job.rpartition(":")[0]
        file = root / where if where.endswith(".py") else module_file(root, where)
        return set(_with_imports(file))
    found: set[Path] = set()
    for place, word in enumerate(words):
        if place and words[place - 1] == "-m":
            file = root.joinpath(*word.split(".")).with_suffix(".py")
        else:
            file = root / word if "{" not in word else root / ".."
        if file.is_file():
            found |= set(_with_imports(file)) if file.suffix == ".py" else {file}
    return found


def _with_imports(file: Path) -> Iterator[Path]:
    """Yield a file and the modules in its folder and below that it imports, and that those import."""
    folder, seen, queue = file.parent, {file}, [file]
    while queue:
        source = queue.pop()
        yield source
        for name in _imported(source):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                for base in {folder, source.parent}:
                    path = base.joinpath(*parts[:count])
                    for found in (path.with_suffix(".py"), path / "__init__.py"):
                        if found.is_file() and found not in seen:
                            seen.add(found)
                            queue.append(found)


def _imported(file: Path) -> Iterator[str]:
    """Yield the names of modules that a file imports, those of a package by their last parts too."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for prefix in dict.fromkeys((base, base.rpartition(".")[2])):
                yield from (f"{prefix}.{alias.name}" if prefix else alias.name for alias in node.names)
                if prefix:
                    yield prefix
