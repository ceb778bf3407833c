"""The report as one HTML page that needs no network, no server and no other file.

The page is a pure function of the evidence. Everything a user named is escaped by jinja2; figures travel as JSON whose
angle brackets are escaped; a content security policy lets only the page's own two scripts run and nothing load.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from upshift.core.errors import UpshiftError
from upshift.core.files import write_atomically
from upshift.report import words
from upshift.report.evidence import PHASES
from upshift.report.plots import figures
from upshift.report.words import Evidence, number, rows, table, text, wall_ms

CLIMBED = ("applied", "pruned")


def write_html(evidence: Evidence, path: Path) -> None:
    """Write the report page to `path`, whole or not at all.

    Raises:
        UpshiftError: The folder cannot be written.
    """
    try:
        write_atomically(path, render(evidence))
    except OSError as error:
        raise UpshiftError(f"Cannot write the report to {path}: {error}. Choose another folder with --out.") from error


def render(evidence: Evidence) -> str:
    """The report page as text."""
    environment = _environment()
    plots = figures(evidence)
    drawn = {name: plot for name, plot in plots.items() if not isinstance(plot, str)}
    plotly, page = (_plotly() if drawn else ""), _source(environment, "report.js")
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in (plotly, page) if script)
    return environment.get_template("report.html.j2").render(
        **_context(evidence),
        sentences={name: plot for name, plot in plots.items() if isinstance(plot, str)},
        heights={name: plot["layout"]["height"] for name, plot in drawn.items()},
        figures_json=_json(drawn),
        hashes=hashes,
        css=_source(environment, "report.css"),
        script=page,
        plotly=plotly,
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("upshift.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("percent", "ms_words", "seconds_words", "bytes_words", "key_words", "settings_words"):
        environment.filters[name] = getattr(words, name)
    environment.filters["times"] = lambda ratio: words.ratio_words(ratio, "×")
    environment.filters["interval"] = lambda comparison: words.interval_words(comparison, "×")
    environment.filters["pairs"] = words.pairs_words
    environment.filters["kind"] = words.kind_words
    environment.filters["breakable"] = _breakable
    environment.globals.update(number=number, text=text, table=table, rows=rows, value_words=words.value_words)
    return environment


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


def _json(value: Any) -> str:
    """JSON that is safe between script tags: no angle bracket, ampersand or line separator stays as it is."""
    escaped = json.dumps(value, allow_nan=False)
    for character in "<>&\u2028\u2029":
        escaped = escaped.replace(character, f"\\u{ord(character):04x}")
    return escaped


def _source(environment: jinja2.Environment, name: str) -> str:
    return environment.get_template(name).render()


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  (slow to import, and only a page that is written needs it)

    source: str = get_plotlyjs()
    if "</script" in source.lower():
        raise UpshiftError("The plotly package holds a script that cannot be embedded. Run `pip install 'plotly>=7,<8'`.")
    return source.replace("\r\n", "\n").replace("\r", "\n")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
