"""Copy batches to page-locked memory, and from there to the GPU asynchronously.

Relieves:  transfer: the GPU reads page-locked memory directly, while the host continues.
Numerics:  exact: the same bytes.
Limits:    CUDA devices. Page-locked memory cannot be swapped out; a few batches are kept in it.
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
    """Page-locked batches and asynchronous copies."""

    card: ClassVar[Card] = Card(
        name="pinned_memory",
        summary="copy batches to the GPU asynchronously, from page-locked memory",
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
        """Applies on a CUDA device if batches are not page-locked yet."""
        if facts.job.device != "cuda":
            return Fit.no(f"the job runs on {facts.job.device}: page-locked memory only speeds up copies to a CUDA device")
        if facts.job.pin_memory:
            return Fit.no("batches are already page-locked")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("transfer"), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Enable page-locked batches in the loader."""
        if live.device.type != "cuda":
            raise JobError(f"pinned_memory needs a CUDA device, not {live.device}: remove it from the plan.")
        old = live.loader
        live.loader = replace(old, pin_memory=True)

        def undo() -> None:
            live.loader = old

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the batches of the step were page-locked."""
        count = int(trace.counters.get("pinned_batches", 0))
        return [Check("page-locked batches", count > 0, f"{count} batches")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the loader argument."""
        return ("DataLoader(..., pin_memory=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `pin_memory`, and make copies to the device non-blocking."""
        changes = [script.loader().set({"pin_memory": "True"})]
        changes += [copy.set({"non_blocking": "True"}) for copy in script.copies_to_device()]
        return ", ".join(changes)

    def framework_arguments(self) -> dict[str, str]:
        """Return the argument of the Trainer, which creates the loader."""
        return {"transformers.TrainingArguments": "dataloader_pin_memory=True"}
