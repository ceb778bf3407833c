"""The page is complete, self-contained and safe for any input, and a browser draws its plots."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report import parse, write_html
from hasten.report.evidence import Sample
from hasten.report.html import ADOPTED, SUMMARY, render
from hasten.report.plots import figures, pair_ratios
from hasten.report.words import headline
from tests.report.browser import open_page
from tests.report.sample import SAMPLES, comparison, empty_plan, full, interrupted, rung

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"
FIXED = {"outcome", "verdict", "kind", "class", "arm", "direction"}
"""Keys of the evidence whose values are fixed words."""
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
    for candidate in evidence["rungs"]:
        assert candidate["name"] in shown
        assert candidate["reason"] in shown or candidate["outcome"] in ADOPTED
    for line in (evidence.get("plan_toml") or "", *evidence.get("commands", [])):
        assert line in shown


def box(evidence: dict[str, Any]) -> str:
    """Return the text of the box with the next command; empty if there is none."""
    found = re.search(r'<div class="use" id="use">(.*?)</div>\s*<dl class="tiles">', render(parse(evidence)), re.DOTALL)
    return " ".join(Page(found[1]).text.split()) if found else ""


def test_a_box_under_the_headline_has_the_command_and_what_each_technique_does() -> None:
    evidence = full()
    assert evidence["commands"][-1] in box(evidence)
    assert "trim_padding: cut what no sample of the batch reaches" in box(evidence)
    assert "--resume" in box(interrupted())
    assert box(empty_plan()) == ""


def test_summaries_are_found_in_the_text_of_a_real_plan() -> None:
    kind = catalogue()["precision"]
    text = Plan(optimizations=(kind(),)).to_toml()
    assert SUMMARY.findall(text) == [("precision", kind.card.summary)]


def test_a_kept_technique_says_what_it_does_and_not_its_gain_again() -> None:
    evidence = full()
    evidence["rungs"][2]["reason"] = "faster: 1.50x (1.40 to 1.60); without it the job runs at 0.50x"
    shown = Page(render(parse(evidence))).text
    assert "without it the job runs at 0.50x" in shown
    assert "1.50x (1.40" not in shown


def test_candidates_that_are_not_in_the_plan_are_folded_in_groups() -> None:
    evidence = full()
    evidence["rungs"].append(rung("waits", "undecided", "not tried: it needs about 9 s"))
    source = render(parse(evidence))
    titles = re.findall(r"<summary>(\d+ (?:tried|not)[^<]*)</summary>", source)
    assert titles == ["3 tried, but not kept", "1 not tried, because the budget had no room", "7 not applicable here"]
    shown = " ".join(Page(source).text.split())
    assert "3 of 6 kept" in shown
    assert "– refused" not in shown
    for words in ("– slower", "– no gain", "– not applicable"):
        assert words in shown


def test_phases_that_were_not_measured_again_do_not_look_like_a_gain() -> None:
    evidence = full()
    whole = evidence["phases"]["backward"]
    evidence["phases"].update(validation=0.2, backward=whole - 0.2)
    plot = figures(parse(evidence))["phases"]
    assert not isinstance(plot, str)
    assert "validation" not in [bar["name"] for bar in plot["data"]]
    assert sum(bar["x"][0] for bar in plot["data"]) == pytest.approx(evidence["step_ms"]["baseline"], rel=0.01)
    assert "Validation was not measured again under the plan" in Page(render(parse(evidence))).text
    evidence["phases_after"]["validation"] = 0.0
    assert "not measured again" not in Page(render(parse(evidence))).text


@pytest.mark.parametrize(("limit", "words"), [(3.3, "the two agree"), (1.2, "did not count"), (9.0, "")])
def test_a_missed_prediction_is_explained(limit: float, words: str) -> None:
    evidence = full()
    evidence["rungs"] = [rung("lever", "applied", "faster", predicted_max_gain=limit)]
    evidence["rungs"][0]["comparison"] = {
        **comparison(3.4, "faster", seed=1, noise=0.04),
        "ratio": 3.4,
        "low": 3.2,
        "high": 3.6,
    }
    shown = Page(render(parse(evidence))).text
    assert words in shown
    assert ("Above the prediction" in shown) == bool(words)


def test_the_page_has_no_absolute_path() -> None:
    evidence = full()
    evidence["job"]["target"] = "/home/ada/jobs/job.py:J"
    evidence["commands"] = ["hasten run /home/ada/jobs/job.py:J --plan /home/ada/out/hasten.toml"]
    evidence["rungs"][3]["reason"] = (
        "cannot read '/home/ada/my data/x.csv' of C:\\Users\\ada\\x.csv, ~/ada/y or https://a.org/ada/b"
    )
    evidence["machine"]["memory_bytes"]["reason"] = "/sys/fs/cgroup/memory.max"
    shown = Page(render(parse(evidence))).text
    assert "cannot read 'x.csv' of x.csv, y or https://a.org/ada/b" in shown
    assert "hasten run job.py:J --plan hasten.toml" in shown
    assert "/sys/fs/cgroup/memory.max" in shown
    assert "/home" not in shown


def around() -> dict[str, Any]:
    """Return evidence of a plan that acts only on validation and leaves updates as fast as they were."""
    evidence = full()
    evidence["rungs"] = [
        rung("gauge", "applied", "faster", event="validation", comparison=comparison(1.3, "faster", seed=1)),
        rung("meter", "applied", "faster", event="validation", comparison=comparison(1.1, "faster", seed=2)),
    ]
    evidence["final"].update(comparison(1.0, "same", seed=3))
    return evidence


def test_a_plan_that_acts_only_on_validation_is_judged_by_the_time_of_an_epoch() -> None:
    evidence = parse(around())
    gain = evidence.epoch_gain
    assert gain is not None
    assert gain[0] == pytest.approx(1.3 * 1.1, rel=0.05)
    found = headline(evidence)
    assert found.tone == "good"
    assert found.big == f"{gain[0]:.2f}x faster per epoch"
    assert "validation" in found.detail
    climb = figures(evidence)["climb"]
    assert isinstance(climb, str)
    undecided = around()
    undecided["final"]["verdict"] = "undecided"
    assert headline(parse(undecided)).tone == "open"
    mixed = around()
    mixed["rungs"].append(rung("lever", "applied", "faster", comparison=comparison(1.2, "faster", seed=4)))
    assert parse(mixed).epoch_gain is None


def test_sections_are_in_order() -> None:
    source = render(parse(full()))
    sections = re.findall(r'<section id="([a-z-]+)"', source)
    expected = "bottleneck time ceilings climb proof numbers left-out mechanisms memory trust plan again machine"
    assert sections == expected.split()
    assert set(re.findall(r'<a href="#([a-z-]+)"', source)) == set(sections)


def attacked(value: Any) -> Any:
    """Return the evidence with the attack appended to every string that is not fixed."""
    if isinstance(value, str):
        return value + ATTACK
    if isinstance(value, list):
        return [attacked(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key in FIXED else attacked(item) for key, item in value.items()}
    return value


def test_names_from_users_are_harmless() -> None:
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


def test_missing_data_is_explained_in_a_sentence() -> None:
    shown = Page(render(parse(empty_plan()))).text
    for words in ("No candidate was kept", "no paired samples of a final comparison", "No pair of loss curves"):
        assert words in shown
    assert "tuning was interrupted" in Page(render(parse(interrupted()))).text.lower()


def test_the_climb_does_not_count_removed_candidates() -> None:
    evidence = full()
    evidence["rungs"][1]["outcome"] = "pruned"
    plot = figures(parse(evidence))["climb"]
    assert not isinstance(plot, str)
    bars = plot["data"][0]
    first = evidence["rungs"][0]["comparison"]["ratio"]
    assert bars["base"][:3] == pytest.approx([1.0, first, first])
    assert bars["y"][1] == "trim_padding (removed)"
    assert bars["y"][-1] == "all together, proved"


def test_pair_ratios_ignore_disturbed_samples_if_there_are_others() -> None:
    samples: list[dict[str, Any]] = [
        {"arm": "A", "pair": 0, "seconds_per_item": 4.0},
        {"arm": "B", "pair": 0, "seconds_per_item": 2.0},
        {"arm": "B", "pair": 0, "seconds_per_item": 8.0, "spoilt": True},
        {"arm": "A", "pair": 1, "seconds_per_item": 9.0, "spoilt": True},
        {"arm": "B", "pair": 1, "seconds_per_item": 3.0},
        {"arm": "A", "pair": 2, "seconds_per_item": 9.0},
    ]
    pairs, ratios, disturbed = zip(*pair_ratios([Sample(**sample) for sample in samples]), strict=True)
    assert (pairs, disturbed) == ((0, 1), (False, True))
    assert ratios == pytest.approx((2.0, 3.0))


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
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
        for candidate in evidence["rungs"]:
            candidate["name"] += ATTACK
            candidate["reason"] += ATTACK
        evidence["job"]["name"] += ATTACK
    write_html(parse(evidence), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    num_plots = sum(not isinstance(plot, str) for plot in figures(parse(evidence)).values())
    assert page.error is None
    assert page.plots == num_plots
    assert page.svgs >= num_plots
    assert page.title.endswith("Hasten")


def test_the_patch_of_a_script_is_described() -> None:
    assert 'id="patch"' not in render(parse(full()))
    patch = {"written": {"precision": "autocast around the forward pass"}, "left": {"sample_cache": f"by hand: {ATTACK}"}}
    page = Page(render(parse({**full(), "patch": patch})))
    assert "autocast around the forward pass" in page.text
    assert ATTACK in page.text
    assert "patch -p1 < hasten.patch in the folder where the script was tuned" in page.text.replace("\n", " ")
    page = Page(render(parse({**full(), "patch": {**patch, "folder": "../.."}})))
    assert "in the folder ../.., relative to the one where the script was tuned" in page.text
