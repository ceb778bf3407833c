"""Override worker settings of a script's loader: say why not, or set them so that they can be restored."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

from torch.utils.data import DataLoader

from hasten.core.live import LoaderSettings
from hasten.script.data.lookahead import draws_at_start, why_unpredictable

_MISSING = object()
_WORKERS = ("num_workers", "prefetch_factor")


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
        return _why_not_others(loader, wanted)
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


def _why_not_others(loader: Any, wanted: LoaderSettings) -> str:
    if not wanted.num_workers:
        return "without workers, what the script changes during an epoch would reach samples that it does not reach now"
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

    def set_workers(self, loader: Any, wanted: LoaderSettings) -> None:
        """Make a loader that has workers have others; they persist only where the script's own do."""
        self.set(loader, "num_workers", value=wanted.num_workers)
        self.set(loader, "prefetch_factor", value=wanted.prefetch_factor)

    def undo(self) -> None:
        """Put everything back."""
        for loader, before in list(self._before.items()):
            for name, value in before.items():
                if value is _MISSING:
                    vars(loader).pop(name, None)
                else:
                    vars(loader)[name] = value
        self._before = weakref.WeakKeyDictionary()
