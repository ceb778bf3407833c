"""Trace the operators of a few steps, to tell arithmetic from call overhead and from Python between the passes.

Phases are assigned by seams, so time after a forward pass counts as forward until the next seam. Here each moment of
forward, backward and the time before the optimizer's step is compared with the operators that ran. A stretch without any
operator that is longer than calling one takes is other work: an environment, a loss in pure Python, NumPy. A thread samples
its lines. Of the rest, the time of an operator beyond that of a minimal call is arithmetic, unless the operator is small.
Everything else is call overhead.

Only the traced steps are slower; the run that measures phases is another one.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hasten.script.source_lines import FOREIGN, nearest_line
from hasten.script.watch.record import ACTING, BACKWARD, FORWARD, GAP, OPTIMIZER, OTHER, TENTATIVE, WARMUP_STEPS, Recorder

PYTHON_NS = 50_000
"""A stretch without operators that is longer than this many nanoseconds is not the call of an operator."""
LEAST_STEPS, LEAST_S, MOST_S = 3, 0.5, 2.0
"""Tracing ends after this many steps and seconds, or after the larger number of seconds."""
RANKED_STEPS = 6
"""Number of traced steps of a job with several ranks, which must end together."""
SAMPLE_S, SWITCH_S = 0.002, 1e-5
"""Seconds between samples of the current line, and seconds after which Python lets the sampling thread run.

Python's own interval is longer than most stretches between operators, so samples would be taken in operators only.
"""
LEAST_SAMPLES = 10
"""Smallest number of samples from which the part of PyTorch's own Python code is estimated."""
CALLS = 64
"""Number of minimal calls that are timed."""
SMALL_CALLS = 8
"""An operator shorter than this number of minimal calls is call overhead as a whole."""
MOST_TRACED = 0.75
"""Largest share of the time of calls that is taken to be the cost of tracing them."""
LINES = 8
"""Largest number of lines reported."""
GROUPS = {
    FORWARD: "forward",
    TENTATIVE: "forward",
    BACKWARD: "backward",
    GAP: "optimizer",
    OPTIMIZER: "optimizer",
    OTHER: "other",
    ACTING: "other",
}
"""The phase of each slot of the recorder that is examined."""

Interval = tuple[int, int]
Sample = tuple[int, tuple[str, int] | None]
Op = tuple[int, int]
"""Start and end of an operator in nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What was traced.

    Attributes:
        slots: Start in nanoseconds and slot of the recorder, in order. The last one ends the trace.
        ops: Start and end of each operator, nested ones included.
        samples: Time and line of each sample. The line is None while PyTorch's own Python code runs.
        within_torch: Time and line of the samples taken then: the line that called PyTorch.
        call_ns: Duration of a minimal operator while it is traced.
        traced_ns: How much longer each call takes because it is traced.
        steps: Number of steps.
    """

    slots: Sequence[tuple[int, int]]
    ops: Sequence[Op]
    samples: Sequence[Sample] = ()
    within_torch: Sequence[Sample] = ()
    call_ns: float = 0.0
    traced_ns: float = 0.0
    steps: int = 1


@dataclass
class _Sums:
    whole_ns: float = 0.0
    python_ns: float = 0.0
    calls: int = 0
    gaps: list[Interval] = field(default_factory=list)


def analyze(trace: Trace) -> dict[str, Any] | None:
    """Return where the time of the traced steps went; None if nothing was traced.

    Returns:
        `steps`; `calls`: operators in a step; `call_us`: duration of a minimal call; `python`: phase -> share of its time
        without operators; of forward and backward together, `arithmetic_frac` and `overhead_frac`; `lines`: file, line and
        share of the time without operators in other phases and of all time in `other`.
    """
    if len(trace.slots) < 2:
        return None
    sums = {name: _Sums() for name in GROUPS.values()}
    outer, times = _outermost(trace.ops), [at for at, _ in trace.samples]
    for began, ended, name, slot in _stretches(trace.slots):
        part = sums[name]
        part.whole_ns += ended - began
        if slot != OPTIMIZER:  # what an optimizer does in its step is its own
            part.gaps += _unsampled(_gaps(outer, began, ended), times)
    starts = sorted(start for start, _ in trace.ops)
    for began, ended, name, _ in _stretches(trace.slots):
        sums[name].calls += bisect_left(starts, ended) - bisect_left(starts, began)
    for part in sums.values():
        part.python_ns = sum(end - start for start, end in part.gaps) * _own_frac(trace.samples, part.gaps)
        called_ns = part.whole_ns - part.python_ns
        part.whole_ns -= min(part.calls * trace.traced_ns, called_ns * MOST_TRACED)
    passes = [sums["forward"], sums["backward"]]
    calls_ns, calls = _beyond_a_call(trace), sum(part.calls for part in passes)
    python_ns = sum(part.python_ns for part in passes)
    known_ns = max(sum(part.whole_ns for part in passes), 1.0)
    rest_ns = known_ns - python_ns
    others = [(began, ended) for began, ended, name, _ in _stretches(trace.slots) if name == "other"]
    gaps = sorted(gap for name, part in sums.items() if name != "other" for gap in part.gaps)
    return {
        "steps": trace.steps,
        "calls": round(calls / max(trace.steps, 1)),
        "call_us": trace.call_ns / 1e3,
        "python": {name: part.python_ns / part.whole_ns if part.whole_ns else 0.0 for name, part in sums.items()},
        "arithmetic_frac": min(calls_ns, rest_ns) / known_ns,
        "overhead_frac": max(rest_ns - calls_ns, 0.0) / known_ns,
        "lines": _lines([*_within(trace.samples, sorted([*gaps, *others])), *_within(trace.within_torch, others)]),
    }


