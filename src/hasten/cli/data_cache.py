"""`hasten data cache`: look into a cache, empty it, or fill it before a training needs it."""

from __future__ import annotations

import importlib
import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.say import console, progress_bar
from hasten.core.errors import DataError, HastenError
from hasten.report.words import bytes_words

GIB = 2**30
BATCH = 64
SCHEMES = ("redis://", "rediss://", "unix://")


def cache(
    place: Annotated[
        str,
        typer.Argument(help="A cache: redis://host:port/0, or a folder. Or the URL of a store, to fetch ahead."),
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Fill it with the samples of this: package.module:function that makes a dataset.")
    ] = None,
    version: Annotated[str, typer.Option(help="Of the dataset, as training gives it to CachedDataset.")] = "",
    max_gib: Annotated[float, typer.Option(help="That the cache may take, where it is made now.")] = 8.0,
    clear: Annotated[bool, typer.Option("--clear", help="Forget everything in it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look into a cache, empty it, or fill it before a training needs it."""
    if max_gib <= 0:
        raise HastenError(f"--max-gib must be above 0, not {max_gib:g}.")
    if "://" in place and not place.startswith(SCHEMES):
        found = _fetch(place, int(max_gib * GIB), clear=clear, dataset=dataset)
    else:
        found = _sample_cache(place, dataset, version, int(max_gib * GIB), clear=clear)
    if json:
        typer.echo(json_module.dumps(found))
        return
    for name, value in found.items():
        shown = bytes_words(value) if name == "num_bytes" else f"{value:,}" if isinstance(value, int) else value
        console.print(f"{name.replace('num_', '').replace('_', ' '):>10}  {shown}", soft_wrap=True)


def _sample_cache(place: str, dataset: str | None, version: str, max_bytes: int, *, clear: bool) -> dict[str, Any]:
    from hasten.data.cache.places import open_cache  # noqa: PLC0415  only this verb pays for its imports
    from hasten.data.cache.wrap import CachedDataset  # noqa: PLC0415

    if dataset is None and not clear and "://" not in place and not Path(place).exists():
        raise DataError(
            f"there is no cache {place}. Fill one: hasten data cache {place} --dataset module:function --version 1"
        )
    with open_cache(place, max_bytes) as opened:
        if clear:
            opened.clear()
        if dataset is not None:
            wrapped = CachedDataset(_made(dataset), opened, version=version)
            with progress_bar("samples", len(wrapped)) as advance:
                for start in range(0, len(wrapped), BATCH):
                    count = min(BATCH, len(wrapped) - start)
                    wrapped.__getitems__(range(start, start + count))
                    advance(count)
        found: dict[str, Any] = {"cache": place, "num_values": len(opened), "num_bytes": opened.num_bytes}
        if dataset is not None:
            found |= {name: value for name, value in opened.stats.as_dict().items() if value}
        return found


def _fetch(url: str, max_bytes: int, *, clear: bool, dataset: str | None) -> dict[str, Any]:
    """Have all of a remote store here."""
    from hasten.data.remote.blocks import BlockCache  # noqa: PLC0415  as above
    from hasten.data.remote.source import Url, default_folder  # noqa: PLC0415
    from hasten.data.store.store import Store  # noqa: PLC0415
    from hasten.data.store.verify import verify  # noqa: PLC0415

    if dataset is not None:
        raise HastenError("--dataset fills a cache of samples; this is the URL of a store, which is fetched as it is.")
    if clear:
        raise HastenError(
            f"--clear empties a cache of samples. The parts of remote stores lie in {default_folder()}: remove that folder."
        )
    store = Store(Url(url, cache_bytes=max_bytes))
    if store.manifest.num_bytes > max_bytes:
        raise HastenError(
            f"{url} takes {bytes_words(store.manifest.num_bytes)}, more than --max-gib allows: allow more, or let "
            f"training fetch "
            f"what it needs."
        )
    with progress_bar("fetched", max(store.manifest.num_bytes, 1)) as advance:
        damaged = verify(store, progress=advance)
    if damaged:
        raise DataError(f"{damaged[0].path} of {url}: {damaged[0].problem}")
    return {
        "store": url,
        "folder": str(default_folder()),
        "num_rows": len(store),
        "num_bytes": BlockCache(default_folder(), max_bytes).size(),
    }


def _made(target: str) -> Any:
    """What `package.module:function` returns."""
    module, found, name = target.partition(":")
    if not found:
        raise HastenError(f"--dataset {target!r} names no function: write package.module:function.")
    sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HastenError(f"--dataset {target!r} cannot be found: {error}.") from error
    finally:
        sys.path.remove("")
    return made()
