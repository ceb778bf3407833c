"""Test that the loss is read every few updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.optimizations.metric_reading import MetricReading
from tests.optimizations.contract import Prepared, facts, make_loop


def test_losses_are_brought_to_the_host_together(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop(Prepared(), MetricReading(every=4))
    read: list[int] = []
    stack = torch.stack

    def spy(items: Any, *rest: Any) -> torch.Tensor:
        read.append(len(items))
        return stack(items, *rest)

    monkeypatch.setattr(torch, "stack", spy)
    monkeypatch.setattr(loop.live.pipeline, "collate", _first)
    loop.run(10)
    assert read == [4, 4, 2]
    assert len(loop.losses) == 10


def _first(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"x": samples[0]["x"][None], "y": samples[0]["y"][None]}


@pytest.mark.parametrize("read_every", [1, 19, 20, 50])
def test_it_fits_where_readings_are_more_frequent(read_every: int) -> None:
    assert MetricReading.fit(facts(job={"read_every": read_every})).fits == (read_every < 20)


def test_the_gain_is_the_measured_ceiling() -> None:
    assert MetricReading.fit(facts()).max_gain_frac == pytest.approx(1 - 1 / 1.1)


def test_never_reading_is_no_setting() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        MetricReading(every=0)
