"""Replace the job's learning-rate schedule, and scale the learning rate of each update independently of any schedule."""

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
"""Creates a schedule from an optimizer and the number of updates of the whole run."""

MIN_UPDATES = 50
"""Smallest number of updates of a run with a schedule. A shorter run is hardly more than its warm-up."""
SCHEDULED_RATE = "scheduled_rate"
"""Counter: the learning rate of the first parameter group in the last update under the new schedule."""
SCALED_BY = "learning_rate_scaled_by"
"""Counter: the factor by which the learning rate was multiplied in the last update."""


def why_no_schedule(facts: Facts) -> Fit | None:
    """Return the refusal of every technique with its own learning-rate schedule, or None if one can be tried."""
    job = facts.job
    if not job.has_quality:
        return Fit.no("it changes how the model learns, and the job defines no quality metric: set quality")
    if job.has_schedule:
        return Fit.no("the job has its own learning-rate schedule: to try this one, let schedule() return None")
    if job.planned_updates is None:
        return Fit.no("the length of the run is unknown: set num_updates")
    if job.planned_updates < MIN_UPDATES:
        return Fit.no(f"a run of {job.planned_updates} updates is too short for a schedule, which needs {MIN_UPDATES}")
    return None


def first_rate(live: LiveJob, trace: StepTrace, kind: type[LRScheduler], peak: Callable[[Any], float]) -> Check:
    """Check that the traced update ran at the initial rate of a schedule.

    Args:
        live: The live job.
        trace: Trace of its first update.
        kind: Class of the schedule.
        peak: Returns the highest rate of a parameter group.
    """
    name, group = "learning rate of the first update", live.optimizer.param_groups[0]
    if not isinstance(live.scheduler, kind):
        return Check(name, passed=False, seen="the schedule is not active")
    used = trace.counters.get(SCHEDULED_RATE)
    seen = "none" if used is None else f"{used:.3g}"
    schedule = (
        f"the schedule starts at {group['lr']:.3g} and peaks at {peak(group):.3g}, over {live.planned_updates} updates"
    )
    return Check(name, used == group["lr"], f"{seen}; {schedule}")


def replace_schedule(live: LiveJob, technique: str, make: MakeSchedule) -> Undo:
    """Replace the job's schedule by one that spans the whole run and is stepped once per update.

    Args:
        live: The live job. Its optimizer must be the final one.
        technique: Name of the calling optimization, for error messages.
        make: Creates the schedule. The groups then have the rates from which the job's own schedule started.

    Returns:
        The undo, which restores the job's schedule and all settings of the parameter groups.

    Raises:
        JobError: The length of the run is unknown, or a learning rate is a tensor.
    """
    optimizer, planned = live.optimizer, live.planned_updates
    if planned is None:
        raise JobError(f"{technique} needs the length of the run: set num_updates, or remove {technique} from the plan.")
    if any(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups):
        raise JobError(f"{technique} needs learning rates that are numbers, not tensors: remove it from the plan.")
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
    """Multiply the learning rate by `factor` during each step only, so that a schedule continues from its own values."""
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
    """Recreate the job's own schedule from its initial rates. Does nothing if the job has no schedule."""
    if live.scheduler is not None:
        _go_back(live.optimizer)
        live.rebuild_schedule()


def _go_back(optimizer: Optimizer) -> None:
    """Reset each group to the rate from which its schedule started."""
    for group in optimizer.param_groups:
        group["lr"] = group.pop("initial_lr", group["lr"])


def _put_back(optimizer: Optimizer, kept: list[dict[str, Any]]) -> None:
    for group, settings in zip(optimizer.param_groups, kept, strict=True):
        for key in group.keys() - settings.keys() - {"params"}:
            del group[key]
        group.update(settings)
