"""Copy the weights and let another thread write them while training goes on.

Relieves:  checkpoint: the training thread waits for a copy in memory, not for the disk.
Numerics:  exact: the copy is taken before the next update.
Limits:    needs memory for one more copy of the weights; one checkpoint is on its way at a time, and the next one waits
           for it; updates meanwhile share cores, memory bandwidth and Python's lock with the writing.
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


@dataclass(frozen=True, kw_only=True)
class BackgroundCheckpoint(Optimization):
    """Checkpoints written by a thread."""

    card: ClassVar[Card] = Card(
        name="background_checkpoint",
        summary="the weights copied in memory and written to disk while training goes on",
        relieves=Bottleneck.CHECKPOINT,
        numerics=Numerics.EXACT,
        seam=Seam.AROUND,
        source="Mohan et al. 2021, CheckFreq; PyTorch documentation, torch.distributed.checkpoint.async_save",
        hoped_gain=(
            "saving time down by 40 % at 300M parameters, by 85 % at 8B "
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
        """Fit where a checkpoint was measured and one more copy of it has room in memory."""
        if facts.epoch_s > 0 and facts.checkpoint_s <= 0:
            return Fit.no("no checkpoint was measured")
        on_host = facts.job.device == "cpu"
        if on_host and facts.peak_memory_bytes + facts.checkpoint_bytes > MAX_MEMORY_FRAC * facts.memory_limit_bytes:
            need, limit = facts.checkpoint_bytes / 2**20, facts.memory_limit_bytes / 2**20
            peak = facts.peak_memory_bytes / 2**20
            return Fit.no(f"a copy of the weights ({need:.0f} MiB) has no room beside {peak:.0f} of {limit:.0f} MiB")
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.checkpoint_s), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Switch it on."""
        return replace_attribute(live.around, "checkpoint_background", value=True)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """A checkpoint went to the background."""
        seen = int(trace.counters.get("checkpoints_in_background", 0))
        return [Check("checkpoints written in the background", seen > 0, f"{seen} in a rehearsal")]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: the thread needs a variable, and an end."""
        places = ", ".join(call.place for call in script.calls("torch.save")) or "where the weights are saved"
        raise UnwritableError(
            "a thread has to be waited for before the next checkpoint and at the end",
            f"# {places}: copy, and let a thread write the copy",
            "copied = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}",
            "if saving is not None:",
            "    saving.join()",
            "saving = threading.Thread(target=torch.save, args=(copied, path))",
            "saving.start()",
        )
