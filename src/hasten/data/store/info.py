"""Describe the contents of a store: columns, sizes, shards, provenance, and the lengths of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hasten.data.store.gather import is_bytes, is_list, row_lengths
from hasten.data.store.layout import described
from hasten.data.store.store import Store
from hasten.data.store.window import Window

_MEASURED_BLOCKS = 64
"""Number of blocks whose rows are measured, spread evenly: enough for a histogram of a store of any size."""
_BINS = 40


def describe(store: Store) -> dict[str, Any]:
    """Return the facts about a store as plain data that JSON can represent."""
    manifest = store.manifest
    sizes = _sizes(store)
    return {
        "store": store.source.where,
        "version": manifest.version,
        "num_rows": len(store),
        "num_bytes": manifest.num_bytes,
        "num_shards": len(manifest.shards),
        "num_blocks": len(store.reader.block_counts),
        "block_rows": manifest.block_rows,
        "columns": [
            {"name": name, "type": kind, "bytes_per_row": sizes.get(name)}
            for name, kind in described(manifest.schema, manifest.raw).items()
        ],
        "lengths": {name: lengths(store, name) for name in store.columns if _has_length(store, name)},
        "provenance": manifest.provenance,
    }


def lengths(store: Store, column: str) -> dict[str, Any]:
    """Measure the row lengths of a column of text, bytes (in bytes) or lists (in items).

    Returns:
        Number of rows measured, `min`, `median`, `p95`, `max`, and a histogram: `edges` [bins + 1] and `counts` [bins].
    """
    blocks = np.unique(np.linspace(0, len(store.reader.block_counts) - 1, _MEASURED_BLOCKS).astype(np.int64))
    sizes = np.concatenate([row_lengths(store.reader.block(int(number)).column(column)) for number in blocks])
    counts, edges = np.histogram(sizes, bins=min(_BINS, max(1, int(sizes.max() - sizes.min()) if len(sizes) else 1)))
    return {
        "unit": "items" if is_list(store.manifest.schema.field(column).type) else "bytes",
        "rows": len(sizes),
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "p95": float(np.percentile(sizes, 95)),
        "max": int(sizes.max()),
        "edges": [float(edge) for edge in edges],
        "counts": [int(count) for count in counts],
    }


def samples(store: Store, count: int) -> list[dict[str, Any]]:
    """Return the first rows as plain values; arrays are replaced by their shape and type."""
    first = np.arange(min(count, len(store)))
    window = Window(store.reader, np.unique(store.reader.blocks_of(first))) if len(first) else None
    columns: dict[str, list[Any]] = {}
    for name in store.columns:
        raw = store.manifest.raw_column(name)
        if raw is not None and raw.shape:
            columns[name] = [f"{raw.dtype}{list(raw.shape)}"] * len(first)
        elif raw is not None:
            columns[name] = store.take(first, [name])[name].tolist()
        elif window is not None:
            columns[name] = window.arrow(name, first).to_pylist()
    return [{name: values[row] for name, values in columns.items()} for row in range(len(first))]


def _sizes(store: Store) -> dict[str, float]:
    """Return the size of a row in bytes for each column, as declared or measured on the first block."""
    sizes: dict[str, float] = {column.name: float(column.row_bytes) for column in store.manifest.raw}
    if len(store) and len(store.manifest.schema):
        block = store.reader.block(0)
        sizes.update(
            {part.name: round(block.column(part.name).nbytes / block.num_rows, 1) for part in store.manifest.schema}
        )
    return sizes


def _has_length(store: Store, name: str) -> bool:
    if store.manifest.raw_column(name) is not None or not len(store):
        return False
    kind = store.manifest.schema.field(name).type
    return is_bytes(kind) or is_list(kind)
