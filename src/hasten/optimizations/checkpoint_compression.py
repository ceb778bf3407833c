"""Deflate the records of a checkpoint, where the disk is slower than the compressor.

Relieves:  checkpoint: fewer bytes go to a slow disk or a slow network folder.
Numerics:  exact: lossless, and `torch.load(weights_only=True)` reads the file as it is.
Limits:    dense float weights hardly shrink; sparse, repeated or half-empty ones do. The file cannot be mapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import RUN_FOLDER, Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute


@dataclass(frozen=True, kw_only=True)
class CheckpointCompression(Optimization):
    """Deflated records (zlib, level 1)."""

    card: ClassVar[Card] = Card(
        name="checkpoint_compression",
        summary="checkpoints deflated on their way to a slow disk",
        relieves=Bottleneck.CHECKPOINT,
        numerics=Numerics.EXACT,
        seam=Seam.AROUND,
        source="RFC 1951, DEFLATE; Python documentation, zipfile",
        prior=0.3,
        event="checkpoint",
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where writing what is left, and compressing it, was measured to take less than writing it all."""
        speed, frac, squeeze = facts.write_mb_s.get(RUN_FOLDER, 0.0), facts.compressed_frac, facts.compress_mb_s
        if not speed or frac is None or not squeeze:
            return Fit.no("how fast this disk and this compressor are was not measured")
        megabytes = facts.checkpoint_bytes / 1e6
        plain_s, packed_s = megabytes / speed, megabytes * frac / speed + megabytes / squeeze
        if packed_s >= plain_s:
            return Fit.no(
                f"the weights shrink to {frac:.0%}: compressing and writing them would take {packed_s:.2f} s, "
                f"writing them plain {plain_s:.2f} s"
            )
        saved = min(plain_s - packed_s, facts.checkpoint_s)
        return Fit.yes(max_gain_frac=facts.epoch_frac(saved), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Switch it on."""
        return replace_attribute(live.around, "checkpoint_compress", value=True)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """A checkpoint was deflated."""
        seen = int(trace.counters.get("checkpoints_compressed", 0))
        return [Check("checkpoints deflated", seen > 0, f"{seen} in a rehearsal")]
