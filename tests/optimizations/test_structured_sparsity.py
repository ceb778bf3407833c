"""Narrower hidden layers: what is cut, what is saved, and that the saved weights are the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hasten
from hasten.core.errors import JobError
from hasten.core.plan import Plan
from hasten.optimizations.channels_last import ChannelsLast
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.module_precision import ModulePrecision
from hasten.optimizations.structured_sparsity import StructuredSparsity
from hasten.train.run import train
from hasten.train.trace import trace_step
from tests.optimizations.contract import Pictures, Prepared, Ragged, facts, make_loop, run

HALF = StructuredSparsity(keep_frac=0.5)


class Deep(Ragged):
    """Three layers in a row: the middle one loses rows and columns."""

    def model(self) -> nn.Module:
        wide = [nn.Embedding(32, 8), nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.1), nn.Linear(16, 12, bias=False)]
        return nn.Sequential(*wide, nn.Tanh(), nn.Linear(12, 32))


class Seen(Pictures):
    """Convolutions with statistics of their channels, and held-out data."""

    quality = hasten.Quality(margin=0.1)

    def valid_data(self) -> Dataset[Any] | None:
        return self.train_data()


class Accumulated(Ragged):
    """An optimizer that has state before its first step."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=0.1)


def shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def output(model: nn.Module, batch: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(batch[0] if isinstance(batch, list) else batch)
    return found


def test_rows_columns_and_the_optimizers_state_are_cut() -> None:
    loop = make_loop(Deep(), HALF)
    loop.run(2)
    model: Any = loop.live.model
    assert shapes(model) == {"0.weight": [32, 8], "1.weight": [8, 8], "1.bias": [8], "4.weight": [6, 8],
                             "6.weight": [32, 6], "6.bias": [32]}  # fmt: skip
    assert (model[1].out_features, model[4].in_features, model[4].out_features, model[6].in_features) == (8, 8, 6, 6)
    for parameter in model.parameters():
        assert loop.live.optimizer.state[parameter]["exp_avg"].shape == parameter.shape


def test_channels_and_their_statistics_are_cut() -> None:
    loop = make_loop(Seen(), HALF)
    model: Any = loop.live.model
    before = model[1].running_mean.clone()
    loop.run(2)
    found = shapes(model)
    assert found["0.weight"] == [4, 3, 3, 3]
    assert found["3.weight"] == [8, 4, 3, 3]
    assert all(found[f"1.{name}"] == [4] for name in ("weight", "bias", "running_mean", "running_var"))
    assert (model[0].out_channels, model[1].num_features, model[3].in_channels) == (4, 4, 4)
    assert not torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize("job", [Ragged, Deep, Seen])
def test_the_jobs_own_model_loads_what_was_trained_and_gives_the_same(job: Any, tmp_path: Path) -> None:
    loop = make_loop(job(), HALF)
    loop.run(5)
    torch.save(loop.live.model.state_dict(), tmp_path / "model.pt")
    own = job().model()
    assert shapes(own) != shapes(loop.live.model)
    own.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    batch = loop.live.pipeline.fetch(0, [0, 1, 2])
    assert torch.allclose(output(own, batch), output(loop.live.model, batch), atol=1e-6)


def test_a_run_saves_what_the_jobs_own_model_loads(tmp_path: Path) -> None:
    result = train(Seen(), Plan(optimizations=(HALF,)), tmp_path, max_updates=4)
    own = Seen().model()
    own.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    own.eval()
    pictures, labels = zip(*[Seen().train_data()[index] for index in range(14)], strict=True)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(own(torch.stack(pictures)), torch.stack(labels))
    assert float(loss) == pytest.approx(result.held_out["loss"], rel=1e-5)


@pytest.mark.parametrize("job", [Deep, Seen])
def test_what_was_saved_is_loaded_bit_by_bit(job: Any) -> None:
    loop = make_loop(job(), HALF)
    loop.run(3)
    saved = {name: value.clone() for name, value in loop.live.model.state_dict().items()}
    trained = [p.detach().clone() for p in loop.live.model.parameters()]
    loop.run(2)
    loop.live.model.load_state_dict(saved)
    assert all(torch.equal(old, new) for old, new in zip(trained, loop.live.model.parameters(), strict=True))


def test_the_units_with_large_weights_stay() -> None:
    class Pretrained(Ragged):
        def model(self) -> nn.Module:
            model: Any = super().model()
            with torch.no_grad():
                model[1].weight[::2] *= 1e-4
                model[1].bias[::2] *= 1e-4
            return model  # type: ignore[no-any-return]

    live, plain = make_loop(Pretrained(), HALF).live, make_loop(Pretrained()).live
    batch = live.pipeline.fetch(0, [0, 1])
    assert torch.allclose(output(live.model, batch), output(plain.model, batch), atol=1e-4)


def test_wide_layers_keep_a_multiple_of_eight() -> None:
    class Wide(Prepared):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 100), nn.ReLU(), nn.Linear(100, 10), nn.ReLU(), nn.Linear(10, 1))

    model: Any = make_loop(Wide(), StructuredSparsity(keep_frac=0.75)).live.model
    assert (model[0].out_features, model[2].out_features) == (80, 8)


