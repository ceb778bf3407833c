"""The job: what to train, written by the user.

Everything is built inside the methods and nothing in `__init__`, because trials run in separate processes. Each process
creates its own job with `Job()`, and asks it for a model, data and an optimizer.
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
    """A loss summed over items such as tokens, with the number of items. The mean stays exact when batches differ in size.

    Attributes:
        total: Scalar tensor with a gradient: the loss *summed* over the valid items of the batch.
        weight: Number of valid items that were summed (a number or a scalar tensor), greater than zero.
    """

    total: torch.Tensor
    weight: Number


@dataclass(frozen=True)
class Mean:
    """A metric over one batch, as a sum and a weight. The mean stays exact when batches differ in size.

    Attributes:
        total: The metric summed over the items of the batch.
        weight: Number of items that were summed.
    """

    total: Number
    weight: Number


@dataclass(frozen=True)
class Gathered:
    """The items that one batch adds to a metric that is not a mean over batches, such as mean average precision.

    Attributes:
        items: Plain data (numbers, strings, NumPy arrays). `Job.whole_metric` receives the items of all batches and ranks.
    """

    items: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What "not worse" means for this job.

    Attributes:
        metric: A name returned by `Job.metric` or `Job.whole_metric`, or `loss`, which is always available.
        direction: `min` if lower is better, `max` if higher is better.
        margin: The largest loss of quality that still counts as not worse, in units of the metric. Greater than 0.
    """

    metric: str = "loss"
    direction: Literal["min", "max"] = "min"
    margin: float

    def __post_init__(self) -> None:
        if self.direction not in ("min", "max"):
            raise JobError(f"quality direction must be 'min' or 'max', not {self.direction!r}.")
        if not self.margin > 0:
            raise JobError(f"quality margin must be greater than 0, not {self.margin!r}: equality can never be proved.")


