"""Is a dataset pure: does each sample come out the same at every visit, and is no random number drawn for it?

Only samples of a pure dataset may be kept, or read ahead by threads. It is measured on a few of them, in a forked copy of
the process, so that no counter, no file and no generator of the script moves by it; `guard` watches later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

from torch.utils.data._utils import worker

from hasten.core.batch import batch_bytes, content
from hasten.core.live import LiveJob
from hasten.core.seeding import get_random_state, kept_random_state, seed_sample
from hasten.script.data.equality import difference, moved_generator
from hasten.script.data.fingerprint import counted, fingerprint, open_handle
from hasten.script.data.fork import ForkError, run_in_fork
from hasten.script.data.guard import epoch_compared_frac

ENOUGH_S = 1.0
ENOUGH_BYTES = 1 << 28
LEAST = 2
"""No further sample is read once reading has taken so long, or the samples are so large; but two are."""
LIMIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Purity:
    """What reading a few samples has shown.

    Attributes:
        pure: Whether samples and batches came out the same twice, and no random generator moved.
        reason: Why not; empty where it is pure.
        repeats: Whether they came out the same with the same states of the generators of the process.
        handle: An open file or connection that the dataset holds after reading, which threads or processes would share.
        counts: Where reading a sample counts something, on which other samples may depend; empty for nowhere.
        num_read: Samples that were read.
        sample_bytes: Bytes of one sample: its tensors, and the rest of it pickled; None if that cannot be.
        load_frac: Share of the time of making a batch that goes into reading its samples.
        wait_frac: Share of that time in which the process was not on a core.
    """

    pure: bool = False
    reason: str = "no sample was read"
    repeats: bool = False
    handle: str = ""
    counts: str = ""
    num_read: int = 0
    sample_bytes: int | None = None
    load_frac: float = 0.0
    wait_frac: float = 0.0


def measure_purity(
    dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], *, batched: bool = True, limit_s: float = LIMIT_S
) -> Purity:
    """Read samples twice with different random generators, in a forked copy of this process, and compare bit for bit.

    Args:
        dataset: A map-style dataset.
        collate: Makes a batch of samples.
        indices: Of the samples, as the sampler gives them. Few are read where reading is slow.
        batched: Whether `collate` takes a list of samples, not one.
        limit_s: Give up after so many seconds.
    """
    if not indices:
        return Purity()
    try:
        found, printed = run_in_fork(lambda: _measure(dataset, collate, list(indices), batched=batched), limit_s=limit_s)
    except (ForkError, OSError) as error:
        return Purity(reason=f"its samples could not be read aside: {error}")
    return replace(found, pure=False, reason="reading a sample prints") if printed and found.pure else found


def loader_facts(live: LiveJob, purity: Purity) -> dict[str, Any]:
    """What `hasten.core.facts.JobFacts` says of data, for a script whose training loader was seen.

    Its fetcher calls `__getitems__` by itself where a dataset has it, so that there is nothing to gain by it.
    """
    batches = None if live.order is None else len(live.order(0))
    return {
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
    }


def _measure(dataset: Any, collate: Callable[[Any], Any], indices: list[Any], *, batched: bool) -> Purity:
    """Where this runs, everything may be touched."""
    with kept_random_state():
        untouched = fingerprint(dataset, collate)
        seed_sample(1, 0, 0)
        at_first = get_random_state()
        started, on_core = perf_counter(), process_time()
        first, frozen = _read_some(dataset, indices, batched=batched)
        load_s = perf_counter() - started
        drawn = moved_generator(at_first, get_random_state())
        why = _told("once others were read", difference(frozen, first, "samples"))
        before_s = perf_counter()
        batches = _collated(collate, first, batched=batched)
        wall = load_s + perf_counter() - before_s
        found = Purity(
            num_read=len(first),
            handle=open_handle(dataset),
            sample_bytes=_bytes(frozen[0]),
            load_frac=load_s / wall if wall else 0.0,
            wait_frac=max(0.0, 1.0 - (process_time() - on_core) / wall) if wall else 0.0,
        )
        counts = counted(untouched, fingerprint(dataset, collate))
        kept = copy.deepcopy(batches)
        with _as_in_a_worker(dataset):
            second, drawn_again = _again(dataset, collate, indices[: len(first)], batched=batched)
        drawn = drawn or drawn_again[0]
        why = f"reading a sample draws random numbers ({drawn})" if drawn else why
        why = why or _told("read again", difference(frozen, second[0], "samples"))
        why = why or (f"collating draws random numbers ({drawn_again[1]})" if drawn_again[1] else "")
        why = why or _told("collated again", difference(kept, second[1], "batches"))
        repeats = not why or not difference(second, _again(dataset, collate, indices[: len(first)], batched=batched)[0])
        return replace(found, pure=not why, reason=why, repeats=repeats, counts=counts)


def _again(
    dataset: Any, collate: Callable[[Any], Any], indices: list[Any], *, batched: bool
) -> tuple[list[Any], tuple[str, str]]:
    """Copies of samples and batches, read with generators of another seed; and which of these moved by each."""
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
    """Let a dataset that asks which worker reads it find itself in the second of two."""
    before = worker._worker_info  # noqa: SLF001 - where torch keeps it
    worker._worker_info = worker.WorkerInfo(id=1, num_workers=2, seed=2, dataset=dataset)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        worker._worker_info = before  # noqa: SLF001 - as above


def _collated(collate: Callable[[Any], Any], samples: list[Any], *, batched: bool) -> list[Any]:
    return [collate(samples)] if batched else [collate(sample) for sample in samples]


def _read_some(dataset: Any, indices: list[Any], *, batched: bool) -> tuple[list[Any], list[Any]]:
    """Read samples as a fetcher does, and copy each as it comes: a dataset may fill one buffer again and again."""
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
    except Exception:  # noqa: BLE001 - what cannot be pickled or laid out as bytes has no size that could be kept
        return None
    return sum(len(data) for _, _, data in tensors) + len(rest)
