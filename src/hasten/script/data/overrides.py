"""Override the worker settings of a script's loader, or say why not. Overrides can be undone."""

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
    """Return why a loader cannot use the workers that a plan requires; "" if it can.

    Args:
        loader: The script's loader.
        own: Its settings in the script.
        wanted: Its settings under the plan.
        handle: The open file that its dataset holds; "" for none.
        caches: Whether samples are cached in this process.
    """
    if all(getattr(own, name) == getattr(wanted, name) for name in _WORKERS):
        return ""
    if type(loader)._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001 - torch has no public name for it
        return f"{type(loader).__name__} creates its own kind of iterator"
    if own.num_workers:
        return _why_not_others(loader, wanted)
    if handle:
        return f"{handle} is open: parallel readers would change each other's position in it"
    if unpredictable := why_unpredictable(index_sampler(loader)):
        return f"{unpredictable}: pass num_workers= to this DataLoader in the script"
    if caches:
        return "samples are cached in this process, where worker processes cannot reach them"
    return _why_no_fork()


def index_sampler(loader: Any) -> Any:
    """Return the sampler of the batches' indices, or of the samples' indices if the loader does not batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _why_not_others(loader: Any, wanted: LoaderSettings) -> str:
    if not wanted.num_workers:
        return "without workers, changes that the script makes during an epoch would reach samples earlier than now"
    if loader.generator is not None or not draws_at_start(index_sampler(loader)):
        return "its sampler may draw random numbers during an epoch: reading further ahead would draw them at other moments"
    return ""


def _why_no_fork() -> str:
    method = multiprocessing.get_start_method(allow_none=True)
    if method not in (None, "fork") or "fork" not in multiprocessing.get_all_start_methods():
        return f"worker processes would be started by {method or 'a method other than fork'}, which runs the script again"
    return "this process is itself a worker and cannot start others" if multiprocessing.current_process().daemon else ""


class LoaderOverrides:
    """Overridden settings of the script's loaders."""

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def set(self, loader: Any, name: str, *, value: Any) -> None:
        """Set an attribute, bypassing torch's checks, and remember the previous value."""
        before = self._before.setdefault(loader, {})
        before.setdefault(name, vars(loader).get(name, _MISSING))
        vars(loader)[name] = value

    def own_workers(self, loader: Any) -> int:
        """Return the number of workers in the script."""
        return int(self._before.get(loader, {}).get("num_workers", loader.num_workers))

    def set_workers(self, loader: Any, wanted: LoaderSettings) -> None:
        """Change the number of workers of a loader that has workers. They persist only if the script's own do."""
        self.set(loader, "num_workers", value=wanted.num_workers)
        self.set(loader, "prefetch_factor", value=wanted.prefetch_factor)

    def undo(self) -> None:
        """Restore all settings."""
        for loader, before in list(self._before.items()):
            for name, value in before.items():
                if value is _MISSING:
                    vars(loader).pop(name, None)
                else:
                    vars(loader)[name] = value
        self._before = weakref.WeakKeyDictionary()
