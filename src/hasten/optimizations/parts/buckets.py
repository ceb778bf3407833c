"""Gradients averaged over the ranks in buckets, by the reducer of torch's DistributedDataParallel (Li et al. 2020).

What is wrapped is no model but the whole computation of a loss, over a list of the model's parameters. So the model keeps
its class, its names and its buffers, and `Job.loss` may call any part of it.
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
"""`torch.distributed.GradBucket`, which carries no types."""


Compressor: TypeAlias = Callable[[GradBucket], tuple[Future, int]]
"""Begins to average a bucket over the ranks in place, and says how many bytes this rank sends for it."""


class BucketSync(GradientSync):
    """Averages gradients in buckets while the backward pass runs, at the last pass of each window.

    It counts `bucket_sums` (backward passes), `buckets_sent`, `buckets_early` (before the last gradient was there),
    `bucket_bytes` (of gradients) and, where they are compressed, `bucket_bytes_sent`.

    Args:
        live: The live job; its model must stand on its device.
        bucket_mb: Size of a bucket in MiB.
        static_graph: Every update uses the same parameters in the same way.

    Attributes:
        compressor: Takes the place of the plain sum of a bucket; None is off.
        static_graph: As given.
    """

    kind = "buckets"
    each_pass = False

    def __init__(self, live: LiveJob, *, bucket_mb: float, static_graph: bool) -> None:
        self.live = live
        self.compressor: Compressor | None = None
        self.static_graph = static_graph
        self._bucket_mb: Any = bucket_mb  # a part of a MiB is taken as well
        self._computed: Callable[[], None] = _nothing
        self._losses = _Losses(live)
        self._reduced: DistributedDataParallel | None = None

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        """The loss; before the last pass of a window gradients stay on their rank."""
        if not last:  # the reducer leaves gradients alone that come without its forward pass
            return self.live.compute_loss(batch)
        if self._reduced is None:
            self._reduced = self._make_reducer()
        total = self._reduced(batch)
        weight = self._losses.weight
        return total if weight is None else Loss(total, weight)

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        """Run the backward pass, and wait for the buckets that are still on their way."""
        self._computed = computed
        objective.backward()
        self._computed = _nothing
        self.live.count("bucket_sums")

    def state_dict(self) -> dict[str, Any]:
        """The model's state, which each rank holds whole."""
        return self.live.model.state_dict()

    def close(self) -> None:
        """Take the reducer's hooks off the parameters."""
        if self._reduced is not None:
            self._reduced._remove_autograd_hooks()  # noqa: SLF001  there is no public way

    def _make_reducer(self) -> DistributedDataParallel:
        """Hang the reducer on the parameters, right before its first pass.

        With a static graph it learns from its first pass how often each gradient comes. One that it saw before and did not
        sum (accumulation, a gradient sample) would be counted too, and then it would wait for gradients that never come.
        """
        reduced = DistributedDataParallel(
            self._losses,
            init_sync=False,
            bucket_cap_mb=self._bucket_mb,
            static_graph=self.static_graph,
            find_unused_parameters=not self.static_graph,
        )
        # Without annotations, which the reducer would read: ours are strings to it.
        reduced.register_comm_hook(None, lambda _state, bucket: self._send(bucket))
        return reduced

    def _send(self, bucket: GradBucket) -> Future:
        """Begin to average a bucket; called by the reducer, in the same order on every rank."""
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
    """The computation of a loss as a module that holds the model's parameters, and neither its modules nor its buffers."""

    def __init__(self, live: LiveJob) -> None:
        super().__init__()
        self.held = nn.ParameterList(live.model.parameters())
        self.compute = live.compute_loss
        self.weight: Number | None = None

    def forward(self, batch: Any) -> Any:
        """The total of the loss; its weight, which no gradient concerns, is set aside."""
        loss: Any = self.compute(batch)
        self.weight = loss.weight if isinstance(loss, Loss) else None
        return loss.total if isinstance(loss, Loss) else loss


def average(buffer: torch.Tensor) -> Future:
    """Begin to average a tensor over the ranks, in place."""
    buffer.div_(dist.get_world_size())  # before the sum, so that 16-bit numbers stay in range
    work: Any = dist.all_reduce(buffer, async_op=True)
    future: Future = work.get_future().then(lambda done: done.value()[0])
    return future


def check_ranks(live: LiveJob, name: str) -> None:
    """Refuse a live job whose gradients a technique cannot sum: one process, or fewer samples in a batch than ranks.

    Raises:
        JobError: Says which.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise JobError(f"{name} needs several ranks: start the job with --ranks, or take {name} out of the plan.")
    world = dist.get_world_size()
    if live.job.batch_size < world:
        raise JobError(
            f"{name} needs a sample for every rank, and {type(live.job).__name__}.batch_size is {live.job.batch_size} for "
            f"{world} ranks: raise it, or take {name} out of the plan."
        )


def bucket_sync(live: LiveJob, name: str) -> BucketSync:
    """The buckets of a live job, for a technique that works on them.

    Raises:
        JobError: There are none.
    """
    if not isinstance(live.sync, BucketSync):
        raise JobError(f"{name} works on the buckets of gradient_buckets: put gradient_buckets into the plan as well.")
    return live.sync


def why_no_sum(facts: Facts, wanted: str) -> str:
    """Why the sum of gradients cannot be done otherwise here; empty where it can.

    Args:
        facts: The facts.
        wanted: As gradients must be summed at present, see `JobFacts.gradient_sync`.
    """
    job = facts.job
    if job.ranks < 2:
        return "one process trains alone: there are no gradients to sum over ranks"
    if job.batch_size < job.ranks:
        return f"batches of {job.batch_size} leave some of {job.ranks} ranks without a sample"
    if job.gradient_sync == wanted:
        return ""
    if wanted == "buckets":
        return "gradients are not summed in buckets: gradient_buckets must be in the plan first"
    return f"gradients are summed in {job.gradient_sync} already"


def _nothing() -> None:
    return
