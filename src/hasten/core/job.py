"""The job: what to train, as its user writes it.

Everything is built inside the methods and nothing in `__init__`, because trials run in processes of their own: each
process makes its own job, with `Job()`, and asks it for a model, data and an optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, IterableDataset, default_collate

from hasten.core.errors import JobError

Number: TypeAlias = "torch.Tensor | float | int"


@dataclass(frozen=True)
class Loss:
    """A loss over items that are not equal, such as tokens: the sum over the items and how many there were.

    Attributes:
        total: Scalar tensor with a gradient, the loss *summed* over the valid items of the batch.
        weight: How many valid items were summed (a number or a scalar tensor), greater than zero.
    """

    total: torch.Tensor
    weight: Number


@dataclass(frozen=True)
class Mean:
    """A metric over one batch, as a sum and a weight, so that batches of unequal size average exactly.

    Attributes:
        total: The metric summed over the items of the batch.
        weight: How many items were summed.
    """

    total: Number
    weight: Number


@dataclass(frozen=True)
class Gathered:
    """What one batch adds to a metric that is no mean over batches, such as the mean average precision.

    Attributes:
        items: Plain data (numbers, strings, NumPy arrays); `Job.whole_metric` gets those of all batches and ranks.
    """

    items: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What "not worse" means for this job.

    Attributes:
        metric: A name returned by `Job.metric` or `Job.whole_metric`; `loss` is there always.
        direction: `min` where less is better, `max` where more is better.
        margin: How much worse the metric may become, in its own units, and still count as not worse. Greater than 0.
    """

    metric: str = "loss"
    direction: Literal["min", "max"] = "min"
    margin: float

    def __post_init__(self) -> None:
        if self.direction not in ("min", "max"):
            raise JobError(f"quality direction must be 'min' or 'max', not {self.direction!r}.")
        if not self.margin > 0:
            raise JobError(f"quality margin must be greater than 0, not {self.margin!r}: nothing is ever proved equal.")


