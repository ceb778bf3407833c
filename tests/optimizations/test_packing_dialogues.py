"""Test packing of real text: losses equal those of padded batches, and documents do not attend to each other.

The text comes with Python. If the public data are there, their conversations are tested too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the conventional name

from benchmarks.jobs.dialogues import DialoguesJob
from benchmarks.public_data import CONVERSATIONS, NOT_THERE
from examples.text import NOTHING, Batch, ByteGPT, TextJob
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.optimizations.sequence_packing import SequencePacking
from hasten.train.build import build
from tests.optimizations.contract import CPU

NUM_BATCHES = 20


class SmallText(TextJob):
    """The text example with a narrower model and smaller batches."""

    batch_size = 4

    def model(self) -> nn.Module:
        return ByteGPT(32, num_heads=2)


class SmallDialogues(DialoguesJob):
    """The same for conversations."""

    batch_size = 4
    width, num_heads = 32, 2


@pytest.fixture(scope="module", params=[SmallText, SmallDialogues], ids=["topics", "dialogues"])
def kind(request: pytest.FixtureRequest) -> type[TextJob]:
    """Return a job for each of the two texts."""
    if request.param is SmallDialogues and not CONVERSATIONS.is_file():
        pytest.skip(NOT_THERE)
    chosen: type[TextJob] = request.param
    return chosen


def pair(kind: type[TextJob]) -> tuple[LiveJob, LiveJob]:
    """Return the unpacked and the packed job, with equal weights."""
    packed = Plan(optimizations=(SequencePacking(),))
    return build(kind(), device=CPU), build(kind(), packed, device=CPU)


def batches(live: LiveJob, num: int) -> list[Batch]:
    """Return the first batches of the first epoch."""
    assert live.order is not None
    return [live.pipeline.fetch(0, indices) for indices in live.order(0)[:num]]


@torch.no_grad()
def test_each_of_twenty_batches_has_the_loss_of_its_padded_self(kind: type[TextJob]) -> None:
    plain, packed = pair(kind)
    both = zip(batches(plain, NUM_BATCHES), batches(packed, NUM_BATCHES), strict=True)
    saved = 0
    for padded_batch, packed_batch in both:
        ours, theirs = plain.job.loss(plain.model, padded_batch), packed.job.loss(packed.model, packed_batch)
        assert not isinstance(ours, torch.Tensor)
        assert not isinstance(theirs, torch.Tensor)
        assert theirs.weight == ours.weight
        mean, packed_mean = float(ours.total / ours.weight), float(theirs.total / theirs.weight)
        assert packed_mean == pytest.approx(mean, rel=1e-5)
        saved += padded_batch[0].numel() - packed_batch[0].numel()
    assert saved > 0, "no batch had padding, so nothing was tested"


def test_no_document_sees_another(kind: type[TextJob]) -> None:
    _, packed = pair(kind)
    (batch,) = batches(packed, 1)
    lengths, reached = influence(packed, batch)
    assert len(lengths) == packed.job.batch_size
    for document, found in enumerate(reached):
        for other, gradient in enumerate(found.split(lengths)):
            if other == document:
                assert bool((gradient.abs().amax(dim=1) > 0).all()), "a position of the document does not affect its loss"
            else:
                assert gradient.abs().max() == 0, f"document {other} affects the loss of document {document}"


def test_plain_attention_over_a_packed_row_would_be_found(kind: type[TextJob]) -> None:
    """Run the negative control: without the packing, a document attends to everything before it in the row."""
    _, packed = pair(kind)
    (batch,) = batches(packed, 1)
    inputs, targets, packing = batch
    assert packing is not None
    two = [[row[0, at : at + 30] for row in (inputs, targets)] for at in packing.offsets[:2].tolist()]
    joined = [torch.cat(parts)[None] for parts in zip(*two, strict=True)]
    _, reached = influence(packed, (joined[0], joined[1], None), [30, 30])
    assert reached[1][:30].abs().max() > 0


def influence(live: LiveJob, batch: Batch, lengths: Sequence[int] = ()) -> tuple[list[int], list[torch.Tensor]]:
    """Return the gradients of each document's loss with respect to all embeddings, `[total, width]` per document."""
    inputs, targets, packing = batch
    sizes = list(packing.lengths if packing is not None else lengths)
    embedded: list[torch.Tensor] = []
    model = live.model
    assert isinstance(model, ByteGPT)
    handle = model.token.register_forward_hook(lambda *seen: embedded.append(seen[2]))
    logits = model(inputs, packing)
    handle.remove()
    found = []
    for own, wanted in zip(logits[0].split(sizes), targets[0].split(sizes), strict=True):
        loss = F.cross_entropy(own, wanted, ignore_index=NOTHING, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, embedded[0], retain_graph=True)
        found.append(gradient[0])
    return sizes, found
