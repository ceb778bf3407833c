"""The network: its shapes, where it begins, and what it leaves out when it does not learn."""

from __future__ import annotations

import copy

import pytest
import torch

from hasten.recipes.ocr.model import TEXT_PRIOR, THRESHOLD_PRIOR, Backbone, DBNet, Head
from hasten.recipes.ocr.together import through_heads


@pytest.mark.parametrize("backbone", ["resnet", "mobile"])
def test_two_maps_in_training_and_one_else(backbone: Backbone) -> None:
    torch.manual_seed(0)
    model = DBNet(backbone, width=8)
    images = torch.randn(2, 3, 64, 96)
    assert model(images).shape == (2, 2, 64, 96)
    model.eval()
    assert model(images).shape == (2, 1, 64, 96)


@pytest.mark.parametrize("backbone", ["resnet", "mobile"])
def test_text_is_rare_and_thresholds_are_low_before_training(backbone: Backbone) -> None:
    torch.manual_seed(0)
    maps = torch.sigmoid(DBNet(backbone, width=8)(torch.randn(2, 3, 64, 64))).detach()
    assert abs(float(maps[:, 0].mean()) - TEXT_PRIOR) < 0.02
    assert abs(float(maps[:, 1].mean()) - THRESHOLD_PRIOR) < 0.05


@pytest.mark.parametrize("backbone", ["resnet", "mobile"])
def test_every_weight_can_learn(backbone: Backbone) -> None:
    torch.manual_seed(0)
    model = DBNet(backbone, width=8)
    for parameter in model.parameters():  # branches that begin as nothing pass no gradient on at first
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.0)
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert idle == []


def test_the_published_width_is_about_as_large_as_the_published_network() -> None:
    model = DBNet("resnet", width=64)
    assert 11e6 < sum(parameter.numel() for parameter in model.parameters()) < 14e6


@pytest.mark.parametrize("backbone", ["resnet", "mobile"])
def test_rewritten_layers_give_the_same_maps_and_gradients_and_keep_the_same_weights(backbone: Backbone) -> None:
    torch.manual_seed(0)
    plain, folded = DBNet(backbone, width=8), DBNet(backbone, width=8, rewritten=True)
    images = torch.randn(2, 3, 64, 64)
    for _ in range(3):
        plain(images)  # running statistics that are not those of the start
    folded.load_state_dict(plain.state_dict())
    with torch.inference_mode():
        one, other = plain.eval()(images), folded.eval()(images)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert one.abs().max() > 0.5
    maps = [model.train()(images) for model in (plain, folded)]
    torch.testing.assert_close(*maps, rtol=1e-4, atol=1e-4)
    for made in maps:
        made.square().mean().backward()
    for (name, mine), theirs in zip(plain.named_parameters(), folded.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-3 * float(mine.grad.abs().max()), msg=name)


def test_both_heads_as_one_give_the_same_maps_gradients_and_statistics() -> None:
    torch.manual_seed(0)
    heads = [Head(16, 0.1), Head(16, 0.3)]
    one_by_one = torch.nn.ModuleList(heads)
    for parameter in one_by_one.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    other_heads = copy.deepcopy(heads)
    together = torch.nn.ModuleList(other_heads)
    features = torch.randn(2, 16, 8, 12)
    both = [features.clone().requires_grad_() for _ in range(2)]
    maps = torch.cat([head(both[0]) for head in heads], dim=1), through_heads(other_heads, both[1])
    assert maps[1].shape == (2, 2, 32, 48)
    torch.testing.assert_close(*maps, rtol=1e-4, atol=1e-5)
    outer = torch.randn_like(maps[0])
    for made in maps:
        made.backward(outer)
    torch.testing.assert_close(both[0].grad, both[1].grad, rtol=1e-3, atol=1e-4)
    for (name, mine), theirs in zip(one_by_one.named_parameters(), together.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4 * float(mine.grad.abs().max()), msg=name)
    for old, new in zip(one_by_one.buffers(), together.buffers(), strict=True):
        torch.testing.assert_close(old, new, rtol=1e-5, atol=1e-6)


def test_with_bfloat16_the_network_that_computes_otherwise_says_the_same() -> None:
    torch.manual_seed(0)
    plain, other = DBNet("resnet", width=16), DBNet("resnet", width=16, rewritten=True)
    other.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 96)
    with torch.autocast("cpu", torch.bfloat16):
        maps = [model(images).float() for model in (plain, other)]
    assert maps[0].shape == maps[1].shape == (2, 2, 64, 96)
    torch.testing.assert_close(*maps, rtol=0.05, atol=0.05)
    for (name, mine), theirs in zip(plain.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.05, msg=name)


@pytest.mark.parametrize("backbone", ["resnet", "mobile"])
@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (2, 3, 32, 32), (1, 3, 64, 96), (3, 3, 32, 64)])
def test_with_bfloat16_held_out_pictures_are_said_the_same_of(backbone: Backbone, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, other = DBNet(backbone, width=16), DBNet(backbone, width=16, rewritten=True)
    for parameter in plain.parameters():  # branches that begin as nothing say nothing
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.0)
    plain(torch.randn(2, 3, 64, 64))  # running statistics that are not those of the start
    other.load_state_dict(plain.state_dict())
    images = torch.randn(shape).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        whole = plain.eval()(images)
        with torch.autocast("cpu", torch.bfloat16):
            half, found = (model.eval()(images).float() for model in (plain, other))
    assert found.shape == (shape[0], 1, *shape[2:])
    largest = float((half - whole).abs().max())  # what bfloat16 does to the network as it is written
    assert float((found - whole).abs().max()) <= 2 * largest + 0.01 * float(whole.abs().max())
