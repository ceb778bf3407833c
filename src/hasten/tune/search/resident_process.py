"""A live process under a plan, and what the numerics gate needs from two of them.

Gradients are compared at the initial weights. If they differ much, they are compared again at weights that the base has
trained to. A fresh network may be chaotic: behind many normalization layers a change of a weight by a thousandth can reverse
its gradient, and so can any other rounding. A few dozen updates later neither does, until the learning rate reaches its
peak, where it may happen again. A defect shows at every point, so one point without a difference is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from hasten.core.card import Numerics, Trait
from hasten.core.optimization import Optimization
from hasten.tune.proof.numerics import (
    GateVerdict,
    Rows,
    Settled,
    UpdateSample,
    judge_exact,
    judge_other_draws,
    judge_rounding,
    judge_training,
    numerics_of,
    recipe_change,
    skipping,
)
from hasten.tune.trials.trial import Trial

GRADIENT_BATCHES = 3
SETTLING_UPDATES = (16, 32, 64)
SETTLING_S = 40.0
"""Updates that the base trains for, each from the start, and maximum seconds, before gradients are compared again."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Later:
    """A point of the run that a process trained to.

    Attributes:
        updates: Number of updates that led there; 0 if the process could not train.
        weights: File of the weights.
        gradients: Gradients at these weights, `[batches, coordinates]`.
    """

    updates: int
    weights: Path
    gradients: Rows


@dataclass(kw_only=True)
class Resident:
    """A live process under a plan, with everything measured of it.

    Attributes:
        trial: The process.
        losses: Its losses from the start of the run, by update.
        skipped: Updates of the run that its gradient scaler skipped, by turn.
        gradients: Its gradients at the initial weights, `[batches, coordinates]`.
        updates: What its first updates do.
        filling_s: Seconds of cache filling per measured update.
        later: Points that it trained to, in order; several challengers may need them.
    """

    trial: Trial
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    gradients: Rows | None = None
    updates: UpdateSample | None = None
    filling_s: float = 0.0
    later: list[Later] = field(default_factory=list)

    def end(self) -> None:
        """End the process, and remove the files that it wrote."""
        self.trial.end()
        for later in self.later:
            later.weights.unlink(missing_ok=True)

    def awake(self, act: Callable[[Resident], Answer]) -> Answer:
        """Run a function with the process thawed, then freeze it again."""
        self.trial.thaw()
        try:
            return act(self)
        finally:
            self.trial.freeze()

    def sample(self, numerics: Numerics, folder: Path) -> None:
        """Sample what the gate still needs of the thawed process, which is at the start of the run afterwards.

        Args:
            numerics: The class that will be judged.
            folder: Folder for the temporary file of the gradients.
        """
        if self.gradients is None:
            self.gradients = self._gradients(folder)
        if self.updates is None and numerics is Numerics.ROUNDING:
            self.updates = UpdateSample.from_dict(self.trial.call("updates"))

    def points(self, folder: Path) -> Iterator[Later]:
        """Train the frozen process further before each point; between points it is frozen at the start of the run."""
        for number, updates in enumerate(SETTLING_UPDATES):
            if number == len(self.later):
                self.trial.thaw()
                try:
                    self.later.append(self._settled(folder, updates))
                finally:
                    self.trial.freeze()
            if self.later[number].updates:
                yield self.later[number]
            if self.later[number].updates < updates:
                return  # the run or the time has ended

    def gradients_at(self, weights: Path, folder: Path) -> Rows:
        """Return gradients of the frozen process at the weights of a file; no rows if the model has other parameters."""
        return self.awake(lambda r: r._gradients(folder, weights))  # noqa: SLF001  the same class

    def _settled(self, folder: Path, most: int) -> Later:
        weights = folder / f"settled-{self.trial.pid}-{most}.pt"
        target = str(weights.resolve())
        updates = int(self.trial.call("settle", updates=most, seconds=SETTLING_S, path=target)["updates"])
        gradients = self._gradients(folder, weights) if updates else np.empty((0, 0), dtype=np.float32)
        return Later(updates, weights, gradients)

    def _gradients(self, folder: Path, weights: Path | None = None) -> Rows:
        path = folder / f"gradients-{self.trial.pid}.npy"
        source = None if weights is None else str(weights.resolve())
        self.trial.call("gradients", batches=GRADIENT_BATCHES, path=str(path.resolve()), weights=source)
        rows: Rows = np.load(path, allow_pickle=False)
        path.unlink()
        return rows


def judge_numerics(
    added: Sequence[Optimization],
    base: Resident,
    challenger: Resident,
    others: Sequence[Sequence[float]],
    settled: Callable[[], Iterable[Settled]],
) -> GateVerdict:
    """Return the gate's verdict on two frozen processes that did the same updates, with gradients sampled of both.

    Args:
        added: What the challenger has in addition.
        base: The process without it.
        challenger: The process with it.
        others: Loss curves of the plain job with other seeds.
        settled: Returns gradients of both at weights that the base trained to, see `settled_pairs`; called only if needed.
    """
    numerics = numerics_of(added)
    if numerics is Numerics.TRAINING:
        return judge_training(base.losses, challenger.losses)
    if base.gradients is None or challenger.gradients is None:
        raise AssertionError("the gradients of both are sampled before they are judged")
    if numerics is Numerics.EXACT:
        return judge_exact(base.losses, challenger.losses, base.gradients, challenger.gradients)
    why = recipe_change(base.updates, challenger.updates) if base.updates and challenger.updates else ""
    if why := why or _skipping(base, challenger):
        return GateVerdict(numerics=numerics, verdict="failed", why=why)
    if added and all(Trait.OTHER_MASKS in item.card.traits for item in added):
        return judge_other_draws("dropout draws other random numbers", base.losses, challenger.losses, others)
    return judge_rounding(base.losses, challenger.losses, others, base.gradients, challenger.gradients, settled=settled)


def settled_pairs(base: Resident, challenger: Resident, folder: Path) -> Iterator[Settled]:
    """Let the base train on, further each time, and sample both processes at its weights.

    Yields:
        The gradients of both, and the number of updates. Yields nothing if the processes are groups of ranks, or if their
        models have different parameters.
    """
    for later in base.points(folder):
        new = challenger.gradients_at(later.weights, folder)
        if not len(new):
            return
        yield Settled(later.gradients, new, later.updates)


def _skipping(old: Resident, new: Resident) -> str:
    """Return why too many updates are skipped, or "". In the first turn a gradient scaler may still adjust its scale."""
    turns = len(new.skipped)
    late = len(new.losses) * (turns - 1) // max(turns, 1)
    counts = (resident.skipped[-1] - resident.skipped[0] for resident in (old, new))
    return skipping(late, *counts)