class Job:
    """What to train. Subclass it, write four methods, and point `hasten tune` at the class.

    A complete job (`hasten tune my_job.py:MyJob`):

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

    `model`, `train_data`, `optimizer` and `loss` are required. Everything else is optional, and allows more techniques:

    - `quality` with `valid_data` allows techniques that change the mathematics, because their quality can be compared.
    - `metric` adds metrics to the held-out loss: a `Mean` over all batches, or `Gathered` items for `whole_metric`.
    - `Loss(total, weight)`, returned by `loss`, keeps means over tokens exact when batches differ in size.
    - `length` allows trimming padding, and grouping samples of similar length.
    - `collate_packed` allows sequence packing, with `Packing` and `packed_attention`.
    - `counted` allows skipping the output layer at positions that the loss does not use.
    - `deterministic_transform` allows caching samples.
    - `random_transform` (augmentation) and `collate` (making a batch) keep random work out of the cache.
    - `device_transform` allows small samples on the host, such as uint8 images.
    - `schedule` sets the learning-rate schedule, and `after_update` runs after each update.
    - `forms` names faster ways to write the same job.

    A job for texts of different lengths that uses all of them:

        from concurrent.futures import ThreadPoolExecutor

        import numpy as np
        import torch
        from torch.nn import functional as F
        from torch.nn.utils.rnn import pad_sequence
        import hasten


        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = torch.nn.Embedding(256, 32)
                self.output = torch.nn.Linear(32, 256)
                self.register_buffer("average", torch.zeros(256, 32))

            def forward(self, inputs, packing=None):  # [batch, length] -> [batch, length, 256]
                h = self.embed(inputs)[:, None]
                return self.output(hasten.packed_attention(h, h, h, packing, is_causal=True)[:, 0])


        class TextJob(hasten.Job):
            batch_size, num_updates = 8, 1000
            quality = hasten.Quality(metric="p90_loss", direction="min", margin=0.05)
            output_layer = "output"  # the layer that `counted` refers to

            def model(self):
                return Net()

            def train_data(self):
                return [f"{n} times two is {2 * n}" for n in range(1000)]  # a list is a map-style dataset

            def valid_data(self):
                return [f"{n} times two is {2 * n}" for n in range(1000, 1100)]

            def deterministic_transform(self, sample):  # the same result for the same sample
                return torch.tensor(list(sample.encode()), dtype=torch.int16)

            def random_transform(self, sample):  # replaces some bytes; training only
                return torch.where(torch.rand(len(sample)) < 0.05, 0, sample)

            def length(self, sample):  # positions that are not padding
                return len(sample) - 1

            def collate(self, samples):  # [batch, length]; -100 marks padding
                inputs = pad_sequence([sample[:-1] for sample in samples], batch_first=True)
                targets = pad_sequence([sample[1:] for sample in samples], batch_first=True, padding_value=-100)
                return {"inputs": inputs, "targets": targets}

            def collate_packed(self, samples):  # [1, total], without padding
                inputs = torch.cat([sample[:-1] for sample in samples])[None]
                targets = torch.cat([sample[1:] for sample in samples])[None]
                packing = hasten.Packing.of([len(sample) - 1 for sample in samples])
                return {"inputs": inputs, "targets": targets, "packing": packing}

            def device_transform(self, batch):  # int16 on the host and in caches, int64 on the device
                return {**batch, "inputs": batch["inputs"].long(), "targets": batch["targets"].long()}

            def token_losses(self, model, batch):
                logits = model(batch["inputs"], batch.get("packing"))
                return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none")

            def loss(self, model, batch):  # the sum over all tokens, and their number
                return hasten.Loss(self.token_losses(model, batch).sum(), self.counted(batch).sum())

            def counted(self, batch):  # where the loss uses the model's output
                return batch["targets"] != -100

            def metric(self, model, batch):
                return self.summary(self.token_losses(model, batch)[self.counted(batch).flatten()])

            def summary(self, losses):
                bits = hasten.Mean(losses.sum() / np.log(2), len(losses))  # bits per token
                return {"bits": bits, "losses": hasten.Gathered(losses.tolist())}

            def whole_metric(self, name, items):  # a quantile is not a mean over batches
                return {"p90_loss": np.quantile(items, 0.9)}

            def optimizer(self, model):
                return torch.optim.AdamW(model.parameters(), lr=1e-3)

            def schedule(self, optimizer, num_updates):
                return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_updates)

            def after_update(self, model):  # a moving average of the weights, in a buffer
                model.average.lerp_(model.output.weight, 0.01)


        class ThreadedTextJob(TextJob):  # the same job; a thread finishes each metric while the next batch is computed
            pool = ThreadPoolExecutor(1)

            def metric(self, model, batch):
                losses = self.token_losses(model, batch)[self.counted(batch).flatten()]
                return self.pool.submit(self.summary, losses)


        TextJob.forms = (ThreadedTextJob,)

    Attributes:
        batch_size: Samples per micro-batch, over all ranks together.
        epochs: Passes over the training data; None is 1. Ignored if `num_updates` is set.
        num_updates: Optimizer updates of the whole run; None uses `epochs`.
        accumulation: Micro-batches per optimizer update.
        clip_norm: Largest gradient norm (L2, over all parameters); None is off.
        seed: The run's seed. It determines model initialisation, sample order and sample randomness.
        shuffle: Whether each epoch visits the samples in a new random order.
        quality: What "not worse" means; None is off, and no technique that changes the mathematics is applied.
        read_every: Updates between two readings of the loss by the host; 1 waits for the device at every update.
        zero_grad_to_none: Free gradients (True) or fill them with zeros (False) between updates.
        output_layer: Name of the output layer that `counted` refers to, as in `model.get_submodule`; None detects it. The
            layer must process each position independently.
        flops_per_sample: Floating-point operations of the forward and backward pass of one sample, for the share of the
            device's peak that a run uses; None if unknown.
        forms: Other job classes that train the same model on the same batches. `hasten tune` tries them like any technique,
            and requires that held-out quality is not worse.
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
    flops_per_sample: ClassVar[float | None] = None
    forms: ClassVar[tuple[type[Job], ...]] = ()

    # Required methods.

    def model(self) -> nn.Module:
        """Return a freshly initialised model on the CPU. Hasten moves it to the device."""
        raise JobError(_missing(self, "model(self)", "return an nn.Module"))

    def train_data(self) -> Dataset[Any]:
        """Return the training data: a map-style or iterable-style dataset of single samples."""
        raise JobError(_missing(self, "train_data(self)", "return a torch Dataset of single samples"))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of `model`."""
        raise JobError(_missing(self, "optimizer(self, model)", "return a torch.optim.Optimizer"))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | Loss:
        """Return the loss of a batch: a scalar mean over its samples, or a `Loss(total, weight)`."""
        raise JobError(_missing(self, "loss(self, model, batch)", "return a scalar tensor, or hasten.Loss(total, weight)"))

    # Optional methods.

    def collate(self, samples: list[Any]) -> Any:
        """Return one batch made from a list of samples. The default is torch's `default_collate`."""
        return default_collate(samples)

    def collate_packed(self, samples: list[Any]) -> Any:
        """Return one batch with the samples end to end, without padding: tensors `[1, total]` instead of `[batch, length]`.

        Overriding it together with `length` allows sequence packing. It promises that `loss` and `metric` accept such a
        batch and return the same values as for the batch of `collate`. See `hasten.Packing` and `hasten.packed_attention`.

        It may take a second parameter, `multiple: int = 1`, and extend `total` to a multiple of it with positions that do
        not count in the loss. Fewer distinct row lengths let kernels compiled for one shape be reused.
        """
        raise NotImplementedError

    def valid_data(self) -> Dataset[Any] | None:
        """Return the held-out data, or None if there is none."""
        return None

    def metric(self, model: nn.Module, batch: Any) -> Mapping[str, Mean | Gathered] | Future[Mapping[str, Mean | Gathered]]:
        """Return the metrics of a held-out batch by name. Runs without gradients. The loss is always measured.

        Long post-processing on the CPU (extracting boxes, matching) can run in a thread: return its `Future`, and the next
        batch is computed meanwhile. The thread must read only its own data: the model's results, not the model.
        """
        return {}

    def whole_metric(self, name: str, items: list[Any]) -> Mapping[str, float]:
        """Return the final metrics by name, computed from the items that `metric` returned as `Gathered` under `name`.

        Args:
            name: The name that `metric` used.
            items: The items of all batches in order; within a batch those of rank 0 first, then rank 1 and so on.
        """
        raise JobError(
            _missing(self, "whole_metric(self, name, items)", f"compute numbers from the items gathered as {name!r}")
        )

    def after_update(self, model: nn.Module) -> None:
        """Run after each applied update, without gradients, for example to update a moving average of the weights.

        Keep its state in the model (a buffer, or a submodule without gradients), so that checkpoints include it.
        """

    def schedule(self, optimizer: Optimizer, num_updates: int) -> LRScheduler | None:
        """Return the learning-rate schedule, stepped once per optimizer update. None keeps the rate constant."""
        return None

    def length(self, sample: Any) -> int:
        """Return the real length of a sample. The rest of its row in a batch is padding.

        Overriding it is a promise about every tensor of a batch whose second dimension is the padded length: positions at
        or past the longest real length of that batch are padding and have no weight in the loss. This allows trimming the
        padding and grouping samples of similar length. The sample is the result of `deterministic_transform`.
        """
        raise NotImplementedError

    def counted(self, batch: Any) -> torch.Tensor:
        """Return the positions of a batch where the loss uses the model's output: a bool mask `[batch, length]`.

        Overriding it promises that the loss does not depend on the model's output at the other positions (padding, ignored
        labels, tokens that were not masked). In training, the output layer may then return zeros there. Held-out batches
        get the whole output. The batch is the one `loss` receives. The mask has the shape of the output layer's input
        without its last dimension.
        """
        raise NotImplementedError

    def deterministic_transform(self, sample: Any) -> Any:
        """Return a sample after the preparation that always has the same result, such as decoding and resizing.

        Overriding it promises that reading a sample and this transform may be done once and the result cached.
        """
        return sample

    def random_transform(self, sample: Any) -> Any:
        """Return a sample after the preparation that may differ on every visit (augmentation). Training only.

        The generators of `random`, `numpy.random` and `torch` are seeded before each sample from (seed, epoch, index), so
        the result does not depend on the number of workers. It must not change `sample` in place.
        """
        return sample

    def device_transform(self, batch: Any) -> Any:
        """Return a batch after the preparation that runs on the device, such as converting uint8 images to floats.

        The dataset, caches and transfers to the device then handle the smaller form. It applies to training and held-out
        batches, so it must not be random. Changes that a plan makes to a batch (its memory layout) come after it.
        """
        return batch

    # Methods for Hasten.

    def overrides(self, method: str) -> bool:
        """Whether the user's class overrides `method` (a name of this class)."""
        return getattr(type(self), method) is not getattr(Job, method)


