"""`hasten data cache`: inspect a cache, clear it, or fill it before training."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.command import JsonOption
from hasten.cli.say import give_json, progress_bar, say
from hasten.core.errors import DataError, HastenError
from hasten.report.words import bytes_words

GIB = 2**30
BATCH = 64
"""Number of samples read in one call of the dataset."""
SCHEMES = ("redis://", "rediss://", "unix://")


def cache(
    place: Annotated[
        str,
        typer.Argument(help="A cache: redis://host:port/0, or a folder. Or the URL of a store, to download it."),
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Fill the cache from this dataset: package.module:function that returns it.")
    ] = None,
    version: Annotated[str, typer.Option(help="Version of the dataset, as passed to CachedDataset in training.")] = "",
    max_gib: Annotated[float, typer.Option(help="Size limit of a new cache, in GiB.")] = 8.0,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    json: JsonOption = None,
) -> None:
    """Inspect a cache, clear it, or fill it before training."""
    if max_gib <= 0:
        raise HastenError(f"--max-gib must be above 0, not {max_gib:g}.")
    if "://" in place and not place.startswith(SCHEMES):
        found = _fetch(place, int(max_gib * GIB), clear=clear, dataset=dataset)
    else:
        found = _sample_cache(place, dataset, version, int(max_gib * GIB), clear=clear)
    if give_json(json, found):
        return
    for name, value in found.items():
        shown = bytes_words(value) if name == "num_bytes" else f"{value:,}" if isinstance(value, int) else value
        say(f"{name.replace('num_', '').replace('_', ' '):>10}  {shown}")


def _sample_cache(place: str, dataset: str | None, version: str, max_bytes: int, *, clear: bool) -> dict[str, Any]:
    from hasten.data.cache.places import open_cache
    from hasten.data.cache.wrap import CachedDataset

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
    """Download all of a remote store."""
    from hasten.data.remote.blocks import BlockCache
    from hasten.data.remote.source import Url, default_folder
    from hasten.data.store.store import Store
    from hasten.data.store.verify import verify

    if dataset is not None:
        raise HastenError("--dataset fills a cache of samples, and this is the URL of a store, which is downloaded whole.")
    if clear:
        raise HastenError(
            f"--clear applies to caches of samples. Parts of remote stores are in {default_folder()}: remove that folder."
        )
    store = Store(Url(url, cache_bytes=max_bytes))
    if store.manifest.num_bytes > max_bytes:
        raise HastenError(
            f"{url} takes {bytes_words(store.manifest.num_bytes)}, more than --max-gib allows. Raise it, or let "
            f"training fetch what it needs."
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
    """Return what `package.module:function` returns."""
    module, colon, name = target.partition(":")
    if not colon:
        raise HastenError(f"--dataset {target!r} is not a function: write package.module:function.")
    sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HastenError(f"--dataset {target!r} cannot be found: {error}.") from error
    finally:
        sys.path.remove("")
    return made()
