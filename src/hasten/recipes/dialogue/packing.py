"""Pack conversations into rows of equal length without leaving the order of the curriculum.

Stages follow each other, and the conversations of a stage are shuffled by the seed. A window of consecutive conversations is
packed by best fit (`hasten.data.stream.packed`), so a conversation moves by less than one window, and no row mixes stages.
Packing by length over a whole dataset would undo the curriculum. Attention stays within each conversation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hasten.core.errors import DataError
from hasten.core.packing import Packing
from hasten.data.private.plan import PrivatePlan
from hasten.data.stream.lengths import Lengths
from hasten.data.stream.order import Order
from hasten.data.stream.packed import Piece, packed_pool
from hasten.recipes.dialogue.stages import open_stages, opened

_Texts: TypeAlias = "dict[tuple[int, int], tuple[npt.NDArray[Any], npt.NDArray[Any]] | None]"
NOTHING = -100
"""Target of positions without a loss, as in `torch.nn.functional.cross_entropy`."""


class PackedConversations(Dataset[dict[str, torch.Tensor]]):
    """Read rows of packed conversations in curriculum order, as a map-style dataset. Tokens are read when a row is used.

    A row is a dictionary of tensors `[length]`: `ids` (int64), `mask` (uint8, 1 where the assistant speaks), `documents`
    (int32, the number of the conversation within the row, from 1, and 0 for padding) and `positions` (int64, from 0 in each
    conversation). Do not shuffle the rows. Conversations longer than a row are split, and every token is kept: the parts are
    separate documents, so the first token of a later part is not predicted.

    Args:
        folder: Folder of `tokenize_stages`.
        length: Number of tokens in a row.
        window: Number of conversations packed together. Larger windows fill rows better and move conversations further.
        seed: Seed of the shuffle within each stage.
        passes: Number of passes over a stage before the next one begins; each has another order.
        pad: Padding token.
        stages: Stages to read; None reads all, in the order of the curriculum.
        private: The plan of encrypted tokens, which are read as the role `trainer`. In place of a person who was erased, a
            row has padding.

    Attributes:
        num_tokens: Number of tokens in all rows, without padding.
        stage_rows: First row of each stage, by name.
        stores: The store of each stage, by its number.

    Raises:
        DataError: An argument is invalid, or a stage does not exist.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        length: int,
        window: int = 1024,
        seed: int = 0,
        passes: int = 1,
        pad: int = 0,
        stages: Sequence[str] | None = None,
        private: PrivatePlan | None = None,
    ) -> None:
        for name, value in (("length", length), ("window", window), ("passes", passes)):
            if value < 1:
                raise DataError(f"{name} must be at least 1, not {value}.")
        found = open_stages(folder)
        for stage in stages or ():
            if stage not in found:
                raise DataError(f"{folder} has no stage {stage!r}; its stages are {', '.join(found)}.")
        chosen = {stage: store for stage, store in found.items() if stages is None or stage in stages}
        self.stores = [opened(store, private) for store in chosen.values()]
        self._length, self._pad = length, pad
        self.stage_rows: dict[str, int] = {}
        rows: list[npt.NDArray[np.int64]] = []
        counts: list[int] = []
        for number, (stage, store) in enumerate(chosen.items()):
            self.stage_rows[stage] = len(counts)
            lengths = Lengths(store, "num_tokens")
            for turn in range(passes):
                order = Order(store.reader.block_counts, seed=seed, epoch=turn, shuffle=True, window_blocks=16)
                for pool in range(-(-order.num_samples // window)):
                    packed = packed_pool(order, lengths, pool, window, length)
                    counts += map(len, packed)
                    rows.append(_as_array(number, packed))
        self._pieces = np.concatenate(rows)  # stage, document, start and length, [pieces, 4]: small for millions
        self._ends = np.cumsum(counts)
        self.num_tokens = int(self._pieces[:, 3].sum())

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Return a row."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return several rows with one read per stage, as PyTorch's DataLoader requests them."""
        pieces = [self.pieces(row) for row in rows]
        wanted = np.concatenate(pieces)
        texts: _Texts = {}
        for stage in np.unique(wanted[:, 0]).tolist():
            documents = np.unique(wanted[wanted[:, 0] == stage, 1])
            taken = self.stores[stage].take(documents, ["tokens", "loss_mask"])
            for document, ids, mask in zip(documents.tolist(), taken["tokens"], taken["loss_mask"], strict=True):
                texts[stage, document] = None if ids is None else (numbers_of(ids), numbers_of(mask))
        return [self._filled(row.tolist(), texts) for row in pieces]

    def pieces(self, row: int) -> npt.NDArray[np.int64]:
        """Return what a row holds: number of the stage, row of its store, first token, number of tokens, `[pieces, 4]`."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range: there are {len(self):,} rows")
        row %= len(self)
        return self._pieces[self._ends[row - 1] if row else 0 : self._ends[row]]

    def _filled(self, pieces: list[list[int]], texts: _Texts) -> dict[str, torch.Tensor]:
        row = {
            "ids": torch.full((self._length,), self._pad),
            "mask": torch.zeros(self._length, dtype=torch.uint8),
            "documents": torch.zeros(self._length, dtype=torch.int32),
            "positions": torch.zeros(self._length, dtype=torch.int64),
        }
        at = 0
        for number, (stage, document, start, length) in enumerate(pieces, 1):
            text = texts[stage, document]
            if text is None:
                continue
            ids, mask = text
            here, there = slice(at, at + length), slice(start, start + length)
            row["ids"][here] = torch.from_numpy(ids[there].astype(np.int64))
            row["mask"][here] = torch.from_numpy(mask[there].copy())
            row["documents"][here] = number
            row["positions"][here] = torch.arange(length)
            at += length
        return row


def numbers_of(value: Any) -> npt.NDArray[Any]:
    """Return a value of a column of lists as an array."""
    return value if isinstance(value, np.ndarray) else value.values.to_numpy()


def _as_array(stage: int, rows: list[list[Piece]]) -> npt.NDArray[np.int64]:
    flat = [(stage, piece.sample, piece.start, piece.length) for piece in chain.from_iterable(rows)]
    return np.array(flat, dtype=np.int64).reshape(-1, 4)


def targets(ids: torch.Tensor, mask: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Return the token to predict at each position, `NOTHING` where there is no loss.

    The loss counts where the next token is in the same document and its mask is 1.

    Args:
        ids: `[batch, length]`.
        mask: `[batch, length]`.
        documents: `[batch, length]`.

    Returns:
        int64 `[batch, length]`.
    """
    wanted = torch.full_like(ids, NOTHING)
    counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0) & mask[:, 1:].bool()
    wanted[:, :-1] = torch.where(counts, ids[:, 1:], NOTHING)
    return wanted


def document_mask(documents: torch.Tensor) -> torch.Tensor:
    """Return which positions attend to which, for `scaled_dot_product_attention`: earlier ones of the same document.

    Padding attends to padding, so no row of the mask is empty, which would give NaN.

    Args:
        documents: Number of the document at each position, `[batch, length]`.

    Returns:
        bool `[batch, 1, length, length]`.
    """
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=documents.device).tril()


def packed_batch(rows: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """Put the documents of rows end to end, without the padding, for `hasten.packed_attention`.

    Args:
        rows: Rows of `PackedConversations`.

    Returns:
        `ids`, int64 `[1, total]`; `packing`, the documents; `where`, int64 `[counted]`, the positions with a loss; and
        `wanted`, int64 `[counted]`, the token to predict at each.
    """
    ids, mask, documents = (torch.stack([row[name] for row in rows]) for name in ("ids", "mask", "documents"))
    real = documents > 0
    wanted = targets(ids, mask, documents)[real]
    numbers = documents + torch.arange(len(rows))[:, None] * (documents.shape[1] + 1)
    lengths = torch.unique_consecutive(numbers[real], return_counts=True)[1]
    where = (wanted != NOTHING).nonzero()[:, 0]
    return {"ids": ids[real][None], "packing": Packing.of(lengths.tolist()), "where": where, "wanted": wanted[where]}
