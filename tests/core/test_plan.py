"""A plan is equal after writing and reading it, and an error names the wrong key of the file."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.core.card import Bottleneck, Card, Numerics
from hasten.core.errors import PlanError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seams import Seam


def card(name: str, seam: Seam, **more: Any) -> Card:
    return Card(
        name=name,
        summary="A technique of this test.",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=seam,
        source="this test",
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class Precision(Optimization):
    card = card("precision", Seam.FORWARD)

    dtype: Literal["bfloat16", "float16"] = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Workers(Optimization):
    card = card("workers", Seam.LOADER, claims=frozenset({"workers"}))

    count: int = 2
    persistent: bool = True

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be at least 0, not {self.count}")


@dataclass(frozen=True, kw_only=True)
class MoreWorkers(Optimization):
    card = card("more_workers", Seam.LOADER, claims=frozenset({"workers"}))


@dataclass(frozen=True, kw_only=True)
class Cache(Optimization):
    card = card("cache", Seam.DATASET)

    folder: str = ""
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Layout(Optimization):
    card = card("layout", Seam.MODEL, after=("compiled",), conflicts=("old_layout",))


@dataclass(frozen=True, kw_only=True)
class OldLayout(Optimization):
    card = card("old_layout", Seam.MODEL)


@dataclass(frozen=True, kw_only=True)
class Compiled(Optimization):
    card = card("compiled", Seam.MODEL)


CATALOGUE = {kind.card.name: kind for kind in (Precision, Workers, MoreWorkers, Cache, Layout, OldLayout, Compiled)}

numbers = st.floats(allow_nan=False)
sets = st.tuples(
    st.none() | st.builds(Precision, dtype=st.sampled_from(["bfloat16", "float16"])),
    st.none() | st.builds(Workers, count=st.integers(min_value=0), persistent=st.booleans()) | st.builds(MoreWorkers),
    st.none() | st.builds(Cache, folder=st.text(), share=numbers),
    st.none() | st.builds(Layout) | st.builds(OldLayout),
    st.none() | st.builds(Compiled),
).flatmap(lambda items: st.permutations([item for item in items if item is not None]))
plans = st.builds(
    Plan,
    optimizations=sets.map(tuple),
    target=st.from_regex(r"[a-z_./]{0,20}(:[A-Z][a-z]*)?", fullmatch=True),
    proved=st.dictionaries(st.text(), st.text() | st.integers() | numbers | st.booleans(), max_size=4),
    log_to=st.lists(st.text(), max_size=3).map(tuple),
)


@given(plans)
def test_a_plan_survives_its_file(plan: Plan) -> None:
    read = Plan.from_toml(plan.to_toml(), CATALOGUE)
    assert read == plan
    assert [type(value) for value in read.proved.values()] == [type(value) for value in plan.proved.values()]
    assert Plan.from_dict(plan.to_dict(), CATALOGUE).optimizations == plan.optimizations


def test_a_plan_survives_the_disk(tmp_path: Path) -> None:
    plan = Plan(
        optimizations=(Cache(folder='a "b" \\ é\x7f'),), target="my_job.py:MyJob", proved={"the ratio": np.float64(1.5)}
    )
    plan.save(tmp_path / "new" / "hasten.toml")
    assert Plan.load(tmp_path / "new" / "hasten.toml", CATALOGUE) == plan
    text = (tmp_path / "new" / "hasten.toml").read_text(encoding="utf-8")
    path = shlex.quote(str(tmp_path / "new" / "hasten.toml"))
    assert f"hasten run my_job.py:MyJob --plan {path}\n" in text
    assert "[optimizations.cache]  # rounding: A technique of this test." in text


def test_an_empty_plan_says_so_and_can_be_read() -> None:
    text = Plan().to_toml()
    assert "no optimization was proved" in text
    assert Plan.from_toml(text, CATALOGUE) == Plan()


def test_settings_left_out_take_their_defaults() -> None:
    plan = Plan.from_toml("schema = 1\n[optimizations.workers]\ncount = 5\n", CATALOGUE)
    assert plan.optimizations == (Workers(count=5, persistent=True),)


def test_a_plan_carries_settings_only() -> None:
    assert Plan(optimizations=(Workers(), Compiled())).to_dict() == {
        "compiled": {},
        "workers": {"count": 2, "persistent": True},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = ", "not valid TOML"),
        ("", "`schema` is None"),
        ("schema = 2", "`schema` is 2"),
        ("schema = 1\nspeed = 3", "unknown key `speed`"),
        ("schema = 1\ntarget = 3", "`target` must be a string, not 3"),
        ("schema = 1\noptimizations = 3", "`optimizations` must be a table, not 3"),
        ("schema = 1\nproved = 'yes'", "`proved` must be a table"),
        ("schema = 1\nlog_to = 'parquet'", "`log_to` must be a list of strings, not 'parquet'"),
        ("schema = 1\nlog_to = [1]", "`log_to` must be a list of strings, not [1]"),
        ("schema = 1\n[optimizations.magic]", "unknown optimization `magic`. `hasten doctor --catalogue` lists all"),
        ("schema = 1\n[optimizations]\nworkers = 3", "`optimizations.workers` must be a table of settings, not 3"),
        ("schema = 1\n[optimizations.workers]\nnumber = 3", "no setting `number`. Its settings: count, persistent."),
        ("schema = 1\n[optimizations.compiled]\nmode = 'x'", "no setting `mode`. Its settings: none."),
        ("schema = 1\n[optimizations.compiled]\ncard = 'x'", "no setting `card`"),
        (
            "schema = 1\n[optimizations.workers]\ncount = '3'",
            "`optimizations.workers.count` must be a whole number, not '3'",
        ),
        (
            "schema = 1\n[optimizations.workers]\ncount = 3.0",
            "`optimizations.workers.count` must be a whole number, not 3.0",
        ),
        (
            "schema = 1\n[optimizations.workers]\ncount = true",
            "`optimizations.workers.count` must be a whole number, not True",
        ),
        (
            "schema = 1\n[optimizations.workers]\npersistent = 1",
            "`optimizations.workers.persistent` must be true or false, not 1",
        ),
        ("schema = 1\n[optimizations.workers]\ncount = -1", "`optimizations.workers`: count must be at least 0, not -1"),
        ("schema = 1\n[optimizations.cache]\nshare = true", "`optimizations.cache.share` must be a number, not True"),
        ("schema = 1\n[optimizations.cache]\nfolder = 1", "`optimizations.cache.folder` must be a string, not 1"),
        ("schema = 1\n[optimizations.precision]\ndtype = 'int8'", "must be one of 'bfloat16', 'float16', not 'int8'"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_toml(text, CATALOGUE, where="my.toml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("my.toml")


def test_a_whole_number_is_a_number() -> None:
    assert Plan.from_toml("schema = 1\n[optimizations.cache]\nshare = 1", CATALOGUE).optimizations == (Cache(share=1),)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.toml.*hasten tune"):
        Plan.load(tmp_path / "none.toml", CATALOGUE)
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match=r"latin\.toml"):
        Plan.load(tmp_path / "latin.toml", CATALOGUE)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((Layout(), OldLayout()), "`layout` and `old_layout` exclude each other"),
        ((OldLayout(), Layout()), "`old_layout` and `layout` exclude each other"),
        ((Workers(), MoreWorkers()), "both claim workers"),
        ((Workers(), Workers(count=3)), "`workers` is already in the plan"),
    ],
)
def test_optimizations_that_exclude_each_other_are_refused(pair: tuple[Optimization, Optimization], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Plan(optimizations=pair)


def test_optimizations_that_wait_for_one_another_are_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class First(Optimization):
        card = card("first", Seam.MODEL, after=("second",))

    @dataclass(frozen=True, kw_only=True)
    class Second(Optimization):
        card = card("second", Seam.MODEL, after=("first",))

    with pytest.raises(PlanError, match="first, second"):
        Plan(optimizations=(First(), Second()))


@given(st.permutations([Precision(), Workers(), Layout(), Compiled(), Cache()]))
def test_the_order_is_by_seam_and_after_for_any_given_order(given_order: list[Optimization]) -> None:
    assert Plan(optimizations=tuple(given_order)).names == ("cache", "compiled", "layout", "workers", "precision")


def test_plus_replaces_and_minus_removes_and_both_keep_the_rest() -> None:
    plan = Plan(optimizations=(Workers(), Cache()), target="job.py:Job", proved={"ratio": 1.5}, log_to=("parquet",))
    more = plan.plus(Workers(count=7), Compiled())
    assert more.optimizations == (Cache(), Compiled(), Workers(count=7))
    less = more.minus("cache")
    assert less.names == ("compiled", "workers")
    assert (less.target, less.proved, less.log_to) == (plan.target, plan.proved, plan.log_to)
    assert plan.optimizations == (Cache(), Workers())


def test_values_that_toml_cannot_store_are_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Odd(Optimization):
        card = card("odd", Seam.MODEL)
        what: object = None

    with pytest.raises(PlanError, match=r"can contain only booleans.*NoneType"):
        Plan(optimizations=(Odd(),)).to_toml()


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan().target = "other"  # type: ignore[misc]
