"""Which reader a source is for."""

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
    """Every reader by name, from the files of the folder `readers`."""
    found = {}
    for module in pkgutil.iter_modules(readers.__path__, f"{readers.__name__}."):
        loaded = importlib.import_module(module.name)
        for kind in vars(loaded).values():
            if (
                inspect.isclass(kind)
                and issubclass(kind, Reader)
                and kind.__module__ == module.name
                and not inspect.isabstract(kind)
            ):
                found[kind.name] = kind
    return dict(sorted(found.items()))


def reader_named(name: str) -> type[Reader]:
    """The reader of that name.

    Raises:
        DataError: There is none; names those there are.
    """
    if name not in all_readers():
        raise DataError(f"there is no format {name!r}; there are {', '.join(all_readers())}.")
    return all_readers()[name]


def reader_for(path: Path) -> type[Reader]:
    """The one reader that claims a source.

    Raises:
        DataError: There is no such path, or no reader or several claim it.
    """
    if not path.exists():
        raise DataError(f"there is no {path}: give a file or a folder to convert.")
    claims = [kind for kind in all_readers().values() if kind.claims(path)]
    if path.is_dir() and len(claims) > 1:  # a folder's own index says more than the endings of the files beside it
        claims = [kind for kind in claims if kind.name in {"huggingface", "litdata", "mds"}] or claims
    if len(claims) == 1:
        return claims[0]
    if not claims:
        known = "; ".join(f"{name}: {kind.words}" for name, kind in all_readers().items())
        raise DataError(f"{path} is of no kind that can be converted. Those are: {known}.")
    names = ", ".join(kind.name for kind in claims)
    raise DataError(f"{path} may be read as {names}: say which (--format).")
