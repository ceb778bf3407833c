"""Continue a run without the techniques of its plan if one of them makes it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hasten.core.blame import blamed
from hasten.core.card import Numerics
from hasten.core.errors import DataError, LossError, PlanError
from hasten.core.job import Job
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.core.user_code import error_words
from hasten.train.build import build
from hasten.train.checkpoints.saver import Saver
from hasten.train.guards.guarded_loop import GuardedLoop
from hasten.train.ranks import current_ranks
from hasten.train.records.log import RunLog

_OF_THE_RUN = (DataError, LossError, PlanError)
"""Errors that are raised under any plan: what is resumed does not match, the loss is not finite, the plan is wrong."""


class GoesOn(Exception):  # noqa: N818  not an error: the run goes on without techniques
    """The run failed under its plan, and is continued without some techniques.

    Args:
        plan: The plan to continue under.
        resumes: Whether the run continues from its newest checkpoint. If False, it starts again.
    """

    def __init__(self, plan: Plan, *, resumes: bool) -> None:
        super().__init__("continued without a part of the plan")
        self.plan, self.resumes = plan, resumes


def build_without_failures(job: Job, plan: Plan, say: Callable[[str], None]) -> tuple[Plan, LiveJob]:
    """Build a live job. Techniques that cannot be applied are reported, and left out of the plan that is returned.

    With several ranks their errors are raised, because all ranks must train under the same plan.
    """
    failed: list[str] = []

    def note(name: str, error: Exception) -> None:
        failed.append(name)
        say(f"continuing without {name}, which could not be applied: {error_words(error)}")

    live = build(job, plan, on_failure=note if current_ranks().world == 1 else None)
    for name in failed:
        plan = plan.minus(name)
    return plan, live


@contextmanager
def fallback(plan: Plan, loop: GuardedLoop, saver: Saver | None, log: RunLog, *, resumed: bool) -> Iterator[None]:
    """Replace an error within the block by `GoesOn` if the run can continue without techniques of its plan.

    If the failed update can be undone, its beginning is saved first, so that no training is lost.

    Args:
        plan: The plan of the run.
        loop: Its loop.
        saver: Saves its checkpoints; None if it saves none.
        log: Receives the message.
        resumed: Whether the run was resumed.
    """
    try:
        yield
    except Exception as error:
        less = plan_without(error, plan)
        if less is None or loop.ranks.world > 1:
            raise
        gone = ", ".join(name for name in plan.names if name not in less.names)
        log(f"continuing without {gone}, because the run failed: {error_words(error)}")
        if saver is not None and loop.back_to_start_of_update():
            loop.read_losses()
            saver.save(wait=True)
        raise GoesOn(less, resumes=saver is not None or resumed) from None


def plan_without(error: Exception, plan: Plan) -> Plan | None:
    """Return the plan to continue with after an error; None if the error must be raised.

    The technique that caused the error is left out. If it is not known, all are left out but those that decide what is
    trained (schedules, batch sizes), and at the next error those too. An error without any technique is the job's own.
    """
    if not plan.names or isinstance(error, _OF_THE_RUN):
        return None
    gone = blamed(error, plan.optimizations)
    gone = gone or [item.card.name for item in plan.optimizations if item.numerics is not Numerics.TRAINING]
    for name in gone or plan.names:
        plan = plan.minus(name)
    return plan
