"""Pack samples end to end in one row, with attention that does not cross sample borders.

A padded batch spends compute on padding. A packed batch holds the same samples in one row `[1, total]` without padding.
Operations on single positions (embeddings, norms, linear layers) need no change. Attention must not cross the borders
between samples, because that would change the training problem.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.nn import functional as F  # noqa: N812  the usual name

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the samples of a packed row begin and end.

    Attributes:
        lengths: Length of each sample, in order. Their sum is `total`.
        positions: Index of each position within its own sample, int64 `[total]`.
        offsets: Start of each sample, and the end of the last, int32 `[samples + 1]`.
    """

    lengths: tuple[int, ...]
    positions: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self:
        """Return the packing of samples of these lengths.

        Raises:
            ValueError: There are no samples, or one is empty.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"a packed row needs samples of length 1 or more, not the lengths {list(lengths)!r}")
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
    """Compute scaled dot-product attention separately for each sample of a packed row.

    The result is exact: the same sums as for each sample alone. On CUDA devices in half precision it is one kernel
    (`torch.nn.attention.varlen`), otherwise one kernel per sample.

    Args:
        query: `[1, heads, total, head_dim]`.
        key: Same shape as `query`.
        value: Same shape as `query`.
        packing: Where the samples are in the row. None for a batch that is not packed, `[batch, heads, length, head_dim]`.
        is_causal: Whether each position sees only itself and earlier positions.

    Raises:
        ValueError: The shape does not match the packing.

    Source: Dao 2023, FlashAttention-2 (attention over rows of variable length).
    """
    if packing is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return _attend(query, key, value, packing, is_causal=is_causal)


def packs_to_multiple(job: Any) -> bool:
    """Whether a job defines `collate_packed(self, samples, multiple)`, which can extend packed rows to a multiple."""
    return bool(job.overrides("collate_packed")) and "multiple" in inspect.signature(job.collate_packed).parameters


def keep_out_of_graphs() -> None:
    """Exclude the attention of packed rows from torch.compile. Lengths differ, so each batch would be recompiled.

    Called by techniques that compile. Not done at import, because it loads the compiler, which takes as long as torch.
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
            f"the packing has {total} positions in one row, but the query has shape {list(query.shape)}; it must be "
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
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  only CUDA builds can run it

    longest, offsets = max(packing.lengths), packing.offsets
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [total, heads, head_dim]
    window = (-1, 0) if is_causal else (-1, -1)
    result: Any = varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=window)
    attended: torch.Tensor = result
    return attended.transpose(0, 1)[None]