def _stretches(slots: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int, str, int]]:
    """Yield start, end, phase and slot of each stretch in an examined phase. Adjacent ones of a phase are joined."""
    current: tuple[int, int, str, int] | None = None
    for (began, slot), (ended, _) in pairwise(slots):
        name = GROUPS.get(slot)
        kind = OPTIMIZER if slot == OPTIMIZER else GAP
        if current is not None and current[1] == began and current[2:] == (name, kind):
            current = (current[0], ended, *current[2:])
            continue
        if current is not None:
            yield current
        current = None if name is None else (began, ended, name, kind)
    if current is not None:
        yield current


def _outermost(ops: Sequence[Op]) -> list[Interval]:
    """Return the union of the operators' times, in order."""
    union: list[Interval] = []
    for start, end in sorted(ops):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _gaps(outer: list[Interval], began: int, ended: int) -> list[Interval]:
    """Return the long stretches of a time without operators."""
    found, at = [], began
    index = max(bisect_right(outer, (began, began)) - 1, 0)
    while index < len(outer) and outer[index][0] < ended:
        start, end = outer[index]
        if end > at:
            if start - at > PYTHON_NS:
                found.append((at, start))
            at = max(at, end)
        index += 1
    if ended - at > PYTHON_NS:
        found.append((at, ended))
    return found


def _beyond_a_call(trace: Trace) -> float:
    """Return the nanoseconds of operators in forward and backward beyond a minimal call each, without small ones."""
    passes = [(began, ended) for began, ended, name, _ in _stretches(trace.slots) if name in ("forward", "backward")]
    starts = [began for began, _ in passes]
    own: list[float] = []
    open_ops: list[tuple[int, int]] = []
    for start, end in sorted(trace.ops, key=lambda op: (op[0], -op[1])):
        index = bisect_right(starts, start) - 1
        if index < 0 or start >= passes[index][1]:
            continue
        while open_ops and open_ops[-1][0] <= start:
            open_ops.pop()
        own.append(end - start - trace.call_ns)
        if open_ops:
            own[open_ops[-1][1]] -= end - start + trace.traced_ns
        open_ops.append((end, len(own) - 1))
    return sum(ns for ns in own if ns > (SMALL_CALLS - 1) * trace.call_ns)


def _within(samples: Sequence[Sample], gaps: list[Interval]) -> Iterable[tuple[str, int] | None]:
    """Yield the lines that were sampled in stretches without operators."""
    for at, line in samples:
        index = bisect_right(gaps, (at, sys.maxsize)) - 1
        if index >= 0 and at <= gaps[index][1]:
            yield line


def _unsampled(gaps: list[Interval], times: list[int]) -> list[Interval]:
    """Return the stretches without those that exist only because a sample was taken in them."""

    def sampled(start: int, end: int) -> bool:
        return bisect_left(times, end) > bisect_left(times, start)

    return [gap for gap in gaps if gap[1] - gap[0] > 2 * PYTHON_NS or not sampled(*gap)]


def _own_frac(samples: Sequence[Sample], gaps: list[Interval]) -> float:
    """Return the share of samples outside of PyTorch's own Python code; 1 if there are too few samples."""
    lines = list(_within(samples, gaps))
    return sum(line is not None for line in lines) / len(lines) if len(lines) >= LEAST_SAMPLES else 1.0


def _lines(lines: Iterable[tuple[str, int] | None]) -> list[tuple[str, int, float]]:
    """Return the lines that were sampled most, with their share of these samples."""
    within = Counter(line for line in lines if line is not None)
    return [(file, line, count / within.total()) for (file, line), count in within.most_common(LINES)]


