"""Test that packing gives the losses of a padded run, and that incorrect packing is detected."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.plan import Plan
from hasten.optimizations.sequence_packing import SequencePacking
from hasten.profile.probes import InputProbe, job_facts, probe_input
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut
from tests.optimizations.contract import CPU, Ragged, RaggedPacked, facts, make_loop, run


def probe(loop: Loop) -> InputProbe:
    """Return the first batches of a loop."""
    return probe_input(loop.live, loop.upcoming(3))


def test_losses_are_those_of_padded_batches() -> None:
    plain = run(RaggedPacked(), 12)
    assert run(RaggedPacked(), 12, SequencePacking()) == pytest.approx(plain, rel=1e-5)


def test_a_sample_that_is_left_out_is_found() -> None:
    class Loses(RaggedPacked):
        def collate_packed(self, samples: list[Any]) -> Any:
            return super().collate_packed(samples[1:])

    with pytest.raises(
        JobError, match=r"Loses\.collate_packed returned a row of \d+ positions for 4 samples whose lengths by .* sum to \d+"
    ):
        run(Loses(), 3, SequencePacking())


def test_padding_in_a_packed_row_is_found() -> None:
    class Pads(RaggedPacked):
        def collate_packed(self, samples: list[Any]) -> Any:
            return torch.nn.functional.pad(super().collate_packed(samples), (0, 5))

    with pytest.raises(JobError, match="contain each sample once and no padding"):
        run(Pads(), 3, SequencePacking())


class PackedToMultiple(RaggedPacked):
    """A job whose packed rows may be longer than its samples."""

    def collate_packed(self, samples: list[Any], multiple: int = 1) -> Any:
        batch = super().collate_packed(samples)
        return torch.nn.functional.pad(batch, (0, -batch.shape[1] % multiple))


def test_rows_are_lengthened_to_a_multiple_where_the_job_can() -> None:
    assert job_facts(make_loop(PackedToMultiple()).live).packs_to_multiple
    assert not job_facts(make_loop(RaggedPacked()).live).packs_to_multiple
    fit = SequencePacking.fit(facts(job={"packs_to_multiple": True}))
    assert [item.settings()["multiple"] for item in fit.settings] == [128]
    loop = make_loop(PackedToMultiple(), SequencePacking(multiple=64))
    assert loop.live.order is not None
    lengths = {loop.live.pipeline.fetch(0, indices).shape[1] for indices in loop.live.order(0)}
    assert all(length % 64 == 0 for length in lengths)


def test_a_job_that_cannot_extend_rows_is_refused() -> None:
    with pytest.raises(JobError, match=r"multiple=64 needs collate_packed\(self, samples, multiple\)"):
        make_loop(RaggedPacked(), SequencePacking(multiple=64))
    with pytest.raises(ValueError, match="multiple must be at least 1"):
        SequencePacking(multiple=0)


def test_a_job_that_cannot_pack_is_refused() -> None:
    with pytest.raises(JobError, match="needs the method collate_packed"):
        build(Ragged(), Plan(optimizations=(SequencePacking(),)), device=CPU)


def test_a_packed_batch_counts_as_unpadded() -> None:
    assert probe(make_loop(RaggedPacked())).padding_frac > 0.2
    assert probe(make_loop(RaggedPacked(), SequencePacking())).padding_frac == 0.0


def test_every_plan_is_measured_with_the_same_ruler() -> None:
    live = make_loop(RaggedPacked(), SequencePacking()).live
    seen: list[int] = []
    collate = live.job.collate

    def counted(samples: list[Any]) -> Any:
        seen.append(len(samples))
        return collate(samples)

    live.job.collate = counted  # type: ignore[method-assign]
    held_out = HeldOut(live)
    packed = held_out.measure()["loss"]
    assert not seen
    plain = held_out.measure(plain=True)["loss"]
    assert sum(seen) == 30
    assert packed == pytest.approx(plain, rel=1e-5)
