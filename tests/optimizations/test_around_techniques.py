"""Test the largest gain and the refusals of the techniques for reports, checkpoints and validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.optimization import clash
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.optimizations.async_logging import AsyncLogging
from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from hasten.optimizations.compile import Compile
from hasten.optimizations.validation_batch import ValidationBatch
from hasten.optimizations.validation_compile import ValidationCompile
from hasten.train.build import build
from hasten.train.validate import HeldOut
from tests.optimizations.contract import CPU, Ragged, facts

EPOCH: dict[str, Any] = {
    "epoch_s": 20.0, "report_s": 0.02, "reports_per_epoch": 100.0, "checkpoint_s": 5.0, "checkpoint_bytes": 100_000_000,
    "validation_s": 4.0, "validation_batches": 30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "saved_s"),
    [
        (AsyncLogging, 2.0),
        (BackgroundCheckpoint, 5.0),
        (ValidationBatch, 4.0),
        (ValidationCompile, 4.0),
    ],
)
def test_the_largest_gain_is_the_measured_share_of_an_epoch(kind: Any, saved_s: float) -> None:
    assert kind.fit(facts(**EPOCH)).max_gain_frac == pytest.approx(saved_s / 20.0)


def test_each_names_its_event_and_no_other_technique_does() -> None:
    events = {name: kind.card.event for name, kind in catalogue().items() if kind.card.event}
    assert events == {
        "async_logging": "report", "background_checkpoint": "checkpoint", "validation_batch": "validation",
        "validation_compile": "validation",
    }  # fmt: skip


def test_a_model_on_a_gpu_needs_no_host_memory_check() -> None:
    full = facts(**{**EPOCH, "checkpoint_bytes": 8 * 2**30}, job={"device": "cuda"})
    assert BackgroundCheckpoint.fit(full).fits


@pytest.mark.parametrize(("batches", "times"), [(2, [4]), (30, [4, 16])])
def test_few_batches_have_one_setting(batches: int, times: list[int]) -> None:
    fit = ValidationBatch.fit(facts(**{**EPOCH, "validation_batches": batches}))
    assert [item.settings()["times"] for item in fit.settings] == times


def test_no_batch_is_no_setting() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ValidationBatch(times=0)


def test_two_ways_to_compile_validation_exclude_each_other() -> None:
    assert "exclude each other" in clash(ValidationCompile(), Compile())


@pytest.mark.long
def test_a_compiled_pass_measures_the_same_and_the_training_call_stays_plain() -> None:
    plain = HeldOut(build(Ragged(), device=CPU)).measure()
    live = build(Ragged(), Plan(optimizations=(ValidationCompile(),)), device=CPU)
    held = HeldOut(live)
    assert held.measure() == pytest.approx(plain, rel=1e-5)
    first = live.counters["validation_compiled_graphs"]
    assert first == held.num_batches
    held.measure()
    assert live.counters["validation_compiled_graphs"] == 2 * first
    held.measure(plain=True)
    assert live.counters["validation_compiled_graphs"] == 2 * first
    assert live.model._compiled_call_impl is None
    live.undo_all()


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_a_checkpoint_of_a_gpu_loads_without_one(tmp_path: Path) -> None:
    from hasten.core.live import AroundSettings
    from hasten.train.weights_file import WeightsFile

    model = nn.Linear(64, 64).cuda()
    for background in (False, True):
        writer = WeightsFile(tmp_path / "model.pt", AroundSettings(checkpoint_background=background))
        writer.save(model.state_dict())
        writer.wait()
        found = torch.load(writer.path, weights_only=True)
        assert {tensor.device.type for tensor in found.values()} == {"cpu"}
        assert torch.equal(found["weight"], model.weight.detach().cpu())
