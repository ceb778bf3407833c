"""The two networks: shapes, precision, recomputed activations, and periodic longitude."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import JobError
from hasten.recipes.datacube.model import Forecaster, Norm, RoundConv, SpaceTimeTransformer, UNet

SIZES: dict[str, Any] = {"num_in": 3, "num_out": 2, "channels": 5, "grid": (8, 16)}
SMALL: dict[str, Any] = {
    "factorised": lambda **more: SpaceTimeTransformer(**SIZES, width=24, depth=2, heads=3, **more),
    "joint": lambda **more: SpaceTimeTransformer(**SIZES, width=24, depth=2, heads=3, attention="joint", **more),
    "unet": lambda **more: UNet(**SIZES, width=8, **more),
}


def made(name: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = SMALL[name](**more)
    nn.init.normal_(network.get_parameter("head.weight"), std=0.1)  # otherwise it forecasts persistence
    return network


def fields(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 5, 8, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", SMALL)
def test_every_input_step_and_channel_reaches_every_forecast(name: str) -> None:
    network = made(name)
    given = fields(1).requires_grad_()
    out = network(given)
    assert out.shape == (1, 2, 5, 8, 16)
    for lead in range(2):
        (gradient,) = torch.autograd.grad(out[0, lead].square().sum(), given, retain_graph=True)
        assert (gradient.abs().sum((0, 3, 4)) > 0).all()
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_an_untrained_network_forecasts_persistence(name: str) -> None:
    torch.manual_seed(0)
    mean, std, change = [280.0, 9e4, 0.01, 5.0, 0.0], [20.0, 1e4, 0.005, 10.0, 8.0], [1.0, 100.0, 1e-4, 1.0, 1.0]
    model = Forecaster(SMALL[name](), mean, std, change)
    given = fields() * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    assert torch.equal(model(given), given[:, -1:].expand(-1, 2, -1, -1, -1))


def test_a_missing_value_counts_as_the_mean() -> None:
    model = Forecaster(made("unet"), [9e4] * 5, [1e4] * 5, [100.0] * 5)
    given = 9e4 + 1e4 * fields()
    given[0, -1, 0, 2, 3] = torch.nan
    filled = given.nan_to_num(9e4)
    assert torch.equal(model(given), model(filled))


@pytest.mark.parametrize("name", SMALL)
def test_half_precision_keeps_norms_and_fields_in_float32(name: str) -> None:
    network = made(name)
    model = Forecaster(network, [9e4] * 5, [1e4] * 5, [100.0] * 5)
    given = 9e4 + 1e4 * fields()
    seen: list[torch.dtype] = []
    for module in network.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm):
            module.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    whole = model(given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(given)
    assert half.dtype == torch.float32
    assert set(seen) == {torch.float32}
    assert not torch.equal(half, whole)
    assert (half - whole).abs().max() < 0.1 * (whole - given[:, -1:]).abs().max()  # the last field itself is not rounded


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("frac", [0.5, 1.0])
def test_recomputed_activations_change_nothing(name: str, frac: float) -> None:
    gradients = []
    for share in (0.0, frac):
        network: Any = made(name, checkpoint_frac=share)
        assert (network.num_checkpointed > 0) == (share > 0)
        network(fields()).square().mean().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_recomputing_stores_less() -> None:
    def stored(share: float) -> int:
        kept: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            made("factorised", checkpoint_frac=share)(fields())
        return sum(kept)

    assert stored(1.0) < stored(0.5) < stored(0.0)


def test_the_unet_knows_no_edge_in_longitude() -> None:
    network = made("unet").eval()
    given = fields()
    turned = network(given.roll(4, -1))
    torch.testing.assert_close(turned, network(given).roll(4, -1), rtol=1e-4, atol=1e-5)
    conv = RoundConv(1, 1)
    assert conv(torch.zeros(1, 1, 4, 6)).shape == (1, 1, 4, 6)


def test_a_norm_is_exact_where_float16_would_overflow() -> None:
    norm = Norm(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(torch.tensor([[1e5, 2e5, 3e5, 4e5]]))
    torch.testing.assert_close(out, nn.LayerNorm(4)(torch.tensor([[1e5, 2e5, 3e5, 4e5]])))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (SpaceTimeTransformer, {"patch": 3}, "multiple of the patch"),
        (SpaceTimeTransformer, {"width": 30, "heads": 4}, "multiple of the number of heads"),
        (SpaceTimeTransformer, {"attention": "axial"}, "'factorised' or 'joint', not 'axial'"),
        (SpaceTimeTransformer, {"checkpoint_frac": 1.5}, "from 0 to 1, not 1.5"),
        (UNet, {"depth": 5}, "multiple of 16"),
        (UNet, {"checkpoint_frac": -1}, "from 0 to 1, not -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(kind: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        kind(**{**SIZES, **settings})
