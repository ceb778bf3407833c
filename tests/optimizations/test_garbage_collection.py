"""Test when garbage is collected: rarely, or once per epoch."""

from __future__ import annotations

import gc
import weakref

import pytest

from hasten.optimizations.garbage_collection import GarbageCollection
from hasten.train.trace import trace_step
from tests.optimizations.contract import Prepared, facts, make_loop, run

BATCHES = 4
"""Number of batches in an epoch of `Prepared`."""


class _Circle:
    """References itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


def test_an_iterable_dataset_has_no_epochs_to_collect_by() -> None:
    modes = [setting.settings()["mode"] for setting in GarbageCollection.fit(facts(job={"num_samples": None})).settings]
    assert modes == ["freeze"]
    assert [setting.settings()["mode"] for setting in GarbageCollection.fit(facts()).settings] == ["freeze", "epoch"]


def test_by_the_epoch_a_circle_lives_until_the_epoch_ends() -> None:
    item = GarbageCollection(mode="epoch")
    loop = make_loop(Prepared(), item)
    assert not gc.isenabled()
    circle = weakref.ref(_Circle())
    loop.run(BATCHES - 1)
    assert circle() is not None
    assert "gc_collections" not in loop.live.counters
    loop.run(1)
    assert circle() is None
    assert loop.live.counters["gc_collections"] == 1
    loop.run(2 * BATCHES)
    assert loop.live.counters["gc_collections"] == 3
    loop.rewind()
    loop.live.undo_all()
    assert gc.isenabled()
    assert loop.live.batch_transforms == []


def test_by_the_epoch_the_evidence_is_absent_present_and_gone() -> None:
    item = GarbageCollection(mode="epoch")
    plain = make_loop(Prepared())
    assert not all(check.passed for check in item.evidence(plain.live, trace_step(plain)))
    loop = make_loop(Prepared(), item)
    assert all(check.passed for check in item.evidence(loop.live, trace_step(loop)))
    loop.rewind()
    loop.live.undo_all()
    assert not any(check.passed for check in item.evidence(loop.live, trace_step(loop)))


def test_by_the_epoch_losses_stay_bit_equal() -> None:
    assert run(Prepared(), 9, GarbageCollection(mode="epoch")) == run(Prepared(), 9)


def test_the_undo_keeps_a_collector_that_was_disabled() -> None:
    gc.disable()
    try:
        run(Prepared(), 2, GarbageCollection(mode="epoch"))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_frozen_circles_are_not_collected_and_new_ones_are() -> None:
    old = _Circle()
    watched = weakref.ref(old)
    live = make_loop(Prepared(), GarbageCollection(threshold=1234)).live
    assert gc.get_threshold()[0] == 1234
    new = weakref.ref(_Circle())
    del old
    gc.collect()
    assert watched() is not None
    assert new() is None
    live.undo_all()
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize(
    ("settings", "words"), [({"mode": "never"}, "freeze or epoch, not 'never'"), ({"threshold": 0}, "at least 1, not 0")]
)
def test_other_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GarbageCollection(**settings)  # type: ignore[arg-type]
