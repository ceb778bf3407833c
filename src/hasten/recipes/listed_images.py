"""Match the images that a JSON file lists with the image files of a folder."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

_LARGEST_ID = 2**64


@dataclass(frozen=True)
class Listed:
    """An image as listed in a JSON file.

    Attributes:
        id: Its id, as `key_of` returns it.
        name: Its file name, with folders.
        values: All that is said of it.
    """

    id: str
    name: PurePosixPath
    values: dict[str, Any]

    @property
    def file_names(self) -> set[str]:
        """The names its file may have: as written, and with the escapes of an address resolved."""
        return {self.name.name, unquote(self.name.name.partition("?")[0])}

    def other_size(self, size: tuple[int, int]) -> str | None:
        """Return why the entry is of another image if it lists another size than this height and width."""
        listed = self.values.get("height"), self.values.get("width")
        if not all(isinstance(side, int | float) and side > 0 for side in listed) or listed == size:
            return None
        hint = " (possibly due to its EXIF orientation)" if listed == size[::-1] else ""
        sizes = f"is listed with {listed[1]}x{listed[0]} pixels but has {size[1]}x{size[0]}{hint}"
        return f"{self.name.name} {sizes}: label it again"


@dataclass(frozen=True)
class Matched:
    """The result of a match.

    Attributes:
        found: The entry of each image that has exactly one.
        twice: Images with several entries, or with an id that several images share.
        absent: File names of entries without an image.
    """

    found: dict[Path, Listed]
    twice: set[Path]
    absent: list[str]


def listed(values: Any, key: str | None) -> Listed | None:
    """Return an entry; None if it has no file name or no id."""
    name = values.get("file_name") if isinstance(values, dict) else None
    if not isinstance(name, str) or not name or key is None:
        return None
    return Listed(key, PurePosixPath(name.replace("\\", "/")), values)


def matched(entries: list[Listed], images: list[Path]) -> Matched:
    """Find the entry of each image by its file name; if several have it, the folders in it decide, as in `val/0001.jpg`."""
    named: dict[str, list[Listed]] = defaultdict(list)
    names_of: dict[str, set[PurePosixPath]] = defaultdict(set)
    for entry in entries:
        names_of[entry.id].add(entry.name)
        for name in entry.file_names:
            named[name].append(entry)
    result = Matched({}, set(), [])
    for image in images:
        same = named.get(image.name, [])
        if len(same) > 1:
            place = image.resolve().parts
            nested = [one for one in same if len(one.name.parts) > 1 and place[-len(one.name.parts) :] == one.name.parts]
            same = nested or same
        if len(same) > 1 or any(len(names_of[one.id]) > 1 for one in same):
            result.twice.add(image)
        elif same:
            result.found[image] = same[0]
    existing = {image.name for image in images}
    result.absent.extend(entry.name.name for entry in entries if not entry.file_names & existing)
    return result


def key_of(value: Any) -> str | None:
    """Return an id as text, so that 7, 7.0 and "7" are one; None if it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return str(value).strip() if isinstance(value, str) or abs(value) < _LARGEST_ID else None


def is_crowd(annotation: dict[str, Any]) -> bool:
    """Return whether an annotation is of a crowd: `iscrowd` is 1 or true."""
    value = annotation.get("iscrowd")
    return value is True or key_of(value) == "1"
