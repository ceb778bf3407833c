"""Find the most similar embeddings exactly, and say how consistent, authentic and steady a speaker's voice is.

All similarities are cosines. Embeddings that are not finite, or zero, are refused: no score can be computed from a part of
them. Voice embeddings identify people: keep them as carefully as the recordings. `hasten.core.gates.Gate` judges the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hasten.core.errors import DataError
from hasten.core.gates import Estimate
from hasten.recipes.needed import needed

Vectors: TypeAlias = "torch.Tensor | npt.NDArray[Any]"
"""Embeddings `[rows, size]`, such as a raw column of a store, which may be larger than memory."""
MIN_RECORDINGS = 20
"""Fewest recordings of each group of a score: intervals by bootstrap are too short with fewer."""
_BLOCK_BYTES = 32 * 2**20
_GROUP = 64
_BOOTSTRAPS = 2_000


@dataclass(frozen=True)
class Neighbours:
    """The most similar rows of each query, the best first.

    Attributes:
        similarity: Cosines, float32 `[queries, k]`.
        rows: Row numbers, int64 `[queries, k]`.
    """

    similarity: torch.Tensor
    rows: torch.Tensor


class ExactIndex:
    """Find the most similar embeddings by comparing each query with every row, in blocks of bounded memory.

    Args:
        vectors: The rows to search. They are not copied, so they must not change.
        device: Where similarities are computed.

    Raises:
        DataError: The vectors are empty, or a row is zero or not finite.
    """

    def __init__(self, vectors: Vectors, *, device: str = "cpu") -> None:
        self._vectors, self._device = _checked_shape(vectors), torch.device(device)
        self._inverse = torch.cat([1 / _norms(block, start) for start, block in self._blocks(_BLOCK_BYTES)])

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: Vectors, k: int) -> Neighbours:
        """Return the `k` most similar rows of each query, on the CPU.

        Raises:
            DataError: There are fewer than `k` rows, or the queries have another size, are zero or are not finite.
        """
        size = self._vectors.shape[1]
        if not 1 <= k <= len(self):
            raise DataError(f"k must be from 1 to the number of rows, {len(self):,}, not {k}.")
        if _checked_shape(queries).shape[1] != size:
            raise DataError(f"queries have {queries.shape[1]} numbers each, but the rows have {size}.")
        at_once = max(1, _BLOCK_BYTES // (4 * max(size, 1024)))
        found = [self._search(_unit(queries[n : n + at_once], self._device), k) for n in range(0, len(queries), at_once)]
        return Neighbours(*(torch.cat(parts).cpu() for parts in zip(*found, strict=True)))

    def _search(self, queries: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        best = queries.new_full((len(queries), 0), 0.0)
        rows = torch.zeros(len(queries), 0, dtype=torch.int64, device=self._device)
        for start, block in self._blocks(_BLOCK_BYTES, len(queries)):
            similarity = (queries @ block.T).mul_(self._inverse[start : start + len(block)])
            values, places = _top(similarity, min(k, len(block)))
            best, rows = torch.cat((best, values), dim=1), torch.cat((rows, places + start), dim=1)
            if best.shape[1] > k:
                best, order = best.topk(k, dim=1)
                rows = rows.gather(1, order)
        return best, rows

    def _blocks(self, num_bytes: int, num_queries: int = 0) -> Any:
        """Return blocks of rows with their first row. A block, or its similarities to the queries, fill these bytes."""
        size = max(1, num_bytes // (4 * max(self._vectors.shape[1], num_queries)))
        for start in range(0, len(self._vectors), size):
            yield start, _tensor(self._vectors[start : start + size], self._device)


def _top(similarity: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` largest values of each row and their columns, as `topk` does but with most values read only once.

    Columns are grouped. Only the `k` groups with the largest maxima can hold one of the `k` largest values.
    """
    num_groups = similarity.shape[1] // _GROUP
    if num_groups <= 4 * k:
        return similarity.topk(k, dim=1)
    grouped, rest = similarity.split((num_groups * _GROUP, similarity.shape[1] % _GROUP), dim=1)
    groups = grouped.unflatten(1, (num_groups, _GROUP)).amax(dim=2).topk(k, dim=1).indices
    columns = (groups[:, :, None] * _GROUP + torch.arange(_GROUP, device=groups.device)).flatten(1)
    values, places = torch.cat((grouped.gather(1, columns), rest), dim=1).topk(k, dim=1)
    last = torch.arange(num_groups * _GROUP, similarity.shape[1], device=groups.device).expand(len(similarity), -1)
    return values, torch.cat((columns, last), dim=1).gather(1, places)


