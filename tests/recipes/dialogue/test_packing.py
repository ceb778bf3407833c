"""Packed rows keep the order of the curriculum, every token, and exactly the losses of the conversations alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name
from torch.utils.data import DataLoader

from hasten.core.errors import DataError
from hasten.core.packing import packed_attention
from hasten.data import StoreWriter
from hasten.recipes.dialogue.packing import NOTHING, PackedConversations, document_mask, packed_batch, targets
from hasten.recipes.dialogue.stages import open_stages

NUM_TOKENS = 1_000
LENGTH = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stages whose conversations all differ."""
    path = tmp_path_factory.mktemp("tokens")
    random = np.random.default_rng(0)
    for number, (stage, count) in enumerate({"third": 150, "first": 170, "second": 5}.items()):
        tokens = [random.integers(1, NUM_TOKENS, random.integers(2, LENGTH)).astype(np.uint16) for _ in range(count)]
        masks = [random.integers(0, 2, len(row)).astype(np.uint8) for row in tokens]
        with StoreWriter(path / stage, block_rows=8, provenance={"stage_number": number}) as writer:
            sizes = [len(row) for row in tokens]
            writer.write({"tokens": pa.array(tokens), "loss_mask": pa.array(masks), "num_tokens": sizes})
    return path


def conversations(rows: Any) -> list[tuple[list[int], list[int]]]:
    """Return tokens and mask of each conversation, in the order in which they are read."""
    found = []
    for row in rows:
        for number in range(1, int(row["documents"].max()) + 1):
            here = row["documents"] == number
            assert row["positions"][here].tolist() == list(range(int(here.sum())))
            found.append((row["ids"][here].tolist(), row["mask"][here].tolist()))
    return found


def test_rows_hold_every_conversation_once_and_do_not_mix_stages(folder: Path) -> None:
    packed = PackedConversations(folder, length=LENGTH, window=32, pad=7)
    rows = [packed[number] for number in range(len(packed))]
    assert list(packed.stage_rows) == ["third", "first", "second"]
    starts = [*packed.stage_rows.values(), len(packed)]
    for number, store in enumerate(open_stages(folder).values()):
        of_stage = conversations(rows[starts[number] : starts[number + 1]])
        want = store.take(range(len(store)), ["tokens", "loss_mask"])
        assert sorted(of_stage) == sorted(zip(want["tokens"].to_pylist(), want["loss_mask"].to_pylist(), strict=True))
    for row in rows:
        padding = row["documents"] == 0
        assert row["ids"][padding].eq(7).all()
        assert not row["mask"][padding].any()
    assert packed.num_tokens == sum(int((row["documents"] > 0).sum()) for row in rows) > 0.85 * len(packed) * LENGTH


@pytest.mark.parametrize("window", [16, 64])
def test_a_conversation_moves_by_less_than_a_window(folder: Path, window: int) -> None:
    def read(width: int, **changes: Any) -> list[tuple[list[int], list[int]]]:
        packed = PackedConversations(folder, length=LENGTH, window=width, stages=["third"], **changes)
        return conversations(packed.__getitems__(range(len(packed))))

    order = read(1)  # nothing can move
    packed = read(window)
    assert packed != order
    for start in range(0, len(order), window):
        assert sorted(packed[start : start + window]) == sorted(order[start : start + window])
    assert read(window) == packed
    twice = read(window, passes=2)
    assert twice[: len(packed)] == packed
    others = read(window, seed=1), twice[len(packed) :]
    assert all(other != packed for other in others)
    assert all(sorted(other) == sorted(packed) for other in others)


def test_long_conversations_are_split_with_their_mask(tmp_path: Path) -> None:
    tokens, mask = list(range(1, 151)), [number % 3 % 2 for number in range(150)]
    with StoreWriter(tmp_path / "only", provenance={"stage_number": 0}) as writer:
        writer.write({"tokens": [tokens, [5, 6]], "loss_mask": [mask, [0, 1]], "num_tokens": [150, 2]})
    packed = PackedConversations(tmp_path, length=LENGTH)
    parts = [(tokens[start : start + LENGTH], mask[start : start + LENGTH]) for start in range(0, 150, LENGTH)]
    assert sorted(conversations(packed[row] for row in range(len(packed)))) == sorted([*parts, ([5, 6], [0, 1])])
    assert (len(packed), packed.num_tokens) == (3, 152)


def test_worker_processes_give_the_same_rows(folder: Path) -> None:
    packed = PackedConversations(folder, length=LENGTH, window=32)
    batches = list(DataLoader(packed, batch_size=16, num_workers=2, multiprocessing_context="spawn"))
    for name in ("ids", "mask", "documents", "positions"):
        want = torch.stack([packed[number][name] for number in range(len(packed))])
        assert torch.equal(torch.cat([batch[name] for batch in batches]), want)


