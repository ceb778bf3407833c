"""The contract of an optimization: what a fit says, in which order a plan is applied, what cannot be together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.core.live import Seam
from upshift.core.optimization import Bottleneck, Card, Fit, Numerics, Optimization, clash, ordered


def make(name: str, seam: Seam = Seam.MODEL, **more: Any) -> Optimization:
    @dataclass(frozen=True, kw_only=True)
    class Made(Optimization):
        card = Card(
            name=name,
            summary="",
            relieves=Bottleneck.OTHER,
            numerics=Numerics.EXACT,
            seam=seam,
            source="",
            **more,
        )
        strength: int = 1

    return Made()


def names(items: list[Optimization]) -> list[str]:
    return [item.card.name for item in items]


def test_a_refusal_carries_its_reason() -> None:
    fit = Fit.no("there is no accelerator")
    assert (fit.fits, fit.reason, fit.settings, fit.max_gain) == (False, "there is no accelerator", (), 1.0)


@pytest.mark.parametrize(("frac", "kept", "gain"), [(0.5, 0.5, 2.0), (-0.2, 0.0, 1.0), (1.0, 0.99, 100.0), (0.2, 0.2, 1.25)])
def test_a_fit_keeps_its_ceiling_within_reason(frac: float, kept: float, gain: float) -> None:
    candidates = [make("a")]
    fit = Fit.yes(max_gain_frac=frac, settings=candidates)
    assert fit.fits
    assert fit.max_gain_frac == kept
    assert fit.max_gain == pytest.approx(gain)
    assert fit.settings == tuple(candidates)


def test_settings_are_the_fields_and_not_the_card() -> None:
    assert make("a").settings() == {"strength": 1}


def test_what_a_technique_must_write_is_not_there_by_default() -> None:
    item = make("a")
    for call in (lambda: type(item).fit(None), lambda: item.apply(None), lambda: item.evidence(None, None)):  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            call()


def test_the_order_is_that_of_the_seams_and_otherwise_as_given() -> None:
    items = [make("d", Seam.AROUND), make("b", Seam.MODEL), make("a", Seam.MODEL), make("c", Seam.PROCESS)]
    assert names(ordered(items)) == ["c", "b", "a", "d"]


def test_after_wins_over_the_seam_and_counts_only_within_the_plan() -> None:
    items = [make("early", Seam.PROCESS, after=("late", "absent")), make("late", Seam.AROUND), make("middle", Seam.MODEL)]
    assert names(ordered(items)) == ["middle", "late", "early"]


@pytest.mark.parametrize("circle", [{"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a"}, {"a": "a"}])
def test_a_circle_is_an_error_that_names_its_members(circle: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=", ".join(sorted(circle))):
        ordered([make(name, after=(follows,)) for name, follows in circle.items()])


@given(st.data())
def test_no_item_comes_before_one_it_follows_and_none_is_lost(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    items = [
        make(
            str(position),
            data.draw(st.sampled_from(Seam)),
            after=tuple(map(str, data.draw(st.sets(st.integers(0, position - 1))))) if position else (),
        )
        for position in range(count)
    ]
    order = ordered(data.draw(st.permutations(items)))
    places = {item.card.name: place for place, item in enumerate(order)}
    assert len(places) == count
    for item in items:
        assert all(places[name] < places[item.card.name] for name in item.card.after)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (make("a"), make("a"), "`a` is in the plan already"),
        (make("a", conflicts=("b",)), make("b"), "exclude each other"),
        (make("a"), make("b", conflicts=("a",)), "exclude each other"),
        (make("a", claims=frozenset({"x", "y"})), make("b", claims=frozenset({"y", "x", "z"})), "both claim x, y"),
        (make("a", claims=frozenset({"x"})), make("b", claims=frozenset({"y"})), ""),
        (make("a", conflicts=("c",)), make("b"), ""),
    ],
)
def test_a_clash_says_why(first: Optimization, second: Optimization, words: str) -> None:
    for why in (clash(first, second), clash(second, first)):
        assert words in why
        assert bool(why) == bool(words)