class Tracer:
    """Traces operators, phases and lines from the third step on.

    Args:
        recorder: The recorder of this process.
        on_done: Called once, at the end of the trace.
        ranked: Whether this process is one of several ranks: end after a number of steps, whatever the clock says.

    Attributes:
        found: The result of `analyze`, once the trace has ended; None if it failed.
        done: Whether the trace has ended or failed, for instance because the script uses PyTorch's profiler itself.
    """

    def __init__(self, recorder: Recorder, on_done: Callable[[], None] = lambda: None, *, ranked: bool = False) -> None:
        self._recorder, self._on_done, self._ranked = recorder, on_done, ranked
        self.found: dict[str, Any] | None = None
        self.done = False
        self._profiler: Any = None
        self._slots: list[tuple[int, int]] = []
        self._samples: list[Sample] = []
        self._within_torch: list[Sample] = []
        self._first = 0
        self._over = threading.Event()
        self._switch_s = sys.getswitchinterval()
        recorder.on_slot = self._note

    def finish(self) -> None:
        """End the trace if it has begun, and analyze it."""
        self._recorder.on_slot, self.done = None, True
        if self._profiler is None:
            return
        self._slots.append((time.time_ns(), OTHER))
        steps = self._recorder.num_steps - self._first
        profiler, self._profiler = self._profiler, None
        self._over.set()
        sys.setswitchinterval(self._switch_s)
        began = time.time_ns()
        traced_s = _minimal_call_s()
        ended = time.time_ns()
        profiler.stop()
        plain_s = _minimal_call_s()
        events = list(_operators(profiler))
        minimal = [end - start for name, start, end in events if began <= start < ended and name == "aten::add"]
        self.found = analyze(
            Trace(
                slots=self._slots,
                ops=[(start, end) for _, start, end in events if start < self._slots[-1][0]],
                samples=self._samples,
                within_torch=self._within_torch,
                call_ns=median(minimal) if minimal else 0.0,
                traced_ns=max(traced_s - plain_s, 0.0) * 1e9,
                steps=steps,
            )
        )

    def _note(self, slot: int) -> None:
        """Take note of a new slot. Begins and ends the trace."""
        try:
            self._follow(slot)
        except Exception:  # noqa: BLE001 - a trace that fails ends; it must not leave the recorder in a phase
            self._recorder.on_slot, self._profiler, self.done = None, None, True
            self._over.set()
            sys.setswitchinterval(self._switch_s)
        if self.done:
            self._on_done()

    def _follow(self, slot: int) -> None:
        recorder = self._recorder
        if self._profiler is None:
            if recorder.num_steps > WARMUP_STEPS:
                self._begin(slot)
            return
        now = time.time_ns()
        self._slots.append((now, slot))
        seconds, steps = (now - self._slots[0][0]) / 1e9, recorder.num_steps - self._first
        enough = seconds > MOST_S or (seconds > LEAST_S and steps >= LEAST_STEPS)
        if steps >= RANKED_STEPS if self._ranked else enough:
            self.finish()

    def _begin(self, slot: int) -> None:
        self._profiler = profile(activities=[ProfilerActivity.CPU])
        self._profiler.start()
        self._first = self._recorder.num_steps
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=self._sample, args=(threading.get_ident(),), daemon=True).start()
        self._slots.append((time.time_ns(), slot))

    def _sample(self, thread: int) -> None:
        while not self._over.wait(SAMPLE_S):
            frame = sys._current_frames().get(thread)  # noqa: SLF001 - Python has no public name for it
            foreign = frame is None or frame.f_code.co_filename.startswith(FOREIGN)
            now, line = time.time_ns(), nearest_line(frame)
            self._samples.append((now, None if foreign else line))
            if foreign:
                self._within_torch.append((now, line))
            del frame  # it would keep the script's tensors


def _minimal_call_s() -> float:
    """Return the seconds of a minimal call of an operator, the median of several."""
    one, taken = torch.ones(1), list[float]()
    with torch.no_grad():
        for _ in range(CALLS):
            started = time.perf_counter()
            torch.add(one, one)
            taken.append(time.perf_counter() - started)
    return median(taken)


def _operators(profiler: Any) -> Iterable[tuple[str, int, int]]:
    """Yield name, start and end of each operator, and of compiled regions."""
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        named = "::" in name and not name.startswith(("autograd::", "torch::autograd"))
        if (named and not event.is_user_annotation()) or name.startswith("Torch-Compiled Region"):
            yield name, event.start_ns(), event.start_ns() + event.duration_ns()


def moved(phases: Mapping[str, float], found: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the shares of phases with the time that is not spent in operators counted as other.

    Args:
        phases: Phase -> share.
        found: The result of `analyze`; None if nothing was traced.
    """
    result = dict(phases)
    for name, frac in (found or {"python": {}})["python"].items():
        if name != "other":
            result[name] -= phases[name] * frac
            result["other"] += phases[name] * frac
    return result
