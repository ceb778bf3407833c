"""Read class names from the list beside YOLO labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hasten.recipes.findings import BadFileError
from hasten.recipes.needed import needed
from hasten.recipes.pictures import read_text

LISTS = ("classes.txt", "obj.names", "data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "classes.json")
"""Names of such files, in the order in which they are looked for."""
MAX_CHARACTERS = 2**20
"""A longer list is refused before it is parsed."""
_MAX_DEPTH = 50
"""Of lists and mappings in one another: making the tree calls itself for each."""


def find_names(folder: Path) -> tuple[str, ...] | None:
    """The names of the classes from the list in a folder of labels or above it; None where there is none.

    Looked at are the folder, the one above it, and the next one too for `NAME/labels` and `labels/NAME`.

    Raises:
        DataError: There is one, and it is wrong; names file and line.
    """
    folder = folder.resolve()
    places = [folder, *folder.parents][: 3 if "labels" in {folder.name, folder.parent.name} else 2]
    for place in places:
        for name in LISTS:
            if (place / name).is_file():
                return read_names(place / name)
    return None


def read_names(path: Path) -> tuple[str, ...]:
    """The names of the classes in a list: lines of text, YAML with `names`, or JSON with `names` or just a list.

    Raises:
        DataError: The list is empty, or holds a name twice or none; names file and line.
    """
    text = read_text(path)
    if len(text) > MAX_CHARACTERS:
        raise BadFileError(path, f"it is longer than {MAX_CHARACTERS:,} characters: a list of classes is short")
    if path.suffix in {".yaml", ".yml"}:
        named = _from_yaml(text, path)
    elif path.suffix == ".json":
        named = _from_json(text, path)
    else:
        named = [(at, line.strip()) for at, line in enumerate(text.rstrip().splitlines(), start=1)]
    seen: dict[str, int | None] = {}
    for line, name in named:
        if not name:
            raise BadFileError(path, "a class without a name: give it one, since each line counts as a class", line=line)
        if name in seen:
            raise BadFileError(path, f"the class {name!r} is there twice: give each a name of its own", line=line)
        seen[name] = line
    if not seen:
        raise BadFileError(path, "it lists no class: write one name a line")
    return tuple(seen)


def _from_json(text: str, path: Path) -> list[tuple[int | None, str]]:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFileError(path, f"it is no JSON ({error.msg})", line=error.lineno) from error
    if isinstance(value, dict):
        value = value.get("names", value)
    if isinstance(value, dict):
        try:
            value = _in_order({int(key): name for key, name in value.items()}, path)
        except ValueError as error:
            raise BadFileError(path, "it is no list of names") from error
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadFileError(path, "it is no list of names")
    return [(None, name) for name in value]


def _from_yaml(text: str, path: Path) -> list[tuple[int | None, str]]:
    """Read `names` from the node tree: it keeps line numbers, and names such as `no` or `1` stay text."""
    yaml = needed("yaml")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise BadFileError(path, "it is not a list of names: it is nested too deeply")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        raise BadFileError(path, f"it is not valid YAML ({reason})", line=mark and mark.line + 1) from error
    entries = root.value if isinstance(root, yaml.MappingNode) else []
    names = next((value for key, value in entries if key.value == "names"), None)
    if names is None:
        raise BadFileError(path, "it has no `names`: add them, or a classes.txt with one name a line")
    if isinstance(names, yaml.SequenceNode):
        numbered = list(enumerate(names.value))
    elif isinstance(names, yaml.MappingNode):
        numbered = [(_class_number(key, path), value) for key, value in names.value]
    else:
        line = names.start_mark.line + 1
        raise BadFileError(path, "its `names` are not a list: write [a, b], or `- a` below it", line=line)
    ordered: dict[int, tuple[int | None, str]] = {}
    for number, node in numbered:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            raise BadFileError(path, "an entry of `names` is not text: write `- name` or `0: name`", line=line)
        if number in ordered:
            raise BadFileError(path, f"the class number {number} is there twice", line=line)
        ordered[number] = (line, str(node.value).strip())
    return _in_order(ordered, path)


def _class_number(key: Any, path: Path) -> int:
    if not str(key.value).isdecimal():
        line = key.start_mark.line + 1
        raise BadFileError(path, f"{key.value!r} is not a class number: write `- name` or `0: name`", line=line)
    return int(key.value)


def _in_order(found: dict[int, Any], path: Path) -> list[Any]:
    if sorted(found) != list(range(len(found))):
        raise BadFileError(path, f"its classes are numbered {sorted(found)}: count from 0, without gaps")
    return [found[at] for at in range(len(found))]
