"""Assign each moment of a training step to a phase.

A step lasts from one optimizer step to the next. Every moment belongs to one phase: the phase of the current seam or,
between seams, the one that the last seam sets. After a forward pass the loss is computed, so the time counts as forward.
After a backward pass gradients may be clipped, so the time counts as optimizer if its step follows next. Fetching counts as
data if a training pass follows, and as validation if an evaluation follows. Time between two value reads is spent computing
the second value, so it counts as logging.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from time import perf_counter
from typing import Any

from hasten.script.watch import overhead
from hasten.script.watch.lead_optimizer import Leader

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "logging", "validation", "checkpoint", "other")
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, LOGGING, VALIDATION, CHECKPOINT, OTHER = range(9)
GAP, TENTATIVE, FETCHED, MOVED = range(9, 13)
"""Time whose phase the next seam decides: after backward, an evaluation with gradients, a fetched and a moved batch."""
MAKING = 13
"""Time after a value was read. If another value is read next, the time was spent computing it."""
ACTING = 14
"""Time from a pass of the trained model without gradients on. What comes before one with gradients decides, see `ACTS`."""
NUM_SLOTS = 15
ACTS = 3
"""From this number on, passes without gradients in a row are not a part of the training step, even if no value is read."""
ACTED = "without gradients"
"""What happens at the line of such passes."""
_SETTLED = ((MAKING, OTHER), (GAP, OTHER), (TENTATIVE, VALIDATION), (FETCHED, DATA), (MOVED, TRANSFER))
"""Phases of undecided time at the end of a step."""
WINDOW = 512
"""Number of last steps, and of memory readings, that are kept."""
MEMORY_STEPS, MEMORY_S = 4, 0.03
"""Steps and seconds between memory readings. A reading takes longer than all seams of a step."""
MEMORY_SOON, MEMORY_LATER_S = 16, 0.5
"""After this number of readings, the number of seconds between further readings."""
WARMUP_STEPS = 2
"""Number of first steps that load, allocate and choose kernels; their timings are not typical."""
RESTS_FROM = 64
"""Number of steps that are timed in full before sampling begins (`rests`)."""
FULL_ONE_IN = 4
"""About one step in this number is timed in full."""
FULL_STEPS = 16
"""Number of fully timed steps over which typical phase shares are averaged."""
_SCATTER = 2654435761
"""Multiplier of the step number (Knuth's multiplicative hash), so that sampled steps follow no period of the script."""
_RARE = (LOGGING, VALIDATION, CHECKPOINT)
MAX_PLACES = 256
SNAPSHOT_S = 0.25
"""Seconds from the first step to the first snapshot. Each further one follows after twice the time."""
LOOK_S = 0.001
"""Seconds of a phase from which searching the stack for its source line is worthwhile."""
BACKWARDS_WITHOUT = 256
"""Watching stops after this number of backward passes, over twice the watched seconds, without a torch optimizer step."""

Place = tuple[str, str, int]
"""What happened, the file, and the line."""


def is_autograds() -> bool:
    """Return whether autograd started this thread. On accelerators, optimizer steps inside backward run in such threads."""
    return isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001 - threading has no public name for it


def is_light(step: int) -> bool:
    """Return whether only the total time of a step is measured, not each of its phases."""
    return step * _SCATTER % 2**32 >= 2**32 // FULL_ONE_IN


class Usual:
    """Typical share of each phase in a step's time.

    Args:
        phases: Number of phases.
        rare: Phases that do not occur in every step; they are never estimated.
    """

    def __init__(self, phases: int, rare: Collection[int]) -> None:
        self._rare = rare
        self._sums = [0.0] * phases
        self._shares = list(self._sums)

    def learn(self, step: Sequence[float]) -> None:
        """Update the averages with a fully timed step. Uses its shares, so that a long step does not outweigh others."""
        usual = [0.0 if phase in self._rare else seconds for phase, seconds in enumerate(step)]
        whole_s = sum(usual)
        if whole_s > 0:
            pairs = zip(self._sums, usual, strict=True)
            self._sums = [before + (seconds / whole_s - before) / FULL_STEPS for before, seconds in pairs]
            known = sum(self._sums)
            self._shares = [share / known for share in self._sums]

    def divided(self, seconds: float) -> list[float]:
        """Divide unattributed seconds into phases by the typical shares."""
        return [seconds * share for share in self._shares]


class Recorder:
    """Sums the time of each phase, step by step, for the thread that created it.

    Args:
        updates: Stop after this number of steps; 0 means never.
        seconds: Stop after this number of seconds from the first step on; 0 means never.
        memory: Returns the bytes in use; called every few steps.
        rests: After the first steps, time each phase in about one step of four only. The total time of the other steps is
            measured and divided by typical shares. Evaluations, checkpoints and logging are always timed.
        follows: Watch another thread from its first step on, if this thread has made no step by then.

    Attributes:
        active: Whether anything is still recorded.
        light: Whether only the total time of the current step is measured.
        stands_for: Number of steps that the current step represents in the source lines of phases that every step has.
        steps: Seconds of each phase, for the last steps.
        places: Place -> (times, seconds).
        memory: Pairs of a step number and the bytes in use after that step.
        events: Number of seams passed since the first step.
        passed: Number of those seams that recorded nothing: inner modules, and tensors inside a phase.
        made_s: Seconds spent computing the value that is being read.
        last: The phase that began last.
        backwards: Number of backward passes before the first step.
        fetch_s: Seconds spent fetching batches whose CPU time was measured.
        fetch_busy_s: CPU seconds of these fetches, of this thread or of the worker process that it waited for.
        has_workers: Whether batches came from loader workers.
        anchor: What ends a step: `optimizer`, `marks`, `parameters` (their changes) or `passes` (gradients); "" at first.
        before_phase: Called with the next phase if no phase is current; None once an optimizer has stepped.
        on_slot: Called with the phase, or kind of undecided time, that begins; None by default.
        on_step: Called after each step; None by default. Its time is not counted.
        on_snapshot: Called between steps at growing intervals; None by default. Its time is not counted.
    """

    def __init__(
        self,
        *,
        updates: int = 200,
        seconds: float = 20.0,
        memory: Callable[[], int] | None = None,
        rests: bool = False,
        follows: bool = False,
    ) -> None:
        self.updates, self.seconds = updates, seconds
        self.memory: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._memory_in_use = memory
        self._next_memory = 0.0
        self.active = True
        self.light, self.stands_for = False, 1
        self._rests = self._may_rest = rests
        self._unseen_s = 0.0
        self._usual = Usual(len(PHASES), _RARE)
        self.steps: deque[list[float]] = deque(maxlen=WINDOW)
        self.places: dict[Place, tuple[int, float]] = {}
        self.events = self.passed = 0
        self.num_steps = 0
        self.fetch_s = 0.0
        self.fetch_busy_s = 0.0
        self.has_workers = False
        self._unplaced: dict[str, tuple[int, float]] = {}
        self.thread, self._follows = threading.get_ident(), follows
        self.current = [0.0] * NUM_SLOTS
        self.on_stop: Callable[[], None] = lambda: None
        self.on_step: Callable[[], None] | None = None
        self.on_snapshot: Callable[[], None] | None = None
        self.on_slot: Callable[[int], None] | None = None
        self.anchor = ""
        self.before_phase: Callable[[int], None] | None = None
        self._snapshot_s = SNAPSHOT_S
        self.idle = OTHER
        self.made_s = 0.0
        self.last = OTHER
        self._before_making = OTHER
        self._acts = 0
        self._acting_line: tuple[str, int] | None = None
        self._stack: list[int] = []
        self._mark = perf_counter()
        self._first: float | None = None
        self._lead = Leader()
        self._marked = False
        self.backwards = 0
        self._first_backward = 0.0

    def here(self) -> bool:
        """Return whether time of this thread is recorded: the watched thread, or autograd's during its backward pass."""
        return self.active and (threading.get_ident() == self.thread or (BACKWARD in self._stack and is_autograds()))

    def free(self) -> bool:
        """Return whether the script is between phases, so that any seam starts one."""
        return self.active and not self._stack and threading.get_ident() == self.thread

    def takes(self) -> bool:
        """Return whether a forward or backward pass would start a phase now. True inside an optimizer closure too."""
        return self.free() or (self.active and self._stack[-1:] == [OPTIMIZER] and threading.get_ident() == self.thread)

    def restart(self) -> None:
        """Discard the steps so far and start measuring from here."""
        self.steps.clear()
        self.places.clear()
        self._unplaced.clear()
        self.memory.clear()
        self.events = self.passed = 0
        self._first = perf_counter()

    def enter(self, phase: int, *, joins: bool = False) -> None:
        """Start a phase. With `joins`, the time since the last phase belongs to it too if that was the same one."""
        if self.before_phase is not None and not self._stack:
            self.before_phase(phase)
        now = perf_counter()
        if self.light:  # a rare phase: time the rest of this step in full
            self._pass_unseen(now)
            self.light = False
        stack, current = self._stack, self.current
        idle = phase if joins and self.last == phase else self.idle
        current[stack[-1] if stack else idle] += now - self._mark
        self._mark = now
        stack.append(phase)
        self.events += 1
        undecided = current[GAP] or current[TENTATIVE] or current[FETCHED] or current[MOVED] or current[MAKING]
        if undecided or current[ACTING] or self.made_s:
            self._decide(phase)
        self.last = phase
        if self.on_slot is not None:
            self.on_slot(phase)

    def leave(self, idle: int | None = None) -> float:
        """End the phase and return its seconds. The time until the next phase counts as `idle`."""
        if not self._stack:
            return 0.0
        now = perf_counter()
        seconds = now - self._mark
        self.current[self._stack.pop()] += seconds
        self._mark = now
        if idle is not None:
            self.idle = idle
        if self.on_slot is not None:
            self.on_slot(self._stack[-1] if self._stack else self.idle)
        return seconds

    def leave_reading(self) -> float:
        """End the reading of a value. Returns its seconds, plus those of computing the value if it was not the first."""
        making = self.last == LOGGING and self.idle in (OTHER, GAP, MAKING)
        if making and self.idle != MAKING:
            self._before_making = self.idle
        return self.leave(MAKING if making else None) + self.made_s

    def rename(self, phase: int) -> None:
        """Change the phase that has begun to another one."""
        if self._stack:
            self._stack[-1] = phase
            if self.on_slot is not None:
                self.on_slot(phase)

    def count_acts(self, phase: int, find_line: Callable[[], tuple[str, int] | None]) -> None:
        """Count the pass that began if it is one without gradients. The first one of several gives the line."""
        if phase != ACTING:
            return
        self._acts += 1
        if self._acts == 1:
            self._acting_line = find_line()

    def acted(self) -> None:
        """Take note that a value computed without gradients was read: for an environment, a sample or a metric."""
        self._acts = max(self._acts, ACTS)

    def note(self, what: str, file: str, line: int, seconds: float, times: int = 1) -> None:
        """Record the seconds spent on something at a line of the user's code."""
        place = (what, file, line)
        if place in self.places or len(self.places) < MAX_PLACES:
            so_far, before = self.places.get(place, (0, 0.0))
            self.places[place] = (so_far + times, before + seconds)

    def worth_a_look(self, what: str, seconds: float) -> tuple[int, float] | None:
        """Return the count and the seconds of a phase since its line was last searched; None if the time is too short.

        Searching the stack for the user's line takes longer than a short phase that occurs at every step. The line is
        searched only once a millisecond has accumulated, and then counts for all calls since the last search. So the number
        of searches of a line is proportional to its time.
        """
        times, before = self._unplaced.get(what, (0, 0.0))
        total = (times + self.stands_for, before + seconds * self.stands_for)
        if total[1] < LOOK_S or not self.stands_for:
            self._unplaced[what] = total
            return None
        self._unplaced.pop(what, None)
        return total

    def before_step(self) -> None:
        """Start the phase of an optimizer step."""
        if self._follows and not self.num_steps and not self.here() and not is_autograds():
            self.thread, self.idle, self._mark = threading.get_ident(), OTHER, perf_counter()
            self._stack.clear()
            self.current = [0.0] * NUM_SLOTS
        if self.before_phase is not None and self.here():
            self.before_phase = None
            if self.anchor:  # parameters were changed by hand before
                self._begin_again()
                self._rests = self._may_rest
            self.anchor = "optimizer"
        if not self.light and self.here():
            while self._stack and self._stack[-1] != BACKWARD:  # an optimizer step that raised an error never ended
                self._stack.pop()
            self.enter(OPTIMIZER)

    def after_step(self, optimizer: Hashable) -> None:
        """End an optimizer step. Ends the training step if this optimizer is the leading one."""
        if not self.here():
            return
        if self._stack[-1:] == [OPTIMIZER]:
            self.leave(OTHER)
        place = self._lead.stepped(optimizer)
        if self._marked:
            return
        if place == "leads":
            self._end_step()
        elif place == "takes over":
            self.current = [0.0] * NUM_SLOTS
            self._unseen_s = 0.0

    def after_light_step(self, optimizer: Hashable) -> None:
        """End an optimizer step of which only the total time is measured. Optimized for speed."""
        if not self.here():
            return
        if self._marked or not self._lead.steps_again(optimizer):
            self.after_step(optimizer)
            return
        now = perf_counter()
        unseen_s, self._unseen_s, self._mark = self._unseen_s + now - self._mark, 0.0, now
        self.steps.append(self._usual.divided(unseen_s))
        self.num_steps += 1
        if not is_light(self.num_steps):
            self.light, self.stands_for = False, FULL_ONE_IN
        if self.on_step is not None:
            self.on_step()

    def mark(self) -> None:
        """End a step explicitly. From the first mark on, optimizer steps no longer end a step."""
        if not self.takes():
            return
        if not self._marked:
            self._marked, self.anchor, self.before_phase = True, "marks", None
            self._begin_again()
        if not self.light:
            self.enter(OPTIMIZER)
            self.leave(OTHER)
        self._end_step()

    def changed(self, tensors: Hashable, anchor: str, *, before: int) -> None:
        """End a step because the script has changed its parameters by hand.

        Args:
            tensors: Key of the tensors that changed together, like an optimizer.
            anchor: The new value of `anchor`.
            before: The phase that follows. If it is a backward pass, the loss was computed in between too.
        """
        if anchor != self.anchor:
            self.anchor, self._rests = anchor, False
            self._lead = Leader()
            self._begin_again()
        before_phase, self.before_phase = self.before_phase, None
        self.enter(OPTIMIZER)
        self.before_phase = before_phase
        if before == BACKWARD:
            self.current[FORWARD] += self.current[OPTIMIZER]
            self.current[OPTIMIZER] = 0.0
        self.after_step(tensors)

    def _begin_again(self) -> None:
        """Forget the steps so far, because another kind of event ends a step."""
        self.steps.clear()
        self._first = None
        self.num_steps = 0
        self.light, self.stands_for = False, 1

    def settle(self) -> list[float]:
        """Assign all undecided time to phases, and return the seconds by phase since the last step."""
        current = self.current
        self._settle_acting(OTHER)
        for slot, phase in _SETTLED:
            if current[slot]:
                current[phase] += current[slot]
                current[slot] = 0.0
        return current[: len(PHASES)]

    def _settle_acting(self, phase: int) -> None:
        """Assign the time without gradients to a phase."""
        seconds, self.current[ACTING] = self.current[ACTING], 0.0
        self.current[phase] += seconds
        if seconds and phase == OTHER and self._acting_line is not None:
            self.note(ACTED, *self._acting_line, seconds)
        self._acts = 0

    def after_backward(self) -> None:
        """Count a backward pass. Stop if no optimizer step follows for too long, because such scripts may run for days."""
        if self.num_steps or not self.active:
            return
        now = perf_counter()
        self.backwards += 1
        if self.backwards == 1:
            self._first_backward = now
        waited_s = now - self._first_backward
        if self.seconds and self.backwards >= BACKWARDS_WITHOUT and waited_s > 2 * self.seconds:
            self.stop()

    def stop(self) -> None:
        """Stop recording."""
        if self.active:
            self.active = False
            self.on_stop()

    def _end_step(self) -> None:
        self.num_steps += 1
        now = perf_counter()
        if self._first is None:
            self._first = now
            self.events = self.passed = 0
        else:
            self.steps.append(self._divided(now))
            if self._memory_in_use is not None and self._memory_is_due(now):
                self.memory.append((self.num_steps, self._memory_in_use()))
                self._next_memory = now + (MEMORY_S if len(self.memory) < MEMORY_SOON else MEMORY_LATER_S)
            if self.num_steps == 1 + WARMUP_STEPS:
                self.places.clear()
        self.current = [0.0] * NUM_SLOTS
        if self._rests and self.num_steps >= RESTS_FROM:
            self.light = is_light(self.num_steps)
            self.stands_for = 0 if self.light else FULL_ONE_IN
        if (self.updates and len(self.steps) >= self.updates) or (self.seconds and now - self._first > self.seconds):
            self.stop()
        elif self.on_snapshot is not None and self.steps and now - self._first > self._snapshot_s:
            self._snapshot_s *= 2
            self.on_snapshot()
            self._mark = perf_counter()
        if self.on_step is not None:
            self.on_step()
            self._mark = perf_counter()

    def _memory_is_due(self, now: float) -> bool:
        """Return whether memory is due for a reading. With a step limit, readings are spread over the steps."""
        within = self.updates // MEMORY_SOON
        often = within >= MEMORY_STEPS and self.num_steps % within == 0
        return often or (self.num_steps % MEMORY_STEPS == 0 and now >= self._next_memory)

    def _pass_unseen(self, now: float) -> None:
        """Add the time since the last mark to the unattributed time of the step."""
        self._unseen_s += now - self._mark
        self._mark = now

    def _divided(self, now: float) -> list[float]:
        """Return the seconds by phase of the step that has ended. Unattributed time is divided by typical shares."""
        if self.light:
            self._pass_unseen(now)
        step = self.settle()
        unseen_s, self._unseen_s = self._unseen_s, 0.0
        if unseen_s:
            return [seconds + more for seconds, more in zip(step, self._usual.divided(unseen_s), strict=True)]
        if self._rests:
            self._usual.learn(step)
        return step

    def _decide(self, phase: int) -> None:
        """Assign undecided time to its phase, given the phase that follows."""
        current = self.current
        if phase != MAKING:
            making = current[MAKING]
            self.made_s = making if phase == LOGGING else 0.0
            if making:
                current[LOGGING if phase == LOGGING else self._before_making] += making
                current[MAKING] = 0.0
        if current[GAP] and phase != BACKWARD:
            current[OPTIMIZER if phase == OPTIMIZER else OTHER] += current[GAP]
            current[GAP] = 0.0
        if current[TENTATIVE] and phase in (BACKWARD, FORWARD, FETCHED, OPTIMIZER, ACTING):
            current[FORWARD if phase == BACKWARD else VALIDATION] += current[TENTATIVE]
            current[TENTATIVE] = 0.0
        if current[ACTING] and phase in (FORWARD, BACKWARD, OPTIMIZER):
            self._settle_acting(FORWARD if self._acts < ACTS else OTHER)
        if phase in (FORWARD, BACKWARD, OPTIMIZER, VALIDATION, TENTATIVE, ACTING) and (current[FETCHED] or current[MOVED]):
            evaluates = phase == VALIDATION
            current[VALIDATION if evaluates else DATA] += current[FETCHED]
            current[VALIDATION if evaluates else TRANSFER] += current[MOVED]
            current[FETCHED] = current[MOVED] = 0.0


def report(recorder: Recorder, *, cost: bool = True, **more: Any) -> dict[str, Any]:
    """Return the observations as JSON: steps, seconds of each phase in each step, places, and Hasten's overhead.

    Args:
        recorder: The observations.
        cost: Measure the overhead, which takes a few tenths of a second.
        more: Further entries.
    """
    steps = list(recorder.steps)
    wall = sum(map(sum, steps))
    own_frac = None
    if cost:
        seam, passing = overhead.of_seams(lambda: Recorder(updates=0, seconds=0.0))
        own_s = seam * recorder.events + passing * recorder.passed
        own_frac = min(own_s / wall, 1.0) if wall > 0 else 0.0
    return {
        "steps": len(steps),
        "phases": list(PHASES),
        "seconds": [[round(value, 9) for value in step] for step in steps],
        "tail": [round(value, 9) for value in recorder.settle()] if recorder.num_steps else [0.0] * len(PHASES),
        "places": [[*place, times, seconds] for place, (times, seconds) in recorder.places.items()],
        "memory": list(recorder.memory),
        "backwards": recorder.backwards,
        "anchor": recorder.anchor,
        "fetch_wait_frac": max(1.0 - recorder.fetch_busy_s / recorder.fetch_s, 0.0) if recorder.fetch_s else None,
        "has_workers": recorder.has_workers,
        "own_cost_frac": own_frac,
        **more,
    }