class Job:
    """What to train. Subclass it, write four methods, and point `hasten tune` at the class.

    A complete example (`hasten tune my_job.py:MyJob`)::

        import torch
        from torch.utils.data import TensorDataset
        import hasten


        class MyJob(hasten.Job):
            batch_size = 64
            epochs = 3
            quality = hasten.Quality(metric="loss", direction="min", margin=0.02)

            def model(self):
                return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

            def train_data(self):
                x = torch.randn(4096, 16, generator=torch.Generator().manual_seed(0))
                return TensorDataset(x, (x.sum(dim=1) > 0).long())

            def valid_data(self):
                x = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
                return TensorDataset(x, (x.sum(dim=1) > 0).long())

            def optimizer(self, model):
                return torch.optim.AdamW(model.parameters(), lr=1e-3)

            def loss(self, model, batch):
                x, y = batch
                return torch.nn.functional.cross_entropy(model(x), y)

    Attributes:
        batch_size: Samples per micro-batch, over all ranks together.
        epochs: Passes over the training data; or give `num_updates` instead.
        num_updates: Optimizer updates in the whole run; wins over `epochs`.
        accumulation: Micro-batches per optimizer update.
        clip_norm: Largest gradient norm (L2, over all parameters); None is off.
        seed: The run's seed. Model initialisation, sample order and sample randomness all follow from it.
        shuffle: Whether each epoch visits the samples in a new random order.
        quality: What "not worse" means; None is off, and then no technique that changes the mathematics is applied.
        read_every: Updates between two readings of the loss by the host; 1 waits for the device at every update.
        zero_grad_to_none: Free gradients (True) or fill them with zeros (False) between updates.
        output_layer: Name in the model of the layer that gives the output which `counted` speaks of, as
            `model.get_submodule` takes it; None has it looked for. It must work on each position by itself.
        forms: Other ways to write the same job: classes of jobs that train the same model in the same batches. `hasten
            tune` tries them like any technique, and proves by held-out quality that they are no worse.
    """

    batch_size: ClassVar[int] = 32
    epochs: ClassVar[int | None] = None
    num_updates: ClassVar[int | None] = None
    accumulation: ClassVar[int] = 1
    clip_norm: ClassVar[float | None] = None
    seed: ClassVar[int] = 0
    shuffle: ClassVar[bool] = True
    quality: ClassVar[Quality | None] = None
    read_every: ClassVar[int] = 1
    zero_grad_to_none: ClassVar[bool] = True
    output_layer: ClassVar[str | None] = None
    forms: ClassVar[tuple[type[Job], ...]] = ()

    # What every job must say.

    def model(self) -> nn.Module:
        """Make the model, freshly initialised, on the CPU; Hasten moves it."""
        raise JobError(_missing(self, "model(self)", "return an nn.Module"))

    def train_data(self) -> Dataset[Any]:
        """Make the training data: a map-style or iterable-style dataset of single samples."""
        raise JobError(_missing(self, "train_data(self)", "return a torch Dataset of single samples"))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the optimizer of `model`."""
        raise JobError(_missing(self, "optimizer(self, model)", "return a torch.optim.Optimizer"))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | Loss:
        """Return the loss of a batch: a scalar mean over its samples, or `Loss(total, weight)`."""
        raise JobError(_missing(self, "loss(self, model, batch)", "return a scalar tensor, or hasten.Loss(total, weight)"))

    # What a job may say.

    def collate(self, samples: list[Any]) -> Any:
        """Make one batch of a list of samples; torch's `default_collate` unless overridden."""
        return default_collate(samples)

    def collate_packed(self, samples: list[Any]) -> Any:
        """Make one batch of samples laid end to end, without padding: tensors `[1, total]` instead of `[batch, length]`.

        Overriding it (and `length`) allows sequence packing. It is a promise that `loss` and `metric` take such a batch and
        give what they give for `collate`'s: see `hasten.Packing` and `hasten.packed_attention`.

        A job may take a second parameter, `multiple: int = 1`, and lengthen `total` to a multiple of it by positions that
        count for nothing: rows of few different lengths let kernels be used again that are made for one shape.
        """
        raise NotImplementedError

    def valid_data(self) -> Dataset[Any] | None:
        """Make the held-out data; None when there is none."""
        return None

    def metric(self, model: nn.Module, batch: Any) -> Mapping[str, Mean | Gathered] | Future[Mapping[str, Mean | Gathered]]:
        """Measure a held-out batch, without gradients. The loss is always measured; add what else matters.

        What follows the model and takes the host long (boxes out of maps, matching) may be given to a thread: return its
        `Future`, and the next batch is computed meanwhile. What the thread reads must be its own: results, not the model.
        """
        return {}

    def whole_metric(self, name: str, items: list[Any]) -> Mapping[str, float]:
        """Make final numbers, by name, of what `metric` gave as `Gathered` under one name.

        Args:
            name: The name.
            items: Those of all batches in their order, and within a batch those of rank 0, rank 1 and so on.
        """
        raise JobError(_missing(self, "whole_metric(self, name, items)", f"make numbers of the items gathered as {name!r}"))

    def after_update(self, model: nn.Module) -> None:
        """Do what follows each update that was taken, such as moving an average of the weights; without gradients.

        What it keeps must be in the model (a buffer, a part without gradients), so that checkpoints hold it.
        """

    def schedule(self, optimizer: Optimizer, num_updates: int) -> LRScheduler | None:
        """Make the learning-rate schedule, stepped once per optimizer update; None keeps the rate."""
        return None

    def length(self, sample: Any) -> int:
        """Return how many items of a sample are real, the rest of its row in a batch being padding.

        Overriding it is a promise: in every tensor of a batch whose second dimension is the padded length, positions at
        or past the longest real length of that batch are padding at the end and carry no weight in the loss. That
        allows cutting the padding away and grouping samples of like length. The sample is as
        `deterministic_transform` leaves it.
        """
        raise NotImplementedError

    def counted(self, batch: Any) -> torch.Tensor:
        """Say at which positions of a batch the loss uses the model's output: bool `[batch, length]`, true where it does.

        Overriding it is a promise: at the other positions (padding, ignored labels, tokens that were not masked) the loss
        is the same whatever the model's output is there. In training the output layer may then give zeros there; held-out
        batches get the whole output. The batch is as `loss` takes it, and the mask has the shape of the output layer's
        input without its last dimension.
        """
        raise NotImplementedError

    def deterministic_transform(self, sample: Any) -> Any:
        """The part of the preparation that always gives the same for the same sample (decode, resize).

        Overriding it is a promise that reading a sample and this transform may be done once and kept.
        """
        return sample

    def random_transform(self, sample: Any) -> Any:
        """The part of the preparation that may differ at every visit (augmentation); training only.

        The random numbers of `random`, `numpy.random` and `torch` are seeded before each sample from
        (seed, epoch, index), so they do not depend on the number of workers. It must not change `sample` in place.
        """
        return sample

    def device_transform(self, batch: Any) -> Any:
        """The part of the preparation that is done to a whole batch, on the device (uint8 pictures to normalised floats).

        What the dataset gives, caches keep and the host sends stays small then. Training and held-out batches pass through
        it alike, so nothing random belongs here. The plan's own changes to a batch (its memory layout) come after it.
        """
        return batch

    # What Hasten asks of a job.

    def overrides(self, method: str) -> bool:
        """Whether the user wrote `method` (a name of this class)."""
        return getattr(type(self), method) is not getattr(Job, method)


