"""Test the switch for the search over convolution kernels, and that its evidence fails on a CPU."""

from __future__ import annotations

import pytest
import torch

from hasten.optimizations.cudnn_benchmark import CudnnBenchmark
from hasten.train.trace import trace_step
from tests.optimizations.contract import Images, facts, make_loop


@pytest.mark.parametrize("name", ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"])
def test_every_convolution_counts(name: str) -> None:
    given = facts(job={"device": "cuda", "module_counts": {name: 1}}, on={"torch_build": "cuda 12.8"})
    assert CudnnBenchmark.fit(given).fits


def test_the_switch_is_set_and_put_back() -> None:
    before = torch.backends.cudnn.benchmark
    live = make_loop(Images(), CudnnBenchmark()).live
    assert torch.backends.cudnn.benchmark
    live.undo_all()
    assert torch.backends.cudnn.benchmark == before


def test_on_a_cpu_there_is_no_search_despite_the_switch() -> None:
    item = CudnnBenchmark()
    loop = make_loop(Images(), item)
    checks = item.evidence(loop.live, trace_step(loop))
    loop.live.undo_all()
    assert [check.passed for check in checks] == [True, False]
    assert checks[1].seen == "the model runs on cpu"
