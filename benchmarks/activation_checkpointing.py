"""Measure memory and time of checkpointing to a memory budget, on the text example, against no and full checkpointing.

Memory is counted by tensor storage, independently of the technique's own figures. Every storage created in the forward pass
is tracked. Those still alive at its end are saved activations; the largest number of bytes alive at once is the peak.
Resident memory is read in a separate process for each arm. Times are interleaved in one process, with the same updates from
the same state in each turn.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.record import ROOT, record
from hasten.core.batch import iter_tensors
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from hasten.profile.probes import peak_memory_bytes, reset_peak_memory
from hasten.train.build import build
from hasten.train.loop import Loop

TARGET = "examples/text.py:TextJob"
ASKED = 0.5
WITHIN = 0.1
ARMS: dict[str, tuple[ActivationCheckpointing, ...]] = {
    "plain": (),
    "budget": (ActivationCheckpointing(save_frac=ASKED),),
    "all": (ActivationCheckpointing(),),
}
TURNS = 9
UPDATES = 3


def run_checkpointing(turns: int = TURNS) -> Path:
    """Measure the three arms."""
    loops = {name: _loop(name) for name in ARMS}
    memory = {name: _memory(loop) for name, loop in loops.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    for turn in range(turns + 1):
        for name in ARMS if turn % 2 else reversed(ARMS):
            loops[name].rewind()
            started = perf_counter()
            loops[name].run(UPDATES)
            if turn:  # the first turn warms up
                seconds[name].append(perf_counter() - started)
    arms: dict[str, dict[str, Any]] = {}
    for name in ARMS:
        ratios = [mine / plain for mine, plain in zip(seconds[name], seconds["plain"], strict=True)]
        arms[name] = {
            **memory[name],
            "saved_frac": 1 - memory[name]["kept_bytes"] / memory["plain"]["kept_bytes"],
            "peak_saved_frac": 1 - memory[name]["peak_bytes"] / memory["plain"]["peak_bytes"],
            "peak_rss_bytes": _peak_rss(name),
            "time_ratio": median(ratios),
            "losses": loops[name].losses,
            "seconds": seconds[name],
        }
    result = {
        "target": TARGET,
        "asked_frac": ASKED,
        "updates_per_turn": UPDATES,
        "arms": arms,
        "within_asked": abs(arms["budget"]["saved_frac"] - ASKED) <= WITHIN * ASKED,
        "less_slowdown_than_all": arms["budget"]["time_ratio"] < arms["all"]["time_ratio"],
        "same_losses": all(arm["losses"] == arms["plain"]["losses"] for arm in arms.values()),
    }
    return record("checkpointing", result, f"python -m benchmarks checkpointing --count {turns}")


def _loop(name: str) -> Loop:
    return Loop(build(load_job(str(ROOT / TARGET)), Plan(optimizations=ARMS[name])))


def _memory(loop: Loop) -> dict[str, int]:
    """Return the bytes alive after the forward pass of a training step, and the peak of the whole step."""
    live = loop.live
    assert live.order is not None  # noqa: S101  the example's data is a list
    loop.run(1)  # creates the optimizer state, as in every later step
    live.optimizer.zero_grad(set_to_none=True)
    batch = live.to_device(live.pipeline.fetch(0, live.order(0)[0]))
    watch = _Living()
    with watch:
        loss: Any = live.compute_loss(batch)
    kept = watch.bytes()
    with watch:
        loss.total.backward()
    return {"kept_bytes": kept, "peak_bytes": watch.peak_bytes}


class _Living(TorchDispatchMode):
    """Track which storages created in this mode are still alive, without keeping them alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0

    def bytes(self) -> int:
        """Return the number of bytes currently alive."""
        self._made = {at: made for at, made in self._made.items() if not made[0].expired()}
        return sum(size for _, size in self._made.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {_address(tensor) for tensor in iter_tensors((args, kwargs))}
        result = func(*args, **kwargs)
        for tensor in iter_tensors(result):
            if _address(tensor) not in given:
                storage = tensor.untyped_storage()
                self._made[_address(tensor)] = (StorageWeakRef(storage), storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.bytes())
        return result


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _peak_rss(name: str) -> int:
    """Return the peak resident memory of a fresh process during updates of an arm, in bytes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rss_of, (name,))


def _rss_of(name: str) -> int:
    # getrusage cannot be used: its peak includes memory of the parent from before the exec.
    loop = _loop(name)
    loop.run(1)
    reset_peak_memory()
    loop.run(UPDATES)
    return peak_memory_bytes()
