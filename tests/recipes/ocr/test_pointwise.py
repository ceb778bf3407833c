"""A convolution with what follows it, against the operations one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.ocr.model import conv
from hasten.recipes.ocr.pointwise import can_join, convolved

LAYERS = [conv(8, 16), conv(8, 16, stride=2), conv(8, 4, 1), conv(8, 8, groups=8), nn.Conv2d(8, 3, (3, 1), padding=(1, 0))]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("relu", [False, True])
@torch.inference_mode()
def test_it_is_a_convolution_what_is_beside_it_and_relu(layer: nn.Conv2d, *, relu: bool) -> None:
    x = drawn(2, 8, 10, 12).to(memory_format=torch.channels_last)
    assert can_join(x)
    weight, bias = torch.randn_like(layer.weight), torch.randn(layer.out_channels)
    whole = (x.float(), weight.bfloat16().float(), bias.bfloat16().float())
    plain = F.conv2d(*whole, layer.stride, layer.padding, groups=layer.groups)
    beside = drawn(*plain.shape)
    for other in (None, beside):
        wanted = plain if other is None else plain + other
        found = convolved(x, weight, bias, layer, relu=relu, beside=other)
        assert found.dtype is torch.bfloat16
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found.float(), wanted.relu() if relu else wanted, rtol=0.01, atol=0.05)


def test_only_bfloat16_pixels_without_a_gradient_are_taken() -> None:
    x = drawn(2, 8, 10, 12).to(memory_format=torch.channels_last)
    assert not can_join(x)
    with torch.no_grad():
        assert can_join(x)
        assert not can_join(x.float())
        assert not can_join(x.contiguous())
        for one in (drawn(2, 8, 1, 1), drawn(2, 1, 3, 3)):
            assert not can_join(one.to(memory_format=torch.channels_last))


@torch.inference_mode()
def test_padding_by_its_name_is_an_error() -> None:
    layer = nn.Conv2d(8, 3, 3, padding="same")
    with pytest.raises(TypeError, match="padding must be given in pixels here, not as 'same'"):
        convolved(drawn(1, 8, 4, 4), layer.weight, torch.zeros(3), layer, relu=False)
