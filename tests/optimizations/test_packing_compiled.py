"""Test a packed job under torch.compile: attention stays out of the graphs, so new lengths cause no recompilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hasten
from hasten.optimizations.compile import Compile
from hasten.optimizations.sequence_packing import SequencePacking
from hasten.train.trace import trace_step
from tests.optimizations.contract import RaggedPacked, make_loop, run


class Reader(nn.Module):
    """Computes embeddings, attention within each sample, and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.mix, self.head = nn.Embedding(32, 16), nn.Linear(16, 48), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map [batch, time] to [batch, time, 32]."""
        x = self.token(tokens)
        q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in self.mix(x).chunk(3, dim=2))
        attended = hasten.packed_attention(q, k, v, packing, is_causal=True)
        logits: torch.Tensor = self.head(x + attended.transpose(1, 2).flatten(2))
        return logits


class Texts(RaggedPacked):
    """A job with ragged sequences and attention."""

    def model(self) -> nn.Module:
        return Reader()

    def collate(self, samples: list[Any]) -> Any:
        return super().collate(samples), None

    def collate_packed(self, samples: list[Any]) -> Any:
        return torch.cat(samples)[None], hasten.Packing.of([len(sample) for sample in samples])

    def loss(self, model: nn.Module, batch: Any) -> hasten.Loss:
        tokens, packing = batch
        logits = model(tokens, packing).flatten(0, 1)
        each = nn.functional.cross_entropy(logits, tokens.flatten(), ignore_index=0, reduction="sum")
        return hasten.Loss(each, (tokens != 0).sum())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler accesses it at graph breaks
def test_new_lengths_cause_no_recompilation() -> None:
    plain = run(Texts(), 12)
    assert run(Texts(), 12, SequencePacking()) == pytest.approx(plain, rel=1e-5)
    loop = make_loop(Texts(), SequencePacking(), Compile())
    loop.run(12)
    assert loop.losses == pytest.approx(plain, rel=1e-4)
    checks = Compile().evidence(loop.live, trace_step(loop))
    assert all(check.passed for check in checks), checks
    loop.live.undo_all()