def test_what_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="window must be at least 1, not 0"):
        PackedConversations(folder, length=LENGTH, window=0)
    with pytest.raises(DataError, match="has no stage 'fourth'; its stages are third, first, second"):
        PackedConversations(folder, length=LENGTH, stages=["first", "fourth"])
    packed = PackedConversations(folder, length=LENGTH, stages=["second"])
    with pytest.raises(IndexError, match="out of range"):
        packed[len(packed)]


class TinyGPT(nn.Module):
    """Predict the next token with two layers of attention; `attend` is how."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(NUM_TOKENS, 32), nn.Embedding(LENGTH, 32)
        self.mix = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.out = nn.Linear(32, NUM_TOKENS)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Any) -> torch.Tensor:
        hidden = self.token(ids) + self.position(positions)
        for layer in self.mix:
            query, key, value = (part.unflatten(2, (2, 16)).transpose(1, 2) for part in layer(hidden).chunk(3, 2))
            hidden = hidden + attend(query, key, value).transpose(1, 2).flatten(2)
        logits: torch.Tensor = self.out(hidden)
        return logits


def masked(mask: torch.Tensor) -> Any:
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, mask)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def losses(model: TinyGPT, batch: dict[str, torch.Tensor], attend: Any) -> torch.Tensor:
    logits = model(batch["ids"], batch["positions"], attend)
    wanted = targets(batch["ids"], batch["mask"], batch["documents"])
    return F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=NOTHING, reduction="none")


@pytest.fixture
def batch(folder: Path) -> dict[str, torch.Tensor]:
    packed = PackedConversations(folder, length=LENGTH, window=64)
    return {name: torch.stack([row[name] for row in packed.__getitems__(range(12))]) for name in packed[0]}


@torch.no_grad()
def test_a_changed_neighbour_changes_no_other_conversation(batch: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = TinyGPT()
    mask = document_mask(batch["documents"])
    for number in (1, 2):
        there = batch["documents"] == number
        changed = batch | {"ids": torch.where(there, (batch["ids"] + 1) % NUM_TOKENS, batch["ids"])}
        before, after = (losses(model, each, masked(mask)) for each in (batch, changed))
        assert torch.equal(before[~there], after[~there])
        assert not torch.equal(before[there], after[there])
        before, after = (losses(model, each, causal) for each in (batch, changed))
        assert not torch.equal(before[~there], after[~there]), "plain causal attention must see the neighbour"


@torch.no_grad()
def test_the_sum_of_losses_is_that_of_the_conversations_alone(batch: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = TinyGPT()
    together = losses(model, batch, masked(document_mask(batch["documents"])))
    alone = torch.zeros(())
    for row in range(len(batch["ids"])):
        for number in range(1, int(batch["documents"][row].max()) + 1):
            here = batch["documents"][row] == number
            one = {name: values[row][here][None] for name, values in batch.items()}
            alone += losses(model, one, causal).sum()
    assert together.sum().item() == pytest.approx(alone.item(), rel=1e-5)
    leaking = losses(model, batch, causal)
    assert leaking.sum().item() != pytest.approx(alone.item(), rel=1e-5)

    rows = [{name: values[row] for name, values in batch.items()} for row in range(len(batch["ids"]))]
    packed = packed_batch(rows)
    positions = packed["packing"].positions[None]
    logits = model(packed["ids"], positions, lambda q, k, v: packed_attention(q, k, v, packed["packing"], is_causal=True))
    summed = F.cross_entropy(logits[0, packed["where"]], packed["wanted"], reduction="sum")
    assert summed.item() == pytest.approx(alone.item(), rel=1e-5)


def test_only_masked_tokens_of_the_same_conversation_are_predicted() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 5, 0]])
    mask = torch.tensor([[1, 0, 1, 1, 1, 0]])
    documents = torch.tensor([[1, 1, 1, 2, 2, 0]])
    assert targets(ids, mask, documents).tolist() == [[NOTHING, 3, NOTHING, 5, NOTHING, NOTHING]]
    packed = packed_batch([{"ids": ids[0], "mask": mask[0], "documents": documents[0]}] * 2)
    assert packed["ids"].tolist() == [[1, 2, 3, 4, 5] * 2]
    assert packed["packing"].lengths == (3, 2, 3, 2)
    assert packed["where"].tolist() == [1, 3, 6, 8]
    assert packed["wanted"].tolist() == [3, 5, 3, 5]
    assert document_mask(documents)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]


def test_the_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs" / "guides" / "dialogue.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (block for block in blocks if "PackedConversations" in block)
    turns = [{"role": "client", "content": "I cannot sleep."}, {"role": "counselor", "content": "Since when?"}]
    records = [{"id": n, "messages": turns, "metadata": {"stage": "edge_cases"} if n % 2 else {}} for n in range(300)]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102  our own page
    assert list(names["rows"].stage_rows) == ["foundation", "edge_cases"]
    assert names["wanted"].shape == names["batch"]["ids"].shape
    assert (names["wanted"] != NOTHING).any()
