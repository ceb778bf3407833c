"""Test channels-last 3d memory format for weights, batches, and tensors that are not volumes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hasten.core.optimization import clash
from hasten.optimizations.channels_last import ChannelsLast
from hasten.optimizations.channels_last_3d import ChannelsLast3d
from hasten.train.trace import trace_step
from tests.optimizations.cases.channels_last_3d import Volumes
from tests.optimizations.contract import facts, make_loop


class Mixed(Volumes):
    """3-d convolutions, then 2-d convolutions."""

    def model(self) -> nn.Module:
        layers = [nn.Conv3d(3, 4, 3, padding=1), nn.Flatten(1, 2), nn.Conv2d(24, 4, 3), nn.AdaptiveAvgPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 5))


def test_only_weights_and_volumes_change() -> None:
    live = make_loop(Mixed(), ChannelsLast3d()).live
    layouts = {name: p.is_contiguous() for name, p in live.model.named_parameters() if p.dim() > 1}
    assert layouts == {"0.weight": False, "2.weight": True, "5.weight": True}
    volume, image = torch.rand(2, 3, 4, 4, 4), torch.rand(2, 3, 4, 4)
    batch: Any = live.to_device({"volume": volume, "image": image, "label": torch.ones(2)})
    assert batch["volume"].is_contiguous(memory_format=torch.channels_last_3d)
    assert batch["image"].is_contiguous()
    live.undo_all()
    assert all(p.is_contiguous() for p in live.model.parameters())


def test_all_layers_keep_the_memory_format() -> None:
    trace = trace_step(make_loop(Volumes(), ChannelsLast3d()))
    assert trace.channels_last["convolution"] == trace.ops["convolution"] == 2


def test_transposed_convolutions_count() -> None:
    assert ChannelsLast3d.fit(facts(job={"module_counts": {"ConvTranspose3d": 1}})).fits


def test_a_plan_has_one_memory_format() -> None:
    assert "memory_format" in clash(ChannelsLast(), ChannelsLast3d())
