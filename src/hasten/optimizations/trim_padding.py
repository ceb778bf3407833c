"""Trim each batch to its longest sample.

Relieves:  padding: positions that are padding in every sample of the batch are neither computed nor copied.
Numerics:  rounding: the same samples and losses. Only zero terms are removed from sums.
Limits:    the job must define the length of a sample (`length`), and padding must be at the end. A script defines no
           lengths, so columns are removed that have one value in all rows, the same in every batch. The first such column
           is kept, because that value may also be the last token of a sample.
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
"""Smallest number of dimensions of a padded tensor, which is [batch, length, ...]."""


@dataclass(frozen=True, kw_only=True)
class TrimPadding(Optimization):
    """Trimmed batches.

    Attributes:
        multiple: Round the length of a batch up to a multiple of this number; 1 keeps exactly the longest sample.
    """

    multiple: int = 1

    card: ClassVar[Card] = Card(
        name="trim_padding",
        summary="trim each batch to its longest sample",
        relieves=Bottleneck.PADDING,
        numerics=Numerics.ROUNDING,
        seam=Seam.DATASET,
        source="Hugging Face documentation, dynamic padding",
        hoped_gain=(
            "2x faster training, together with batches of similar length "
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
        """Applies if batches are longer than their longest sample."""
        if facts.job.in_script and not facts.job.padding_seen:
            return Fit.no("no padding was seen in the batches of the measured steps")
        if not (facts.job.has_length or facts.job.padding_seen):
            return Fit.no("the job does not define the length of a sample: implement length(self, sample)")
        if facts.excess_padding_frac <= 0:
            return Fit.no("batches are already as short as their longest sample")
        # CPU libraries prepare kernels for each new shape, so a little padding can be worth having fewer lengths.
        settings = [cls(multiple=32), cls()] if facts.job.device == "cpu" else [cls(), cls(multiple=32)]
        return Fit.yes(max_gain_frac=facts.ceiling_frac("padding"), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Trim batches after the collate function."""
        trim = _Trim(live, self.multiple) if live.job.overrides("length") else _TrimSeen(live, self.multiple)
        return append_to(live.pipeline.adjust, trim)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that positions were removed."""
        cut, kept = trace.counters.get("positions_cut", 0), trace.counters.get("positions_kept", 0)
        return [Check("positions removed", cut > 0, f"{cut / max(cut + kept, 1):.0%} of all positions")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the script's collate function pads the samples."""
        raise UnwritableError(
            "the script's own collate function pads the samples",
            "# in collate_fn: pad to the longest sample of the batch",
            "ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)",
        )


class _Trim:
    """Trims [batch, length, ...] tensors, and checks that the removed part has a single value."""

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
                    f"{type(self._live.job).__name__}.length says that no sample of this batch is longer than {longest}, "
                    f"but the positions after it contain different values. Return the real length from length(sample), or "
                    f"remove that method."
                )
            return tensor[:, :keep].contiguous()  # user code may call view() on it

        self._live.count("positions_cut", padded - keep)
        self._live.count("positions_kept", keep)
        return map_tensors(batch, cut)


class _TrimSeen:
    """Removes the columns whose contents look like padding, except the first of them."""

    def __init__(self, live: LiveJob, multiple: int) -> None:
        self._live, self._multiple = live, multiple
        self._values: list[Any] | None = None

    def __call__(self, batch: Any, _loaded: list[Any]) -> Any:
        lengths = kept_length(batch)
        if lengths is None:
            return batch
        used, length = lengths
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
