"""Replies are scored by what a plain computation says, whatever the batches."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name

from hasten.core.errors import DataError, JobError
from hasten.recipes.dialogue.evaluation.scoring import log_probs, perplexity_of, prefers_good
from hasten.recipes.dialogue.evaluation.sets import Item
from hasten.recipes.dialogue.model import small_model
from hasten.recipes.dialogue.tokens import OwnTokens, Tokenized, Turns

VOCABULARY = 300


@pytest.fixture(scope="module")
def tokens() -> OwnTokens:
    """Return a tokenizer of bytes."""
    return OwnTokens.train(["a b c"], num_tokens=VOCABULARY)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Return a model with random weights, in training mode."""
    torch.manual_seed(0)
    return small_model(VOCABULARY, width=32, depth=1, heads=2).train()


def rows(count: int, seed: int = 0) -> list[Tokenized]:
    """Return rows of different lengths."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 40, count)
    return [
        Tokenized(random.integers(0, VOCABULARY, size).astype(np.int32), random.integers(0, 2, size).astype(np.uint8))
        for size in sizes
    ]


def plain(model: Any, row: Tokenized) -> tuple[float, int]:
    """Return the score of one row by itself."""
    ids = torch.from_numpy(row.ids.astype(np.int64))[None]
    with torch.no_grad():
        chances = F.log_softmax(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].double(), dim=1)
    where = [place for place in range(1, len(row.ids)) if row.mask[place]]
    return sum(float(chances[place - 1, ids[0, place]]) for place in where), len(where)


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_scores_do_not_depend_on_the_batches(model: nn.Module, batch_tokens: int) -> None:
    some = rows(30)
    found = log_probs(model, some, batch_tokens=batch_tokens)
    assert found == pytest.approx(np.array([plain(model, row) for row in some]), abs=1e-4)
    assert np.array_equal(found, log_probs(model, some, batch_tokens=batch_tokens))
    assert model.training


class Favourite(nn.Module):
    """A model that expects one token everywhere."""

    def __init__(self, token: int, value: float = 5.0) -> None:
        super().__init__()
        self.token, self.value = token, value

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        """Return the same logits at each place."""
        assert input_ids.shape == attention_mask.shape
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        logits[..., self.token] = self.value
        return SimpleNamespace(logits=logits)


def item(good: str, *bad: str) -> Item:
    """Return an item whose earlier answer and messages are full of z."""
    turns = Turns(["user", "assistant", "user"], ["zzzz", "zzzzzzzz", "zzz"])
    return Item("a", "s", "", "a", turns, good, bad)


def test_an_item_is_right_if_the_good_reply_is_likelier_per_token_than_each_bad_one(tokens: OwnTokens) -> None:
    z = int(tokens.encode([Turns(["user"], ["z"])])[0].ids[1])
    likes_z = Favourite(z)
    items = [item("zzzq", "qqq", "zzqq"), item("zzqq", "zzzq", "qqqq"), item("zq", "zzqq"), item("zzz", "qqqzzzzzz")]
    # The share of z counts, with the end token: 3/5 beats 0/4 and 2/5; 2/5 does not beat 3/5; 1/3 does not beat 2/5.
    assert prefers_good(likes_z, tokens, items) == [True, False, False, True]
    assert prefers_good(Favourite(z, 0.0), tokens, items) == [False] * 4  # ties are no preference
    assert prefers_good(Favourite(z, math.nan), tokens, items) == [None] * 4
    assert prefers_good(Favourite(z, math.inf), tokens, items) == [None] * 4


def test_a_model_that_does_not_fit_is_refused(tokens: OwnTokens, model: nn.Module) -> None:
    small = small_model(100, width=32, depth=1, heads=2)
    with pytest.raises(JobError, match="the model has 100 tokens, fewer than the tokenizer"):
        log_probs(small, rows(10))
    chat: Any = small_model(VOCABULARY, width=32, depth=1, heads=2)
    chat.config.max_position_embeddings = 30
    with pytest.raises(DataError, match=r"a conversation has \d+ tokens, but the model reads 30"):
        log_probs(chat, rows(30))


def test_perplexity_has_an_interval_over_conversations() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(5, 50, 200)
    scores: npt.NDArray[np.float64] = np.stack((-counts * random.normal(2.0, 0.3, 200), counts), axis=1).astype(np.float64)
    found = perplexity_of(scores)
    assert found is not None
    assert found.value == pytest.approx(math.exp(-scores[:, 0].sum() / counts.sum()))
    assert found.low < found.value < found.high
    assert found.items == 200
    # The interval of the mean by the delta method is nearly the same.
    spread = np.std(-scores[:, 0] - math.log(found.value) * counts, ddof=1) * math.sqrt(200) / counts.sum()
    assert math.log(found.high / found.low) == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert perplexity_of(scores) == found
    assert perplexity_of(scores, seed=1) != found
    assert perplexity_of(np.array([[math.nan, 3.0]])) is None
    assert perplexity_of(np.zeros((4, 2))) is None
