"""Read class names from the list that accompanies YOLO labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hasten.recipes.findings import BadFileError
from hasten.recipes.needed import needed
from hasten.recipes.pictures import read_text

LISTS = ("classes.txt", "obj.names", "data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "classes.json")
"""File names of class lists, in search order."""
MAX_CHARACTERS = 2**20
"""Longer lists are rejected before parsing."""
_MAX_DEPTH = 50
"""Largest nesting depth of lists and mappings: building the node tree is recursive."""


def find_names(folder: Path) -> tuple[str, ...] | None:
    """Return the class names from the list in the label folder or above it; None if there is none.

    Searched are the folder, its parent, and for `NAME/labels` and `labels/NAME` also the parent's parent.

    Raises:
        DataError: The list is invalid. The message names the file and the line.
    """
    folder = folder.resolve()
    places = [folder, *folder.parents][: 3 if "labels" in {folder.name, folder.parent.name} else 2]
    for place in places:
        for name in LISTS:
            if (place / name).is_file():
                return read_names(place / name)
    return None


def read_names(path: Path) -> tuple[str, ...]:
    """Read class names from a list: lines of text, YAML with `names`, or JSON with `names` or just a list.

    Raises:
        DataError: The list is empty, or has a duplicate or empty name. The message names the file and the line.
    """
    text = read_text(path)
    if len(text) > MAX_CHARACTERS:
        raise BadFileError(path, f"it is longer than {MAX_CHARACTERS:,} characters, too long for a list of classes")
    if path.suffix in {".yaml", ".yml"}:
        named = _from_yaml(text, path)
    elif path.suffix == ".json":
        named = _from_json(text, path)
    else:
        named = [(index, line.strip()) for index, line in enumerate(text.rstrip().splitlines(), start=1)]
    lines: dict[str, int | None] = {}
    for line, name in named:
        if not name:
            raise BadFileError(path, "a class has no name: add one, since each line counts as a class", line=line)
        if name in lines:
            raise BadFileError(path, f"the class {name!r} is listed twice: use unique names", line=line)
        lines[name] = line
    if not lines:
        raise BadFileError(path, "it lists no classes: write one name per line")
    return tuple(lines)


def _from_json(text: str, path: Path) -> list[tuple[int | None, str]]:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFileError(path, f"it is not valid JSON ({error.msg})", line=error.lineno) from error
    if isinstance(value, dict):
        value = value.get("names", value)
    if isinstance(value, dict):
        try:
            value = _in_order({int(key): name for key, name in value.items()}, path)
        except ValueError as error:
            raise BadFileError(path, "it is not a list of names") from error
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadFileError(path, "it is not a list of names")
    return [(None, name) for name in value]


def _from_yaml(text: str, path: Path) -> list[tuple[int | None, str]]:
    """Read `names` from the node tree, which keeps line numbers and leaves names such as `no` or `1` as text."""
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
            raise BadFileError(path, f"the class number {number} is used twice", line=line)
        ordered[number] = (line, str(node.value).strip())
    return _in_order(ordered, path)


def _class_number(key: Any, path: Path) -> int:
    if not str(key.value).isdecimal():
        line = key.start_mark.line + 1
        raise BadFileError(path, f"{key.value!r} is not a class number: write `- name` or `0: name`", line=line)
    return int(key.value)


def _in_order(by_number: dict[int, Any], path: Path) -> list[Any]:
    if sorted(by_number) != list(range(len(by_number))):
        raise BadFileError(path, f"its classes are numbered {sorted(by_number)}: count from 0, without gaps")
    return [by_number[index] for index in range(len(by_number))]
