"""Search finds what a full sort finds, approximate search proves its recall, and scores are what they are defined to be."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hasten.core.errors import DataError
from hasten.core.gates import Gate
from hasten.recipes.dialogue.voice import similarity
from hasten.recipes.dialogue.voice.similarity import (
    ApproximateIndex,
    ExactIndex,
    authenticity,
    consistency,
    drift,
    recall,
)

Floats = npt.NDArray[Any]


def drawn(rows: int, size: int = 48, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, size)).astype(np.float32)


def voice(rows: int, seed: int = 0, *, noise: float = 1.0, speaker: int = 0) -> Floats:
    """Return recordings of a speaker: a fixed direction and noise."""
    return np.float32(5) * drawn(1, seed=1000 + speaker) / 7 + np.float32(noise) * drawn(rows, seed=seed) / 7


def sorted_rows(vectors: Floats, queries: Floats, k: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    wide, asked = vectors.astype(np.float64), queries.astype(np.float64)
    cosines = (asked @ wide.T) / np.linalg.norm(asked, axis=1)[:, None] / np.linalg.norm(wide, axis=1)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(cosines, order, axis=1)


@pytest.mark.parametrize("block_bytes", [2**12, 2**16, 2**25])
@pytest.mark.parametrize("k", [1, 10, 333])
def test_search_equals_a_full_sort(monkeypatch: pytest.MonkeyPatch, block_bytes: int, k: int) -> None:
    monkeypatch.setattr(similarity, "_BLOCK_BYTES", block_bytes)
    vectors, queries = 3 * drawn(2_000), drawn(70, seed=1)
    found = ExactIndex(vectors).search(queries, k)
    rows, cosines = sorted_rows(vectors, queries, k)
    np.testing.assert_allclose(found.similarity.numpy(), cosines, atol=1e-6)
    assert (found.rows.numpy() == rows).mean() > 0.999  # cosines closer than rounding may change places
    assert np.array_equal(np.sort(found.rows[:, :10].numpy()), np.sort(rows[:, :10]))


def test_the_best_rows_are_found_among_many_and_at_the_very_end() -> None:
    vectors, queries = drawn(20_003, 16), drawn(40, 16, seed=1)
    vectors[-1], vectors[0] = 2 * queries[0], 3 * queries[1]
    rows, _ = sorted_rows(vectors, queries, 10)
    found = ExactIndex(vectors).search(queries, 10).rows.numpy()
    assert (found[0, 0], found[1, 0]) == (20_002, 0)
    assert (found == rows).mean() > 0.99


def test_rows_may_lie_in_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", drawn(500))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    found = ExactIndex(mapped).search(mapped[7:9], 1)
    assert found.rows.tolist() == [[7], [8]]


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_row_that_has_no_direction_is_refused_with_its_number(value: float) -> None:
    vectors = drawn(100)
    vectors[60] = value
    with pytest.raises(DataError, match="row 60 is zero or not finite"):
        ExactIndex(vectors)
    with pytest.raises(DataError, match="row 60"):
        ExactIndex(drawn(100)).search(vectors, 1)
    for score in (consistency, drift):
        with pytest.raises(DataError, match="zero or not finite"):
            score(vectors)
    with pytest.raises(DataError, match="row 60"):
        authenticity(voice(30), vectors, voice(30))


@pytest.mark.parametrize(
    ("vectors", "queries", "k", "reason"),
    [
        (drawn(9), drawn(1), 10, "from 1 to the number of rows, 9"),
        (drawn(9), drawn(1), 0, "from 1"),
        (drawn(9), drawn(1, 20), 1, "20 numbers each, but the rows have 48"),
        (drawn(9), drawn(1)[0], 1, "rows, size"),
        (drawn(9)[:0], drawn(1), 1, "not empty"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(vectors: Floats, queries: Floats, k: int, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        ExactIndex(vectors).search(queries, k)


def test_approximate_search_proves_its_recall() -> None:
    vectors, queries = drawn(3_000, 16), drawn(50, 16, seed=1)
    index = ApproximateIndex(vectors, queries, k=5, min_recall=0.5)
    assert index.recall == pytest.approx(recall(index.search(queries, 5), ExactIndex(vectors).search(queries, 5)))
    assert 0.5 <= index.recall <= 1.0
    exact = ExactIndex(vectors).search(queries, 5)
    found = index.search(queries, 5)
    same = found.rows == exact.rows
    torch.testing.assert_close(found.similarity[same], exact.similarity[same], rtol=0, atol=1e-4)


def test_approximate_search_below_the_floor_is_refused() -> None:
    vectors = drawn(8_000, 256)  # isotropic: neighbours are hardly nearer than other rows
    with pytest.raises(DataError, match=r"finds \d+\.\d% of the true 50 neighbours of 20 queries.*use ExactIndex"):
        ApproximateIndex(vectors, drawn(20, 256, seed=1), k=50, min_recall=0.999)


def test_consistency_is_the_mean_cosine_of_pairs() -> None:
    recordings = voice(40)
    unit = recordings / np.linalg.norm(recordings, axis=1, keepdims=True)
    pairs = [float(one @ other) for one, other in itertools.combinations(unit, 2)]
    score = consistency(torch.from_numpy(recordings))
    assert score.value == pytest.approx(np.mean(pairs), abs=1e-6)
    assert score.low < score.value < score.high
    assert consistency(voice(40, noise=3)).high < score.low


def test_drift_is_zero_on_average_for_a_steady_voice_and_not_for_a_changed_one() -> None:
    steady = [drift(voice(60, seed, noise=3)) for seed in range(20)]
    assert abs(np.mean([score.value for score in steady])) < 0.01
    assert sum(score.low <= 0 <= score.high for score in steady) >= 15
    changed = drift(np.concatenate((voice(30), voice(30, 1, speaker=1))))
    assert changed.low > 0.3


def test_authenticity_is_the_area_under_the_roc_curve() -> None:
    claimed, reference, others = voice(30, 1, noise=4), voice(30, 2), voice(50, 3, noise=4, speaker=1)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (claimed, reference, others)]
    cosines = np.concatenate((unit[0], unit[2])) @ unit[1].mean(axis=0)
    score = authenticity(claimed, reference, others)
    assert score.value == pytest.approx(roc_auc_score([1] * 30 + [0] * 50, cosines))
    assert Gate(metric="authenticity", threshold=0.8).decide({"all": score}).passed
    assert score.items == 80
    same = authenticity(voice(200, 4), voice(200, 5), voice(200, 6))
    assert same.low < 0.5 < same.high
    assert not Gate(metric="authenticity", threshold=0.6).decide({"all": same}).passed


def test_the_same_seed_gives_the_same_interval() -> None:
    assert consistency(voice(30), seed=3) == consistency(voice(30), seed=3)
    assert consistency(voice(30), seed=3) != consistency(voice(30), seed=4)


def test_too_few_recordings_are_refused() -> None:
    with pytest.raises(DataError, match="19 recordings are too few"):
        consistency(voice(19))
    with pytest.raises(DataError, match="19 recordings are too few"):
        drift(voice(39))
    with pytest.raises(DataError, match="5 recordings are too few"):
        authenticity(voice(20), voice(20), voice(5))
