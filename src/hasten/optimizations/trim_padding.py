"""Cut each batch to its longest sample.

Relieves:  padding: positions that are padding in every sample of the batch are neither computed nor moved.
Numerics:  rounding: the same samples and losses; only terms that were zero leave the sums.
Limits:    the job must say how long a sample is (`length`), and padding must stand at the end. Of a script, whose lengths
           nobody says, columns are cut that hold one value in all rows, the same in every batch, all but the first of them:
           that value may be the last token of a sample, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from hasten.core.batch import cut_at, kept_length, map_tensors, padded_length, tails
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.source_edits import SourceEdits, UnwritableError

MIN_DIMS = 2
"""A padded tensor is [batch, length, ...]."""


@dataclass(frozen=True, kw_only=True)
class TrimPadding(Optimization):
    """Trim batches.

    Attributes:
        multiple: Round the kept length up to a multiple of this; 1 keeps exactly the longest sample.
    """

    multiple: int = 1

    card: ClassVar[Card] = Card(
        name="trim_padding",
        summary="each batch cut to its own longest sample",
        relieves=Bottleneck.PADDING,
        numerics=Numerics.ROUNDING,
        seam=Seam.DATASET,
        source="Hugging Face documentation, dynamic padding",
        hoped_gain=(
            "models train twice as fast, together with batches of like length "
            "(https://wandb.ai/pommedeterresautee/speed_training/reports/"
            "How-to-Train-Your-HuggingFace-Models-Twice-As-Fast--VmlldzoxMDgzOTI)"
        ),
        saves_memory=True,
        prior=0.5,
        traits=frozenset({Trait.WHOLE_BATCHES, Trait.TRIMS}),
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, not {self.multiple}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where batches are longer than their longest sample."""
        if not (facts.job.has_length or facts.job.padding_seen):
            return Fit.no("the job does not say how long a sample is: write length(self, sample)")
        if facts.excess_padding_frac <= 0:
            return Fit.no("batches are no longer than their longest sample already")
        # CPU libraries prepare kernels for each new shape: few different lengths can be worth a little padding.
        settings = [cls(multiple=32), cls()] if facts.job.device == "cpu" else [cls(), cls(multiple=32)]
        return Fit.yes(max_gain_frac=facts.ceiling_frac("padding"), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Trim after collating."""
        trim = _Trim(live, self.multiple) if live.job.overrides("length") else _TrimSeen(live, self.multiple)
        return append_to(live.pipeline.adjust, trim)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Positions were really cut away."""
        cut, kept = trace.counters.get("positions_cut", 0), trace.counters.get("positions_kept", 0)
        return [Check("positions cut away", cut > 0, f"{cut / max(cut + kept, 1):.0%} of all positions")]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: the script's collate function pads."""
        raise UnwritableError(
            "how samples are padded is its collate function's own",
            "# in collate_fn: to the longest of the batch",
            "ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)",
        )


class _Trim:
    """Cuts [batch, length, ...] tensors, after making sure that what falls is one constant."""

    def __init__(self, live: LiveJob, multiple: int) -> None:
        self._live, self._multiple = live, multiple

    def __call__(self, batch: Any, loaded: list[Any]) -> Any:
        longest = max(self._live.job.length(sample) for sample in loaded)
        keep = -(-longest // self._multiple) * self._multiple
        padded = padded_length(batch, len(loaded))
        if padded is None or keep >= padded:
            return batch

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dim() < MIN_DIMS or tensor.shape[:2] != (len(loaded), padded):
                return tensor
            tail = tensor[:, keep:]
            if not bool((tail == tail.reshape(-1)[0]).all()):
                raise JobError(
                    f"{type(self._live.job).__name__}.length says that no sample of a batch is longer than {longest}, but "
                    f"positions past it hold different values. Return the real length from length(sample), or remove it."
                )
            return tensor[:, :keep].contiguous()  # user code may call view() on it

        self._live.count("positions_cut", padded - keep)
        self._live.count("positions_kept", keep)
        return map_tensors(batch, cut)


class _TrimSeen:
    """Cuts columns that are padding by what they hold, but for the first of them."""

    def __init__(self, live: LiveJob, multiple: int) -> None:
        self._live, self._multiple = live, multiple
        self._values: list[Any] | None = None

    def __call__(self, batch: Any, _loaded: list[Any]) -> Any:
        found = kept_length(batch)
        if found is None:
            return batch
        used, length = found
        keep = min(-(-(used + 1) // self._multiple) * self._multiple, length)
        values = tails(batch, length, keep) if keep < length else None
        if self._values is None:
            self._values = values
        if values is None or values != self._values:
            self._live.count("positions_kept", length)
            return batch
        self._live.count("positions_cut", length - keep)
        self._live.count("positions_kept", keep)
        return cut_at(batch, length, keep)
