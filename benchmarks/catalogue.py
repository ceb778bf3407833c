"""What recorded tunings saw of each optimization: the file that ships with the package, and the page of the catalogue.

python -m benchmarks.catalogue     # writes both; `make docs` does too
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from benchmarks.record import ROOT
from benchmarks.tuning import results
from upshift.core.facts import Facts, JobFacts
from upshift.core.files import write_atomically
from upshift.core.machine import Machine, Reading
from upshift.optimizations import catalogue
from upshift.report.catalogue import NOT_TRIED, Kind, claim_words, entry, gain_words, job_words, measurement

PACKAGED = ROOT / "src" / "upshift" / "optimizations" / "measured.json"
PAGE = ROOT / "docs" / "catalogue.md"
COMMAND = "python -m benchmarks.catalogue"

_NAMES_GPU = re.compile(r"\b(cuda|gpus?|nvidia|runs on (the )?cpu)\b", re.IGNORECASE)

Evidence = Mapping[str, Any]


def main() -> None:
    """Write both files."""
    kinds = shipped()
    measured = measurements(kinds, tunings(results()))
    write_atomically(PACKAGED, packaged(measured))
    write_atomically(PAGE, page(kinds, measured))


def shipped() -> dict[str, Kind]:
    """The catalogue without what other packages registered on this machine."""
    return {name: kind for name, kind in catalogue().items() if kind.__module__.startswith("upshift.")}


def tunings(found: Mapping[str, Any]) -> list[Evidence]:
    """The evidence of every recorded tuning, whatever benchmark it belongs to."""

    def inside(result: Any) -> Iterator[Evidence]:
        if isinstance(result, Mapping):
            if "rungs" in result and "job" in result:
                yield result
            else:
                for value in result.values():
                    yield from inside(value)

    return [evidence for _, result in sorted(found.items()) for evidence in inside(result)]


def measurements(kinds: Mapping[str, Kind], evidences: list[Evidence]) -> dict[str, Any]:
    """Name -> `measured`, a list of rows or null, and `why_not_measured`, null or a sentence."""
    table = {}
    for name, kind in kinds.items():
        rows = [
            {**measurement(rung, evidence), "could_bring": rung["predicted_max_gain"]}
            for evidence in evidences
            for rung in evidence["rungs"]
            if rung["name"] == name
        ]
        run = [{key: value for key, value in row.items() if key != "could_bring"} for row in rows if row["ratio"]]
        why = None if run else why_not_measured(kind, rows, evidences)
        table[name] = {"measured": run or None, "why_not_measured": why}
    return table


def why_not_measured(kind: Kind, rows: list[dict[str, Any]], evidences: list[Evidence]) -> str:
    """Why no recorded tuning measured it: from what those tunings noted of it, and what its `fit` says of their machines."""
    seen = [(row["reason"], job_words(row)) for row in rows]
    if broken := [f"{reason} ({job})" for (reason, job), row in zip(seen, rows, strict=True) if row["outcome"] == "failed"]:
        return f"failed in a recorded run: {'; '.join(broken)}"
    if missing := next(filter(None, (_missing_gpu(kind, evidence) for evidence in evidences)), ""):
        return f"needs a GPU: {missing}"
    fitting = max((row for row in rows if row["could_bring"]), key=lambda row: row["could_bring"], default=None)
    if fitting is not None:
        return f"fits {job_words(fitting)}, but was not run there: {fitting['reason']}"
    if not seen:
        return NOT_TRIED
    jobs: dict[str, list[str]] = {}
    for reason, job in seen:
        jobs.setdefault(reason, []).append(job)
    return "not fitted to any recorded job: " + "; ".join(f"{why} ({', '.join(who)})" for why, who in jobs.items())


def _missing_gpu(kind: Kind, evidence: Evidence) -> str:
    """Why it does not fit the job of a recorded tuning, where that reason is the missing GPU; else empty.

    The evidence keeps only a part of the facts, so any other refusal proves nothing here.
    """
    facts = _facts(evidence)
    reason = kind.fit(facts).reason if facts.job.device == "cpu" else ""
    return reason if _NAMES_GPU.search(reason) else ""


def _facts(evidence: Evidence) -> Facts:
    """What the evidence keeps of the facts of its job and its machine; a reading that was not yet taken is empty."""
    known = {item.name: evidence["job"][item.name] for item in fields(JobFacts) if item.name in evidence["job"]}
    readings: dict[str, Any] = {"cpu_flags": frozenset(evidence["machine"]["cpu_flags"])}
    for item in fields(Machine):
        empty = {"value": [] if "tuple" in str(item.type) else "", "reason": "not recorded"}
        value = evidence["machine"].get(item.name, empty)
        if isinstance(value, dict):
            plain = value["value"]
            value = Reading(tuple(plain) if isinstance(plain, list) else plain, value["reason"])
        readings.setdefault(item.name, value)
    return Facts(
        machine=Machine(**readings),
        job=JobFacts(**{**known, "param_dtypes": tuple(known.get("param_dtypes", ("float32",)))}),
        phase_frac=evidence["phases"],
        ceilings=evidence["ceilings"],
        memory_limit_bytes=readings["memory_limit_bytes"].value,
    )


def packaged(measured: Mapping[str, Any]) -> str:
    """The text of the file that ships with the package."""
    return json.dumps({"made_by": COMMAND, "optimizations": dict(measured)}, indent=1, ensure_ascii=False) + "\n"


def page(kinds: Mapping[str, Kind], measured: Mapping[str, Any]) -> str:
    """The page: one line an optimization, in the order of what they relieve."""
    entries = [entry(kind, measured) for kind in kinds.values()]
    order = list(dict.fromkeys(kind.card.relieves for kind in kinds.values()))
    entries.sort(key=lambda row: (order.index(row["relieves"]), row["name"]))
    lines = [
        "# The catalogue",
        "",
        "Every optimization Upshift can try. Made from the cards and from `benchmarks/results/` by `make docs`; nothing",
        "here is typed by hand. In a terminal: `upshift doctor --catalogue`, and `upshift explain NAME` for all about one.",
        "",
        "*Hoped for* is what others promise, on their jobs and machines. *Measured* is what recorded tunings of this",
        "project saw on top of what they had kept before: the ratio of speeds (above 1 is faster), its interval, and what",
        "became of the candidate. Neither says what it brings to your job: `upshift tune` does.",
        "",
        *_machines(entries),
        "| name | what it does | relieves | numerics | hoped for | measured |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in entries),
        "",
    ]
    return "\n".join(lines)


def _machines(entries: list[dict[str, Any]]) -> list[str]:
    """Which jobs and machines the measured column speaks of."""
    rows = [row for item in entries for row in item["measured"] or ()]
    runs = sorted({(row["job"], row["machine"], str(row["created"])[:10], str(row["commit"])) for row in rows})
    lines = [f"- `{job}`: {machine}; {day}, commit {commit}" for job, machine, day, commit in runs]
    return ["Measured on:", "", *lines, ""] if lines else []


def _line(row: Mapping[str, Any]) -> str:
    claim, address = claim_words(row["hoped_gain"])
    hoped = f"{claim} ([source]({address}))" if address else claim or "-"
    measured = "<br>".join(
        f"{job_words(seen)}: {gain_words(seen)}, {seen['outcome']}"
        + "".join(f"; {name}={value}" for name, value in seen["settings"].items())
        for seen in row["measured"] or ()
    )
    cells = [
        f"`{row['name']}`",
        row["summary"],
        row["relieves"],
        row["numerics"],
        hoped,
        measured or row["why_not_measured"],
    ]
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    main()
