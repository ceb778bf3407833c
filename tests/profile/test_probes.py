"""The input probe: what a sample costs, and how batches are read."""

from __future__ import annotations

from typing import Any

import torch

from hasten.optimizations.batched_reading import BatchedReading
from hasten.profile.probes import job_facts, probe_input
from hasten.train.build import build
from tests.optimizations.contract import CPU, Prepared, PreparedRows


class Views(Prepared):
    """Samples that are rows of one large tensor."""

    def train_data(self) -> Any:
        return torch.utils.data.TensorDataset(torch.rand(100_000, 6)[:14])

    def deterministic_transform(self, sample: Any) -> Any:
        return {"x": sample[0], "y": sample[0].sum()}


def test_a_view_counts_only_its_own_bytes() -> None:
    size = probe_input(build(Views(), device=CPU), [[0, 1]]).sample_bytes
    assert size is not None
    assert 7 * 4 < size < 1000


def test_it_reads_as_the_pipeline_does() -> None:
    live = build(PreparedRows(), device=CPU)
    live.apply(BatchedReading())
    probe_input(live, [[0, 1, 2], [3, 4, 5]])
    assert live.counters == {"batched_reading_calls": 2, "batched_reading_samples": 6}


def test_randomness_in_the_pipeline_is_reported() -> None:
    facts = job_facts(build(Prepared(), device=CPU))
    assert (facts.load_is_random, facts.finish_is_random, facts.collate_is_random) == (False, True, False)
    assert facts.shuffle
    assert not facts.device_prefetch
    assert facts.num_threads == 0
