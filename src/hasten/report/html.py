"""The report as one HTML page: a pure function of the evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from hasten.report import words
from hasten.report.evidence import PHASES
from hasten.report.page import environment, render_page, write_page
from hasten.report.plots import figures
from hasten.report.words import Evidence, number, rows, table, text, wall_ms

CLIMBED = ("applied", "pruned")


def write_html(evidence: Evidence, path: Path) -> None:
    """Write the report page to `path`, whole or not at all.

    Raises:
        HastenError: The folder cannot be written.
    """
    write_page(render(evidence), path, "--out")


def render(evidence: Evidence) -> str:
    """The report page as text."""
    return render_page(_environment(), "report.html.j2", figures(evidence), **_context(evidence))


def _environment() -> jinja2.Environment:
    made = environment()
    for name in ("percent", "ms_words", "seconds_words", "bytes_words", "key_words", "settings_words"):
        made.filters[name] = getattr(words, name)
    made.filters["times"] = lambda ratio: words.ratio_words(ratio, "×")
    made.filters["interval"] = lambda comparison: words.interval_words(comparison, "×")
    made.filters["pairs"] = words.pairs_words
    made.filters["kind"] = words.kind_words
    made.filters["breakable"] = _breakable
    made.globals.update(number=number, text=text, table=table, rows=rows, value_words=words.value_words)
    return made


def _context(evidence: Evidence) -> dict[str, Any]:
    rungs = rows(evidence, "rungs")
    final = table(evidence, "final")
    headline = words.headline(evidence)
    climbed = [rung for rung in rungs if text(rung, "outcome") in CLIMBED]
    return {
        "evidence": evidence,
        "job": table(evidence, "job"),
        "title": text(table(evidence, "job"), "name") or text(table(evidence, "job"), "target") or "training job",
        "headline": headline,
        "big": _times(headline.big),
        "detail": _times(headline.detail),
        "quality": table(final, "quality"),
        "quality_line": words.quality_words(final),
        "bottleneck": table(evidence, "bottleneck"),
        "phase_rows": _phase_rows(evidence),
        "step": table(evidence, "step_ms"),
        "rungs": rungs,
        "climbed": climbed,
        "applied": [rung for rung in rungs if text(rung, "outcome") == "applied"],
        "left_out": [rung for rung in rungs if text(rung, "outcome") != "applied"],
        "judged": [rung for rung in rungs if table(rung, "numerics")],
        "final": final,
        "patched": _patched(evidence),
        "memory": _memory(table(evidence, "memory")),
        "samples": _samples(rungs, final),
        "noise": table(evidence, "noise"),
        "commands": words.strings(evidence, "commands"),
        "machine": _readings(table(evidence, "machine")),
        "versions": table(evidence, "versions"),
    }


def _patched(evidence: Evidence) -> dict[str, Mapping[str, Any]]:
    """What of the plan was written into the script's source, and what was left; empty where neither was."""
    found = {what: table(table(evidence, "patch"), what) for what in ("written", "left")}
    return found if any(found.values()) else {}


def _times(line: str) -> str:
    """`4.9x` becomes `4.9×`."""
    return re.sub(r"(?<=\d)x\b", "×", line)


def _breakable(name: str) -> Markup:
    """A name that may break after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def _phase_rows(evidence: Evidence) -> list[dict[str, Any]]:
    step = table(evidence, "step_ms")
    before, after = table(evidence, "phases"), table(evidence, "phases_after")
    wholes = wall_ms(before, number(step, "baseline")), wall_ms(after, number(step, "tuned"))
    found = []
    for name in PHASES:
        shares = number(before, name), number(after, name)
        if any(shares):
            times = [
                None if share is None or total is None else share * total
                for share, total in zip(shares, wholes, strict=True)
            ]
            found.append({"name": name, "shares": shares, "times": times})
    return found


def _memory(memory: Mapping[str, Any]) -> list[dict[str, Any]]:
    limit = number(memory, "limit_bytes")
    found = []
    for label, key in (("before", "baseline_peak_bytes"), ("after", "tuned_peak_bytes")):
        peak = number(memory, key)
        if peak is not None:
            found.append({"label": label, "peak": peak, "limit": limit, "share": peak / limit if limit else None})
    return found


def _samples(rungs: list[Mapping[str, Any]], final: Mapping[str, Any]) -> dict[str, Any]:
    """Counts over every sample of the tuning: how many, how many spoilt, how much of the machine others used."""
    comparisons = [*(table(rung, "comparison") for rung in rungs), final]
    every = [sample for comparison in comparisons for sample in rows(comparison, "samples")]
    foreign = [share for sample in every if (share := number(sample, "foreign_cpu_frac")) is not None]
    return {
        "num": len(every),
        "spoilt": sum(bool(sample.get("spoilt")) for sample in every),
        "foreign_mean": sum(foreign) / len(foreign) if foreign else None,
        "foreign_max": max(foreign, default=None),
    }


def _readings(machine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and how it is known, for each reading of the machine; the summary stands elsewhere."""
    found = []
    for key, reading in machine.items():
        if key == "summary":
            continue
        if isinstance(reading, Mapping) and "value" in reading:
            found.append((words.key_words(key), words.value_words(key, reading["value"]), text(reading, "reason")))
        else:
            found.append((words.key_words(key), words.value_words(key, reading), ""))
    return found
