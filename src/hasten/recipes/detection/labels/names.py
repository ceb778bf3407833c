"""Read what the files that accompany YOLO labels declare: the class names, and the keypoints of a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.recipes.findings import BadFileError
from hasten.recipes.json_file import read_json
from hasten.recipes.needed import needed
from hasten.recipes.pictures import read_text

LISTS = ("classes.txt", "obj.names", "data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "classes.json")
"""File names of class lists, in search order."""
MAX_CHARACTERS = 2**20
"""Longer lists are rejected before parsing."""
MOST_CLASSES = 10_000
"""Limit of class numbers; a larger one is treated as a typing error."""
_YAML = (".yaml", ".yml")
_MAX_DEPTH = 50
"""Largest nesting depth of lists and mappings: building the node tree is recursive."""


@dataclass(frozen=True)
class Declared:
    """What the files that accompany YOLO labels declare.

    Attributes:
        names: The class names; None if no file lists them.
        names_file: The file that lists them.
        others: Files further away, or later by name, that list other classes, or the same in another order.
        keypoints: Number of keypoints of a row and of numbers for each, by `kpt_shape`; None if there are none.
        keypoints_file: The file that says so.
    """

    names: tuple[str, ...] | None = None
    names_file: Path | None = None
    others: tuple[Path, ...] = ()
    keypoints: tuple[int, int] | None = None
    keypoints_file: Path | None = None


def find_declared(folder: Path, encoding: str | None = None) -> Declared:
    """Return what the class list and the data YAML in the label folder or above it declare.

    Searched are the folder, its parent, and for `NAME/labels` and `labels/NAME` also the parent's parent. YAML files of any
    name count if they have `names` or `kpt_shape`.

    Raises:
        DataError: A file is invalid. The message names the file and the line.
    """
    folder = folder.resolve()
    places = [folder, *folder.parents][: 3 if "labels" in {folder.name, folder.parent.name} else 2]
    names: tuple[str, ...] | None = None
    names_file = keypoints_file = None
    keypoints = None
    others: list[Path] = []
    for place in places:
        files = [place / name for name in LISTS if (place / name).is_file()]
        files += [path for path in _yaml_files(place) if path not in files]
        for path in files:
            if path.name in LISTS or _declares(path, "names", encoding):
                if names is None:
                    names, names_file = read_names(path, encoding), path
                elif _lists_others(path, names, encoding):
                    others.append(path)
            if keypoints is None and path.suffix in _YAML and _declares(path, "kpt_shape", encoding):
                keypoints, keypoints_file = read_keypoints(path, encoding), path
    return Declared(names, names_file, tuple(others), keypoints, keypoints_file)


def _lists_others(path: Path, names: tuple[str, ...], encoding: str | None) -> bool:
    """Return whether a file that is not used lists other classes. A file that cannot be read lists none."""
    try:
        return read_names(path, encoding) != names
    except BadFileError:
        return False


def _yaml_files(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.suffix in _YAML and path.is_file())


def _declares(path: Path, key: str, encoding: str | None) -> bool:
    """Return whether a YAML file seems to have a key. Files of other content are not parsed."""
    try:
        text = read_text(path, encoding)
    except BadFileError:  # not a file of labels; one that is named in LISTS is read, and refused, for its names
        return False
    return re.search(rf"""(^|[{{,])\s*["']?{key}["']?\s*:""", text[:MAX_CHARACTERS], re.MULTILINE) is not None


def read_keypoints(path: Path, encoding: str | None = None) -> tuple[int, int] | None:
    """Read `kpt_shape` from a data YAML: the number of keypoints, and 2 or 3 numbers for each; None if it has none.

    Raises:
        DataError: It is something else. The message names the file and the line.
    """
    node = _yaml_entries(read_text(path, encoding), path).get("kpt_shape")
    if node is None:
        return None
    values = [str(child.value) for child in node.value] if isinstance(node.value, list) else []
    if len(values) != 2 or not values[0].isdecimal() or values[1] not in {"2", "3"} or int(values[0]) < 1:
        line = node.start_mark.line + 1
        raise BadFileError(path, "its `kpt_shape` is not [number of keypoints, 2 or 3], such as [17, 3]", line=line)
    return int(values[0]), int(values[1])


def read_names(path: Path, encoding: str | None = None) -> tuple[str, ...]:
    """Read class names from a list: lines of text, YAML with `names` or `nc`, or JSON with `names` or just a list.

    Raises:
        DataError: The list is empty, or has a duplicate or empty name. The message names the file and the line.
    """
    if path.suffix == ".json":
        named = _from_json(path, encoding)
    else:
        text = read_text(path, encoding)
        if len(text) > MAX_CHARACTERS:
            raise BadFileError(path, f"it is longer than {MAX_CHARACTERS:,} characters, too long for a list of classes")
        if path.suffix in _YAML:
            named = _from_yaml(text, path)
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


def _from_json(path: Path, encoding: str | None) -> list[tuple[int | None, str]]:
    value = read_json(path, encoding)
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


def _yaml_entries(text: str, path: Path) -> dict[str, Any]:
    """Return the nodes of a YAML mapping by key: nodes keep line numbers, and leave names such as `no` or `1` as text."""
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
    entries: dict[str, Any] = {}
    for key, value in root.value if isinstance(root, yaml.MappingNode) else []:
        if str(key.value) in entries:
            raise BadFileError(path, f"the key `{key.value}` is there twice: remove one", line=key.start_mark.line + 1)
        entries[str(key.value)] = value
    return entries


def _from_yaml(text: str, path: Path) -> list[tuple[int | None, str]]:
    """Read `names` from the nodes; only their number if there is just `nc`."""
    yaml = needed("yaml")
    entries = _yaml_entries(text, path)
    count, names = entries.get("nc"), entries.get("names")
    number = str(count.value) if isinstance(count, yaml.ScalarNode) else ""
    if names is None and number.isdecimal() and 0 < int(number) <= MOST_CLASSES:
        return [(None, str(index)) for index in range(int(number))]
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
    for index, node in numbered:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            raise BadFileError(path, "an entry of `names` is not text: write `- name` or `0: name`", line=line)
        if index in ordered:
            raise BadFileError(path, f"the class number {index} is used twice", line=line)
        ordered[index] = (line, str(node.value).strip())
    if count is not None and number != str(len(ordered)):
        line = count.start_mark.line + 1
        raise BadFileError(path, f"its `nc` is {number or 'not a number'}, but it has {len(ordered)} `names`", line=line)
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
