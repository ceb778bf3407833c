"""Samples laid end to end in one row, and attention that keeps each to itself.

A padded batch computes positions that count for nothing. Packed, the same samples stand in one row `[1, total]` without
any padding; what is done position by position (embeddings, norms, linear layers) needs no change, and attention must not
look across the borders, or the model is trained on another problem.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.nn import functional as F  # noqa: N812  the name everybody uses

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the samples of a packed row begin and end.

    Attributes:
        lengths: Positions of each sample, in order; their sum is `total`.
        positions: Place of each position within its own sample, int64 `[total]`.
        offsets: Where each sample begins, and the end of the last, int32 `[samples + 1]`.
    """

    lengths: tuple[int, ...]
    positions: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self:
        """Describe a row of samples of these lengths.

        Raises:
            ValueError: There is no sample, or one is empty.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"a packed row needs samples of at least 1 position, not the lengths {list(lengths)!r}")
        sizes = torch.tensor([0, *lengths])
        ends = sizes.cumsum(0)
        positions = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends[:-1], sizes[1:])
        return cls(lengths=tuple(lengths), positions=positions, offsets=ends.to(torch.int32))


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing | None,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """Scaled dot-product attention in which every sample of a packed row sees itself alone.

    Exact: the same sums as over each sample by itself. On CUDA devices in half precision it is one kernel
    (`torch.nn.attention.varlen`), elsewhere one per sample.

    Args:
        query: `[1, heads, total, head_dim]`.
        key: As `query`.
        value: As `query`.
        packing: Where the samples lie. None says that the batch is not packed: `[batch, heads, length, head_dim]` then.
        is_causal: A position sees itself and what came before.

    Raises:
        ValueError: The shape is not that of the packing.

    Source: Dao 2023, FlashAttention-2 (attention over rows of variable length).
    """
    if packing is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return _attend(query, key, value, packing, is_causal=is_causal)


def packs_to_multiple(job: Any) -> bool:
    """Whether a job packs, and can lengthen its packed rows to a multiple: `collate_packed(self, samples, multiple)`."""
    return bool(job.overrides("collate_packed")) and "multiple" in inspect.signature(job.collate_packed).parameters


def keep_out_of_graphs() -> None:
    """Have torch.compile leave the attention of packed rows alone: lengths differ, and each batch would compile anew.

    For whoever compiles; not done at import, because it loads the compiler, which takes as long as torch itself.
    """
    global _attend  # noqa: PLW0603
    if _attend is _attend_each:
        _attend = torch.compiler.disable(_attend_each)


def _attend_each(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, *, is_causal: bool
) -> torch.Tensor:
    total = sum(packing.lengths)
    if query.shape[0] != 1 or query.shape[2] != total:
        raise ValueError(
            f"the packing has {total} positions in one row, but the query is {list(query.shape)}; it must be "
            f"[1, heads, {total}, head_dim]"
        )
    one_kernel = query.is_cuda and query.dtype in HALF
    return (_in_one_kernel if one_kernel else _one_by_one)(query, key, value, packing, is_causal=is_causal)


_attend: Callable[..., torch.Tensor] = _attend_each


def _one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, *, is_causal: bool
) -> torch.Tensor:
    lengths = list(packing.lengths)
    parts = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    return torch.cat([F.scaled_dot_product_attention(q, k, v, is_causal=is_causal) for q, k, v in parts], 2)


def _in_one_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, *, is_causal: bool
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  only builds with CUDA can run it

    longest, offsets = max(packing.lengths), packing.offsets
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [total, heads, head_dim]
    window = (-1, 0) if is_causal else (-1, -1)
    found: Any = varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=window)
    attended: torch.Tensor = found
    return attended.transpose(0, 1)[None]