class ApproximateIndex:
    """Search faster and less exactly with usearch (HNSW; `hasten[similarity]`), if its recall on your vectors suffices.

    Args:
        vectors: The rows to search.
        queries: Queries to measure recall with, such as 200 that are typical.
        k: Number of neighbours that recall is measured for.
        min_recall: Smallest share of the true neighbours that must be found, from 0 to 1.

    Attributes:
        recall: The share of the true neighbours that were found.

    Raises:
        DataError: Recall is below the floor, or vectors or queries cannot be used.
        MachineError: The package usearch is not installed.
    """

    def __init__(self, vectors: Vectors, queries: Vectors, *, k: int = 10, min_recall: float = 0.95) -> None:
        if not 0 < min_recall <= 1:
            raise DataError(f"min_recall must be above 0 and at most 1, not {min_recall}.")
        exact = ExactIndex(vectors).search(queries, k)
        self._index = needed("usearch.index", extra="similarity").Index(ndim=vectors.shape[1], metric="cos", dtype="f32")
        self._index.add(np.arange(len(vectors)), np.ascontiguousarray(_tensor(vectors).numpy()))
        self.recall = recall(self.search(queries, k), exact)
        if not self.recall >= min_recall:
            raise DataError(
                f"usearch finds {self.recall:.1%} of the true {k} neighbours of {len(queries):,} queries, fewer than the "
                f"required {min_recall:.1%}: use ExactIndex."
            )

    def search(self, queries: Vectors, k: int) -> Neighbours:
        """Return about the `k` most similar rows of each query. Rows that were not found are -1, with similarity NaN."""
        found = self._index.search(_unit(queries).numpy(), k)
        rows = np.full((len(queries), k), -1, np.int64)
        similarity = np.full((len(queries), k), np.nan, np.float32)
        keys = np.atleast_2d(found.keys).astype(np.int64)
        rows[:, : keys.shape[1]], similarity[:, : keys.shape[1]] = keys, 1 - np.atleast_2d(found.distances)
        return Neighbours(torch.from_numpy(similarity), torch.from_numpy(rows))


def recall(found: Neighbours, exact: Neighbours) -> float:
    """Return the share of the exact neighbours that were found, from 0 to 1."""
    hits = (exact.rows[:, :, None] == found.rows[:, None, :]).any(dim=2)
    return float(hits.double().mean())


