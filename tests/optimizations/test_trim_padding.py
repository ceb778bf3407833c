"""Test that trimming removes only padding, and that a wrong length is detected."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.optimizations.trim_padding import TrimPadding
from tests.optimizations.contract import Ragged, make_loop, run


@pytest.mark.parametrize(("multiple", "width"), [(1, 5), (4, 8), (8, 8), (16, 16), (100, 24)])
def test_the_width_is_rounded_up(multiple: int, width: int) -> None:
    class Fives(Ragged):
        def train_data(self) -> Any:
            return [torch.ones(n, dtype=torch.long) for n in (5, 2, 4, 1)]

    batch = make_loop(Fives(), TrimPadding(multiple=multiple)).live.pipeline.fetch(0, [0, 1, 2, 3])
    assert batch.shape == (4, width)
    assert batch.is_contiguous()
    assert batch.sum() == 12


def test_a_wrong_length_is_found() -> None:
    class Wrong(Ragged):
        def length(self, sample: Any) -> int:
            return max(len(sample) - 3, 1)

    with pytest.raises(JobError, match=r"Wrong\.length says that no sample of this batch is longer than"):
        run(Wrong(), 8, TrimPadding())


def test_only_padded_tensors_are_cut() -> None:
    class Mixed(Ragged):
        def collate(self, samples: list[Any]) -> Any:
            tokens = super().collate(samples)
            return {"tokens": tokens, "mask": tokens != 0, "features": torch.rand(len(samples), 3), "ids": torch.arange(24)}

    live = make_loop(Mixed(), TrimPadding()).live
    batch = live.pipeline.fetch(0, [0, 1])
    longest = max(len(live.dataset[index]) for index in (0, 1))
    assert batch["tokens"].shape == batch["mask"].shape == (2, longest)
    assert batch["features"].shape == (2, 3)
    assert batch["ids"].shape == (24,)


def test_a_multiple_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        TrimPadding(multiple=0)
