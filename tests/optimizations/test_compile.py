"""Test that torch.compile graphs are counted, and that recompiling for every shape fails the evidence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.plan import Plan
from hasten.optimizations.compile import Compile
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from tests.optimizations.contract import Images, Ragged, facts, make_loop, run


class Changing(Ragged):
    """A job with another batch width at every step."""

    shuffle = False
    batch_size = 1

    def train_data(self) -> Any:
        return [torch.ones(n, dtype=torch.long) for n in range(3, 18)]

    def collate(self, samples: list[Any]) -> Any:
        return torch.stack(samples)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))


def test_cuda_graphs_are_for_cuda() -> None:
    assert [item.settings()["mode"] for item in Compile.fit(facts()).settings] == ["default"]
    on_gpu = Compile.fit(facts(job={"device": "cuda"}, on={"cxx_compiler": None}))
    assert [item.settings()["mode"] for item in on_gpu.settings] == ["default", "reduce-overhead"]


@pytest.mark.long
@pytest.mark.parametrize(("dynamic", "passes"), [("no", False), ("auto", True)])
def test_a_graph_for_every_shape_is_found_out(dynamic: Any, passes: bool) -> None:
    item = Compile(dynamic=dynamic)
    loop = make_loop(Changing(), item)
    loop.run(12)
    checks = item.evidence(loop.live, trace_step(loop))
    loop.live.undo_all()
    assert [check.passed for check in checks] == [True, passes], checks


@pytest.mark.slow
def test_names_and_types_stay() -> None:
    loop = make_loop(Changing(), Compile())
    assert type(loop.live.model) is nn.Sequential
    assert list(loop.live.model.state_dict()) == ["0.weight", "1.weight", "1.bias"]
    loop.live.undo_all()


@pytest.mark.long
def test_it_works_with_checkpointing() -> None:
    from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
    from tests.optimizations.contract import Attention

    plan = (ActivationCheckpointing(), Compile())
    assert run(Attention(), 3, *plan) == pytest.approx(run(Attention(), 3), rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_cuda_graphs_train() -> None:
    item, device = Compile(mode="reduce-overhead"), torch.device("cuda")
    live = build(Images(), Plan(optimizations=(item,)), device=device)
    loop, plain = Loop(live), Loop(build(Images(), device=device))
    loop.run(6)
    plain.run(6)
    assert loop.losses == pytest.approx(plain.losses, rel=2e-2)
    assert all(check.passed for check in item.evidence(live, trace_step(loop)))
    live.undo_all()
