"""The clock of a watched script: which phase each moment of a step belongs to.

A step goes from one optimizer step to the next. Every moment belongs to one phase: that of the seam the script is in, or
else the one that the last seam leaves behind (after a forward pass: the loss, so forward; after backward: clipping, so the
optimizer's, if its step follows next). What was fetched counts as data once a training pass follows, and as validation if
an evaluation does. Between two values that are read the second one was made.
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
"""Time after a value was read: if another is read next, it went into the making of that one."""
NUM_SLOTS = 14
_SETTLED = ((MAKING, OTHER), (GAP, OTHER), (TENTATIVE, VALIDATION), (FETCHED, DATA), (MOVED, TRANSFER))
"""What is undecided belongs to these at the end of a step."""
WINDOW = 512
MEMORY_STEPS, MEMORY_S = 4, 0.03
"""Memory is read after so many steps and seconds: amid a training loop a reading takes longer than all seams of a step."""
MEMORY_SOON, MEMORY_LATER_S = 16, 0.5
"""And after so many readings after so many seconds."""
WARMUP_STEPS = 2
"""So many steps load, allocate and choose kernels: what they take is not typical."""
RESTS_FROM = 64
"""A watch that rests looks at every phase of so many steps first."""
FULL_ONE_IN = 4
"""About one step in so many is looked at."""
FULL_STEPS = 16
"""What a step has is told by about so many of the last that were looked at."""
_SCATTER = 2654435761
"""Times the number of a step (Knuth's multiplicative hash): the steps that are looked at follow no period of the script."""
_RARE = (LOGGING, VALIDATION, CHECKPOINT)
MAX_PLACES = 256
LOOK_S = 0.001
"""Seconds that are worth a look at the stack for the line that took them."""
BACKWARDS_WITHOUT = 256
"""After so many backward passes, over twice the seconds that are watched, no optimizer of torch is expected to step."""

Place = tuple[str, str, int]
"""What happened, in which file, at which line."""


def is_autograds() -> bool:
    """Whether this thread was started by no Python code: steps inside of backward run in such ones, for an accelerator."""
    return isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001 - it has no other name


def is_light(step: int) -> bool:
    """Whether a step passes without a look at what each step has."""
    return step * _SCATTER % 2**32 >= 2**32 // FULL_ONE_IN


class Usual:
    """What the time of a step is usually spent on.

    Args:
        phases: How many there are.
        rare: Those that not every step has, which are never guessed.
    """

    def __init__(self, phases: int, rare: Collection[int]) -> None:
        self._rare = rare
        self._sums = [0.0] * phases
        self._shares = list(self._sums)

    def learn(self, step: Sequence[float]) -> None:
        """Take in the seconds by phase of a step that was looked at: its shares, so that no long step outweighs others."""
        usual = [0.0 if phase in self._rare else seconds for phase, seconds in enumerate(step)]
        whole_s = sum(usual)
        if whole_s > 0:
            pairs = zip(self._sums, usual, strict=True)
            self._sums = [before + (seconds / whole_s - before) / FULL_STEPS for before, seconds in pairs]
            known = sum(self._sums)
            self._shares = [share / known for share in self._sums]

    def divided(self, seconds: float) -> list[float]:
        """Seconds by phase of so many seconds that nobody looked at."""
        return [seconds * share for share in self._shares]


class Recorder:
    """Sums the time of each phase, step by step, for the thread that made it.

    Args:
        updates: Stop after so many steps; 0 is never.
        seconds: Stop after so many seconds from the first step on.
        memory: Tells the bytes in use, and is asked every few steps.
        rests: Look at what each step has in about one step of four, once there were some. All others are timed as a whole,
            and divided as those are. An evaluation, a checkpoint, or anything logged is timed whenever it happens.
        follows: Watch another thread from its first step on, where this one has made none by then.

    Attributes:
        active: Whether anything is still noted.
        light: Whether what each step has passes unseen now.
        stands_for: For so many steps this one tells where time goes that every step spends.
        steps: Seconds of each phase, for the last steps.
        places: Place -> (times, seconds).
        memory: Numbers of steps, and bytes in use after them.
        events: Seams passed since the first step.
        passed: Those of them that noted nothing: inner modules, and tensors inside of a phase.
        made_s: Seconds that went into the making of the value that is read now.
        last: The phase that was begun last.
        backwards: Backward passes before the first step.
        fetch_s: Seconds of fetching batches in which it was asked whether that computes.
        fetch_busy_s: And those of them in which this thread, or the worker process that was waited for, computed.
        has_workers: Whether batches came from loader workers.
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
        self.light, self.stands_for, self._rests = False, 1, rests
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
        self.idle = OTHER
        self.made_s = 0.0
        self.last = OTHER
        self._before_making = OTHER
        self._stack: list[int] = []
        self._mark = perf_counter()
        self._first: float | None = None
        self._lead = Leader()
        self._marked = False
        self.backwards = 0
        self._first_backward = 0.0

    def here(self) -> bool:
        """Whether anything is noted of this thread, or of one of autograd's while this one is in its backward pass."""
        return self.active and (threading.get_ident() == self.thread or (BACKWARD in self._stack and is_autograds()))

    def free(self) -> bool:
        """Whether the script is between phases, so that any seam begins one."""
        return self.active and not self._stack and threading.get_ident() == self.thread

    def takes(self) -> bool:
        """Whether a forward or backward pass that is reached now begins a phase: also in an optimizer's closure."""
        return self.free() or (self.active and self._stack[-1:] == [OPTIMIZER] and threading.get_ident() == self.thread)

    def restart(self) -> None:
        """Forget the steps so far: what is measured begins here."""
        self.steps.clear()
        self.places.clear()
        self._unplaced.clear()
        self.memory.clear()
        self.events = self.passed = 0
        self._first = perf_counter()

    def enter(self, phase: int) -> None:
        """Begin a phase."""
        now = perf_counter()
        if self.light:  # something rare: from here on this step is looked at
            self._pass_unseen(now)
            self.light = False
        stack, current = self._stack, self.current
        current[stack[-1] if stack else self.idle] += now - self._mark
        self._mark = now
        stack.append(phase)
        self.events += 1
        if current[GAP] or current[TENTATIVE] or current[FETCHED] or current[MOVED] or current[MAKING] or self.made_s:
            self._decide(phase)
        self.last = phase

    def leave(self, idle: int | None = None) -> float:
        """End the phase; what follows counts as `idle` until the next one. Returns seconds."""
        if not self._stack:
            return 0.0
        now = perf_counter()
        seconds = now - self._mark
        self.current[self._stack.pop()] += seconds
        self._mark = now
        if idle is not None:
            self.idle = idle
        return seconds

    def leave_reading(self) -> float:
        """End the reading of a value. Returns seconds, those of making it included where it was not the first."""
        making = self.last == LOGGING and self.idle in (OTHER, GAP, MAKING)
        if making and self.idle != MAKING:
            self._before_making = self.idle
        return self.leave(MAKING if making else None) + self.made_s

    def rename(self, phase: int) -> None:
        """The phase that was begun turns out to be another."""
        if self._stack:
            self._stack[-1] = phase

    def note(self, what: str, file: str, line: int, seconds: float, times: int = 1) -> None:
        """Remember what took how long at a line of the user's code."""
        place = (what, file, line)
        if place in self.places or len(self.places) < MAX_PLACES:
            so_far, before = self.places.get(place, (0, 0.0))
            self.places[place] = (so_far + times, before + seconds)

    def worth_a_look(self, what: str, seconds: float) -> tuple[int, float] | None:
        """How often, and how long, a thing was done since its line was last looked for; None while that is too short.

        To look through the stack for the user's line takes longer than a short phase that is noted at every step. So the
        one that makes it a millisecond in all stands for those before it: each line is met as often as time is spent there.
        """
        times, before = self._unplaced.get(what, (0, 0.0))
        found = (times + self.stands_for, before + seconds * self.stands_for)
        if found[1] < LOOK_S or not self.stands_for:
            self._unplaced[what] = found
            return None
        self._unplaced.pop(what, None)
        return found

    def before_step(self) -> None:
        """An optimizer begins its step."""
        if self._follows and not self.num_steps and not self.here() and not is_autograds():
            self.thread, self.idle, self._mark = threading.get_ident(), OTHER, perf_counter()
            self._stack.clear()
            self.current = [0.0] * NUM_SLOTS
        if not self.light and self.here():
            while self._stack and self._stack[-1] != BACKWARD:  # a step that raised never ended
                self._stack.pop()
            self.enter(OPTIMIZER)

    def after_step(self, optimizer: Hashable) -> None:
        """An optimizer has stepped: the end of a step, if it is the one that steps most."""
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
        """The same where nothing of the step was looked at: in one go, since even this costs."""
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

    def mark(self) -> None:
        """The loop says that a step ends here; from its first word on, optimizers end none."""
        if not self.takes():
            return
        if not self._marked:
            self._marked = True
            self.steps.clear()
            self._first = None
            self.num_steps = 0
            self.light, self.stands_for = False, 1
        if not self.light:
            self.enter(OPTIMIZER)
            self.leave(OTHER)
        self._end_step()

    def settle(self) -> list[float]:
        """Seconds by phase since the last step, with everything undecided put where it belongs."""
        current = self.current
        for slot, phase in _SETTLED:
            if current[slot]:
                current[phase] += current[slot]
                current[slot] = 0.0
        return current[: len(PHASES)]

    def after_backward(self) -> None:
        """A backward pass has ended. Without a step there is nothing to watch, and a script may go on for days."""
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
        """Note nothing any more."""
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

    def _memory_is_due(self, now: float) -> bool:
        """Whether it is time to read memory: where the steps are counted, also so often within them."""
        within = self.updates // MEMORY_SOON
        often = within >= MEMORY_STEPS and self.num_steps % within == 0
        return often or (self.num_steps % MEMORY_STEPS == 0 and now >= self._next_memory)

    def _pass_unseen(self, now: float) -> None:
        """The time since the last mark was of what each step has."""
        self._unseen_s += now - self._mark
        self._mark = now

    def _divided(self, now: float) -> list[float]:
        """Seconds by phase of the step that has ended; what passed unseen is divided as it usually is."""
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
        """Give what was undecided to its phase, now that the next one is known."""
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
        if current[TENTATIVE] and phase in (BACKWARD, FORWARD, FETCHED, OPTIMIZER):
            current[FORWARD if phase == BACKWARD else VALIDATION] += current[TENTATIVE]
            current[TENTATIVE] = 0.0
        if phase in (FORWARD, BACKWARD, OPTIMIZER, VALIDATION, TENTATIVE) and (current[FETCHED] or current[MOVED]):
            evaluates = phase == VALIDATION
            current[VALIDATION if evaluates else DATA] += current[FETCHED]
            current[VALIDATION if evaluates else TRANSFER] += current[MOVED]
            current[FETCHED] = current[MOVED] = 0.0


def report(recorder: Recorder, **more: Any) -> dict[str, Any]:
    """What was seen, as JSON: steps, seconds of each phase in each of them, places, and what we cost."""
    steps = list(recorder.steps)
    wall = sum(map(sum, steps))
    seam, passing = overhead.of_seams(lambda: Recorder(updates=0, seconds=0.0))
    cost = seam * recorder.events + passing * recorder.passed
    return {
        "steps": len(steps),
        "phases": list(PHASES),
        "seconds": [[round(value, 9) for value in step] for step in steps],
        "tail": [round(value, 9) for value in recorder.settle()] if recorder.num_steps else [0.0] * len(PHASES),
        "places": [[*place, times, seconds] for place, (times, seconds) in recorder.places.items()],
        "memory": list(recorder.memory),
        "backwards": recorder.backwards,
        "fetch_wait_frac": max(1.0 - recorder.fetch_busy_s / recorder.fetch_s, 0.0) if recorder.fetch_s else None,
        "has_workers": recorder.has_workers,
        "own_cost_frac": min(cost / wall, 1.0) if wall > 0 else 0.0,
        **more,
    }
