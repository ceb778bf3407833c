"""The report as one HTML page: a pure function of the evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from hasten.report import schema, words
from hasten.report.evidence import PHASES, Comparison, Evidence, Memory, Patch
from hasten.report.page import environment, render_page, write_page
from hasten.report.plots import figures

IN_THE_PLAN_ONCE = ("applied", "pruned")


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
    made.globals.update(value_words=words.value_words)
    return made


def _context(evidence: Evidence) -> dict[str, Any]:
    headline, job = words.headline(evidence), evidence.job
    climbed = [candidate for candidate in evidence.rungs if candidate.outcome in IN_THE_PLAN_ONCE]
    return {
        "evidence": evidence,
        "job": schema.write(job),
        "title": job.name or job.target or "training job",
        "headline": headline,
        "big": _times(headline.big),
        "detail": _times(headline.detail),
        "quality": evidence.final.quality if evidence.final else None,
        "quality_line": words.quality_words(evidence.final),
        "phase_rows": _phase_rows(evidence),
        "climbed": climbed,
        "left_out": [candidate for candidate in evidence.rungs if candidate.outcome != "applied"],
        "judged": [candidate for candidate in evidence.rungs if candidate.numerics],
        "final": evidence.final,
        "patched": _patched(evidence.patch),
        "memory": _memory(evidence.memory),
        "samples": _samples([*(candidate.comparison for candidate in evidence.rungs), evidence.final]),
        "machine": _readings(evidence.machine),
    }


def _patched(patch: Patch | None) -> Patch | None:
    """What of the plan was written into the script's source, and what was left; None where neither was."""
    return patch if patch is not None and (patch.written or patch.left) else None


def _times(line: str) -> str:
    """`4.9x` becomes `4.9×`."""
    return re.sub(r"(?<=\d)x\b", "×", line)


def _breakable(name: str) -> Markup:
    """A name that may break after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def _phase_rows(evidence: Evidence) -> list[dict[str, Any]]:
    before, after, step = evidence.phases, evidence.phases_after or {}, evidence.step_ms
    wholes = words.wall_ms(before, step.baseline if step else None), words.wall_ms(after, step.tuned if step else None)
    lines = []
    for name in PHASES:
        shares = before.get(name), after.get(name)
        if any(shares):
            times = [
                None if share is None or total is None else share * total
                for share, total in zip(shares, wholes, strict=True)
            ]
            lines.append({"name": name, "shares": shares, "times": times})
    return lines


def _memory(memory: Memory | None) -> list[dict[str, Any]]:
    if memory is None:
        return []
    limit, peaks = memory.limit_bytes, {"before": memory.baseline_peak_bytes, "after": memory.tuned_peak_bytes}
    return [
        {"label": label, "peak": peak, "limit": limit, "share": peak / limit if limit else None}
        for label, peak in peaks.items()
        if peak is not None
    ]


def _samples(comparisons: Sequence[Comparison | None]) -> dict[str, Any]:
    """Counts over every sample of the tuning: how many, how many spoilt, how much of the machine others used."""
    every = [sample for comparison in comparisons if comparison for sample in comparison.samples or ()]
    foreign = [sample.foreign_cpu_frac for sample in every if sample.foreign_cpu_frac is not None]
    return {
        "num": len(every),
        "spoilt": sum(bool(sample.spoilt) for sample in every),
        "foreign_mean": sum(foreign) / len(foreign) if foreign else None,
        "foreign_max": max(foreign, default=None),
    }


def _readings(machine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and how it is known, for each reading of the machine; the summary stands elsewhere."""
    lines = []
    for key, reading in machine.items():
        if key == "summary":
            continue
        if isinstance(reading, Mapping) and "value" in reading:
            reason = str(reading.get("reason") or "")
            lines.append((words.key_words(key), words.value_words(key, reading["value"]), reason))
        else:
            lines.append((words.key_words(key), words.value_words(key, reading), ""))
    return lines
