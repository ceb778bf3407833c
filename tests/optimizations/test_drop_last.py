"""Test that only full batches remain, that epochs omit different samples, and that the number of updates is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.optimizations.drop_last import DropLast
from tests.optimizations.contract import Prepared, Ragged, make_loop


def test_every_batch_is_full_and_each_epoch_leaves_out_others() -> None:
    live = make_loop(Ragged(), DropLast()).live
    assert live.order is not None
    left_out = [set(range(30)) - {index for batch in live.order(epoch) for index in batch} for epoch in range(4)]
    assert all(len(batch) == 4 for epoch in range(4) for batch in live.order(epoch))
    assert [len(samples) for samples in left_out] == [2] * 4
    assert len(set.union(*left_out)) > 2


def test_the_updates_of_the_run_stay_as_many() -> None:
    assert make_loop(Ragged(), DropLast()).live.planned_updates == make_loop(Ragged()).live.planned_updates == 24


def test_a_single_short_batch_is_kept() -> None:
    kind: type[Ragged] = type("Few", (Ragged,), {"batch_size": 64})
    live = make_loop(kind(), DropLast()).live
    assert live.order is not None
    assert [len(batch) for batch in live.order(0)] == [30]


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(6),)])

    kind: type[Prepared] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match="needs a map-style dataset"):
        make_loop(kind(), DropLast())
