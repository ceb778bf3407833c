"""Score replies by their log-probability, and conversations by their perplexity.

The model is called as a causal language model of Transformers: `model(input_ids=..., attention_mask=...)`, both int64
`[batch, length]`, returns an object with `logits`, `[batch, length, vocabulary]`. Rows are padded on the right and sorted by
length, so a seed is not needed: the same rows give the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name

from hasten.core.errors import DataError, JobError
from hasten.core.gates import Estimate
from hasten.recipes.dialogue.evaluation.sets import Item
from hasten.recipes.dialogue.tokens import ChatTokens, Tokenized, answer_start

BATCH_TOKENS = 4096
"""Tokens of a batch, with padding. A longer row is a batch by itself."""
_DRAWS = 2000


def log_probs(
    model: nn.Module, rows: Sequence[Tokenized], *, pad: int = 0, batch_tokens: int = BATCH_TOKENS
) -> npt.NDArray[np.float64]:
    """Return the log-probability (natural logarithm) of the tokens of each row that are 1 in its mask, and their number.

    Args:
        model: The model; it is in evaluation mode while it is called.
        rows: Tokens and masks. The first token of a row has no probability and never counts.
        pad: Token for padding.
        batch_tokens: Largest number of tokens of a batch, with padding.

    Returns:
        `[rows, 2]`.

    Raises:
        DataError: A row is longer than the model's context.
        JobError: The model has fewer tokens than the tokenizer.
    """
    found = np.zeros((len(rows), 2))
    config = getattr(model, "config", None)
    context, vocabulary = (getattr(config, name, math.inf) for name in ("max_position_embeddings", "vocab_size"))
    if (longest := max((len(row.ids) for row in rows), default=0)) > context:
        raise DataError(f"a conversation has {longest:,} tokens, but the model reads {context:,}: leave out longer ones.")
    if max((int(row.ids.max()) for row in rows), default=0) >= vocabulary:
        raise JobError(f"the model has {vocabulary:,} tokens, fewer than the tokenizer: give the one it was trained with.")
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for batch in _batches(rows, batch_tokens):
                found[batch] = _scored(model, [rows[row] for row in batch], pad, device)
    finally:
        model.train(training)
    return found


def _batches(rows: Sequence[Tokenized], batch_tokens: int) -> Iterator[list[int]]:
    """Return the numbers of the rows of each batch, the longest rows first."""
    batch = list[int]()
    for row in sorted(range(len(rows)), key=lambda row: -len(rows[row].ids)):
        if batch and (len(batch) + 1) * len(rows[batch[0]].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _scored(model: Any, rows: Sequence[Tokenized], pad: int, device: torch.device) -> npt.NDArray[np.float64]:
    length = max(len(row.ids) for row in rows)
    ids, counted, attended = (np.full((len(rows), length), fill, np.int64) for fill in (pad, 0, 0))
    for number, row in enumerate(rows):
        size = len(row.ids)
        ids[number, :size], counted[number, :size], attended[number, :size] = row.ids, row.mask, 1
    tokens, mask = torch.from_numpy(ids).to(device), torch.from_numpy(attended).to(device)
    logits = model(input_ids=tokens, attention_mask=mask).logits
    where = torch.from_numpy(counted[:, 1:] == 1).to(device)
    scores = torch.zeros(where.shape, dtype=torch.float64, device=device)
    scores[where] = -F.cross_entropy(logits[:, :-1][where].float(), tokens[:, 1:][where], reduction="none").double()
    return torch.stack((scores.sum(dim=1), where.sum(dim=1).double()), dim=1).cpu().numpy()


def prefers_good(model: nn.Module, tokens: ChatTokens, items: Sequence[Item]) -> list[bool | None]:
    """Tell for each item whether the good reply has a higher log-probability per token than every bad one.

    This measures a preference among given replies. It does not measure what the model would generate.

    Returns:
        None for an item if a score is not finite. A tie is not a preference.

    Raises:
        DataError: As `log_probs`; or the template refuses a conversation.
        JobError: As `log_probs`.
    """
    rows = tokens.encode([talk for item in items for talk in item.talks()])
    replies = [Tokenized(row.ids, row.mask * (np.arange(len(row.mask)) >= answer_start(row.mask))) for row in rows]
    scores = iter(log_probs(model, replies, pad=tokens.pad).tolist())
    found = list[bool | None]()
    for item in items:
        good, *bad = (total / count for total, count in (next(scores) for _ in range(1 + len(item.bad))))
        found.append(good > max(bad) if np.isfinite([good, *bad]).all() else None)
    return found


def perplexity_of(scores: npt.NDArray[np.float64], *, confidence: float = 0.95, seed: int = 0) -> Estimate | None:
    """Return the perplexity of conversations, with a percentile bootstrap interval over conversations (2,000 draws).

    Args:
        scores: `[conversations, 2]`, from `log_probs`.
        confidence: Of the interval.
        seed: Of the bootstrap.

    Returns:
        None if a score is not finite, or no token counts.
    """
    if not np.isfinite(scores).all() or not scores[:, 1].sum():
        return None
    draws = np.random.default_rng(seed).multinomial(len(scores), np.full(len(scores), 1 / len(scores)), _DRAWS) @ scores
    means = -draws[:, 0] / np.maximum(draws[:, 1], 1)
    low, high = np.exp(np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])).tolist()
    value = float(np.exp(-scores[:, 0].sum() / scores[:, 1].sum()))
    return Estimate(value, min(low, value), max(high, value), len(scores))