def check_job(job: Job) -> None:
    """Refuse a job whose plain attributes cannot be trained with.

    Raises:
        JobError: Names the attribute, its value, and what it must be.
    """
    where = type(job).__name__
    for name in ("model", "train_data", "optimizer", "loss"):
        if not job.overrides(name):
            getattr(job, name)(*([None] * {"optimizer": 1, "loss": 2}.get(name, 0)))
    for name in ("batch_size", "accumulation", "read_every"):
        value = getattr(job, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise JobError(f"{where}.{name} must be a whole number of at least 1, not {value!r}.")
    for name in ("epochs", "num_updates"):
        value = getattr(job, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise JobError(f"{where}.{name} must be None or a whole number of at least 1, not {value!r}.")
    clip_norm: Any = job.clip_norm
    if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
        raise JobError(f"{where}.clip_norm must be None or greater than 0, not {job.clip_norm!r}.")
    _check_forms(job)
    if job.quality is not None and not isinstance(job.quality, Quality):
        raise JobError(f"{where}.quality must be a hasten.Quality, not {type(job.quality).__name__}.")
    if job.quality is not None and not job.overrides("valid_data"):
        raise JobError(
            f"{where}.quality names the metric {job.quality.metric!r}, but there is no held-out data to measure it on. "
            f"Write valid_data(self), or set quality = None."
        )


def _check_forms(job: Job) -> None:
    forms: Any = job.forms
    if not isinstance(forms, tuple) or not all(isinstance(form, type) and issubclass(form, Job) for form in forms):
        raise JobError(f"{type(job).__name__}.forms must be a tuple of classes of jobs, not {forms!r}.")


def counted_mask(job: Job, batch: Any) -> torch.Tensor:
    """Where the loss of `batch` uses the model's output: bool, as a rule `[batch, length]`, without a gradient.

    Args:
        job: A job that overrides `counted`.
        batch: As `Job.loss` takes it.

    Raises:
        JobError: What the job returned is no mask.
    """
    with torch.no_grad():
        mask: Any = job.counted(batch)
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() > 0:
        return mask
    seen = f"a tensor {list(mask.shape)} of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
    raise JobError(
        f"{type(job).__name__}.counted returned {seen}: return a bool tensor [batch, length], true where the loss uses the "
        f"model's output (labels != ignore_index)."
    )


def planned_updates(job: Job, updates_per_epoch: int | None) -> int | None:
    """Optimizer updates of the whole run; None where nothing says so (an iterable dataset counted in epochs)."""
    if job.num_updates is not None:
        return job.num_updates
    if updates_per_epoch is None:
        return None
    return updates_per_epoch * (job.epochs or 1)


def is_iterable(dataset: object) -> bool:
    """Whether a dataset can only be read in order."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def _missing(job: Job, signature: str, what: str) -> str:
    return f"{type(job).__name__} has no {signature.split('(', maxsplit=1)[0]}: write `def {signature}` in it and {what}."
