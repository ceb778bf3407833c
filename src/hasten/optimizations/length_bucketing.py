"""Group samples of similar length into batches, within shuffled windows.

Relieves:  padding: a batch is as long as its longest sample, so similar lengths waste little.
Numerics:  training: each epoch has the same samples, but in other batches and in a different order.
Limits:    the job must define the length of a sample (`length`) and a quality metric, because quality must be proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import BatchOrder, LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.seeding import kept_random_state, mix, seed_sample

MUCH_EXCESS = 0.15
"""If a larger share of the positions is past the longest sample of its batch, batches must be trimmed first."""


@dataclass(frozen=True, kw_only=True)
class LengthBucketing(Optimization):
    """Batches of samples with similar lengths.

    Attributes:
        window_batches: Number of batches of the shuffled epoch that are sorted by length together. A larger window wastes
            less, but shuffles less and can harm a short run. The proof on held-out data detects that.
    """

    window_batches: int = 20

    card: ClassVar[Card] = Card(
        name="length_bucketing",
        summary="group samples of similar length into batches, in random order",
        relieves=Bottleneck.PADDING,
        numerics=Numerics.TRAINING,
        seam=Seam.LOADER,
        source="Khomenko et al. 2016, Accelerating recurrent neural network training using sequence bucketing",
        hoped_gain=(
            "2x faster training, together with dynamic padding "
            "(https://wandb.ai/pommedeterresautee/speed_training/reports/"
            "How-to-Train-Your-HuggingFace-Models-Twice-As-Fast--VmlldzoxMDgzOTI)"
        ),
        prior=0.8,
        claims=frozenset({"order"}),
        after=("trim_padding",),
        script_advice="the lengths of samples are unknown: pass the DataLoader a batch_sampler that groups similar lengths",
        left_to={
            "transformers": 'TrainingArguments(train_sampling_strategy="group_by_length")',
        },
    )

    def __post_init__(self) -> None:
        if self.window_batches < 2:
            raise ValueError(f"window_batches must be at least 2, not {self.window_batches}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if lengths are known, batches contain padding, and the job defines a quality metric."""
        if not facts.job.has_length:
            return Fit.no("the job does not define the length of a sample: implement length(self, sample)")
        if facts.job.num_samples is None:
            return Fit.no("an iterable dataset cannot be reordered")
        if not facts.job.has_quality:
            return Fit.no("it changes the order of the samples, and the job defines no quality metric: set quality")
        if facts.excess_padding_frac > MUCH_EXCESS:
            return Fit.no("batches are longer than their longest sample: trim them first (trim_padding)")
        if facts.padding_frac <= 0:
            return Fit.no("there is no padding inside batches")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("padding"), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the order of samples."""
        if live.order is None or live.num_samples is None:
            raise JobError("length_bucketing needs a map-style dataset: remove it from the plan.")
        return replace_attribute(live, "order", _Buckets(live, live.order, self.window_batches * live.job.batch_size))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that lengths within a batch differ less than in the default order."""
        order = live.order
        if not isinstance(order, _Buckets):
            return [Check("batches grouped by length", passed=False, seen="the default order is active")]
        spread, plain = order.spread(order(0)), order.spread(order.plain(0))
        return [Check("spread of lengths within a batch", spread < plain, f"{spread:.1f} items, default order {plain:.1f}")]


class _Buckets:
    """The order of an epoch. Lengths are read once, when an epoch first needs them."""

    def __init__(self, live: LiveJob, plain: BatchOrder, window: int) -> None:
        self._live, self.plain, self._window = live, plain, window
        self._lengths: dict[int, int] = {}
        self._epochs: dict[int, list[list[int]]] = {}

    def __call__(self, epoch: int) -> list[list[int]]:
        if epoch not in self._epochs:
            self._epochs = {**dict(list(self._epochs.items())[-1:]), epoch: self._group(epoch)}
        return self._epochs[epoch]

    def spread(self, batches: list[list[int]], at_most: int = 50) -> float:
        """Return the mean difference between the longest and the shortest sample of a batch, in items."""
        some = batches[:at_most]
        with kept_random_state():
            lengths = [[self._length(index) for index in batch] for batch in some]
        return sum(max(batch) - min(batch) for batch in lengths) / max(len(some), 1)

    def _group(self, epoch: int) -> list[list[int]]:
        shuffled, size = [index for batch in self.plain(epoch) for index in batch], self._live.job.batch_size
        batches: list[list[int]] = []
        with kept_random_state():
            for start in range(0, len(shuffled), self._window):
                window = sorted(shuffled[start : start + self._window], key=self._length)
                batches += [window[first : first + size] for first in range(0, len(window), size)]
        generator = torch.Generator().manual_seed(mix(self._live.seed, epoch, 0xB0))
        return [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]

    def _length(self, index: int) -> int:
        if index not in self._lengths:
            if self._live.pipeline.load_is_random:
                seed_sample(self._live.seed, 0, index)
            self._lengths[index] = self._live.job.length(self._live.pipeline.load(index))
        return self._lengths[index]
