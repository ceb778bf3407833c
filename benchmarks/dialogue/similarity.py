"""Measure the exact search of the ten most similar embeddings against NumPy and libraries, in turns.

Rows are unit vectors, generated in two ways: `speakers` lie around 1,000 centres, as voices do, and `scattered` point
anywhere, the hardest case for an approximate index. All rivals have their rows normalised, or their index made, beforehand.
NumPy and faiss (flat) are exact; usearch (HNSW) is approximate, and its recall is reported. Queries are given all at once,
or one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.turns import goal, in_turns, times
from hasten.recipes.dialogue.voice.similarity import ExactIndex

ROWS, SIZE, QUERIES, ALONE, K, ROUNDS = 100_000, 256, 256, 32, 10, 5
GOAL = 2.0
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Search = Callable[[Floats], Rows]
"""Row numbers of the most similar, the best first, `[queries, K]`."""


def run(_found: Mapping[str, Any], rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure both kinds of vectors.

    Args:
        rows: Number of rows to search.
        rounds: Number of rounds.
    """
    kinds = {kind: _measured(*vectors(kind, rows), rounds) for kind in ("speakers", "scattered")}
    goals: dict[str, Any] = {}
    for kind, one in kinds.items():
        for way in ("argsort", "argpartition"):
            goals[f"{kind}, speed over {way}"] = goal(GOAL, one["over"]["at once"][way])
        goals[f"{kind}, recall"] = goal(1.0, one["recall"]["Hasten"])
    return {"rows": rows, "size": SIZE, "k": K, "threads": torch.get_num_threads(), "kinds": kinds, "goals": goals}


def vectors(kind: str, count: int) -> tuple[Floats, Floats]:
    """Return unit vectors to search, `[count, SIZE]`, and queries, `[QUERIES, SIZE]`."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(count + QUERIES, SIZE)).astype(np.float32)
    if kind == "speakers":
        drawn *= 0.5
        drawn += rng.normal(size=(1000, SIZE)).astype(np.float32)[rng.integers(0, 1000, len(drawn))]
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn[:count], drawn[count:]


def searches(rows: Floats) -> dict[str, tuple[Search, float]]:
    """Return each way that is installed, and the seconds in which its index was made."""
    makers: dict[str, Callable[[Floats], Search]] = {
        "Hasten": _hasten, "argsort": _argsort, "argpartition": _argpartition, "faiss": _faiss, "usearch": _usearch
    }  # fmt: skip
    made = {}
    for name, maker in makers.items():
        if name not in ("faiss", "usearch") or find_spec(name):
            began = perf_counter()
            made[name] = maker(rows), perf_counter() - began
    return made


def _measured(rows: Floats, queries: Floats, rounds: int) -> dict[str, Any]:
    ways = searches(rows)
    exact = np.argsort(-(queries.astype(np.float64) @ rows.T.astype(np.float64)), axis=1, kind="stable")[:, :K]
    recall = {name: _recall(way(queries), exact) for name, (way, _) in ways.items()}
    alone = queries[:ALONE]

    def one_by_one(way: Search) -> None:
        for number in range(len(alone)):
            way(alone[number : number + 1])

    seconds = {
        "at once": in_turns({name: lambda way=way: way(queries) for name, (way, _) in ways.items()}, rounds),  # type: ignore[misc]
        "one at a time": in_turns({name: lambda way=way: one_by_one(way) for name, (way, _) in ways.items()}, rounds),  # type: ignore[misc]
    }
    return {
        "queries": {"at once": len(queries), "one at a time": len(alone)},
        "recall": recall,
        "made_s": {name: spent for name, (_, spent) in ways.items()},
        "over": {
            form: {name: times(values, taken["Hasten"]) for name, values in taken.items() if name != "Hasten"}
            for form, taken in seconds.items()
        },
        "seconds": seconds,
    }


def _recall(found: Rows, exact: Rows) -> float:
    return float((found[:, :, None] == exact[:, None, :]).any(axis=1).mean())


def _hasten(rows: Floats) -> Search:
    index = ExactIndex(rows)
    return lambda queries: index.search(queries, K).rows.numpy()


def _argsort(rows: Floats) -> Search:
    return lambda queries: np.argsort(-(queries @ rows.T), axis=1)[:, :K]


def _argpartition(rows: Floats) -> Search:
    def search(queries: Floats) -> Rows:
        similarity = queries @ rows.T
        best = np.argpartition(similarity, -K, axis=1)[:, -K:]
        order = np.argsort(-np.take_along_axis(similarity, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    return search


def _faiss(rows: Floats) -> Search:
    index: Any = import_module("faiss").IndexFlatIP(rows.shape[1])
    index.add(rows)
    return lambda queries: np.asarray(index.search(queries, K)[1])


def _usearch(rows: Floats) -> Search:
    index: Any = import_module("usearch.index").Index(ndim=rows.shape[1], metric="ip", dtype="f32")
    index.add(np.arange(len(rows)), rows)
    return lambda queries: np.atleast_2d(index.search(queries, K).keys).astype(np.int64)
