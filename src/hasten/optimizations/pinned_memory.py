"""Copy batches to page-locked memory, and from there to the GPU without waiting.

Relieves:  transfer: the GPU reads page-locked memory by itself, while the host goes on.
Numerics:  exact: the same bytes.
Limits:    CUDA devices; page-locked memory cannot be swapped out, so a few batches of it are held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits


@dataclass(frozen=True, kw_only=True)
class PinnedMemory(Optimization):
    """Page-locked batches and copies that do not wait."""

    card: ClassVar[Card] = Card(
        name="pinned_memory",
        summary="batches in page-locked memory, copied to the GPU while the host goes on",
        relieves=Bottleneck.TRANSFER,
        numerics=Numerics.EXACT,
        seam=Seam.LOADER,
        source="PyTorch tutorials, A guide on good usage of non_blocking and pin_memory",
        prior=0.6,
        traits=frozenset({Trait.WHOLE_BATCHES}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit on a CUDA device whose batches are not page-locked yet."""
        if facts.job.device != "cuda":
            return Fit.no(f"the job runs on {facts.job.device}: page-locked memory speeds up copies to a CUDA device alone")
        if facts.job.pin_memory:
            return Fit.no("batches are page-locked already")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("transfer"), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Set the loader."""
        if live.device.type != "cuda":
            raise JobError(f"pinned_memory needs a CUDA device, not {live.device}: take it out of the plan.")
        old = live.loader
        live.loader = replace(old, pin_memory=True)

        def undo() -> None:
            live.loader = old

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The step's batches were page-locked."""
        count = int(trace.counters.get("pinned_batches", 0))
        return [Check("batches page-locked", count > 0, f"{count} batches")]

    def by_hand(self) -> tuple[str, ...]:
        """The loader's argument."""
        return ("DataLoader(..., pin_memory=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `pin_memory`, and let copies to the device not wait."""
        words = [script.loader().set({"pin_memory": "True"})]
        words += [copy.set({"non_blocking": "True"}) for copy in script.copies_to_device()]
        return ", ".join(words)

    def framework_arguments(self) -> dict[str, str]:
        """The Trainer makes the loader."""
        return {"transformers.TrainingArguments": "dataloader_pin_memory=True"}
