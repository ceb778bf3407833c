"""A profile of small live jobs: structure, not clocks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hasten
from hasten.core.errors import MachineError
from hasten.core.job import Job
from hasten.optimizations.allocator import Allocator
from hasten.profile.ceilings import CeilingRun, measure_ceilings
from hasten.profile.measure import own_cost_frac, phase_shares, profile_loop
from hasten.profile.periodic import Around
from hasten.profile.probes import job_facts, peak_memory_bytes, probe_input, reset_peak_memory
from hasten.train.build import build
from hasten.train.clock import NoClock
from hasten.train.loop import Loop
from tests.train.jobs import CPU, Plain, Stormy, Streamed


def loop_of(job: Job) -> Loop:
    return Loop(build(job, device=CPU))


class SlowReader(Plain):
    """Each sample takes 3 ms to read: the whole job is reading."""

    def train_data(self) -> Dataset[Any]:
        return _Slow()


class _Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.003)
        x = torch.full((5,), index / 20)
        return x, x.sum(dim=0, keepdim=True)


class Ragged(Job):
    """Lengths 2, 4, 6, 8 in rows of 10; every batch contains all four."""

    batch_size = 4
    epochs = 3
    shuffle = False

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 7))

    def train_data(self) -> Dataset[Any]:
        return _Rows()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def length(self, sample: Any) -> int:
        return int((sample != 0).sum())

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        total = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), ignore_index=0, reduction="sum")
        return hasten.Loss(total, (batch != 0).sum())


class _Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        row = torch.zeros(10, dtype=torch.long)
        row[: 2 * (index % 4) + 2] = 1 + index % 5
        return row


class Full(Ragged):
    """Defines lengths, but every row is full."""

    def length(self, sample: Any) -> int:
        return 10


class Unsaid(Ragged):
    """Padded like `Ragged`, but without defined lengths."""

    length = Job.length


class NothingHeldOut(Plain):
    """Overrides `valid_data` to return nothing, as its signature allows."""

    def valid_data(self) -> Dataset[Any] | None:
        return None


def test_reading_is_the_ceiling_and_the_diagnosis_of_a_slow_reader() -> None:
    profile = profile_loop(loop_of(SlowReader()), slice_s=0.05)
    assert profile.diagnosis.name == "input"
    assert profile.facts.ceilings["input"] > 2.0  # a batch sleeps 12 ms and computes for less than one
    assert profile.facts.ceilings["compute"] < profile.facts.ceilings["input"]
    assert profile.facts.input_wait_frac > 0.5
    assert profile.facts.load_frac > 0.5
    assert "mostly waits" in profile.diagnosis.words


def test_a_profile_adds_up_and_leaves_the_loop_at_the_start() -> None:
    loop = loop_of(Stormy())
    start = {name: value.clone() for name, value in loop.live.model.state_dict().items()}
    loop.run(3)
    expected = list(loop.losses)
    said: list[str] = []
    profile = profile_loop(loop, slice_s=0.02, progress=said.append)
    assert sum(profile.phases.values()) == pytest.approx(1.0)
    assert all(0.0 <= share <= 1.0 for share in profile.phases.values())
    assert set(profile.phases) == {
        "data", "transfer", "forward", "backward", "sync", "optimizer", "logging", "validation", "checkpoint", "other",
    }  # fmt: skip
    assert profile.phases["validation"] > 0.0
    assert profile.phases["checkpoint"] > 0.0
    assert min(profile.facts.ceilings.values()) >= 1.0
    assert "padding" not in profile.facts.ceilings
    assert (loop.position.update, loop.position.samples, loop.position.epoch) == (0, 0, 0)
    assert isinstance(loop.clock, NoClock)
    assert loop.steps_optimizer
    for name, value in loop.live.model.state_dict().items():
        assert torch.equal(value, start[name]), name
    loop.run(3)
    assert loop.losses == expected
    assert {"warming up", "validation", "checkpoint", "operators", "Hasten's own overhead"} <= set(said)
    assert profile.to_dict()["bottleneck"]["name"] == profile.diagnosis.name


def test_a_quick_profile_skips_what_no_plan_changes() -> None:
    said: list[str] = []
    profile = profile_loop(loop_of(Plain()), slice_s=0.02, quick=True, progress=said.append)
    assert profile.phases["validation"] == profile.phases["checkpoint"] == profile.own_cost_frac == 0.0
    assert profile.facts.bf16_matmul_gain is None
    assert not {"validation", "checkpoint", "operators", "Hasten's own overhead"} & set(said)


def test_held_out_data_is_counted_in_batches() -> None:
    profile = profile_loop(loop_of(Plain()), slice_s=0.02)
    assert profile.validation_batches == 2  # seven samples in batches of four
    assert profile.validation_batch_s > 0.0


def test_a_job_without_held_out_data_is_profiled() -> None:
    profile = profile_loop(loop_of(NothingHeldOut()), slice_s=0.02)
    assert profile.phases["validation"] == 0.0
    assert profile.validation_batches == 0


def test_an_iterable_dataset_is_profiled() -> None:
    loop = loop_of(Streamed())
    profile = profile_loop(loop, slice_s=0.02)
    assert profile.facts.job.num_samples is None
    assert profile.facts.job.updates_per_epoch is None
    assert sum(profile.phases.values()) == pytest.approx(1.0)
    assert loop.position.update == 0


@pytest.mark.parametrize(("job", "there"), [(Ragged(), True), (Full(), False), (Unsaid(), False), (Plain(), False)])
def test_padding_has_a_ceiling_only_if_something_is_padded(job: Any, there: Any) -> None:
    assert ("padding" in measure_ceilings(loop_of(job), 4, lambda _: None).ceilings) is there


def test_ceilings_restore_what_they_disabled() -> None:
    loop = loop_of(Plain())
    before = loop.live.read_every
    run = measure_ceilings(loop, 5, lambda _: None)
    assert run.updates == 5
    assert (loop.live.read_every, loop.steps_optimizer, loop.position.update) == (before, True, 0)
    assert sum(run.phase_s.values()) <= run.real_s


def test_padding_shares_of_a_known_batch_are_exact() -> None:
    live = build(Ragged(), device=CPU)
    probe = probe_input(live, [[0, 1, 2, 3]])
    assert probe.padding_frac == pytest.approx(1 - (2 + 4 + 6 + 8) / 40)
    assert probe.excess_padding_frac == pytest.approx(1 - 8 / 10)
    even = probe_input(live, [[0, 4], [3, 7]])  # lengths 2, 2 and 8, 8
    assert even.padding_frac == even.excess_padding_frac == pytest.approx(0.5)
    assert probe_input(build(Unsaid(), device=CPU), [[0, 1, 2, 3]]).padding_frac == 0.0


def test_a_sample_that_cannot_be_pickled_has_no_size() -> None:
    class Odd(Plain):
        def train_data(self) -> Dataset[Any]:
            return _Odd()

        def collate(self, samples: list[Any]) -> Any:
            return torch.zeros(len(samples), 5), torch.zeros(len(samples), 1)

    assert probe_input(build(Odd(), device=CPU), [[0, 1]]).sample_bytes is None
    assert (probe_input(build(Plain(), device=CPU), [[0]]).sample_bytes or 0) > 24


class _Odd(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return lambda: index


def test_job_facts_are_read_off_the_live_job() -> None:
    facts = job_facts(build(Stormy(), device=CPU))
    assert (facts.device, facts.optimizer_class, facts.optimizer_fused) == ("cpu", "AdamW", False)
    assert (facts.num_params, facts.num_param_tensors) == (5 * 8 + 8 + 8 + 8 + 8 + 1, 6)
    assert facts.module_counts["Linear"] == 2
    assert facts.param_dtypes == ("float32",)
    assert (facts.batch_size, facts.num_samples, facts.updates_per_epoch, facts.planned_updates) == (5, 22, 5, 10)
    assert not facts.has_length
    assert not facts.has_deterministic_transform
    assert job_facts(build(Ragged(), device=CPU)).has_length


def test_frozen_parameters_are_not_counted() -> None:
    live = build(Plain(), device=CPU)
    next(live.model.parameters()).requires_grad = False
    assert job_facts(live).num_params == 8 + 8 + 1


def test_phase_shares_include_the_work_around_an_epoch() -> None:
    run = CeilingRun(updates=10, real_s=1.0, phase_s={"data": 0.25, "forward": 0.5})
    around = Around(validation_s=3.0, checkpoint_s=1.0, epoch_updates=40)  # 4 s of steps, 4 s of other work
    shares = phase_shares(run, around)
    assert shares == pytest.approx(
        {"data": 0.125, "forward": 0.25, "logging": 0.0, "validation": 0.375, "checkpoint": 0.125, "other": 0.125}
    )
    assert phase_shares(run, Around())["data"] == pytest.approx(0.25)


@pytest.mark.parametrize("update_s", [1e-3, 1.0])
def test_own_overhead_is_measured_for_short_and_long_updates(update_s: Any) -> None:
    loop = loop_of(Plain())
    cost = own_cost_frac(loop, update_s, lambda _: None)
    assert isinstance(cost, float)
    assert cost >= 0.0
    assert isinstance(loop.clock, NoClock)


def test_peak_memory_counts_allocations_since_the_reset() -> None:
    reset_peak_memory()
    before = peak_memory_bytes()
    block = torch.ones(64 << 18)  # 64 MiB, touched
    assert peak_memory_bytes() - before > block.numel() * 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library can return memory on request")
def test_memory_freed_earlier_does_not_count() -> None:
    blocks = [torch.ones(16 << 10) for _ in range(2_000)]  # 64 KiB each: the heap cannot shrink while the last one exists
    last = blocks[-1]
    held = peak_memory_bytes()
    del blocks
    reset_peak_memory()
    assert peak_memory_bytes() < held - (100 << 20)
    assert float(last.sum()) == last.numel()


LEFT_BEHIND = """
import torch
from hasten.profile.probes import peak_memory_bytes, reset_peak_memory
blocks = [torch.ones(2 << 20) for _ in range(25)]
held = peak_memory_bytes()
del blocks
reset_peak_memory()
print(held - peak_memory_bytes())
"""


@pytest.mark.parametrize("kind", ["tcmalloc", pytest.param("jemalloc", marks=pytest.mark.long)])
def test_an_allocator_returns_freed_memory_when_peaks_are_reset(kind: Any) -> None:
    try:
        asked = Allocator(kind=kind).environment()
    except MachineError as error:
        assert not os.environ.get("HASTEN_CI"), "CI must have the allocators installed"
        pytest.skip(str(error))
    ran = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) > 180 << 20, ran.stderr  # out of 200 MiB
