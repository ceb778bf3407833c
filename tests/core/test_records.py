"""Records: a sample is unchanged after encoding and decoding, without pickle."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.core.records import decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


def there_and_back(sample: Any) -> Any:
    return decode(bytearray(encode(sample)))


@given(PLAIN)
def test_plain_values_come_back(sample: Any) -> None:
    decoded = there_and_back(sample)
    assert decoded == sample
    assert repr(decoded) == repr(sample)  # 1 differs from 1.0 and True


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool, torch.complex64],
)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4, 5)])
def test_tensors_come_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(math.prod(shape)).reshape(shape) * 3).to(dtype)
    decoded = there_and_back({"x": tensor})["x"]
    assert decoded.dtype is dtype
    assert decoded.shape == tensor.shape
    assert torch.equal(decoded, tensor)


@pytest.mark.parametrize("dtype", ["<f4", ">i2", "|b1", "<U3", "<M8[s]", "<c16"])
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3, 4)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    decoded = there_and_back([array])[0]
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert np.array_equal(decoded, array)


def test_memory_order_is_kept() -> None:
    image = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    decoded = there_and_back(image)
    assert torch.equal(decoded, image)
    assert decoded.stride() == image.stride()
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert there_and_back(array).strides == array.strides


def test_views_are_kept_alone() -> None:
    row = torch.rand(1000, 4)[7]
    record = encode({"row": row, "spread": torch.rand(3)[None].expand(5, 3)})
    assert len(record) < 1000
    assert torch.equal(decode(bytearray(record))["row"], row)


def test_scalars_and_special_numbers() -> None:
    sample = [np.float32(1.5), np.int64(3), np.bool_(1), float("inf"), -0.0, 10**40, "\ud800"]
    decoded = there_and_back(sample)
    assert [type(value) for value in decoded] == [type(value) for value in sample]
    assert decoded == sample
    assert math.isnan(there_and_back(float("nan")))


def test_a_decoded_sample_is_writable() -> None:
    record = bytearray(encode((torch.zeros(3), np.zeros(3))))
    tensor, array = decode(record)
    tensor += 1
    array += 1
    assert float(tensor.sum()) == float(array.sum()) == 3.0
    with pytest.raises(TypeError, match="not plain data"):
        encode(record)


Pair = namedtuple("Pair", "a b")  # noqa: PYI024  users have untyped named tuples


@pytest.mark.parametrize(
    "sample",
    [
        Pair(1, 2), {1, 2}, object(), np.array([object()]), np.zeros(2, dtype=[("a", "f4")]),
        torch.zeros(2, requires_grad=True), torch.zeros(2, 2).to_sparse(), torch.nn.Parameter(torch.zeros(2)),
    ],
)  # fmt: skip
def test_a_sample_that_is_not_plain_data_is_refused(sample: Any) -> None:
    with pytest.raises(TypeError, match=r"not plain data|must be dense"):
        encode({"sample": sample})
