"""Put another learning-rate schedule in place of the job's, and change the rate of each update beside any schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hasten.core.card import Check, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit
from hasten.core.seams import Undo

MakeSchedule: TypeAlias = Callable[[Optimizer, int], LRScheduler]
"""Makes a schedule of an optimizer and the updates of the whole run."""

MIN_UPDATES = 50
"""A shorter run is hardly more than its warm-up."""
SCHEDULED_RATE = "scheduled_rate"
"""Counter: the learning rate of the first parameter group in the last update under a schedule that was put in place."""
SCALED_BY = "learning_rate_scaled_by"
"""Counter: what the learning rate was multiplied by in the last update."""


def why_no_schedule(facts: Facts) -> Fit | None:
    """The refusal of every technique that brings another learning-rate schedule; None where one can be tried."""
    job = facts.job
    if not job.has_quality:
        return Fit.no("it changes how the model learns, and the job does not say what is not worse: set quality")
    if job.has_schedule:
        return Fit.no("the job has a learning-rate schedule of its own: to have this one tried, let schedule() return None")
    if job.planned_updates is None:
        return Fit.no("how long the run is, is not known: set num_updates")
    if job.planned_updates < MIN_UPDATES:
        return Fit.no(f"a run of {job.planned_updates} updates is too short for a schedule: {MIN_UPDATES} at least")
    return None


def first_rate(live: LiveJob, trace: StepTrace, kind: type[LRScheduler], peak: Callable[[Any], float]) -> Check:
    """Whether the traced update ran at the rate that a schedule begins with.

    Args:
        live: The live job.
        trace: Of its first update.
        kind: The class of the schedule.
        peak: Gives the highest rate of a parameter group.
    """
    name, group = "learning rate of the first update", live.optimizer.param_groups[0]
    if not isinstance(live.scheduler, kind):
        return Check(name, passed=False, seen="the schedule is not in force")
    used = trace.counters.get(SCHEDULED_RATE)
    seen = "none" if used is None else f"{used:.3g}"
    whole = f"the schedule begins at {group['lr']:.3g} and peaks at {peak(group):.3g}, over {live.planned_updates} updates"
    return Check(name, used == group["lr"], f"{seen}; {whole}")


def replace_schedule(live: LiveJob, technique: str, make: MakeSchedule) -> Undo:
    """Put a schedule in place of the job's, which spans the whole run and is stepped once per update.

    Args:
        live: The live job; its optimizer must be the final one.
        technique: The optimization that asks, for the messages.
        make: Makes the schedule; the rates of the groups are then those the job's own schedule began from.

    Returns:
        The undo: the job's schedule, and every setting of the parameter groups as it was.

    Raises:
        JobError: The length of the run is not known, or a learning rate is a tensor.
    """
    optimizer, planned = live.optimizer, live.planned_updates
    if planned is None:
        raise JobError(f"{technique} needs the length of the run: set num_updates, or take it out of the plan.")
    if any(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups):
        raise JobError(f"{technique} needs learning rates that are plain numbers, not tensors: take it out of the plan.")
    kept = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    scheduler = live.scheduler
    _go_back(optimizer)
    try:
        live.scheduler = make(optimizer, planned)
    except JobError:
        _put_back(optimizer, kept)
        raise

    def note(stepped: Optimizer, _args: Any, _kwargs: Any) -> None:
        live.counters[SCHEDULED_RATE] = stepped.param_groups[0]["lr"]

    handle = optimizer.register_step_post_hook(note)

    def undo() -> None:
        handle.remove()
        _put_back(optimizer, kept)
        live.scheduler = scheduler

    return undo


def scale_rates(live: LiveJob, factor: float) -> Undo:
    """Multiply the learning rate by `factor` in each step alone, so that any schedule goes on from its own numbers."""
    rates: list[Any] = []

    def before(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        rates[:] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        live.counters[SCALED_BY] = factor

    def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    handles = [live.optimizer.register_step_pre_hook(before), live.optimizer.register_step_post_hook(after)]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def restart_schedule(live: LiveJob) -> None:
    """Make the job's own schedule anew, from the rates it began with; nothing where it has none."""
    if live.scheduler is not None:
        _go_back(live.optimizer)
        live.rebuild_schedule()


def _go_back(optimizer: Optimizer) -> None:
    """Give each group the rate that its schedule began from."""
    for group in optimizer.param_groups:
        group["lr"] = group.pop("initial_lr", group["lr"])


def _put_back(optimizer: Optimizer, kept: list[dict[str, Any]]) -> None:
    for group, settings in zip(optimizer.param_groups, kept, strict=True):
        for key in group.keys() - settings.keys() - {"params"}:
            del group[key]
        group.update(settings)
