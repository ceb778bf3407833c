"""Measure a training step on packed conversations against padding and against the packing of TRL, in turns.

All ways train on the same conversations with the same small Llama. `padded` pads to the length of a row, `longest` to the
longest conversation of the batch. TRL's best-fit packing is trained with positions that begin again in each conversation,
from which Transformers makes a mask. The public counselling dialogues are used if they are there, else generated ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.public_data import CONVERSATIONS
from hasten.data.conversation import ROLES
from hasten.recipes.dialogue.model import packed_logits, small_model
from hasten.recipes.dialogue.naive import Piece, padded_batch, padded_losses
from hasten.recipes.dialogue.packing import NOTHING, packed_batch
from hasten.recipes.dialogue.synth import DrawnTalks, conversations
from hasten.recipes.dialogue.tokens import OwnTokens, Turns

TURNS, ROW, COUNT, SEED = 5, 2048, 24, 0
GOAL, EQUAL = 5.0, 1e-5


def run(_found: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the ways, and count the padding over all conversations."""
    import datasets  # noqa: PLC0415  of the extra `bench-dialogue`
    from trl.data_utils import pack_dataset  # noqa: PLC0415

    talks = talks_of(CONVERSATIONS) if CONVERSATIONS.exists() else [_turns(record) for record in conversations(DrawnTalks())]
    tokens = OwnTokens.train((text for turns in talks for text in turns.contents), num_tokens=8192)
    pieces: list[Piece] = [(made.ids[:ROW], made.mask[:ROW]) for made in tokens.encode(talks)]
    chosen = random.Random(SEED).sample(pieces, COUNT)
    torch.manual_seed(SEED)
    model = small_model(tokens.num_tokens, width=128, depth=4, heads=4)
    ours = packed_batch([_row(chosen)])  # rows end to end, without the padding at their ends
    theirs = _trl_rows(pack_dataset, datasets.Dataset, chosen)
    lengths = max(len(ids) for ids, _ in chosen)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "padded": lambda: padded_losses(model, padded_batch(chosen, ROW, tokens.pad)).sum(),
        "longest": lambda: padded_losses(model, padded_batch(chosen, lengths, tokens.pad)).sum(),
        "TRL": lambda: _masked_losses(model, theirs).sum(),
        "Hasten": lambda: _packed_losses(model, ours).sum(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, float] = {}
    draw = random.Random(SEED)
    for turn in range(TURNS + 1):
        for name in draw.sample(list(ways), len(ways)):
            begun = perf_counter()
            loss = ways[name]()
            loss.backward()
            if turn:
                seconds[name].append(perf_counter() - begun)
            losses[name] = loss.item()
            model.zero_grad()
    ratio = {
        name: median(other / mine for other, mine in zip(values, seconds["Hasten"], strict=True))
        for name, values in seconds.items()
    }
    off = max(abs(loss / losses["padded"] - 1) for loss in losses.values())
    sizes = np.array([len(ids) for ids, _ in pieces])
    return {
        "data": "counsel" if CONVERSATIONS.exists() else "generated",
        "conversations": len(pieces),
        "row": ROW,
        "share_of_padding": {
            "padded": 1 - sizes.sum() / (len(sizes) * ROW),
            "longest": _padding_by_batch(sizes),
            "Hasten": 1 - sizes.sum() / (len(best_fit(sizes.tolist(), ROW)) * ROW),
        },
        "seconds": seconds,
        "ratio": ratio,
        "losses": losses,
        "goals": {
            "speed over padding to the row": _goal(GOAL, round(ratio["padded"], 2), ratio["padded"] >= GOAL),
            "speed over padding to the longest of the batch": _goal(
                GOAL, round(ratio["longest"], 2), ratio["longest"] >= GOAL
            ),
            "relative difference of losses": _goal(EQUAL, float(f"{off:.1e}"), off <= EQUAL),
        },
    }


def talks_of(path: Path) -> list[Turns]:
    """Return the conversations of a JSONL file."""
    return [_turns(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _turns(record: Mapping[str, Any]) -> Turns:
    messages = record["messages"]
    return Turns([ROLES[message["role"]] for message in messages], [message["content"] for message in messages])


def best_fit(lengths: list[int], row: int) -> list[list[int]]:
    """Return which conversations share a row: longest first, each into the fullest row with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fits = [at for at, left in enumerate(room) if left >= lengths[number]]
        at = min(fits, key=lambda at: room[at]) if fits else len(rows)
        if not fits:
            rows.append([])
            room.append(row)
        rows[at].append(number)
        room[at] -= lengths[number]
    return rows


def _row(pieces: list[Piece]) -> dict[str, torch.Tensor]:
    return {
        "ids": torch.from_numpy(np.concatenate([ids.astype(np.int64) for ids, _ in pieces])),
        "mask": torch.from_numpy(np.concatenate([mask for _, mask in pieces])),
        "documents": torch.from_numpy(np.repeat(np.arange(len(pieces)) + 1, [len(ids) for ids, _ in pieces])),
    }


def _packed_losses(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    logits = packed_logits(model, batch["ids"], batch["packing"], batch["where"])
    return nn.functional.cross_entropy(logits.float(), batch["wanted"], reduction="none")


def _trl_rows(pack: Callable[..., Any], kind: Any, pieces: list[Piece]) -> list[dict[str, torch.Tensor]]:
    """Return the rows of TRL's packing, with labels and positions as its collator makes them."""
    labels = [np.where(mask > 0, ids.astype(np.int64), NOTHING).tolist() for ids, mask in pieces]
    packed = pack(kind.from_dict({"input_ids": [ids.tolist() for ids, _ in pieces], "labels": labels}), ROW, "bfd")
    rows = []
    for row in packed:
        positions = np.concatenate([np.arange(length) for length in row["seq_lengths"]])
        wanted = np.append(np.array(row["labels"], np.int64)[1:], NOTHING)
        wanted[np.flatnonzero(positions == 0)[1:] - 1] = NOTHING
        rows.append(
            {
                "ids": torch.tensor(row["input_ids"])[None],
                "positions": torch.from_numpy(positions)[None],
                "wanted": torch.from_numpy(wanted)[None],
            }
        )
    return rows


def _masked_losses(model: nn.Module, rows: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Return the losses of packed rows, with the mask that Transformers makes from the positions."""
    losses = []
    for row in rows:
        logits = model(input_ids=row["ids"], position_ids=row["positions"], use_cache=False).logits[0]
        losses.append(nn.functional.cross_entropy(logits.float(), row["wanted"][0], ignore_index=NOTHING, reduction="none"))
    return torch.cat(losses)


def _padding_by_batch(sizes: np.ndarray[Any, Any]) -> float:
    """Return the share of padding if each batch is padded to its longest conversation."""
    order = np.random.default_rng(SEED).permutation(len(sizes))
    batches = [sizes[order[first : first + COUNT]] for first in range(0, len(sizes), COUNT)]
    return float(1 - sizes.sum() / sum(batch.max() * len(batch) for batch in batches))


def _goal(goal: float, seen: float, reached: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"goal": goal, "seen": seen, "reached": bool(reached)}