def test_saved_weights_that_are_another_model_are_found_out() -> None:
    loop = make_loop(Ragged(), HALF)

    def spoil(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        state[prefix + "1.weight"] = state[prefix + "1.weight"] * 3

    assert [check.passed for check in HALF.evidence(loop.live, trace_step(loop))] == [True, True]
    loop.live.model.register_state_dict_post_hook(spoil)
    checks = HALF.evidence(loop.live, trace_step(loop))
    assert [check.passed for check in checks] == [True, False], checks


def test_evidence_leaves_modes_and_weights_as_they_were() -> None:
    loop = make_loop(Seen(), HALF)
    model: Any = loop.live.model
    trace = trace_step(loop)
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    HALF.evidence(loop.live, trace)
    after = model.state_dict()
    assert [module.training for module in model] == [True, False] + [True] * 6
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_optimizer_with_state_from_the_start_is_put_back() -> None:
    loop = make_loop(Accumulated(), HALF)
    loop.live.undo_all()
    assert run(Accumulated(), 3) == run_on(loop.live)


def run_on(live: Any) -> list[float]:
    from hasten.train.loop import Loop

    loop = Loop(live)
    loop.run(3)
    return loop.losses


@pytest.mark.parametrize(
    ("job", "others"),
    [(Seen, (ChannelsLast(),)), (Seen, (ModulePrecision(),)), (Ragged, (FusedOptimizer(),)), (Deep, (ModulePrecision(),))],
)
def test_it_goes_with_others_in_any_order(job: Any, others: Any) -> None:
    alone = run(job(), 5, HALF)
    for items in ((HALF, *others), (*others, HALF)):
        loop = make_loop(job(), *items)
        assert all(check.passed for check in HALF.evidence(loop.live, trace_step(loop)))
        loop.run(5)
        assert loop.losses == pytest.approx(alone, rel=2e-2)
        loop.live.undo_all()
        assert shapes(loop.live.model) == shapes(job().model())


def test_the_most_it_can_gain_is_what_half_the_width_saves() -> None:
    fit = StructuredSparsity.fit(facts(job={"hidden_layers": 1}))
    assert [setting.settings() for setting in fit.settings] == [{"keep_frac": 0.75}, {"keep_frac": 0.5}]
    assert fit.max_gain_frac == pytest.approx((0.2 + 0.3 + 0.15) * 0.75)


def test_a_model_without_a_hidden_layer_is_refused() -> None:
    class Flat(Prepared):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 1))

    with pytest.raises(JobError, match=r"no hidden layer that gets narrower at keep_frac = 0\.5"):
        make_loop(Flat(), HALF)


@pytest.mark.parametrize("keep_frac", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_that_cannot_be_is_refused(keep_frac: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        StructuredSparsity(keep_frac=keep_frac)
