"""Choose the reader for a source."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from pathlib import Path

from hasten.core.errors import DataError
from hasten.data.convert import readers
from hasten.data.convert.contract import Reader


@cache
def all_readers() -> dict[str, type[Reader]]:
    """Return all readers by name, from the modules of the package `readers`."""
    readers_by_name = {}
    for module in pkgutil.iter_modules(readers.__path__, f"{readers.__name__}."):
        loaded = importlib.import_module(module.name)
        for kind in vars(loaded).values():
            if (
                inspect.isclass(kind)
                and issubclass(kind, Reader)
                and kind.__module__ == module.name
                and not inspect.isabstract(kind)
            ):
                readers_by_name[kind.name] = kind
    return dict(sorted(readers_by_name.items()))


def reader_named(name: str) -> type[Reader]:
    """Return the reader of that name.

    Raises:
        DataError: There is no such reader; the message lists the known ones.
    """
    if name not in all_readers():
        raise DataError(f"unknown format {name!r}: use one of {', '.join(all_readers())}.")
    return all_readers()[name]


def reader_for(path: Path) -> type[Reader]:
    """Return the only reader that accepts a source.

    Raises:
        DataError: The path does not exist, or no reader or several readers accept it.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: use a file or folder to convert.")
    if not path.is_file() and not path.is_dir():
        raise DataError(f"{path} is neither a file nor a folder: copy its content to a file first.")
    claims = [kind for kind in all_readers().values() if kind.claims(path)]
    if path.is_dir() and len(claims) > 1:  # an index file takes precedence over the suffixes of other files
        claims = [kind for kind in claims if kind.name in {"huggingface", "litdata", "mds", "zarr"}] or claims
    if len(claims) == 1:
        return claims[0]
    if not claims and path.suffix.lower() == ".zip":
        raise DataError(f"{path} is a zip file: extract it (unzip FILE -d FOLDER), and convert the folder.")
    if not claims:
        known = "; ".join(f"{name}: {kind.words}" for name, kind in all_readers().items())
        raise DataError(f"no reader accepts {path}. The supported formats are: {known}.")
    names = ", ".join(kind.name for kind in claims)
    raise DataError(f"{path} can be read as {names}: choose one (--format).")
