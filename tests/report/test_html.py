"""The page: whole, self-contained, harmless whatever it is fed, and really drawn by a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import HastenError
from hasten.report import parse, write_html
from hasten.report.evidence import Sample
from hasten.report.html import render
from hasten.report.plots import figures, pair_ratios
from tests.report.browser import open_page
from tests.report.sample import SAMPLES, empty_plan, full, interrupted

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"
FIXED = {"outcome", "verdict", "kind", "class", "arm", "direction"}
"""Keys of the evidence whose values are words of ours."""
VOID = {"meta", "br", "img", "link", "wbr", "input", "hr"}


class Page(HTMLParser):
    """The tags of a page, its visible text, and its scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text += data


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_loads_nothing(name: str) -> None:
    page = Page(render(parse(SAMPLES[name]())))
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(names)
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(key.startswith("on") for key in attributes)
    policy = next(
        a["content"] or "" for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    style = re.search(r"<style>(.*?)</style>", render(parse(SAMPLES[name]())), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_candidate_and_reason_is_there(name: str) -> None:
    evidence = SAMPLES[name]()
    shown = Page(render(parse(evidence))).text
    for rung in evidence["rungs"]:
        assert rung["name"] in shown
        assert rung["reason"] in shown
    for line in (evidence.get("plan_toml") or "", *evidence.get("commands", [])):
        assert line in shown


def test_the_story_comes_in_order() -> None:
    source = render(parse(full()))
    sections = re.findall(r'<section id="([a-z-]+)"', source)
    expected = "bottleneck time ceilings climb proof numbers left-out mechanisms memory trust plan again machine"
    assert sections == expected.split()
    assert sorted(re.findall(r'<a href="#([a-z-]+)"', source)) == sorted(sections)


def attacked(value: Any) -> Any:
    """The same evidence with the attack appended to every string that is free."""
    if isinstance(value, str):
        return value + ATTACK
    if isinstance(value, list):
        return [attacked(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key in FIXED else attacked(item) for key, item in value.items()}
    return value


def test_whatever_a_user_names_is_harmless() -> None:
    evidence = full()
    hostile = attacked(evidence)
    hostile["ceilings"][ATTACK] = 2.0
    hostile["versions"][ATTACK] = ATTACK
    hostile["machine"][ATTACK] = {"value": ATTACK, "reason": ATTACK}
    page = Page(render(parse(hostile)))
    clean = Page(render(parse(evidence)))
    assert len(page.scripts) == len(clean.scripts) == 3
    assert page.scripts[1:] == clean.scripts[1:]
    assert "img" not in [tag for tag, _ in page.tags]
    assert ATTACK in page.text
    assert "<" not in page.scripts[0]
    assert "&lt;/script&gt;" in str(json.loads(page.scripts[0])["climb"]["data"][0]["y"])


def test_missing_data_is_said_in_a_sentence() -> None:
    shown = Page(render(parse(empty_plan()))).text
    for words in ("No candidate was kept", "no paired samples of a final comparison", "No pair of loss curves"):
        assert words in shown
    assert "tuning was interrupted" in Page(render(parse(interrupted()))).text.lower()


def test_the_climb_does_not_count_what_was_pruned() -> None:
    evidence = full()
    evidence["rungs"][1]["outcome"] = "pruned"
    plot = figures(parse(evidence))["climb"]
    assert not isinstance(plot, str)
    bars = plot["data"][0]
    first = evidence["rungs"][0]["comparison"]["ratio"]
    assert bars["base"][:3] == pytest.approx([1.0, first, first])
    assert bars["y"][1] == "trim_padding (pruned)"
    assert bars["y"][-1] == "all together, proved"


def test_pair_ratios_leave_spoilt_samples_aside_where_others_remain() -> None:
    samples: list[dict[str, Any]] = [
        {"arm": "A", "pair": 0, "seconds_per_item": 4.0},
        {"arm": "B", "pair": 0, "seconds_per_item": 2.0},
        {"arm": "B", "pair": 0, "seconds_per_item": 8.0, "spoilt": True},
        {"arm": "A", "pair": 1, "seconds_per_item": 9.0, "spoilt": True},
        {"arm": "B", "pair": 1, "seconds_per_item": 3.0},
        {"arm": "A", "pair": 2, "seconds_per_item": 9.0},
    ]
    pairs, ratios, spoilt = zip(*pair_ratios([Sample(**sample) for sample in samples]), strict=True)
    assert (pairs, spoilt) == ((0, 1), (False, True))
    assert ratios == pytest.approx((2.0, 3.0))


def test_an_unwritable_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HastenError, match="--out"):
        write_html(parse(full()), tmp_path / "file" / "report.html")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["full", "hostile", *(pytest.param(name, marks=pytest.mark.long) for name in SAMPLES if name != "full")]
)
def test_a_real_browser_draws_every_plot(name: str, tmp_path: Path) -> None:
    evidence = SAMPLES["full" if name == "hostile" else name]()
    if name == "hostile":
        for rung in evidence["rungs"]:
            rung["name"] += ATTACK
            rung["reason"] += ATTACK
        evidence["job"]["name"] += ATTACK
    write_html(parse(evidence), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    num_plots = sum(not isinstance(plot, str) for plot in figures(parse(evidence)).values())
    assert page.error is None
    assert page.plots == num_plots
    assert page.pictures >= num_plots
    assert page.title.endswith("Hasten")


def test_what_was_written_into_the_source_of_a_script_is_told() -> None:
    assert 'id="patch"' not in render(parse(full()))
    patch = {"written": {"precision": "autocast around the forward pass"}, "left": {"sample_cache": f"by hand: {ATTACK}"}}
    page = Page(render(parse({**full(), "patch": patch})))
    assert "autocast around the forward pass" in page.text
    assert ATTACK in page.text
    assert "patch -p1 < hasten.patch" in page.text
