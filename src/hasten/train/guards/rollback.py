"""Go back to the newest checkpoint after an update that went wrong, and on from there at a lower learning rate."""

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
from hasten.train.guards.incidents import Incidents
from hasten.train.guards.non_finite import NonFinitePolicy


class Rollback:
    """Takes a run back. All ranks together.

    Args:
        loop: The run.
        run: Its folder.
        non_finite: How much lower the rate becomes, and how often.
        incidents: Told each time.
        say: Told of checkpoints that are passed over.
    """

    def __init__(
        self, loop: GuardedLoop, run: Path, non_finite: NonFinitePolicy, incidents: Incidents, say: Callable[[str], None]
    ) -> None:
        self._loop, self._run, self._non_finite = loop, run, non_finite
        self._incidents, self._say = incidents, say
        self._times: Counter[int] = Counter()

    def go(self, wrong: RollBack, saver: Saver | None) -> None:
        """Go back.

        Args:
            wrong: What happened.
            saver: Of the run; its checkpoint under way is waited for.

        Raises:
            LossError: There is no checkpoint, or it was done too often.
        """
        incident, loop = wrong.incident, self._loop
        if saver is not None:
            saver.settle()
        saved = newest_checkpoint(loop, self._run, self._say)
        times = self._times.total()
        if saved is None or times >= self._non_finite.most:
            self._incidents.note(replace(incident, action="the run stops"))
            why = f"the run went back {times} times already" if saved else "there is no checkpoint to go back to"
            raise LossError(
                f"In update {incident.update} {incident.words}, and {why}. Lower the learning rate, save more often "
                f"(--checkpoint-every), or look at the samples in the incidents.",
                update=incident.update,
            )
        self._times[saved.update] += 1
        factor = self._non_finite.rate ** self._times[saved.update]
        loop.went_back()
        load_checkpoint(loop, saved)
        lower_rate(loop.live, factor)
        if saver is not None:
            saver.went_back()
        action = f"back to checkpoint {saved.path.name}, and on at {factor:.3g} times its learning rate"
        self._incidents.note(replace(incident, action=action))


def lower_rate(live: LiveJob, factor: float) -> None:
    """Multiply the learning rate by a factor, and what the schedule derives it from."""
    for group in live.optimizer.param_groups:
        for name in ("lr", "initial_lr", "max_lr", "min_lr"):
            if name in group:
                group[name] = group[name] * factor
    if live.scheduler is not None and hasattr(live.scheduler, "base_lrs"):
        live.scheduler.base_lrs = [rate * factor for rate in live.scheduler.base_lrs]
