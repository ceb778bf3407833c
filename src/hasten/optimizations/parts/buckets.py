"""Average gradients over the ranks in buckets, with the reducer of torch's DistributedDataParallel (Li et al. 2020).

DistributedDataParallel does not wrap the model here, but a module that computes the loss and lists the model's parameters.
So the model keeps its class, names and buffers, and `Job.loss` may call any part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.job import Loss, Number
from hasten.core.live import LiveJob
from hasten.core.sync import GradientSync

Future: TypeAlias = torch.futures.Future[torch.Tensor]
GradBucket: TypeAlias = Any
"""`torch.distributed.GradBucket`, which has no type annotations."""


Compressor: TypeAlias = Callable[[GradBucket], tuple[Future, int]]
"""Starts to average a bucket over the ranks in place. Returns the future and the number of bytes that this rank sends."""


class BucketSync(GradientSync):
    """Averages gradients in buckets during the last backward pass of each accumulation window.

    It counts `bucket_sums` (backward passes), `buckets_sent`, `buckets_early` (sent before the last gradient was computed),
    `bucket_bytes` (of gradients) and, with compression, `bucket_bytes_sent`.

    Args:
        live: The live job. Its model must be on its device.
        bucket_mb: Size of a bucket in MiB.
        static_graph: Whether every update uses the same parameters in the same way.

    Attributes:
        compressor: Replaces the plain sum of a bucket; None is off.
        static_graph: The argument.
    """

    kind = "buckets"
    each_pass = False

    def __init__(self, live: LiveJob, *, bucket_mb: float, static_graph: bool) -> None:
        self.live = live
        self.compressor: Compressor | None = None
        self.static_graph = static_graph
        self._bucket_mb: Any = bucket_mb  # fractions of a MiB work too, although torch declares an int
        self._computed: Callable[[], None] = _nothing
        self._losses = _Losses(live)
        self._reduced: DistributedDataParallel | None = None

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        """Compute the loss. Gradients stay on their rank until the last pass of a window."""
        if not last:  # the reducer ignores gradients from passes that do not use its forward
            return self.live.compute_loss(batch)
        if self._reduced is None:
            self._reduced = self._make_reducer()
        total = self._reduced(batch)
        weight = self._losses.weight
        return total if weight is None else Loss(total, weight)

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        """Run the backward pass, and wait for pending buckets."""
        self._computed = computed
        objective.backward()
        self._computed = _nothing
        self.live.count("bucket_sums")

    def state_dict(self) -> dict[str, Any]:
        """Return the model's state, which is complete on each rank."""
        return self.live.model.state_dict()

    def close(self) -> None:
        """Remove the reducer's hooks from the parameters."""
        if self._reduced is not None:
            self._reduced._remove_autograd_hooks()  # noqa: SLF001  there is no public method

    def _make_reducer(self) -> DistributedDataParallel:
        """Attach the reducer to the parameters, immediately before its first pass.

        With a static graph, the reducer learns from its first pass how often each gradient is computed. If it were attached
        earlier, it would also count gradients that it does not sum (accumulation, a gradient sample), and would later wait
        for gradients that never arrive.
        """
        reduced = DistributedDataParallel(
            self._losses,
            init_sync=False,
            bucket_cap_mb=self._bucket_mb,
            static_graph=self.static_graph,
            find_unused_parameters=not self.static_graph,
        )
        # A lambda, because the reducer checks annotations, and postponed annotations are strings.
        reduced.register_comm_hook(None, lambda _state, bucket: self._send(bucket))
        return reduced

    def _send(self, bucket: GradBucket) -> Future:
        """Start to average a bucket. The reducer calls it in the same order on every rank."""
        buffer = bucket.buffer()
        self.live.count("buckets_sent")
        self.live.count("bucket_bytes", buffer.numel() * buffer.element_size())
        if bucket.is_last():
            self._computed()
        else:
            self.live.count("buckets_early")
        if self.compressor is None:
            return average(buffer)
        future, size = self.compressor(bucket)
        self.live.count("bucket_bytes_sent", size)
        return future


class _Losses(nn.Module):
    """Computes a loss, as a module with the model's parameters but without its submodules and buffers."""

    def __init__(self, live: LiveJob) -> None:
        super().__init__()
        self.held = nn.ParameterList(live.model.parameters())
        self.compute = live.compute_loss
        self.weight: Number | None = None

    def forward(self, batch: Any) -> Any:
        """Return the total of the loss. Its weight, which has no gradient, is stored in `weight`."""
        loss: Any = self.compute(batch)
        self.weight = loss.weight if isinstance(loss, Loss) else None
        return loss.total if isinstance(loss, Loss) else loss


def average(buffer: torch.Tensor) -> Future:
    """Start to average a tensor over the ranks, in place."""
    buffer.div_(dist.get_world_size())  # before the sum, so that 16-bit numbers stay in range
    work: Any = dist.all_reduce(buffer, async_op=True)
    future: Future = work.get_future().then(lambda done: done.value()[0])
    return future


def check_ranks(live: LiveJob, name: str) -> None:
    """Check that a technique can sum the gradients of a live job.

    Raises:
        JobError: There is only one process, or a batch has fewer samples than there are ranks.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise JobError(f"{name} needs several ranks: start the job with --ranks, or remove {name} from the plan.")
    world = dist.get_world_size()
    if live.job.batch_size < world:
        raise JobError(
            f"{name} needs at least one sample per rank, but {type(live.job).__name__}.batch_size is {live.job.batch_size} "
            f"for {world} ranks: increase it, or remove {name} from the plan."
        )


def bucket_sync(live: LiveJob, name: str) -> BucketSync:
    """Return the buckets of a live job, for a technique that changes them.

    Raises:
        JobError: The live job has no buckets.
    """
    if not isinstance(live.sync, BucketSync):
        raise JobError(f"{name} needs the buckets of gradient_buckets: add gradient_buckets to the plan.")
    return live.sync


def why_no_sum(facts: Facts, wanted: str) -> str:
    """Return why the summation of gradients cannot be changed here, or an empty text if it can.

    Args:
        facts: The facts.
        wanted: The current method of summation that the technique needs, see `JobFacts.gradient_sync`.
    """
    job = facts.job
    if job.ranks < 2:
        return "the job trains in one process: there are no gradients to sum over ranks"
    if job.batch_size < job.ranks:
        return f"with batches of {job.batch_size}, some of the {job.ranks} ranks have no sample"
    if job.gradient_sync == wanted:
        return ""
    if wanted == "buckets":
        return "gradients are not summed in buckets: gradient_buckets must be in the plan first"
    return f"gradients are already summed in {job.gradient_sync}"


def _nothing() -> None:
    return
