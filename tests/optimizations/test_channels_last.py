"""Test channels-last memory format for weights, batches, and tensors that are not images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import JobError
from hasten.optimizations.channels_last import ChannelsLast
from hasten.train.trace import trace_step
from tests.optimizations.contract import Images, facts, make_loop


def test_only_weights_and_images_change() -> None:
    live = make_loop(Images(), ChannelsLast()).live
    layouts = {name: p.is_contiguous() for name, p in live.model.named_parameters() if p.dim() > 1}
    assert layouts == {"0.weight": False, "3.weight": False, "7.weight": True}
    batch: Any = live.to_device({"image": torch.rand(2, 3, 4, 4), "boxes": torch.rand(2, 5, 4), "label": torch.ones(2)})
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["boxes"].is_contiguous()


def test_all_layers_keep_the_memory_format() -> None:
    trace = trace_step(make_loop(Images(), ChannelsLast()))
    assert trace.channels_last["convolution"] == trace.ops["convolution"] == 2


def test_transposed_convolutions_count() -> None:
    assert ChannelsLast.fit(facts(job={"module_counts": {"ConvTranspose2d": 1}})).fits


class Strided(Images):
    """Images with a model whose second layer is a 1x1 convolution with a stride."""

    inputs = 8

    def model(self) -> nn.Module:
        """Return the network."""
        first = nn.Conv2d(3, self.inputs, 3, padding=1)
        return nn.Sequential(first, nn.Conv2d(self.inputs, 4, 1, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_a_layer_whose_gradient_is_written_out_of_bounds_on_a_cpu_is_refused_by_its_name() -> None:
    with pytest.raises(JobError, match="layer 1 is a 1x1 convolution with a stride and fewer than 16 input channels"):
        make_loop(Strided(), ChannelsLast())


def test_the_same_layer_with_enough_inputs_is_not_refused() -> None:
    enough = Strided()
    enough.inputs = 16
    make_loop(enough, ChannelsLast())
