"""Predict how long stages take together, from measured times of each and the leases that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hasten.pipeline.lease import Need, Totals


@dataclass(frozen=True, kw_only=True)
class Task:
    """A stage to predict.

    Attributes:
        name: Its name.
        needs: Stages of the same run that it follows.
        need: What it leases.
        seconds: Its measured time; None if it has not been measured.
    """

    name: str
    needs: tuple[str, ...]
    need: Need
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What is added to the stages, in seconds: at the start of a run, before each stage, and at the end.

    Attributes:
        start_s: Until the first stage begins.
        stage_s: Between the end of a stage and the start of the next.
        end_s: After the last stage.
        runs: Number of runs that were measured; 0 if none, and then nothing is added.
    """

    start_s: float = 0.0
    stage_s: float = 0.0
    end_s: float = 0.0
    runs: int = 0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is predicted.

    Attributes:
        seconds: Time of the run, with parallel branches as far as leases allow.
        sequential_s: Time one stage after another.
        path: The stages that decide `seconds`, in their order.
        unknown: Stages without a measured time.
        guess_s: What each of these counts as: the mean of the others, or a minute.
    """

    seconds: float
    sequential_s: float
    path: tuple[str, ...]
    unknown: tuple[str, ...]
    guess_s: float


def predict(tasks: Sequence[Task], totals: Totals, overhead: Overhead) -> Prediction:
    """Predict a run: each stage starts when what it needs has ended and its lease is free, in the order given."""
    known = [task.seconds for task in tasks if task.seconds is not None]
    guess_s = fmean(known) if known else 60.0
    left = {task.name: task for task in tasks}
    ends: dict[str, float] = {}
    running: dict[str, Task] = {}
    cause: dict[str, str] = {}
    now, last = overhead.start_s, ""
    while left or running:
        for task in list(left.values()):
            if all(ends.get(name, now + 1) <= now for name in task.needs) and _fits(task, list(running.values()), totals):
                del left[task.name]
                running[task.name] = task
                gap = overhead.stage_s if task.needs or last else 0.0
                ends[task.name] = now + gap + (guess_s if task.seconds is None else task.seconds)
                cause[task.name] = last
        last = min(running, key=ends.__getitem__)
        now = ends[last]
        del running[last]
    path = [last] if ends else []
    while path and cause[path[-1]]:
        path.append(cause[path[-1]])
    gaps = max(len(tasks) - 1, 0) * overhead.stage_s
    total = overhead.start_s + overhead.end_s + gaps + sum(known) + guess_s * (len(tasks) - len(known))
    return Prediction(
        seconds=(max(ends.values()) if ends else 0.0) + overhead.end_s, sequential_s=total, path=tuple(reversed(path)),
        unknown=tuple(task.name for task in tasks if task.seconds is None), guess_s=guess_s,
    )  # fmt: skip


def _fits(task: Task, running: Sequence[Task], totals: Totals) -> bool:
    """Whether a stage can run beside others. Devices that are shared by their memory count as whole ones here."""
    together = [one.need for one in (*running, task)]
    return (
        sum(one.cores for one in together) <= len(totals.cores)
        and sum(one.memory_bytes for one in together) <= totals.memory_bytes
        and sum(one.devices for one in together) <= len(totals.devices)
    )
