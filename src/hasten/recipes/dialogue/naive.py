"""The dialogue jobs as they are usually written: the baseline for measuring gains.

All conversations are loaded as Python objects, tokenized at each visit, and each is padded to the length of a row. Logits
are computed at every position. A batch holds the conversations of the same rows as in `hasten.recipes.dialogue.job`, so both
train on the same tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name
from torch.utils.data import Dataset

from hasten.core.errors import JobError
from hasten.recipes.dialogue.job import DialogueJob
from hasten.recipes.dialogue.packing import NOTHING, PackedConversations
from hasten.recipes.dialogue.preference import Pair, PreferenceJob
from hasten.recipes.dialogue.prepare import TEXT, VALID
from hasten.recipes.dialogue.stages import open_stages
from hasten.recipes.dialogue.tokens import ChatTokens, Turns

Piece = tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]


class NaiveDialogueJob(DialogueJob):
    """Supervised training written naively. Put it before your own job: `class NaiveCounsel(NaiveDialogueJob, Counsel)`."""

    forms = (DialogueJob,)

    def train_data(self) -> Dataset[Any]:
        """Return the conversations to train on, tokenized at each visit."""
        return ReadAgain(self.train_rows, self._texts(), self.tokens)

    def valid_data(self) -> Dataset[Any]:
        """Return the conversations held out, tokenized at each pass."""
        return ReadAgain(self.rows(VALID), self._texts(), self.tokens)

    def _texts(self) -> dict[str, Turns]:
        if self.private is not None:
            raise JobError(
                "the naive form keeps all texts in memory, in the clear: use DialogueJob for encrypted conversations."
            )
        texts = {}
        for store in open_stages(self.folder / TEXT).values():
            columns = store.take(range(len(store)), ["conversation_id", "roles", "contents"]).values()
            for name, roles, contents in zip(*(column.to_pylist() for column in columns), strict=True):
                texts[name] = Turns(roles, contents)
        return texts

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return plain_optimizer(model, self.rate)

    def collate(self, samples: list[list[Piece]]) -> dict[str, Any]:
        """Pad each conversation to the length of a row."""
        return padded_batch([piece for row in samples for piece in row], self.row_tokens, self.tokens.pad)

    def token_losses(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of each token that counts, `[counted]`, from the logits of all positions."""
        return padded_losses(model, batch)[batch["wanted"] != NOTHING]


class NaivePreferenceJob(PreferenceJob):
    """Preference training written naively: a second model computes the reference at every step, and answers are padded."""

    forms = (PreferenceJob,)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return plain_optimizer(model, self.rate)

    def reference(self, part: str) -> None:
        """Compute nothing beforehand."""

    def collate(self, samples: list[Pair]) -> dict[str, Any]:
        """Pad each answer, with its prompt, to the longest that is allowed."""
        answers = ((answer, pair.prompt) for pair in samples for answer in (pair.chosen, pair.rejected))
        pieces = [(answer, (np.arange(len(answer)) >= prompt).astype(np.uint8)) for answer, prompt in answers]
        return padded_batch(pieces, self.row_tokens, self.tokens.pad)

    def margins(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return by how much each pair is ordered better than by the reference, times `beta`, `[pairs]`."""
        with torch.no_grad():
            before = padded_losses(self.reference_model.to(batch["ids"].device), batch).sum(1).view(-1, 2)
        gained = before - padded_losses(model, batch).sum(1).view(-1, 2)
        margins: torch.Tensor = self.beta * (gained[:, 0] - gained[:, 1])
        return margins


class ReadAgain(Dataset[list[Piece]]):
    """The conversations of packed rows, tokenized at each visit.

    Args:
        packed: The rows.
        texts: All conversations, by their id.
        tokens: The tokenizer.
    """

    def __init__(self, packed: PackedConversations, texts: dict[str, Turns], tokens: ChatTokens) -> None:
        self.packed, self.texts, self.tokens = packed, texts, tokens
        columns = [store.take(range(len(store)), ["conversation_id"])["conversation_id"] for store in packed.stores]
        self.names = [column if isinstance(column, list) else column.to_pylist() for column in columns]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, row: int) -> list[Piece]:
        pieces = []
        for stage, document, start, length in self.packed.pieces(row).tolist():
            whole = self.tokens.encode([self.texts[self.names[stage][document]]])[0]
            pieces.append((whole.ids[start : start + length], whole.mask[start : start + length]))
        return pieces


def padded_batch(pieces: list[Piece], length: int, pad: int) -> dict[str, torch.Tensor]:
    """Pad conversations to `length`: `ids`, `attention` (1 where there is a token) and `wanted`, int64 `[batch, length]`."""
    shape = len(pieces), length
    ids, attention, wanted = torch.full(shape, pad), torch.zeros(shape, dtype=torch.int64), torch.full(shape, NOTHING)
    for row, (tokens, mask) in enumerate(pieces):
        ids[row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        attention[row, : len(tokens)] = 1
        following = torch.from_numpy(np.where(mask[1:] > 0, tokens[1:].astype(np.int64), NOTHING))
        wanted[row, : len(following)] = following
    return {"ids": ids, "attention": attention, "wanted": wanted}


def padded_losses(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss at each position of a padded batch, `[batch, length]`."""
    logits = model(input_ids=batch["ids"], attention_mask=batch["attention"], use_cache=False).logits
    return F.cross_entropy(logits.float().transpose(1, 2), batch["wanted"], ignore_index=NOTHING, reduction="none")


def plain_optimizer(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Create AdamW as it is usually written."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)
