"""Roll back to the newest checkpoint after a failed update, and continue at a lower learning rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hasten.core.errors import LossError
from hasten.core.live import LiveJob
from hasten.train.checkpoints.resume import load_checkpoint, newest_checkpoint
from hasten.train.checkpoints.saver import Saver
from hasten.train.guards.guarded_loop import GuardedLoop, RollBack
from hasten.train.guards.incidents import INCIDENTS, Incidents
from hasten.train.guards.non_finite import NonFinitePolicy


class Rollback:
    """Rolls a run back. All ranks must use it together.

    Args:
        loop: The loop of the run.
        run: The run's folder.
        non_finite: The factor on the learning rate, and the maximum number of rollbacks.
        incidents: Records each rollback.
        say: Called with a message for each checkpoint that is skipped.
    """

    def __init__(
        self, loop: GuardedLoop, run: Path, non_finite: NonFinitePolicy, incidents: Incidents, say: Callable[[str], None]
    ) -> None:
        self._loop, self._run, self._non_finite = loop, run, non_finite
        self._incidents, self._say = incidents, say
        self._times: Counter[int] = Counter()

    def go(self, wrong: RollBack, saver: Saver | None) -> None:
        """Roll back.

        Args:
            wrong: The reason.
            saver: The saver of the run. Its checkpoint in progress is completed first.

        Raises:
            LossError: There is no checkpoint, or the limit of rollbacks is reached.
        """
        incident, loop = wrong.incident, self._loop
        if saver is not None:
            saver.settle()
        saved = newest_checkpoint(loop, self._run, self._say)
        times = self._times.total()
        if saved is None or times >= self._non_finite.most:
            self._incidents.note(replace(incident, action="the run stops"))
            why = f"the run was already rolled back {times} times" if saved else "there is no checkpoint to roll back to"
            raise LossError(
                f"In update {incident.update} {incident.words}, and {why}. Lower the learning rate, save more often "
                f"(--checkpoint-every), or check the samples in {INCIDENTS}.",
                update=incident.update,
            )
        self._times[saved.update] += 1
        factor = self._non_finite.rate ** self._times[saved.update]
        loop.went_back()
        load_checkpoint(loop, saved)
        lower_rate(loop.live, factor)
        if saver is not None:
            saver.went_back()
        action = f"rolled back to checkpoint {saved.path.name}, with its learning rate multiplied by {factor:.3g}"
        self._incidents.note(replace(incident, action=action))


def lower_rate(live: LiveJob, factor: float) -> None:
    """Multiply the learning rate, and the rates that the schedule is based on, by a factor."""
    for group in live.optimizer.param_groups:
        for name in ("lr", "initial_lr", "max_lr", "min_lr"):
            if name in group:
                group[name] = group[name] * factor
    if live.scheduler is not None and hasattr(live.scheduler, "base_lrs"):
        live.scheduler.base_lrs = [rate * factor for rate in live.scheduler.base_lrs]
