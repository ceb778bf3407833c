"""Keep Python's garbage collector out of the training step.

Relieves:  other: pauses at arbitrary times, in which the collector traverses all objects of the model, data and libraries.
Numerics:  exact: objects that are still in use are never collected.
Limits:    objects in reference cycles live longer: with `epoch`, up to one epoch.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.source_edits import NothingToWriteError, SourceEdits, UnwritableError

LIKELY = 0.5
"""Prior probability that the measured time of the collector is saved."""


@dataclass(frozen=True, kw_only=True)
class GarbageCollection(Optimization):
    """When Python collects garbage.

    Attributes:
        mode: `freeze` excludes the objects that exist when training starts, and makes the collector run rarely. `epoch`
            disables the collector and collects once per epoch.
        threshold: With `freeze`, the number of new objects after which the collector runs.
    """

    mode: Literal["freeze", "epoch"] = "freeze"
    threshold: int = 50_000

    card: ClassVar[Card] = Card(
        name="garbage_collection",
        summary="keep Python's garbage collector out of the training step",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.EXACT,
        seam=Seam.AROUND,
        source="Python documentation, gc.freeze; Wu and Ni 2017, Dismissing Python Garbage Collection at Instagram",
        prior=0.1,
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.mode not in ("freeze", "epoch"):
            raise ValueError(f"mode must be freeze or epoch, not {self.mode!r}")
        if self.threshold < 1:
            raise ValueError(f"threshold must be at least 1, not {self.threshold}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the collector ran in the measured updates. Collecting once per epoch needs a map-style dataset."""
        if facts.collecting_frac <= 0:
            return Fit.no("the garbage collector did not run in the measured updates")
        epochs = facts.job.num_samples is not None
        settings = [cls(mode="freeze"), cls(mode="epoch")] if epochs else [cls(mode="freeze")]
        return Fit.yes(max_gain_frac=facts.collecting_frac, settings=settings, prior=LIKELY)

    def apply(self, live: LiveJob) -> Undo:
        """Collect once, then freeze or disable the collector."""
        enabled, thresholds = gc.isenabled(), gc.get_threshold()
        gc.collect()
        if self.mode == "freeze":
            gc.freeze()
            gc.set_threshold(self.threshold, *thresholds[1:])

            def unfreeze() -> None:
                gc.unfreeze()
                gc.set_threshold(*thresholds)

            return unfreeze
        gc.disable()
        batches = len(live.order(0)) if live.order is not None else self.threshold
        forget = append_to(live.batch_transforms, _CollectEvery(live, batches))

        def turn_on() -> None:
            forget()
            if enabled:
                gc.enable()

        return turn_on

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check the state of the collector and, with `epoch`, that batches were counted towards the next collection."""
        if self.mode == "freeze":
            frozen, threshold = gc.get_freeze_count(), gc.get_threshold()[0]
            return [
                Check("objects excluded from collection", frozen > 0, str(frozen)),
                Check("new objects before the collector runs", threshold == self.threshold, str(threshold)),
            ]
        counted = trace.counters.get("gc_batches_counted", 0.0)
        return [
            Check("the collector is disabled", not gc.isenabled(), "on" if gc.isenabled() else "off"),
            Check("batches counted towards a collection", counted > 0, f"{counted:.0f} in one step"),
        ]

    def by_hand(self) -> tuple[str, ...]:
        """Return the calls to add before training and in each epoch."""
        plain = (line.replace("{gc}", "gc") for line in self._lines())
        return ("# before the training", *plain, *(("gc.collect()  # each epoch",) if self.mode == "epoch" else ()))

    def write_patch(self, script: SourceEdits) -> str:
        """Configure the collector before the outermost loop. With `epoch`, also collect before the loop inside it."""
        for call in script.calls("gc.freeze", "gc.disable"):
            raise NothingToWriteError(f"the script already calls gc.{call.name}() ({call.place})")
        loops = script.training_loops()
        outer = loops[-1]
        if self.mode == "freeze":
            outer.before(*self._lines())
            return f"gc.freeze() and a threshold of {self.threshold} before the loop at {outer.place}"
        if len(loops) < 2:
            raise UnwritableError("the training loop has no outer loop over epochs")
        outer.before(*self._lines())
        loops[-2].before("{gc}.collect()")
        return (
            f"gc.disable() before the loop at {outer.place}, gc.collect() before each run of the loop at {loops[-2].place}"
        )

    def _lines(self) -> tuple[str, ...]:
        if self.mode == "epoch":
            return ("{gc}.disable()",)
        return "{gc}.collect()", "{gc}.freeze()", f"{{gc}}.set_threshold({self.threshold}, *{{gc}}.get_threshold()[1:])"


class _CollectEvery:
    """A batch transform that returns each batch unchanged, and collects garbage after every `batches` batches."""

    def __init__(self, live: LiveJob, batches: int) -> None:
        self.live, self.batches, self.seen = live, batches, 0

    def __call__(self, batch: Any) -> Any:
        self.seen += 1
        self.live.count("gc_batches_counted")
        if self.seen >= self.batches:
            self.seen = 0
            self.live.count("gc_collections")
            gc.collect()
        return batch
