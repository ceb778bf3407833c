"""Copy the weights in memory, and write the copy to disk in a background thread while training continues.

Relieves:  checkpoint: the training thread waits for a copy in memory, not for the disk.
Numerics:  exact: the copy is made before the next update.
Limits:    needs memory for one more copy of the weights. One checkpoint is written at a time, and the next one waits for
           it. Meanwhile, updates share cores, memory bandwidth and Python's global interpreter lock with the writer thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError

MAX_MEMORY_FRAC = 0.9
"""Largest share of the memory that the job and a copy of its weights may use."""


@dataclass(frozen=True, kw_only=True)
class BackgroundCheckpoint(Optimization):
    """Checkpoints written in a background thread."""

    card: ClassVar[Card] = Card(
        name="background_checkpoint",
        summary="write checkpoints in a background thread, from a copy of the weights",
        relieves=Bottleneck.CHECKPOINT,
        numerics=Numerics.EXACT,
        seam=Seam.AROUND,
        source="Mohan et al. 2021, CheckFreq; PyTorch documentation, torch.distributed.checkpoint.async_save",
        hoped_gain=(
            "saving time reduced by 40 % at 300M parameters, and by 85 % at 8B "
            "(https://orbax.readthedocs.io/en/stable/guides/checkpoint/async_checkpointing.html)"
        ),
        prior=0.7,
        event="checkpoint",
        in_scripts=True,
        left_to={
            "lightning": "Trainer(plugins=[AsyncCheckpointIO()])",
        },
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if a checkpoint was measured and memory has room for a copy of it."""
        if facts.epoch_s > 0 and facts.checkpoint_s <= 0:
            return Fit.no("no checkpoint was measured")
        on_host = facts.job.device == "cpu"
        if on_host and facts.peak_memory_bytes + facts.checkpoint_bytes > MAX_MEMORY_FRAC * facts.memory_limit_bytes:
            need, limit = facts.checkpoint_bytes / 2**20, facts.memory_limit_bytes / 2**20
            peak = facts.peak_memory_bytes / 2**20
            return Fit.no(
                f"there is no memory for a copy of the weights ({need:.0f} MiB): the job already uses {peak:.0f} of "
                f"{limit:.0f} MiB"
            )
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.checkpoint_s), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Enable background checkpoints."""
        return replace_attribute(live.around, "checkpoint_background", value=True)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that a checkpoint was written in the background."""
        seen = int(trace.counters.get("checkpoints_in_background", 0))
        return [Check("checkpoints written in the background", seen > 0, f"{seen} in a rehearsal")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the script must keep the thread in a variable and join it."""
        places = ", ".join(call.place for call in script.calls("torch.save")) or "where the weights are saved"
        raise UnwritableError(
            "the thread must be joined before the next checkpoint and at the end",
            f"# {places}: copy the weights, and write the copy in a thread",
            "copied = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}",
            "if saving is not None:",
            "    saving.join()",
            "saving = threading.Thread(target=torch.save, args=(copied, path))",
            "saving.start()",
        )
