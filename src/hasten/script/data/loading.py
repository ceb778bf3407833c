"""Describe a script's training loader to the live job, and read its data as a plan requires.

The training loader is the first one that is iterated with gradients enabled and whose batches lead to optimizer steps. If a
script reads several loaders in parallel, the training loader is the one whose batches take the longest to make. A plan may
cache its samples (`guard`), make its batches in worker processes (`workers`), and pin them in memory. The loop gets the
same batches in the same order, and each random number of the script is drawn at the same moment as without Hasten
(`iterator`). The only exception: if samples are random themselves, workers draw other random numbers for them. Changes that
the script makes between epochs affect its batches as usual, because workers are forked for each epoch and cached samples
are compared at the start of each.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torchs
from torch.utils.data._utils.collate import default_collate

from hasten.core.batch import iter_tensors
from hasten.core.card import Trait
from hasten.core.errors import JobError
from hasten.core.live import LiveJob, LoaderSettings, Pipeline, Technique
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seams import DATA_SEAMS, Seam, Undo
from hasten.optimizations.parts.sample_caching import MISSING
from hasten.script.data.boundary import after_a_change
from hasten.script.data.describe import describe, likely_device, some_indices
from hasten.script.data.guard import PureLoad, Reads, Trust
from hasten.script.data.iterator import ScriptIterator, Sources
from hasten.script.data.lookahead import Lookahead, why_unpredictable
from hasten.script.data.overrides import LoaderOverrides, index_sampler, why_not
from hasten.script.data.purity import Purity, measure_purity, why_counted
from hasten.script.data.tables import Gathering, is_table
from hasten.script.data.trimming import Trimming
from hasten.script.data.workers import WorkerEpoch, WorkerLoader
from hasten.script.patches import Patches
from hasten.script.plan.reach import reached, why_beyond

SLOWER = 1.5
"""A loader that is read in parallel with an earlier one counts as slower from this ratio of the seconds per batch."""
SLOWER_S = 0.001
"""Seconds per batch below which a difference between loaders does not matter."""
READ_IN_ORDER = "the dataset is iterable-style: it has no indexed samples that could be cached or read ahead"


class Loading:
    """Describes the data to the live job, and applies the data optimizations of a plan.

    Args:
        live: The live job.
        plan: Plan to apply. Only optimizations of the seams `dataset` and `loader` are used.
        on_failure: Called with the name of an optimization that could not be applied or had to be stopped, and the reason.

    Attributes:
        applied: Names of the active optimizations.
        notes: Name -> how the optimization changes the script's numbers, if it does.
        stopped: Names of optimizations that were active and are not any more.
        stale: Reason why batches may have differed from those of the unchanged script; "" if none can have.
        purity: Whether reading a sample again gives the same sample, if the plan depends on it.
        trimming: Changes the training batches.
        thread: Identifier of the thread whose loop is changed.
        trained: Whether an optimizer has stepped. From then on the training loader is known.
        on_moved: Called before another loader becomes the training loader, with the names whose reports are now obsolete.
    """

    def __init__(self, live: LiveJob, plan: Plan, on_failure: Callable[[str, BaseException], None]) -> None:
        self.applied: list[str] = []
        self.notes: dict[str, str] = {}
        self.stopped: list[str] = []
        self.stale = ""
        self.purity = Purity()
        self._live, self._plan, self._on_failure = live, plan, on_failure
        self._own = live.loader
        self._pid, self._working = os.getpid(), False
        self.thread = threading.main_thread().ident
        self.trained = False
        self.on_moved: Callable[[list[str]], None] = lambda _: None
        self._epoch: Callable[[], Any] = lambda: None
        self._dataset: Any = None
        self._collate: Any = None
        self._entries: list[tuple[Technique, Undo]] = []
        self._caching: list[str] = []
        self._using_workers: list[str] = []
        self._cached: PureLoad | None = None
        self.trimming = Trimming(live, lambda iterator: self._trains(iterator._dataset), self._not_trimmed)  # noqa: SLF001 - torch has no public name for it
        self._trust = Trust(self._lost)
        self._overrides = LoaderOverrides()
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._iterators: weakref.WeakSet[ScriptIterator] = weakref.WeakSet()
        self._latest: weakref.ref[ScriptIterator] | None = None

    def install(self, patches: Patches) -> None:
        """Install the seams."""
        self._working = True
        patches.put(DataLoader, "__iter__", self._iterating)
        if self._plan.has(Trait.TRIMS):
            self.trimming.install(patches)
        if any(item.card.seam is Seam.DATASET for item in reached(self._plan)):
            Gathering(self._live, self._trains).install(patches)
        patches.put(torchs._MultiProcessingDataLoaderIter, "_next_data", self._counting)  # noqa: SLF001 - all its batches pass through it

    def close(self) -> None:
        """Stop prefetching, undo the applied optimizations, and restore the script's loaders."""
        self._working = False
        if os.getpid() == self._pid:
            self._take_back()

    def _take_back(self) -> None:
        self._trust.end()
        self._end_workers()
        self._overrides.undo()
        self._withdraw([item.card.name for item, _ in self._entries])
        for _, undo in reversed(self._entries):
            undo()
        self._entries.clear()

    def prime(self, batches: int) -> int:
        """Fill the caches with the samples of the next batches, as at the start of a second epoch.

        Does not go beyond the current epoch. Returns the number of samples, 0 if their order cannot be predicted.
        """
        iterator = self._latest() if self._latest is not None else None
        if iterator is None or self._cached is None or self._trust.reason:
            return 0
        coming = [index for batch in iterator.upcoming(batches) for index in (batch if isinstance(batch, list) else [batch])]
        numbers = [index for index in coming if type(index) is int]
        for fill in self._live.prime:
            fill(numbers)
        self._cached.spread_comparisons()
        return len(numbers)

    def boundary(self) -> str:
        """Return how batches would differ from the script's in an epoch after a change; "" if they would not.

        Not tested if the script has its own workers or if samples are random.
        """
        loader = next(iter(self._loaders), None)
        sources = None if loader is None or not self.purity.pure else self._prepare(loader)
        if loader is None or sources is None or not sources.predictable:
            return ""
        return after_a_change(loader, lambda: ScriptIterator(loader, sources))

    # Seams.

    def _iterating(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def iter_seam(loader: Any) -> Any:
            sources = self._sources(loader)
            iterator = original(loader) if sources is None else ScriptIterator(loader, sources)
            if not self.trained and loader in self._loaders:
                self._epoch = weakref.ref(iterator)
            if sources is not None:
                self._iterators.add(iterator)
                self._latest = weakref.ref(iterator)
            return iterator

        return iter_seam

    def _counting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Count pinned batches of a loader that has its own workers."""

        @functools.wraps(original)
        def next_seam(iterator: Any) -> Any:
            batch = original(iterator)
            if iterator._pin_memory and self._own.num_workers and self._dataset is iterator._dataset and self._here():  # noqa: SLF001 - torch has no public name for it
                tensors = list(iter_tensors(batch))
                self._live.count("pinned_batches", bool(tensors) and all(tensor.is_pinned() for tensor in tensors))
            return batch

        return next_seam

    def _trains(self, dataset: Any) -> bool:
        return dataset is self._dataset and self._here()

    def _here(self) -> bool:
        """Return whether this is the process and thread of the script's loop."""
        return self._working and threading.get_ident() == self.thread and os.getpid() == self._pid

    def _sources(self, loader: Any) -> Sources | None:
        """Return the sources of an iterator's batches; None leaves the loader to torch."""
        if not self._here() or isinstance(loader, WorkerLoader):
            return None
        try:
            if torch.is_grad_enabled() and loader.dataset is not self._dataset and self._is_preferred(loader):
                self._move_away()
            if self._dataset is None and torch.is_grad_enabled():
                self._loaders.add(loader)
                self._open(loader)
            if self._dataset is None or loader.dataset is not self._dataset:
                return None
            if not torch.is_grad_enabled() and loader not in self._loaders:
                return None
            self._loaders.add(loader)
            return self._prepare(loader)
        except Exception as error:  # noqa: BLE001 - the script continues as without Hasten, and the reason is reported
            self._give_up_all(error)
            return None

    def _is_preferred(self, loader: Any) -> bool:
        """Return whether this loader is more likely to be for training than the supposed training loader.

        If batches of that one were fetched but no optimizer step followed, the script read it for statistics, or to inspect
        a batch. If nothing was fetched yet, the script reads both in parallel, and the slower one matters.
        """
        if self.trained or self._dataset is None:
            return False
        epoch = self._epoch()
        if epoch is None or getattr(epoch, "_num_yielded", 1) > 0:
            return True
        return all(self._batch_s(loader) > SLOWER * self._batch_s(known) + SLOWER_S for known in self._loaders)

    def _batch_s(self, loader: Any) -> float:
        """Return the seconds to make a batch; 0 if that is unknown."""
        sampler = getattr(loader, "batch_sampler", None)
        size = loader.batch_size or getattr(sampler, "batch_size", 1) or 1
        return size * self._measure(loader).sample_s

    def _move_away(self) -> None:
        """Undo what was applied to a loader that turned out not to be for training, and forget the loader."""
        self._take_back()
        self.on_moved([item.card.name for item in self._plan.optimizations if item.card.seam in DATA_SEAMS])
        for known in (self.applied, self.stopped, self._caching, self._using_workers, self.notes):
            known.clear()
        self._loaders.clear()
        self._trust, self._cached, self._dataset, self._latest, self.stale = Trust(self._lost), None, None, None, ""

    # First use of the training loader.

    def _open(self, loader: Any) -> None:
        """Describe the training loader to the live job, and apply the plan to it."""
        live = self._live
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        live.device = likely_device(live.device)
        describe(live, loader)
        self._own = replace(live.loader)
        auto = loader.batch_sampler is not None
        reads = Reads(loader.dataset, batched=auto)
        load, many = reads.one, reads.many if reads.in_one_call else None
        items = [item for item in self._plan.optimizations if item.card.seam in DATA_SEAMS]
        if any(Trait.WHOLE_BATCHES not in item.card.traits for item in reached(self._plan) if item in items):
            self.purity = self._measure(loader)
        random = not self.purity.pure
        live.pipeline = Pipeline(
            load=load,
            finish=_same,
            collate=loader.collate_fn,
            load_many=many,
            load_is_random=random,
            collate_is_random=random,
            is_table=is_table(loader.dataset, loader.collate_fn),
        )
        for item in items:
            self._apply(item, loader)
        if self._caching:
            pipeline = live.pipeline
            self._cached = PureLoad(
                pipeline.load,
                pipeline.kept or _nothing_kept,
                reads,
                self._trust,
                num_samples=live.num_samples or 0,
                load_many=pipeline.load_many,
                kept_batch=pipeline.kept_batch if auto else None,
                copies=not auto or loader.collate_fn is not default_collate,
            )

    def _measure(self, loader: Any) -> Purity:
        if isinstance(loader.dataset, IterableDataset):
            return Purity(reason=READ_IN_ORDER)
        batched = loader.batch_sampler is not None
        return measure_purity(loader.dataset, loader.collate_fn, some_indices(loader), batched=batched)

    def _why_not(self, item: Optimization) -> str:
        """Return why an optimization cannot act on this data; "" if it can, as far as known before applying it."""
        if why := why_beyond(item.card):
            return why
        if item.card.seam is not Seam.DATASET or Trait.WHOLE_BATCHES in item.card.traits:
            return ""
        if self._own.num_workers:
            return "the script's own worker processes read the samples, each separately"
        if not self.purity.pure:
            differ = f"samples may differ from one reading to the next: {self.purity.reason}"
            return READ_IN_ORDER if self._live.order is None else differ
        return why_counted(self.purity)

    def _apply(self, item: Optimization, loader: Any) -> None:
        """Apply one optimization, or report why it cannot be applied."""
        live, name = self._live, item.card.name
        pipeline, settings = replace(live.pipeline), live.loader
        why = self._why_not(item)
        if not why:
            try:
                live.apply(item)
            except Exception as error:  # noqa: BLE001 - the script continues without it, and the reason is reported
                self._on_failure(name, error)
                return
            live.loader = replace(live.loader, persistent=self._own.persistent)  # Hasten's own workers end with an epoch
            why = why_not(loader, self._own, live.loader, self.purity.handle, caches=bool(self._caching))
            why = why or (self._why_no_workers() if _other_workers(settings, live.loader) else "")
            if why:
                live.applied.pop()[1]()
        if why:
            self._on_failure(name, JobError(why))
            return
        self.applied.append(name)
        self._entries.append(live.applied[-1])
        if pipeline.load is not live.pipeline.load or pipeline.load_many is not live.pipeline.load_many:
            self._caching.append(name)
        if _other_workers(settings, live.loader):
            self._using_workers.append(name)
            if not self.purity.pure:
                self.notes[name] = f"worker processes draw other random numbers for the samples ({self.purity.reason})"

    def _why_no_workers(self) -> str:
        if self._live.order is not None and not self.purity.pure and not self.purity.repeats:
            return f"samples depend on state that each worker would start from separately: {self.purity.reason}"
        return why_counted(self.purity)

    # Start of each epoch.

    def _prepare(self, loader: Any) -> Sources | None:
        wanted = self._live.loader
        if wanted.pin_memory and torch.accelerator.is_available():
            self._overrides.set(loader, "pin_memory", value=True)
        if self._live.order is None or self._overrides.own_workers(loader) != self._own.num_workers:
            return None
        if self._own.num_workers:
            if self._using_workers:
                self._overrides.set_workers(loader, wanted)
            return None
        workers = bool(self._using_workers) and not self._trust.reason and _same_function(loader.collate_fn, self._collate)
        if type(loader)._get_iterator is not DataLoader._get_iterator or not (workers or self._cached or wanted.pin_memory):  # noqa: SLF001 - a subclass may create other iterators
            return None
        unpredictable = why_unpredictable(index_sampler(loader)) if workers or self._cached else ""
        if workers and unpredictable:
            self._give_up(unpredictable)
        return Sources(
            live=self._live,
            trust=self._trust,
            samples=self._cached,
            predictable=bool(workers or self._cached) and not unpredictable,
            start_workers=functools.partial(self._start_workers, loader) if workers and not unpredictable else None,
            give_up=self._give_up if workers else _ignore,
            num_workers=wanted.num_workers,
            comparable=self.purity.pure,
        )

    def _start_workers(self, loader: Any, lookahead: Lookahead, seed: int) -> WorkerEpoch:
        return WorkerEpoch(loader, self._live.loader, lookahead, seed, witnesses=self.purity.pure)

    # Stop optimizations.

    def _lost(self, reason: str, given: bool) -> None:  # noqa: FBT001 - signature required by `Trust`
        """Stop caching and workers, because a sample or a batch differed from a fresh one."""
        message = f"samples have changed: {reason}"
        if given:
            message += "; earlier batches of this epoch may contain outdated samples"
            self.stale = message
        self._end([*self._caching, *self._using_workers], message)

    def _give_up(self, reason: str) -> None:
        """Stop making batches ahead."""
        names, self._using_workers = self._using_workers, []
        self._end(names, f"batches are no longer made ahead: {reason}")

    def _not_trimmed(self, error: BaseException) -> None:
        trimming = [item.card.name for item in self._plan.optimizations if Trait.TRIMS in item.card.traits]
        for name in self._stop(trimming):
            self._on_failure(name, error)

    def _give_up_all(self, error: BaseException) -> None:
        self._working = False
        for name in self._stop(self.applied) or ["data"]:
            self._on_failure(name, error)

    def _end(self, names: list[str], message: str) -> None:
        self._end_workers()
        for name in self._stop(names):
            self._on_failure(name, JobError(message))

    def _end_workers(self) -> None:
        """End the workers explicitly, because the traceback of an error may keep an iterator alive."""
        for iterator in list(self._iterators):
            iterator.stop()

    def _stop(self, names: list[str]) -> list[str]:
        """Withdraw active optimizations and list them as stopped."""
        gone = self._withdraw(names)
        self.stopped += gone
        return gone

    def _withdraw(self, names: list[str]) -> list[str]:
        """List optimizations as no longer applied. They are undone at the end. Returns those that were active."""
        gone = [name for name in self.applied if name in names]
        self.applied = [name for name in self.applied if name not in gone]
        ours = [entry for entry in self._entries if entry[0].card.name in gone]
        self._live.applied[:] = [entry for entry in self._live.applied if entry not in ours]
        return gone


def _same(sample: Any) -> Any:
    return sample


def _other_workers(one: LoaderSettings, other: LoaderSettings) -> bool:
    return (one.num_workers, one.prefetch_factor) != (other.num_workers, other.prefetch_factor)


def _nothing_kept(_index: int) -> Any:
    return MISSING


def _ignore(_reason: str) -> None:
    return None


def _same_function(one: Any, other: Any) -> bool:
    """Return whether two collate functions do the same: one function, or one lambda that captures nothing."""
    if one is other or one == other:
        return True
    code = getattr(one, "__code__", None)
    return code is not None and code is getattr(other, "__code__", None) and not (one.__closure__ or one.__defaults__)
