"""Test that unsupported optimizers are refused, that 8-bit state is smaller, and that schedules work as before."""

from __future__ import annotations

import copy
import io
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.optimizations.eight_bit_states import EightBitStates
from hasten.train.loop import Loop
from tests.optimizations.cases.eight_bit_states import Square
from tests.optimizations.contract import make_loop, run

installed = pytest.mark.skipif(find_spec("torchao") is None, reason="needs the package torchao")


def job_with(make: Any, model: Any = None) -> Job:
    members: dict[str, Any] = {"optimizer": lambda _, built: make(built)}
    if model is not None:
        members["model"] = lambda _: model()
    kind: type[Job] = type("Other", (Square,), members)
    return kind()


def test_a_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.optimizations.eight_bit_states.find_spec", lambda _: None)
    with pytest.raises(
        JobError, match=r"needs the library torchao: install it .pip install 'hasten\[eight-bit\]'., or remove"
    ):
        make_loop(Square(), EightBitStates())


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that torchao is installed. Refusals come before it is imported."""
    monkeypatch.setattr("hasten.optimizations.eight_bit_states.find_spec", lambda _: True)


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True), "AdamW with amsgrad=True has no 8-bit version"),
        (lambda m: torch.optim.Adam(m.parameters(), maximize=True), "Adam with maximize=True has no 8-bit version"),
        (lambda m: torch.optim.Adam(m.parameters(), decoupled_weight_decay=True), "is AdamW: use AdamW"),
        (lambda m: torch.optim.AdamW(m.parameters(), differentiable=True), "AdamW with differentiable=True"),
    ],
)
def test_optimizers_without_an_8_bit_version_are_refused(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_loop(job_with(make), EightBitStates())


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("shape", [(63, 65), (64, 63)])
def test_parameters_too_few_or_of_no_whole_blocks_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(
        JobError, match=r"No tensor has at least 4096 parameters and a multiple of 256, so all state would keep"
    ):
        make_loop(job_with(lambda m: torch.optim.AdamW(m.parameters()), lambda: nn.Linear(*shape)), EightBitStates())


@installed
def test_an_optimizer_of_another_class_is_refused() -> None:
    with pytest.raises(JobError, match="SGD is not supported: remove eight_bit_states from the plan"):
        make_loop(job_with(lambda m: torch.optim.SGD(m.parameters(), lr=0.1)), EightBitStates())


@installed
def test_an_optimizer_that_has_stepped_is_refused() -> None:
    loop = make_loop(Square())
    loop.run(1)
    with pytest.raises(JobError, match="already stepped"):
        loop.live.apply(EightBitStates())


@pytest.mark.long
@installed
@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_it_follows_the_same_rule_and_keeps_its_settings(kind: Any) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = kind(model.parameters(), lr=3e-3, betas=(0.8, 0.9), eps=1e-7, weight_decay=0.2)
        return optimizer

    loop = make_loop(job_with(make), EightBitStates())
    (group,) = loop.live.optimizer.param_groups
    assert type(loop.live.optimizer).__name__ == f"{kind.__name__}8bit"
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (3e-3, (0.8, 0.9), 1e-7, 0.2)
    loop.run(8)
    assert loop.losses == pytest.approx(run(job_with(make), 8), rel=5e-2)
    assert loop.losses != run(job_with(make), 8)


@installed
@pytest.mark.slow
def test_states_take_two_bytes_a_parameter_and_a_checkpoint_brings_them_back() -> None:
    loop = make_loop(Square(), EightBitStates())
    loop.run(2)
    (kept,) = loop.live.optimizer.state.values()
    nbytes = sum(part.numel() * part.element_size() for name in ("exp_avg", "exp_avg_sq") for part in (kept[name].codes,))
    assert nbytes == 2 * 4096
    file = io.BytesIO()
    torch.save(loop.live.optimizer.state_dict(), file)
    file.seek(0)
    told = torch.load(file, weights_only=True)
    other = make_loop(Square(), EightBitStates())
    other.live.optimizer.load_state_dict(told)
    (again,) = other.live.optimizer.state.values()
    assert torch.equal(again["exp_avg"].dequantize(), kept["exp_avg"].dequantize())
    assert again["exp_avg"].dequantize().ne(0).any()


@installed
@pytest.mark.slow
def test_a_loop_may_start_at_states_that_are_there_and_come_back_to_them() -> None:
    loop = make_loop(Square(), EightBitStates())
    loop.run(2)
    later = Loop(loop.live)
    (kept,) = copy.deepcopy(loop.live.optimizer.state).values()
    later.run(3)
    first = list(later.losses)
    (moved,) = loop.live.optimizer.state.values()
    assert not torch.equal(kept["exp_avg"].codes, moved["exp_avg"].codes)
    later.rewind()
    (back,) = loop.live.optimizer.state.values()
    assert type(back["exp_avg"]) is type(kept["exp_avg"])
    assert torch.equal(kept["exp_avg"].dequantize(), back["exp_avg"].dequantize())
    later.run(3)
    assert later.losses == first


class Scheduled(Square):
    """A learning rate that is halved at each update, in two groups."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        first, second = model.parameters()
        groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": 0.5}]
        return torch.optim.AdamW(groups, lr=0.25)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler | None:
        return LambdaLR(optimizer, lambda update: 0.5**update)


@installed
@pytest.mark.slow
def test_the_schedule_drives_rates_that_stay_numbers() -> None:
    loop = make_loop(Scheduled(), EightBitStates())
    loop.run(2)
    rates = [group["lr"] for group in loop.live.optimizer.param_groups]
    assert rates == [0.0625, 0.125]
    assert all(isinstance(rate, float) for rate in rates)
    loop.rewind()
    loop.live.undo_all()
    assert type(loop.live.optimizer) is torch.optim.AdamW
    assert [group["lr"] for group in loop.live.optimizer.param_groups] == [0.25, 0.5]


@installed
@pytest.mark.slow
def test_a_rate_of_zero_changes_no_weight() -> None:
    loop = make_loop(Square(), EightBitStates())
    loop.live.optimizer.param_groups[0].update(lr=0.0)
    before = [parameter.clone() for parameter in loop.live.model.parameters()]
    loop.run(2)
    assert all(torch.equal(*both) for both in zip(before, loop.live.model.parameters(), strict=True))
