from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hasten.core.errors import DataError
from hasten.data import StoreWriter
from hasten.data.stream.mixed import MixedStream
from hasten.recipes.dialogue.bias.balance import balance, weights_for


def test_the_report_counts_known_groups_and_says_where_too_few_are_known() -> None:
    found = balance(["a"] * 60 + ["b"] * 40 + ["c"] * 3 + [None] * 7)
    assert found.num_unknown == 7
    assert found.shares == {"a": (60, 103), "b": (40, 103), "c": (3, 103)}
    assert found.shares["a"].value == pytest.approx(60 / 103)
    assert found.too_few == ("c",)


def test_a_stream_with_the_weights_reaches_the_targets(tmp_path: Path) -> None:
    groups: list[Sequence[str | None]] = [
        ["a"] * 90 + ["b"] * 10,
        ["a"] * 20 + ["b"] * 30 + [None] * 50,
        ["b"] * 50 + ["c"] * 50,
        [None] * 40,
    ]
    for number, one in enumerate(groups):
        with StoreWriter(tmp_path / str(number)) as writer:
            writer.write({"group": [group or "unknown" for group in one]})
    targets = {"a": 0.4, "b": 0.4, "c": 0.2}
    weights = weights_for(groups, targets)
    assert sum(weights) == pytest.approx(1)
    assert weights[3] == 0
    stores = [tmp_path / str(number) for number in range(4)]
    stream = MixedStream(stores, weights=weights, batch_size=100, num_steps=200, strings=["group"])
    seen = np.concatenate([batch["group"] for batch in stream])
    for group, share in targets.items():
        assert np.mean(seen[seen != "unknown"] == group) == pytest.approx(share, abs=0.01)


def test_one_store_per_group_gets_the_targets_themselves() -> None:
    assert weights_for([["a"] * 5, ["b"] * 500], {"a": 0.3, "b": 0.7}) == pytest.approx([0.3, 0.7])


def test_targets_out_of_reach_are_refused() -> None:
    with pytest.raises(DataError, match=r"nearest are a 0\.6"):
        weights_for([["a"] * 6 + ["b"] * 4, ["a"] * 8 + ["b"] * 2], {"a": 0.1, "b": 0.9})
    with pytest.raises(DataError, match="no store has items of the group 'c'"):
        weights_for([["a"]], {"a": 0.5, "c": 0.5})


@pytest.mark.parametrize("targets", [{}, {"a": 0.5}, {"a": 1.0, "b": 0.0}, {"a": float("nan"), "b": 0.5}])
def test_bad_targets_are_refused(targets: dict[str, float]) -> None:
    with pytest.raises(DataError, match="target shares"):
        weights_for([["a", "b"]], targets)