def check_job(job: Job) -> None:
    """Check that a job has its required methods and that its attributes are valid.

    Raises:
        JobError: A method is missing, or an attribute is invalid. Names the attribute, its value and the values allowed.
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
    _check_positive(job, "clip_norm")
    _check_positive(job, "flops_per_sample")
    _check_forms(job)
    if job.quality is not None and not isinstance(job.quality, Quality):
        raise JobError(f"{where}.quality must be a hasten.Quality, not {type(job.quality).__name__}.")
    if job.quality is not None and not job.overrides("valid_data"):
        raise JobError(
            f"{where}.quality names the metric {job.quality.metric!r}, but there is no held-out data to measure it on. "
            f"Write valid_data(self), or set quality = None."
        )


def _check_positive(job: Job, name: str) -> None:
    value = getattr(job, name)
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise JobError(f"{type(job).__name__}.{name} must be None or greater than 0, not {value!r}.")


def defaults_words(job: Job) -> str:
    """Name the defaults that a job uses for its batch size and length; empty if it sets both."""
    kind = type(job)
    words = []
    if not any("batch_size" in vars(base) for base in kind.__mro__ if issubclass(base, Job) and base is not Job):
        words.append(f"no batch_size: {job.batch_size} is used")
    if job.epochs is None and job.num_updates is None:
        words.append("neither epochs nor num_updates: it trains for 1 epoch")
    return f"{kind.__name__} sets {'; '.join(words)}." if words else ""


def _check_forms(job: Job) -> None:
    forms: Any = job.forms
    if not isinstance(forms, tuple) or not all(isinstance(form, type) and issubclass(form, Job) for form in forms):
        raise JobError(f"{type(job).__name__}.forms must be a tuple of job classes, not {forms!r}.")


def counted_mask(job: Job, batch: Any) -> torch.Tensor:
    """Return where the loss of `batch` uses the model's output: a bool mask, usually `[batch, length]`, without a gradient.

    Args:
        job: A job that overrides `counted`.
        batch: The batch that `Job.loss` receives.

    Raises:
        JobError: The job did not return a bool tensor.
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
    """Return the optimizer updates of the whole run, or None if unknown (an iterable dataset with `epochs`)."""
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