def consistency(recordings: Vectors, *, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Return how similar the recordings of a speaker are: the mean cosine of all pairs of two recordings, from -1 to 1.

    Args:
        recordings: Embeddings of one speaker, `[recordings, size]`.
        confidence: Confidence level of the interval.
        seed: Seed of the bootstrap.

    Raises:
        DataError: There are too few recordings, or one is zero or not finite.
    """
    return _scored([recordings], lambda units, weights: _within(units[0], weights[0]), confidence, seed)


def drift(recordings: Vectors, *, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Return how far a voice has moved from the first half of its recordings to the second: 0 if it has not.

    It is the mean cosine of pairs within a half, minus that of pairs from different halves. Noise lowers both equally, so
    the score of a steady voice is 0 on average, and may be slightly negative. The largest value is 2.

    Args:
        recordings: Embeddings of one speaker in the order of time, `[recordings, size]`; both halves need enough.
        confidence: Confidence level of the interval.
        seed: Seed of the bootstrap, which resamples each half.

    Raises:
        DataError: There are too few recordings, or one is zero or not finite.
    """

    def score(units: list[torch.Tensor], weights: list[torch.Tensor]) -> torch.Tensor:
        within = sum(_within(unit, weight) for unit, weight in zip(units, weights, strict=True)) / 2
        means = [weight @ unit / weight.sum(dim=1, keepdim=True) for unit, weight in zip(units, weights, strict=True)]
        return torch.as_tensor(within - (means[0] * means[1]).sum(dim=1))

    half = len(recordings) // 2
    return _scored([recordings[:half], recordings[half:]], score, confidence, seed)


def authenticity(
    claimed: Vectors, reference: Vectors, others: Vectors, *, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """Return the probability that a claimed recording is more like the speaker than another speaker's recording is.

    Likeness is the cosine to the mean of the reference recordings, which the bootstrap leaves as it is. This is the area
    under the ROC curve: 0.5 is chance, and 1 is a perfect separation. Ties count half.

    Args:
        claimed: Embeddings that are said to be the speaker's, `[recordings, size]`.
        reference: Embeddings that are known to be the speaker's, and not among the claimed ones.
        others: Embeddings of other speakers.
        confidence: Confidence level of the interval.
        seed: Seed of the bootstrap.

    Raises:
        DataError: A group has too few recordings, or one is zero or not finite.
    """
    centre = _unit(_enough(reference)).double().mean(dim=0)

    def score(units: list[torch.Tensor], weights: list[torch.Tensor]) -> torch.Tensor:
        own, other = (unit @ centre for unit in units)
        wins = (own[:, None] > other).double() + 0.5 * (own[:, None] == other).double()
        pairs = weights[0].sum(dim=1) * weights[1].sum(dim=1)
        return ((weights[0] @ wins) * weights[1]).sum(dim=1) / pairs

    return _scored([claimed, others], score, confidence, seed)


def _scored(
    groups: list[Vectors],
    score: Callable[[list[torch.Tensor], list[torch.Tensor]], torch.Tensor],
    confidence: float,
    seed: int,
) -> Estimate:
    """Return a score with its percentile interval, widened to include the score. Recordings are resampled in each group.

    A resampled recording is a weight, so that no recording is ever paired with its own copy.
    """
    if not 0 < confidence < 1:
        raise DataError(f"confidence must be between 0 and 1, not {confidence}.")
    units = [_unit(_enough(group)).double() for group in groups]
    random = np.random.default_rng(seed)
    counts = [random.multinomial(len(unit), np.full(len(unit), 1 / len(unit)), _BOOTSTRAPS) for unit in units]
    value = float(score(units, [unit.new_ones(1, len(unit)) for unit in units]))
    drawn = score(units, [torch.from_numpy(count).double() for count in counts])
    tail = (1 - confidence) / 2
    low, high = torch.quantile(drawn, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    if not all(map(math.isfinite, (value, low, high))):
        raise DataError("the score is not a finite number: check the embeddings.")
    return Estimate(value, min(low, value), max(high, value), sum(map(len, units)))


def _within(units: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean cosine of pairs of different recordings, for each row of weights, `[rows]`."""
    total, squares = weights.sum(dim=1), weights.square().sum(dim=1)
    return ((weights @ units).square().sum(dim=1) - squares) / (total.square() - squares)


def _enough(vectors: Vectors) -> Vectors:
    if len(vectors) < MIN_RECORDINGS:
        raise DataError(f"{len(vectors)} recordings are too few for a score: give at least {MIN_RECORDINGS} in each group.")
    return vectors


def _checked_shape(vectors: Vectors) -> Vectors:
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise DataError(f"embeddings must be [rows, size] and not empty, not {list(vectors.shape)}.")
    return vectors


def _tensor(vectors: Vectors, device: torch.device | None = None) -> torch.Tensor:
    tensor = vectors if isinstance(vectors, torch.Tensor) else torch.from_numpy(np.require(vectors, np.float32, ["C", "W"]))
    return tensor.detach().to(device, torch.float32)


def _norms(vectors: torch.Tensor, start: int) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(vectors, dim=1)
    usable = norms.isfinite() & (norms > 0)
    if not usable.all():
        row = start + int((~usable).nonzero()[0])
        raise DataError(f"the embedding in row {row:,} is zero or not finite: remove it, and check the model that made it.")
    return norms


def _unit(vectors: Vectors, device: torch.device | None = None) -> torch.Tensor:
    tensor = _tensor(_checked_shape(vectors), device)
    return torch.div(tensor, _norms(tensor, 0)[:, None])
