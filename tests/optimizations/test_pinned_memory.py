"""Test page-locked batches and GPU prefetch, which need a CUDA device."""

from __future__ import annotations

import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.live import LoaderSettings
from hasten.core.optimization import Optimization
from hasten.optimizations.device_prefetch import DevicePrefetch
from hasten.optimizations.loader_threads import LoaderThreads
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.pinned_memory import PinnedMemory
from hasten.train.trace import trace_step
from tests.optimizations.contract import Images, make_loop, run

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.parametrize("item", [PinnedMemory(), DevicePrefetch()])
def test_without_a_cuda_device_they_are_refused(item: Optimization) -> None:
    with pytest.raises(JobError, match=f"{item.card.name} needs a CUDA device, not cpu"):
        make_loop(Images(), item)


@pytest.mark.parametrize(("item", "ahead"), [(PinnedMemory(), False), (DevicePrefetch(), True)])
def test_they_add_to_the_loader_settings_and_undo_it(item: Optimization, ahead: bool) -> None:
    live = make_loop(Images()).live
    live.device = torch.device("cuda")
    live.loader = before = LoaderSettings(num_threads=3)
    undo = item.apply(live)
    assert live.loader == LoaderSettings(num_threads=3, pin_memory=True, device_prefetch=ahead)
    undo()
    assert live.loader is before


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("others", [(), (LoaderThreads(),), (LoaderWorkers(num_workers=1),)])
@pytest.mark.parametrize("item", [PinnedMemory(), DevicePrefetch()])
def test_the_same_numbers_however_batches_are_fetched(item: Optimization, others: tuple[Optimization, ...]) -> None:
    device = torch.device("cuda")
    assert run(Images(), 9, item, *others, device=device) == run(Images(), 9, device=device)


@pytest.mark.gpu
@needs_cuda
def test_batches_arrive_on_the_device_and_intact() -> None:
    device = torch.device("cuda")
    plain = list(make_loop(Images(), device=device).stream.epoch(0))
    item = DevicePrefetch()
    loop = make_loop(Images(), item, device=device)
    ahead = list(loop.stream.epoch(0))
    assert all(tensor.is_cuda for batch, _ in ahead for tensor in batch)
    for (batch, size), (expected, expected_size) in zip(ahead, plain, strict=True):
        assert size == expected_size
        assert all(torch.equal(one.cpu(), other) for one, other in zip(batch, expected, strict=True))
    assert all(check.passed for check in item.evidence(loop.live, trace_step(loop)))
