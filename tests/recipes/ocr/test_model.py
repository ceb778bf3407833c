"""The network: its shapes, its initial outputs, and what it omits outside of training."""

from __future__ import annotations

import pytest
import torch

from hasten.recipes.ocr.model import TEXT_PRIOR, THRESHOLD_PRIOR, Backbone, DBNet


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
    for parameter in model.parameters():  # branches that start as zero pass on no gradient at first
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.0)
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert idle == []


def test_the_published_width_is_about_as_large_as_the_published_network() -> None:
    model = DBNet("resnet", width=64)
    assert 11e6 < sum(parameter.numel() for parameter in model.parameters()) < 14e6
