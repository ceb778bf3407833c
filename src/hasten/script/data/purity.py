"""Test whether a dataset is pure: each sample is the same at every reading, and no random numbers are drawn for it.

Only samples of a pure dataset may be cached or read ahead by threads. The test reads a few samples in a forked copy of the
process, so that no counter, file or generator of the script changes. `guard` keeps checking later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils import worker

from hasten.core.batch import batch_bytes, content
from hasten.core.live import LiveJob
from hasten.core.seeding import get_random_state, kept_random_state, seed_sample
from hasten.optimizations.parts.stacked_samples import is_stackable
from hasten.script.data.equality import difference, moved_generator
from hasten.script.data.fingerprint import counted, fingerprint, open_handle
from hasten.script.data.fork import ForkError, run_in_fork
from hasten.script.data.guard import epoch_compared_frac

ENOUGH_S = 1.0
"""Seconds of reading after which no further samples are read."""
ENOUGH_BYTES = 1 << 28
"""Bytes of samples after which no further samples are read."""
LEAST = 2
"""Number of samples that are read in any case."""
LIMIT_S = 30.0
"""Seconds after which the test is stopped."""


@dataclass(frozen=True, kw_only=True)
class Purity:
    """Result of reading a few samples.

    Attributes:
        pure: Whether samples and batches were the same at both readings, and no random generator changed.
        reason: Why the dataset is not pure; "" if it is.
        repeats: Whether readings with the same states of the process's generators give the same samples.
        handle: Open file or connection of the dataset after reading, which threads or processes would share; "" for none.
        counts: Where reading a sample changes a counter or list, on which other samples may depend; "" for nowhere.
        num_read: Number of samples that were read.
        sample_bytes: Bytes of one sample: its tensors, plus the rest of it pickled; None if it cannot be pickled.
        load_frac: Share of the time of making a batch that is spent reading samples.
        stacks: Whether samples can be kept as rows of tensors, from which batches are gathered.
        wait_frac: Share of that time in which the process used no CPU.
        sample_s: Seconds to read one sample and to collate it with the others.
    """

    pure: bool = False
    reason: str = "no sample was read"
    repeats: bool = False
    handle: str = ""
    counts: str = ""
    num_read: int = 0
    sample_bytes: int | None = None
    load_frac: float = 0.0
    stacks: bool = False
    wait_frac: float = 0.0
    sample_s: float = 0.0


def measure_purity(
    dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], *, batched: bool = True, limit_s: float = LIMIT_S
) -> Purity:
    """Read samples twice with different random generators, in a forked copy of this process, and compare bit for bit.

    Args:
        dataset: A map-style dataset.
        collate: Makes a batch from samples.
        indices: Indices of the samples, in the sampler's order. Fewer are read if reading is slow.
        batched: Whether `collate` takes a list of samples instead of one.
        limit_s: Seconds after which the test is stopped.
    """
    if not indices:
        return Purity()
    try:
        result, printed = run_in_fork(lambda: _measure(dataset, collate, list(indices), batched=batched), limit_s=limit_s)
    except (ForkError, OSError) as error:
        return Purity(reason=f"its samples could not be read in a separate process: {error}")
    return replace(result, pure=False, reason="reading a sample prints") if printed and result.pure else result


def why_counted(purity: Purity) -> str:
    """Return why samples that count their reads may not be cached; "" if they do not count."""
    return f"reading a sample changes {purity.counts}, on which later samples may depend" if purity.counts else ""


def loader_facts(live: LiveJob, purity: Purity) -> dict[str, Any]:
    """Return the fields of `hasten.core.facts.JobFacts` about data, for a script whose training loader is known.

    `has_getitems` is False because torch's fetcher already calls `__getitems__`, so there is nothing to gain.
    """
    batches = None if live.order is None else len(live.order(0))
    return {
        "in_script": True,
        "samples_vary": purity.reason or why_counted(purity),
        "has_deterministic_transform": purity.pure and not purity.counts,
        "kept_compared_frac": epoch_compared_frac(live.num_samples or 0),
        "load_is_random": not purity.pure,
        "finish_is_random": False,
        "collate_is_random": not purity.pure,
        "num_samples": live.num_samples,
        "updates_per_epoch": None if batches is None else -(-batches // live.job.accumulation),
        "batch_size": live.job.batch_size,
        "num_workers": live.loader.num_workers,
        "num_threads": live.loader.num_threads,
        "pin_memory": live.loader.pin_memory,
        "shuffle": live.job.shuffle,
        "has_getitems": False,
        "is_table": live.pipeline.is_table,
        "stacks_samples": purity.stacks,
    }


def _measure(dataset: Any, collate: Callable[[Any], Any], indices: list[Any], *, batched: bool) -> Purity:
    """Run the test. It runs in a forked process, so it may change anything."""
    with kept_random_state():
        untouched = fingerprint(dataset, collate)
        seed_sample(1, 0, 0)
        at_first = get_random_state()
        started, on_core = perf_counter(), process_time()
        first, frozen = _read_some(dataset, indices, batched=batched)
        load_s = perf_counter() - started
        drawn = moved_generator(at_first, get_random_state())
        why = _told("after other samples were read", difference(frozen, first, "samples"))
        before_s = perf_counter()
        batches = _collated(collate, first, batched=batched)
        wall = load_s + perf_counter() - before_s
        result = Purity(
            num_read=len(first),
            handle=open_handle(dataset),
            sample_bytes=_bytes(frozen[0]),
            load_frac=load_s / wall if wall else 0.0,
            stacks=batched and collate is default_collate and is_stackable(frozen),
            wait_frac=max(0.0, 1.0 - (process_time() - on_core) / wall) if wall else 0.0,
            sample_s=wall / len(first),
        )
        counts = counted(untouched, fingerprint(dataset, collate))
        kept = copy.deepcopy(batches)
        with _as_in_a_worker(dataset):
            second, drawn_again = _again(dataset, collate, indices[: len(first)], batched=batched)
        drawn = drawn or drawn_again[0]
        why = f"reading a sample draws random numbers ({drawn})" if drawn else why
        why = why or _told("when read again", difference(frozen, second[0], "samples"))
        why = why or (f"collating draws random numbers ({drawn_again[1]})" if drawn_again[1] else "")
        why = why or _told("when collated again", difference(kept, second[1], "batches"))
        repeats = not why or not difference(second, _again(dataset, collate, indices[: len(first)], batched=batched)[0])
        return replace(result, pure=not why, reason=why, repeats=repeats, counts=counts)


def _again(
    dataset: Any, collate: Callable[[Any], Any], indices: list[Any], *, batched: bool
) -> tuple[list[Any], tuple[str, str]]:
    """Return samples and batches, read with another seed, and the generators that reading and collating used."""
    seed_sample(2, 0, 0)
    states = [get_random_state()]
    samples = [copy.deepcopy(dataset[index]) for index in indices]
    states.append(get_random_state())
    copies = copy.deepcopy(samples)
    batches = copy.deepcopy(_collated(collate, samples, batched=batched))
    states.append(get_random_state())
    return [copies, batches], (moved_generator(*states[:2]), moved_generator(*states[1:]))


@contextmanager
def _as_in_a_worker(dataset: Any) -> Iterator[None]:
    """Make a dataset that asks for its worker see the second of two workers."""
    before = worker._worker_info  # noqa: SLF001 - torch has no public name for it
    worker._worker_info = worker.WorkerInfo(id=1, num_workers=2, seed=2, dataset=dataset)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        worker._worker_info = before  # noqa: SLF001 - as above


def _collated(collate: Callable[[Any], Any], samples: list[Any], *, batched: bool) -> list[Any]:
    return [collate(samples)] if batched else [collate(sample) for sample in samples]


def _read_some(dataset: Any, indices: list[Any], *, batched: bool) -> tuple[list[Any], list[Any]]:
    """Read samples as a fetcher does, and copy each one at once, because a dataset may reuse one buffer."""
    many = getattr(dataset, "__getitems__", None) if batched else None
    if many:
        several = list(many(indices))
        return several, copy.deepcopy(several)
    samples: list[Any] = []
    copies: list[Any] = []
    started = perf_counter()
    for number, index in enumerate(indices):
        size = batch_bytes(copies) if number >= LEAST else 0
        if number >= LEAST and (perf_counter() - started > ENOUGH_S or size > ENOUGH_BYTES):
            break
        samples.append(dataset[index])
        copies.append(copy.deepcopy(samples[-1]))
    return samples, copies


def _told(when: str, why: str) -> str:
    return f"{when}, {why}" if why else ""


def _bytes(sample: Any) -> int | None:
    try:
        tensors, rest = content(sample)
    except Exception:  # noqa: BLE001 - a sample that cannot be pickled or converted to bytes has no size
        return None
    return sum(len(data) for _, _, data in tensors) + len(rest)
