"""Override worker settings of a script's loader: say why not, or set them so that they can be restored."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

import torch
from torch.utils.data import DataLoader

from hasten.core.live import LoaderSettings
from hasten.script.data.lookahead import draws_at_start, why_unpredictable

_MISSING = object()
_WORKERS = ("num_workers", "prefetch_factor", "persistent")


def why_not(loader: Any, own: LoaderSettings, wanted: LoaderSettings, handle: str, *, caches: bool) -> str:
    """Why a loader cannot have the workers that a plan wants; "" if it can.

    Args:
        loader: The script's loader.
        own: Its settings in the script.
        wanted: Its settings under the plan.
        handle: The open file that its dataset holds; "" for none.
        caches: Whether samples are cached in this process.
    """
    if all(getattr(own, name) == getattr(wanted, name) for name in _WORKERS):
        return ""
    if type(loader)._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001 - torch has no other name for it
        return f"{type(loader).__name__} makes iterators of its own kind"
    if own.num_workers:
        return _why_not_others(loader, own, wanted)
    if handle:
        return f"{handle} is open: readers at the same time would move it under one another"
    if unpredictable := why_unpredictable(index_sampler(loader)):
        return f"{unpredictable}: pass num_workers= to this DataLoader yourself"
    if caches:
        return "samples are cached in this process, where worker processes would not find them"
    return _why_no_fork()


def index_sampler(loader: Any) -> Any:
    """What gives the loader the indices of each batch, or of each sample if it does not batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _why_not_others(loader: Any, own: LoaderSettings, wanted: LoaderSettings) -> str:
    if own.persistent and not (wanted.persistent and wanted.num_workers):
        return "the script keeps its worker processes from epoch to epoch, and draws no random number for new ones"
    if loader.generator is not None or not draws_at_start(index_sampler(loader)):
        return "its sampler may draw random numbers as it goes: read further ahead, it would draw them at other moments"
    return ""


def _why_no_fork() -> str:
    method = multiprocessing.get_start_method(allow_none=True)
    if method not in (None, "fork") or "fork" not in multiprocessing.get_all_start_methods():
        return f"worker processes would be started by {method or 'something else than a fork'}, and run the script again"
    return "this process is a worker itself, and may start none" if multiprocessing.current_process().daemon else ""


class LoaderOverrides:
    """Settings of the script's loaders that are not as the script made them."""

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def set(self, loader: Any, name: str, *, value: Any) -> None:
        """Set an attribute, past torch's refusal to have some set, and remember what it was."""
        before = self._before.setdefault(loader, {})
        before.setdefault(name, vars(loader).get(name, _MISSING))
        vars(loader)[name] = value

    def own_workers(self, loader: Any) -> int:
        """How many workers the script gave a loader."""
        return int(self._before.get(loader, {}).get("num_workers", loader.num_workers))

    def set_workers(self, loader: Any, wanted: LoaderSettings, *, restart: bool) -> None:
        """Make a loader that has workers have others.

        Args:
            loader: The script's loader.
            wanted: How many, and how far they work ahead.
            restart: Begin with new ones, where ours were kept from the epoch before.
        """
        kept = "persistent_workers" in self._before.get(loader, {}) and loader._iterator is not None  # noqa: SLF001 - torch has no other name for it
        self.set(loader, "num_workers", value=wanted.num_workers)
        self.set(loader, "prefetch_factor", value=wanted.prefetch_factor if wanted.num_workers else None)
        if wanted.persistent and not loader.persistent_workers:
            self.set(loader, "persistent_workers", value=True)
        if kept and restart:
            loader._iterator = None  # noqa: SLF001 - as above
        elif kept:  # workers that are kept get no new seed: draw the one that the script's own would have got
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def undo(self) -> None:
        """Put everything back."""
        for loader, before in list(self._before.items()):
            if "persistent_workers" in before:
                loader._iterator = None  # noqa: SLF001 - as above
            for name, value in before.items():
                if value is _MISSING:
                    vars(loader).pop(name, None)
                else:
                    vars(loader)[name] = value
        self._before = weakref.WeakKeyDictionary()
