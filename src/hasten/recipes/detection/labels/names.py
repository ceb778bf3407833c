"""The names of the classes, from the list that lies beside YOLO labels.

Of YAML only what lists of names look like is read (`names: [a, b]`, `names:` with `- a` or `0: a` below), so that no YAML
package is needed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hasten.recipes.findings import BadFileError
from hasten.recipes.pictures import read_text

LISTS = ("classes.txt", "obj.names", "data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "classes.json")
"""Names of such files, in the order in which they are looked for."""

_ENTRY = re.compile(r"""^(?:-\s+|(\d+)\s*:\s*)(.*)$""")
_ITEM = re.compile(r"""\s*(?:(\d+)\s*:\s*)?("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,'"][^,]*)\s*(?:,|$)""")


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
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = next((at for at, line in enumerate(lines) if re.match(r"names\s*:", line)), None)
    if start is None:
        raise BadFileError(path, "it has no `names`: add them, or a classes.txt with one name a line")
    rest = _bare(lines[start].split(":", 1)[1])
    if rest:
        return [(start + 1, name) for name in _from_flow(rest, lines, start, path)]
    ordered: dict[int, tuple[int | None, str]] = {}
    for at, line in enumerate(lines[start + 1 :], start=start + 2):
        bare = _bare(line)
        if not bare:
            continue
        if not line.startswith((" ", "\t", "-")):
            break
        match = _ENTRY.match(bare)
        number = None if match is None else int(match[1] or len(ordered))
        if match is None or number is None or number in ordered:
            raise BadFileError(path, "it is no entry of a list of names: write `- name` or `0: name`", line=at)
        ordered[number] = (at, _unquoted(match[2]))
    return _in_order(ordered, path)


def _from_flow(rest: str, lines: list[str], start: int, path: Path) -> list[str]:
    """The names between brackets or braces, which may go over several lines."""
    close = {"[": "]", "{": "}"}.get(rest[0])
    at = start
    while close is not None and not rest.endswith(close) and at + 1 < len(lines):
        at += 1
        rest = f"{rest} {_bare(lines[at])}".rstrip()
    if close is None or not rest.endswith(close):
        raise BadFileError(path, "its `names` are no list: write [a, b], or `- a` below it", line=start + 1)
    inner = rest[1:-1].strip().removesuffix(",").rstrip()
    found: dict[int, str] = {}
    where = 0
    while where < len(inner):
        match = _ITEM.match(inner, where)
        if match is None or (match[1] is None) != (close == "]"):
            raise BadFileError(path, "its `names` cannot be read: write a classes.txt with one name a line", line=start + 1)
        found[int(match[1] or len(found))] = _unquoted(match[2])
        where = match.end()
    return _in_order(found, path)


def _in_order(found: dict[int, Any], path: Path) -> list[Any]:
    if sorted(found) != list(range(len(found))):
        raise BadFileError(path, f"its classes are numbered {sorted(found)}: count from 0, without gaps")
    return [found[at] for at in range(len(found))]


def _bare(line: str) -> str:
    """A line without what follows a `#` (which a quote may hold) and without blanks around it."""
    quote = ""
    for at, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'" and (at == 0 or line[at - 1] in " \t[{,:"):  # not the one in: driver's cap
            quote = sign
        elif sign == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].strip()
    return line.strip()


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1].replace('\\"', '"')
    return text
