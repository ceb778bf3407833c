"""The running average follows the model, is used for metrics, and is saved with the model."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from hasten.recipes.detection.average import Averaged


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def changed(averaged: Averaged, seed: int = 1) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in averaged.live.state_dict().values():
            tensor.copy_((torch.rand(tensor.shape, generator=random) * 8).to(tensor.dtype))


def test_training_calls_the_live_model_and_measuring_the_average() -> None:
    averaged = Averaged(model())
    images = torch.rand(2, 3, 8, 8)
    before = averaged.eval()(images)
    changed(averaged)
    assert torch.equal(averaged.eval()(images), before)
    assert not torch.equal(averaged.train()(images), before)


def test_each_update_moves_weights_and_statistics_by_the_decay() -> None:
    averaged = Averaged(model(), decay=0.9, ramp_updates=5.0)
    expected = copy.deepcopy(averaged.average.state_dict())
    for update in range(1, 4):
        changed(averaged, seed=update)
        averaged.update()
        keep = 0.9 * (1 - math.exp(-update / 5.0))
        for name, new in averaged.live.state_dict().items():
            expected[name] = keep * expected[name] + (1 - keep) * new if new.is_floating_point() else new
    for name, tensor in averaged.average.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)


def test_the_first_weights_are_forgotten_in_a_short_run() -> None:
    averaged = Averaged(model())
    with torch.no_grad():
        for parameter in averaged.live.parameters():
            parameter.fill_(1.0)
        for parameter in averaged.average.parameters():
            parameter.fill_(1000.0)
    for _ in range(100):
        averaged.update()
    assert all(float((parameter - 1.0).abs().max()) < 1e-3 for parameter in averaged.average.parameters())


def test_only_the_live_model_learns() -> None:
    averaged = Averaged(model()).train()
    averaged(torch.rand(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in averaged.live.parameters())
    assert not any(parameter.requires_grad for parameter in averaged.average.parameters())


def test_training_mode_leaves_the_average_in_peace() -> None:
    averaged = Averaged(model()).train()
    before = copy.deepcopy(averaged.average.state_dict())
    averaged(torch.rand(4, 3, 8, 8))
    assert averaged.live.training
    assert not averaged.average.training
    assert all(torch.equal(value, before[name]) for name, value in averaged.average.state_dict().items())


def test_a_run_that_is_resumed_continues_as_if_it_had_not_stopped() -> None:
    first = Averaged(model())
    for update in range(3):
        changed(first, seed=update)
        first.update()
    second = Averaged(model())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for averaged in (first, second):
        changed(averaged, seed=9)
        averaged.update()
    assert int(second.num_updates) == 4
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])


def test_an_average_in_another_precision_follows_too() -> None:
    averaged = Averaged(model(), decay=0.0)
    averaged.live.to(torch.bfloat16)
    changed(averaged)
    averaged.update()
    weight = averaged.average.get_parameter("0.weight").detach()
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, averaged.live.get_parameter("0.weight").detach().float(), check_stride=False)
