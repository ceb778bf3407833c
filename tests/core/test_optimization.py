"""The interface of an optimization: the result of `fit`, the order of a plan, and what cannot be combined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.core.card import Bottleneck, Card, Numerics
from hasten.core.errors import PlanError
from hasten.core.optimization import (
    Fit,
    Optimization,
    clash,
    joined_environment,
    missing_environment,
    ordered,
    required_environment,
)
from hasten.core.seams import Seam


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


def test_required_methods_have_no_default() -> None:
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
        (make("a"), make("a"), "`a` is already in the plan"),
        (make("a", conflicts=("b",)), make("b"), "exclude each other"),
        (make("a"), make("b", conflicts=("a",)), "exclude each other"),
        (make("a", claims=frozenset({"x", "y"})), make("b", claims=frozenset({"y", "x", "z"})), "both claim x, y"),
        (make("a", claims=frozenset({"x"})), make("b", claims=frozenset({"y"})), ""),
        (make("a", conflicts=("c",)), make("b"), ""),
    ],
)
def test_a_clash_has_a_reason(first: Optimization, second: Optimization, words: str) -> None:
    for why in (clash(first, second), clash(second, first)):
        assert words in why
        assert bool(why) == bool(words)


# The environment that a process needs at its start.


def asking(name: str, **variables: str) -> Optimization:
    made = make(name, Seam.ENVIRONMENT)
    kind: Any = type(f"Asking{name}", (type(made),), {"environment": lambda _: variables})
    return kind()  # type: ignore[no-any-return]


def test_most_need_no_environment() -> None:
    assert make("a").environment() == {}
    assert required_environment([make("a"), make("b")]) == {}


def test_entries_of_two_optimizations_are_joined() -> None:
    items = [
        asking("a", GLIBC_TUNABLES="glibc.malloc.x=0:glibc.malloc.y=1", LD_PRELOAD="/lib/a.so", OMP_PROC_BIND="close"),
        asking("b", GLIBC_TUNABLES="glibc.malloc.z=2:glibc.malloc.y=1", LD_PRELOAD="/lib/b=1.so", OMP_PROC_BIND="close"),
        asking("c", MALLOC_CONF="dirty_decay_ms:-1,muzzy_decay_ms:-1"),
        asking("d", MALLOC_CONF="thp:always"),
    ]
    assert required_environment(items) == {
        "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always",
        "GLIBC_TUNABLES": "glibc.malloc.x=0:glibc.malloc.y=1:glibc.malloc.z=2",
        "LD_PRELOAD": "/lib/a.so:/lib/b=1.so",
        "OMP_PROC_BIND": "close",
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"GLIBC_TUNABLES": "glibc.malloc.x=0"}, {"GLIBC_TUNABLES": "glibc.malloc.y=1:glibc.malloc.x=1"}),
        ({"MALLOC_CONF": "thp:never"}, {"MALLOC_CONF": "dirty_decay_ms:-1,thp:always"}),
        ({"OMP_PROC_BIND": "close"}, {"OMP_PROC_BIND": "spread"}),
        ({"PATH": "/a"}, {"PATH": "/a:/b"}),
    ],
)
def test_conflicting_variables_are_an_error_that_names_both(first: dict[str, str], second: dict[str, str]) -> None:
    with pytest.raises(PlanError, match=f"`one` and `two` need {next(iter(first))} to be '"):
        required_environment([asking("one", **first), asking("two", **second)])


def test_the_users_settings_of_jemalloc_are_kept_with_those_a_plan_requires() -> None:
    required = {"MALLOC_CONF": "thp:always"}
    assert joined_environment(required, {"MALLOC_CONF": "narenas:2,thp:never"})["MALLOC_CONF"] == "narenas:2,thp:always"
    assert missing_environment(required, {"MALLOC_CONF": "narenas:2,thp:always"}) == {}
    assert missing_environment(required, {"MALLOC_CONF": "narenas:2"}) == required


@pytest.mark.parametrize(
    ("started", "lacking"),
    [
        ({}, True),
        ({"GLIBC_TUNABLES": "glibc.x=0"}, True),
        ({"GLIBC_TUNABLES": "glibc.x=0:glibc.y=2"}, True),
        ({"GLIBC_TUNABLES": "glibc.z=3:glibc.y=1:glibc.x=0"}, False),
        ({"GLIBC_TUNABLES": "glibc.y=1:glibc.x=0:glibc.y=2"}, True),  # the last value of a tunable counts
    ],
)
def test_a_variable_that_is_not_active_in_every_part_is_missing(started: dict[str, str], lacking: bool) -> None:
    required = {"GLIBC_TUNABLES": "glibc.x=0:glibc.y=1"}
    assert missing_environment(required, started) == (required if lacking else {})
    assert missing_environment(required, joined_environment(required, started)) == {}


def test_a_plain_variable_must_be_the_same() -> None:
    assert missing_environment({"A": "1"}, {"A": "1:2"}) == {"A": "1"}
    assert missing_environment({"A": "1"}, {"A": "1"}) == {}


def test_joining_keeps_the_users_entries_and_ours_take_precedence() -> None:
    theirs = {"GLIBC_TUNABLES": "glibc.x=9:glibc.u=1", "LD_PRELOAD": "/u.so /v.so", "OMP_PROC_BIND": "true", "HOME": "/me"}
    ours = {"GLIBC_TUNABLES": "glibc.x=0", "LD_PRELOAD": "/a.so", "OMP_PROC_BIND": "close"}
    assert joined_environment(ours, theirs) == {
        "GLIBC_TUNABLES": "glibc.x=0:glibc.u=1",
        "LD_PRELOAD": "/a.so:/u.so:/v.so",
        "OMP_PROC_BIND": "close",
        "HOME": "/me",
    }
    assert joined_environment({}, theirs) == theirs
