"""Render the report of a tuning as one HTML page: a pure function of the evidence."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from hasten.core.stats import TRAINING_LOSS
from hasten.report import schema, words
from hasten.report.evidence import PHASES, Candidate, Comparison, Evidence, Memory, Patch
from hasten.report.page import environment, render_page, write_page
from hasten.report.plots import figures

ADOPTED = ("applied", "pruned")
"""Outcomes of candidates that were in the plan at some time."""
FOLDER = re.compile(
    r"""(?<=['"])/(?:[^/'"\n]+/)+  # within quotes, where names may contain spaces
    | (?<![\w.~/:<>\\])(?!/(?:sys|proc|dev)/)~?/(?:[^\s/:'"`,;()<>|]+/)+
    | (?<!\w)[A-Za-z]:\\(?:[^\\\s:'"`,;()<>|]+\\)+""",
    re.VERBOSE,
)
"""The folder of an absolute path. The system's own /sys, /proc and /dev are the same everywhere and stay readable."""
SUMMARY = re.compile(r"^\[optimizations\.(\w+)\]  # \w+: (.+)$", re.MULTILINE)
"""A technique and its summary, in the text of a plan."""
REPEATS_GAIN = re.compile(r"\d x? \s \( [\d.]+ \s to \s", re.VERBOSE)


def write_html(evidence: Evidence, path: Path) -> None:
    """Write the report to `path`, atomically.

    Raises:
        HastenError: The file cannot be written.
    """
    write_page(render(evidence), path, "--out")


def render(evidence: Evidence) -> str:
    """Return the report as text. Absolute paths lose their folders, because reports are made to be shared."""
    shared: Evidence = without_folders(evidence)
    return render_page(
        _environment(), "report.html.j2", figures(shared), **_context(shared), shortened=shared.commands != evidence.commands
    )


def without_folders(value: Any) -> Any:
    """Return evidence, or a part of it, in which absolute paths are reduced to the name of their file."""
    if isinstance(value, schema.Table):
        return replace(value, **{item.name: without_folders(getattr(value, item.name)) for item in fields(value)})
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return FOLDER.sub("", value)
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    return type(value)(map(without_folders, value)) if isinstance(value, list | tuple) else value


def _environment() -> jinja2.Environment:
    made = environment()
    for name in ("percent", "ms_words", "seconds_words", "bytes_words", "key_words", "settings_words", "outcome_words"):
        made.filters[name] = getattr(words, name)
    made.filters["times"] = lambda ratio: words.ratio_words(ratio, "×")
    made.filters["interval"] = lambda comparison: words.interval_words(comparison, "×")
    made.filters["pairs"] = words.pairs_words
    made.filters["kind"] = words.kind_words
    made.filters["breakable"] = _breakable
    made.filters["more_reasons"] = _more_reasons
    made.globals.update(value_words=words.value_words)
    return made


def _context(evidence: Evidence) -> dict[str, Any]:
    headline, job = words.headline(evidence), evidence.job
    adopted = [candidate for candidate in evidence.rungs if candidate.outcome in ADOPTED]
    return {
        "evidence": evidence,
        "job": schema.write(job),
        "title": job.name or job.target or "training job",
        "headline": headline,
        "big": _times(headline.big),
        "detail": _times(headline.detail),
        "quality": evidence.final.quality if evidence.final else None,
        "training_loss": TRAINING_LOSS,
        "quality_line": words.quality_words(evidence.final),
        "command": words.next_command(evidence),
        "summaries": dict(SUMMARY.findall(evidence.plan_toml or "")),
        "phase_rows": _phase_rows(evidence),
        "missing_phases": words.comparable_phases(evidence)[2],
        "adopted": adopted,
        "missed": _missed_predictions(evidence),
        "left_out": _left_out(evidence),
        "judged": [candidate for candidate in evidence.rungs if candidate.numerics],
        "final": evidence.final,
        "patched": _patched(evidence.patch),
        "memory": _memory(evidence.memory),
        "samples": _samples([*(candidate.comparison for candidate in evidence.rungs), evidence.final]),
        "machine": _readings(evidence.machine),
    }


def _left_out(evidence: Evidence) -> list[tuple[str, list[Candidate]]]:
    """Return the candidates that are not in the plan, in groups with a title. Empty groups are omitted."""
    groups: dict[str, list[Candidate]] = {
        "tried, but not kept": [], "not tried, because the budget had no room": [], "not applicable here": [],
    }  # fmt: skip
    tried, no_room, not_applicable = groups.values()
    for candidate in evidence.rungs:
        if candidate.outcome != "applied":
            untried = no_room if candidate.outcome == "undecided" else not_applicable
            (tried if candidate.tried or candidate.outcome == "pruned" else untried).append(candidate)
    return [(title, candidates) for title, candidates in groups.items() if candidates]


def _missed_predictions(evidence: Evidence) -> list[tuple[Candidate, str]]:
    """Return the candidates that gained more than predicted, each with an explanation."""
    missed = []
    for candidate in evidence.rungs:
        limit, comparison = candidate.predicted_max_gain, candidate.comparison
        if limit is None or comparison is None or comparison.ratio is None or comparison.ratio <= limit:
            continue
        if comparison.low is None or comparison.low <= limit:
            why = "the prediction is within the interval of the measurement, so the two agree"
        else:
            why = "the technique also saves time that the prediction did not count, in another phase or by changing the work"
        missed.append((candidate, why))
    return missed


def _more_reasons(candidate: Candidate) -> str:
    """Return the reason of a kept candidate without its gain, which has a column of its own."""
    return "; ".join(part for part in candidate.reason.split("; ") if not REPEATS_GAIN.search(part))


def _patched(patch: Patch | None) -> Patch | None:
    """Return the patch of the script; None if it says nothing."""
    return patch if patch is not None and (patch.written or patch.left) else None


def _times(line: str) -> str:
    """Return the line with `4.9×` instead of `4.9x`."""
    return re.sub(r"(?<=\d)x\b", "×", line)


def _breakable(name: str) -> Markup:
    """Return a name that may break after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def _phase_rows(evidence: Evidence) -> list[dict[str, Any]]:
    """Return name, shares and times of each phase before and after; phases that were not measured again have no share."""
    step = evidence.step_ms
    before_ms, after_ms = (step.baseline, step.tuned) if step else (None, None)
    before, after, missing = words.comparable_phases(evidence)
    rows = []
    for name in PHASES:
        shares = before.get(name), after.get(name)
        if any(shares):
            totals = words.wall_ms(before, before_ms), words.wall_ms(after, after_ms)
            times = [
                None if share is None or total is None else share * total
                for share, total in zip(shares, totals, strict=True)
            ]
            rows.append({"name": name, "shares": shares, "times": times})
        elif name in missing:
            total = words.wall_ms(evidence.phases, before_ms)
            time = None if total is None else evidence.phases[name] * total
            rows.append({"name": name, "shares": (None, None), "times": (time, None)})
    return rows


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
    """Return totals over all samples of the tuning: their number, the disturbed ones, and the load of other processes."""
    every = [sample for comparison in comparisons if comparison for sample in comparison.samples or ()]
    foreign = [sample.foreign_cpu_frac for sample in every if sample.foreign_cpu_frac is not None]
    return {
        "num": len(every),
        "disturbed": sum(bool(sample.spoilt) for sample in every),
        "foreign_mean": sum(foreign) / len(foreign) if foreign else None,
        "foreign_max": max(foreign, default=None),
    }


def _readings(machine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, value and source of each reading of the machine, without the summary, which has its own place."""
    rows = []
    for key, reading in machine.items():
        if key == "summary":
            continue
        if isinstance(reading, Mapping) and "value" in reading:
            reason = str(reading.get("reason") or "")
            rows.append((words.key_words(key), words.value_words(key, reading["value"]), reason))
        else:
            rows.append((words.key_words(key), words.value_words(key, reading), ""))
    return rows
