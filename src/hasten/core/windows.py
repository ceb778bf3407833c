"""Merge the micro-batches of an optimizer update, never those of two."""

from __future__ import annotations

from collections.abc import Sequence


def merged_per_update(accumulation: int, merge: int) -> int:
    """Batches that are computed for one update of `accumulation` micro-batches, `merge` at a time; 0 merges all."""
    return -(-accumulation // min(merge or accumulation, accumulation))


def merge_windows(batches: Sequence[list[int]], accumulation: int, merge: int) -> list[list[int]]:
    """The batches of an epoch as they are computed, each a list of sample indices.

    Every `accumulation` micro-batches are one update; the last update of the epoch may have fewer. Within an update, `merge`
    micro-batches after one another become one batch, in their order; what is left over becomes a smaller one. So each update
    keeps its samples.

    Args:
        batches: The micro-batches of the epoch.
        accumulation: Micro-batches per update, at least 1.
        merge: Micro-batches per batch; 1 merges none, 0 all of an update.
    """
    step = min(merge or accumulation, accumulation)
    if step == 1:
        return list(batches)
    merged: list[list[int]] = []
    for begin in range(0, len(batches), accumulation):
        window = batches[begin : begin + accumulation]
        parts = (window[at : at + step] for at in range(0, len(window), step))
        merged += [[index for batch in part for index in batch] for part in parts]
    return merged
