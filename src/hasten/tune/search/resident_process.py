"""A live process under a plan, and what the numerics gate asks of two of them.

Gradients are held against each other at the initial weights. Where these differ by much, they are asked for again, at
weights that the base has trained to. A fresh network may be chaotic: behind many norms a thousandth of a weight turns its
gradient about, and so does any other rounding, while a few dozen updates later neither does; where the rate is at its
highest it may be so once more. A defect is there at every point, so one point without it is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from hasten.core.card import Numerics
from hasten.tune.proof.numerics import (
    GateVerdict,
    Rows,
    Settled,
    UpdateSample,
    judge_exact,
    judge_rounding,
    judge_training,
    recipe_change,
    skipping,
)
from hasten.tune.trials.trial import Trial

GRADIENT_BATCHES = 3
SETTLING_UPDATES = (16, 32, 64)
SETTLING_S = 40.0
"""The base trains for so many updates, each time from the start, or for so long, before gradients are looked at again."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Later:
    """A point of the run that a process trained to.

    Attributes:
        updates: How many led there; 0 where it would not.
        weights: A file of the weights.
        gradients: At these, `[batches, coordinates]`.
    """

    updates: int
    weights: Path
    gradients: Rows


@dataclass(kw_only=True)
class Resident:
    """A live process under a plan, with what was learnt from it.

    Attributes:
        trial: The process.
        losses: Its losses from the start of the run, by update.
        skipped: Updates of the run that its gradient scaler skipped, by turn.
        gradients: Its gradients at the initial weights, `[batches, coordinates]`.
        updates: What its first updates do.
        filling_s: Seconds that filling its caches takes beforehand, for each update that is measured.
        later: Where it trained to, once it was asked, one point after the other: several challengers may want them.
    """

    trial: Trial
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    gradients: Rows | None = None
    updates: UpdateSample | None = None
    filling_s: float = 0.0
    later: list[Later] = field(default_factory=list)

    def end(self) -> None:
        """End the process, and remove what it wrote."""
        self.trial.end()
        for later in self.later:
            later.weights.unlink(missing_ok=True)

    def awake(self, act: Callable[[Resident], Answer]) -> Answer:
        """Do something with the frozen process, which is frozen again afterwards."""
        self.trial.thaw()
        try:
            return act(self)
        finally:
            self.trial.freeze()

    def sample(self, numerics: Numerics, folder: Path) -> None:
        """Sample what the gate needs of the process, which is awake, and has not; it is at the start of the run afterwards.

        Args:
            numerics: The class that will be judged.
            folder: Gradients go through a file there.
        """
        if self.gradients is None:
            self.gradients = self._gradients(folder)
        if self.updates is None and numerics is Numerics.ROUNDING:
            self.updates = UpdateSample.from_dict(self.trial.call("updates"))

    def points(self, folder: Path) -> Iterator[Later]:
        """Train the frozen process on, further each time; in between it is at the start of the run, and frozen."""
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
                return  # the run, or the time, is at its end

    def gradients_at(self, weights: Path, folder: Path) -> Rows:
        """Gradients of the frozen process at the weights of a file; no row where the model has others."""
        return self.awake(lambda r: r._gradients(folder, weights))  # noqa: SLF001  its own

    def _settled(self, folder: Path, most: int) -> Later:
        weights = folder / f"settled-{self.trial.pid}-{most}.pt"
        where = str(weights.resolve())
        updates = int(self.trial.call("settle", updates=most, seconds=SETTLING_S, path=where)["updates"])
        gradients = self._gradients(folder, weights) if updates else np.empty((0, 0), dtype=np.float32)
        return Later(updates, weights, gradients)

    def _gradients(self, folder: Path, weights: Path | None = None) -> Rows:
        path = folder / f"gradients-{self.trial.pid}.npy"
        where = None if weights is None else str(weights.resolve())
        self.trial.call("gradients", batches=GRADIENT_BATCHES, path=str(path.resolve()), weights=where)
        rows: Rows = np.load(path, allow_pickle=False)
        path.unlink()
        return rows


def judge_numerics(
    numerics: Numerics,
    base: Resident,
    challenger: Resident,
    others: Sequence[Sequence[float]],
    settled: Callable[[], Iterable[Settled]],
) -> GateVerdict:
    """What the gate says of two frozen processes that did the same updates; gradients were sampled of both.

    Args:
        numerics: The class of what the challenger has more.
        base: Without it.
        challenger: With it.
        others: Loss curves of the plain job with other seeds.
        settled: Gradients of both at weights that the base trained to, see `settled_pairs`; asked for where it matters.
    """
    if numerics is Numerics.TRAINING:
        return judge_training(base.losses, challenger.losses)
    if base.gradients is None or challenger.gradients is None:
        raise AssertionError("the gradients of both are sampled before they are judged")
    if numerics is Numerics.EXACT:
        return judge_exact(base.losses, challenger.losses, base.gradients, challenger.gradients)
    why = recipe_change(base.updates, challenger.updates) if base.updates and challenger.updates else ""
    if why := why or _skipping(base, challenger):
        return GateVerdict(numerics=numerics, verdict="failed", why=why)
    return judge_rounding(base.losses, challenger.losses, others, base.gradients, challenger.gradients, settled=settled)


def settled_pairs(base: Resident, challenger: Resident, folder: Path) -> Iterator[Settled]:
    """Let the base train on for a while, further each time, and sample both at the weights it came to.

    Yields:
        The gradients of both, and after how many updates; nothing where the processes are groups of ranks, or where their
        models have different parameters.
    """
    for later in base.points(folder):
        new = challenger.gradients_at(later.weights, folder)
        if not len(new):
            return
        yield Settled(later.gradients, new, later.updates)


def _skipping(old: Resident, new: Resident) -> str:
    """Whether updates are skipped as a habit; in the first turn a gradient scaler may look for its scale."""
    turns = len(new.skipped)
    late = len(new.losses) * (turns - 1) // max(turns, 1)
    counts = (resident.skipped[-1] - resident.skipped[0] for resident in (old, new))
    return skipping(late, *counts)
