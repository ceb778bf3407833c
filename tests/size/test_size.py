"""Sizes before a model exists: counts, validity, memory against PyTorch's own tracker, and what the verb prints."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import hasten
from hasten.core.errors import JobError
from hasten.core.target import load_job
from hasten.size.job import trace_job
from hasten.size.memory import Setup, memory_of, trace_shape, trace_whole
from hasten.size.shape import Shape
from hasten.size.solve import WITHIN, devices, fewest_devices, fit, nearest, number, solve, usable
from hasten.size.transformer import Transformer
from tests.cli.called import called
from tests.report.browser import open_page

ROOT = Path(__file__).parents[2]
SMALL = Shape(layers=6, hidden=256, heads=4, vocab=1000, tied=True)
SHAPES = {
    "plain": SMALL,
    "untied": replace(SMALL, tied=False),
    "gated": replace(SMALL, gated=True, kv_heads=2),
    "experts": replace(SMALL, gated=True, tied=False, experts=4, active=2),
}
PLAN = Shape(layers=56, hidden=4400, heads=64, ffn=17600, tied=True)
SOUND = Shape(layers=51, hidden=4608, heads=36, tied=True)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_count_is_that_of_the_built_model(shape: Shape) -> None:
    with torch.device("meta"):
        model = Transformer(shape)
    assert sum(item.numel() for item in model.parameters()) == shape.parameters
    assert shape.active_parameters <= shape.parameters


def test_the_counts_of_the_plan() -> None:
    assert PLAN.parameters == pytest.approx(13.154e9, rel=1e-4)
    assert replace(PLAN, tied=False).parameters == pytest.approx(13.295e9, rel=1e-4)
    assert SOUND.parameters == pytest.approx(13.1455e9, rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("precision", "recomputed", "batch"), [("mixed", False, 4), ("bfloat16", True, 4), ("mixed", True, 1)]
)
def test_a_few_blocks_give_the_memory_of_all(shape: Shape, precision: Any, recomputed: bool, batch: int) -> None:
    setup = Setup(precision=precision, recomputed=recomputed, batch=batch, length=128, states="none", fragmentation=0)
    whole = trace_whole(shape, setup, autocast=precision == "mixed")
    grown = trace_shape(shape, setup)
    assert grown.peak == pytest.approx(whole.peak, rel=0.002)
    assert grown.flops == whole.flops


@pytest.mark.parametrize(
    ("name", "recomputed", "flash"),
    [("plain", False, True), ("plain", True, True), ("plain", False, False), ("gated", False, True), ("gated", True, False),
     ("untied", False, True), ("experts", False, True)],
)  # fmt: skip
def test_the_peak_is_that_of_pytorch(name: str, recomputed: bool, flash: bool) -> None:
    """With the states of Adam, against MemTracker on fake tensors: within 2 %."""
    shape = replace(SHAPES[name], layers=4)
    setup = Setup(precision="float32", recomputed=recomputed, flash=flash, batch=2, length=256, fragmentation=0)
    with FakeTensorMode():
        model = Transformer(shape, flash=flash, recomputed=recomputed)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.zeros(2, 257, dtype=torch.long)
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens)
        with tracker:
            model(tokens).backward()
            optimizer.step()
    seen = sum(tracker.get_tracker_snapshot("peak")[torch.device("cpu")].values()) / 2  # the total is one of the values
    assert memory_of(shape, setup).peak == pytest.approx(seen, rel=0.02)


def test_a_job_is_sized_as_pytorch_does_and_allocates_nothing() -> None:
    job = load_job(str(ROOT / "examples" / "text.py") + ":TextJob")
    traced = trace_job(job, 2)
    assert not traced.ran
    batch = job.collate([job.deterministic_transform(job.train_data()[index]) for index in range(2)])
    with FakeTensorMode() as fake:
        model = job.model()
        optimizer = job.optimizer(model)
        part = tuple(item if item is None else fake.from_tensor(item) for item in batch)

        def update() -> None:
            loss: Any = job.loss(model, part)
            (loss.total / loss.weight).backward()
            optimizer.step()

        update()
        optimizer.zero_grad(set_to_none=False)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *(item for item in part if item is not None))
        with tracker:
            update()
    seen = sum(tracker.get_tracker_snapshot("peak")[torch.device("cpu")].values()) / 2
    assert traced.trace.peak == pytest.approx(seen, rel=0.02)


class ReadsValues(hasten.Job):
    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(8, 8)

    def train_data(self) -> Any:
        return [torch.randn(8) for _ in range(64)]

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        return out[out > -1e9].mean()  # how many pass depends on the values


def test_a_job_that_reads_values_runs_for_real_and_says_why() -> None:
    traced = trace_job(ReadsValues())
    assert traced.ran
    assert traced.weights.total == 72
    assert traced.weights.state_bytes == 4


class KeepsACopy(ReadsValues):
    def model(self) -> torch.nn.Module:
        return torch.nn.ModuleList(
            [net := torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)), deepcopy(net)]
        )

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        self.kept = model[0](batch)
        return torch.as_tensor(self.kept.square().mean())


def test_a_job_may_copy_its_model_and_keeps_nothing_fake() -> None:
    job = KeepsACopy()
    traced = trace_job(job)
    assert not traced.ran
    assert traced.weights.total == 2 * (72 + 16)
    assert not hasattr(job, "kept")


def test_an_empty_job_is_refused() -> None:
    class Empty(ReadsValues):
        def train_data(self) -> Any:
            return []

    with pytest.raises(JobError, match="empty"):
        trace_job(Empty())


def test_sharding_divides_weights_and_states_and_offload_moves_them() -> None:
    one = memory_of(SOUND, Setup())
    eight = memory_of(SOUND, Setup(sharding="fsdp2", ranks=8))
    far = memory_of(SOUND, Setup(sharding="offload", ranks=8))
    assert eight.moments["update"]["states"] == pytest.approx(one.moments["update"]["states"] / 8, rel=0.001)
    assert eight.moments["update"]["gradients"] == pytest.approx(one.moments["update"]["gradients"] / 8, rel=0.001)
    assert far.moments["update"]["states"] == 0
    assert far.host_bytes == pytest.approx(16 * SOUND.parameters / 8, rel=0.001)
    group = memory_of(SOUND, Setup(sharding="hsdp", ranks=16, shards=8))
    assert group.peak == eight.peak


def test_checkpointing_and_flash_attention_save_activations() -> None:
    def kept(**settings: Any) -> int:
        return memory_of(SOUND, Setup(sharding="fsdp2", ranks=8, **settings)).moments["forward"]["activations"]

    assert kept(recomputed=True) < 0.1 * kept()
    scores = 51 * 36 * 4096**2 * 2  # after the softmax, in bfloat16
    assert kept(flash=False) - kept() == pytest.approx(scores, rel=0.05)


def test_the_invalid_plan_is_explained_and_near_sizes_are_valid() -> None:
    assert "68.75" in next(PLAN.problems())
    with pytest.raises(JobError, match=r"68\.75"):
        PLAN.check()
    found = nearest(PLAN)
    assert found
    for near in found:
        assert not list(near.problems())
        assert not list(near.warnings())
        assert near.parameters == pytest.approx(PLAN.parameters, rel=0.05)


@pytest.mark.parametrize("target", ["1.3B", "13.14B", "70B"])
def test_solutions_are_valid_and_within_their_error(target: str) -> None:
    wanted = number(target, "--target")
    found = solve(wanted, Shape(layers=1, hidden=128, heads=1), either_form=True, either_tied=True)
    assert found
    for shape in found:
        assert not list(shape.problems())
        assert abs(shape.parameters / wanted - 1) <= WITHIN
        assert shape.hidden // shape.heads in (64, 128)


def test_the_plan_fits_85_gb_only_with_less_than_full_states_or_more_devices() -> None:
    rows = list(fit(SOUND, Setup(), 85e9, 1))
    full = [row for row in rows if row.setup.sharding == "none" and row.setup.precision == "mixed"]
    assert full
    assert not any(row.fits for row in full)
    light = [row for row in rows if row.fits and row.setup.sharding == "none"]
    assert [row.setup.words() for row in light] == ["one device, bfloat16, adam-8bit, recomputed"]
    assert all(row.memory.peak <= usable(85e9) for row in rows if row.fits)
    assert fewest_devices(SOUND, Setup(recomputed=True), 85e9) == 3


def test_a_target_that_no_sizes_meet_is_refused() -> None:
    with pytest.raises(JobError, match="--vocab"):
        solve(1000, Shape(layers=1, hidden=128, heads=1), either_form=True, either_tied=True)


@pytest.mark.parametrize("text", ["", "80", "80GB x 0", "0GB", "eighty GB"])
def test_devices_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="--fit"):
        devices(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--layers", "2", "--hidden", "64"), "--heads missing"),
        (("--layers", "0", "--hidden", "64", "--heads", "1"), "--layers must be"),
        (("--layers", "2", "--hidden", "64", "--heads", "3"), "is invalid"),
        (("--layers", "2", "--hidden", "64", "--heads", "1", "--sharding", "zero"), "--sharding must be one of"),
        (("--target", "many"), "is not a number"),
        (("--layers", "2", "--hidden", "64", "--heads", "1", "--tokens", "1B"), "--peak"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = called("size", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_json_and_page(tmp_path: Path) -> None:
    sizes = ("--layers", "4", "--hidden", "256", "--heads", "4", "--length", "128")
    page = tmp_path / "size.html"
    done = called(
        "size", *sizes, "--fit", "1GB x 2", "--tokens", "1B", "--peak", "1T", "--growth", "--html", str(page), "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"]["parameters"] > 0
    assert {"hours", "growth", "fits"} <= set(found)
    opened = open_page(page)
    assert opened.error is None
    assert opened.plots == 2
