"""Write the measurements of each optimization: the file shipped with the package, and the site's catalogue page.

Two kinds of gains are always distinguished: those that recorded tunings measured on top of their plan, and those that the
benchmark of techniques measured on a job made for the technique.

python -m benchmarks.catalogue     # writes the file shipped with the package; `make docs` does too
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from benchmarks.pruning_techniques import section
from benchmarks.record import ROOT
from benchmarks.technique_cases import ELSEWHERE, NOT_HERE, words_of
from benchmarks.tuning import results
from hasten.core.facts import Facts, JobFacts
from hasten.core.files import write_atomically
from hasten.core.machine import Machine, Reading
from hasten.optimizations import catalogue
from hasten.report import Evidence, parse, schema
from hasten.report.catalogue import (
    NOT_TRIED,
    Kind,
    claim_words,
    compared_words,
    entry,
    gain_words,
    is_made_for_it,
    job_words,
    made_for_it,
    measurement,
    memory_words,
    place_words,
)

PACKAGED = ROOT / "src" / "hasten" / "optimizations" / "measured.json"
COMMAND = "python -m benchmarks.catalogue"
NEEDS_GPU = "needs a GPU: "
"""Prefix of the reason why a technique was not measured on a machine without a GPU."""

_NAMES_GPU = re.compile(r"\b(cuda|gpus?|nvidia|runs on (the )?cpu)\b", re.IGNORECASE)


def main() -> None:
    """Write the file that ships with the package."""
    write_atomically(PACKAGED, packaged(recorded(shipped(), results())))


def shipped() -> dict[str, Kind]:
    """Return the catalogue without optimizations registered by other packages on this machine."""
    return {name: kind for name, kind in catalogue().items() if kind.__module__.startswith("hasten.")}


def recorded(kinds: Mapping[str, Kind], found: Mapping[str, Any]) -> dict[str, Any]:
    """Collect everything from recorded results: name -> `measured` and `why_not_measured`."""
    return measurements(kinds, tunings(found), benchmarked(kinds, found))


def benchmarked(kinds: Mapping[str, Kind], found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return name -> rows of the benchmark of techniques, one per case, including cases without a number."""
    result = found.get("techniques", {"rows": []})
    table: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        if row["technique"] in kinds:
            card = kinds[row["technique"]].card
            with_memory = card.memory_technique or card.saves_memory
            told = made_for_it({**row, "job_words": words_of(row)}, machine=result["machine"], with_memory=with_memory)
            table.setdefault(row["technique"], []).append(told)
    return table


def tunings(found: Mapping[str, Any]) -> list[Evidence]:
    """Return the evidence of every recorded tuning in any benchmark."""

    def inside(result: Any) -> Iterator[Evidence]:
        if isinstance(result, Mapping):
            if "rungs" in result and "job" in result:
                yield parse(result)
            else:
                for value in result.values():
                    yield from inside(value)

    return [evidence for _, result in sorted(found.items()) for evidence in inside(result)]


def measurements(
    kinds: Mapping[str, Kind],
    evidences: list[Evidence],
    made: Mapping[str, Sequence[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Return name -> `measured`, a list of rows or null, and `why_not_measured`, null or a sentence.

    Args:
        kinds: The catalogue.
        evidences: Evidence of recorded tunings.
        made: Name -> rows of the benchmark of techniques.
    """
    table = {}
    for name, kind in kinds.items():
        rows = [
            {**measurement(candidate, evidence), "could_bring": candidate.predicted_max_gain}
            for evidence in evidences
            for candidate in evidence.rungs
            if candidate.name == name
        ]
        run = [{key: value for key, value in row.items() if key != "could_bring"} for row in rows if row["ratio"]]
        alone = (made or {}).get(name, [])
        run += [row for row in alone if row["outcome"] == "measured"]
        why = None if run else why_not_benchmarked(name, alone) or why_not_measured(kind, rows, evidences)
        why = NOT_HERE.get(name, NOT_TRIED) if why == NOT_TRIED else why
        table[name] = {"measured": run or None, "why_not_measured": why}
    return table


def why_not_benchmarked(name: str, alone: Sequence[Mapping[str, Any]]) -> str:
    """Explain why the benchmark of techniques has no number for a technique; empty if it was not run there."""
    if alone:
        seen = dict.fromkeys(f"{row['outcome']} {place_words(row)}: {row['reason']}" for row in alone)
        return "; ".join(seen)
    return f"it has a benchmark of its own: python -m benchmarks {ELSEWHERE[name]}" if name in ELSEWHERE else ""


def why_not_measured(kind: Kind, rows: list[dict[str, Any]], evidences: list[Evidence]) -> str:
    """Explain why no recorded tuning measured a technique, from their notes and its `fit` on their machines."""
    seen = [(row["reason"], job_words(row)) for row in rows]
    if broken := [f"{reason} ({job})" for (reason, job), row in zip(seen, rows, strict=True) if row["outcome"] == "failed"]:
        return f"failed in a recorded run: {'; '.join(broken)}"
    if missing := next(filter(None, (_missing_gpu(kind, evidence) for evidence in evidences)), ""):
        return f"{NEEDS_GPU}{missing}"
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
    """Return why a technique does not fit the job of a recorded tuning if the reason is the missing GPU; else empty.

    The evidence contains only some of the facts, so other refusals prove nothing here.
    """
    facts = _facts(evidence)
    reason = kind.fit(facts).reason if facts.job.device == "cpu" else ""
    return reason if _NAMES_GPU.search(reason) else ""


def _facts(evidence: Evidence) -> Facts:
    """Restore the facts of a job and its machine from the evidence; readings that did not exist yet are empty."""
    job = schema.write(evidence.job)
    known = {item.name: job[item.name] for item in fields(JobFacts) if item.name in job}
    readings: dict[str, Any] = {"cpu_flags": frozenset(evidence.machine["cpu_flags"])}
    for item in fields(Machine):
        empty = {"value": [] if "tuple" in str(item.type) else "", "reason": "not recorded"}
        value = evidence.machine.get(item.name, empty)
        if isinstance(value, dict):
            plain = value["value"]
            value = Reading(tuple(plain) if isinstance(plain, list) else plain, value["reason"])
        readings.setdefault(item.name, value)
    return Facts(
        machine=Machine(**readings),
        job=JobFacts(**known),
        phase_frac=evidence.phases,
        ceilings=evidence.ceilings,
        memory_limit_bytes=readings["memory_limit_bytes"].value,
    )


def packaged(measured: Mapping[str, Any]) -> str:
    """Return the text of the file shipped with the package."""
    return json.dumps({"made_by": COMMAND, "optimizations": dict(measured)}, indent=1, ensure_ascii=False) + "\n"


def whole_page(found: Mapping[str, Any]) -> str:
    """Return the page of the site, from all results."""
    return page(shipped(), recorded(shipped(), found), found.get("pruning_techniques"))


def page(kinds: Mapping[str, Kind], measured: Mapping[str, Any], pruned: Mapping[str, Any] | None = None) -> str:
    """Return the page: a line for each technique, then its measurements, sorted by the bottleneck they relieve."""
    entries = [entry(kind, measured) for kind in kinds.values()]
    order = list(dict.fromkeys(kind.card.relieves for kind in kinds.values()))
    entries.sort(key=lambda row: (order.index(row["relieves"]), row["name"]))
    sections: list[str] = []
    for relieves, rows in groupby(entries, key=lambda row: str(row["relieves"])):
        sections += [f"## Relieves: {relieves}", "", *(line for row in rows for line in _section(row))]
    return "\n".join(
        [
            "# Catalogue",
            "",
            f"All {len(entries)} techniques that Hasten can try, and what was measured of each. In a terminal:",
            "`hasten doctor --catalogue`, and `hasten explain NAME` for everything about one.",
            "",
            "- **Numerics**: how far a technique may change the numbers; see [How it decides](how-it-decides.md#numerics).",
            "- **On scripts**: whether it can act on an unmodified script; the others need a [job](quickstart-job.md).",
            "- **Claimed elsewhere** is what others report, on their jobs and machines.",
            "- **Measured** is the ratio of speeds (above 1 is faster) with its interval. In a tuning, it is the gain on",
            "  top of the plan at that moment; on *a job made for it*, the technique is alone on a small job with the",
            "  bottleneck it relieves.",
            "- None of these tells what it brings to your job. `hasten tune` does.",
            "",
            "## Overview",
            "",
            "| technique | what it does | relieves | numerics | on scripts |",
            "|---|---|---|---|---|",
            *(_line(row, in_scripts=kinds[row["name"]].card.in_scripts) for row in entries),
            "",
            *sections,
            *_machines(entries),
            *(section(pruned) if pruned else []),
        ]
    )


def gpu_only(found: Mapping[str, Any]) -> str:
    """Return the techniques that no recorded machine could run, because it had no GPU."""
    kinds = shipped()
    rows = [
        f"| [`{name}`](catalogue.md#{name}) | {kinds[name].card.summary} |"
        for name, item in recorded(kinds, found).items()
        if (item["why_not_measured"] or "").startswith(NEEDS_GPU)
    ]
    return "\n".join(["| technique | what it does |", "|---|---|", *rows])


def in_scripts(_found: Mapping[str, Any]) -> str:
    """Return the techniques that can act on an unmodified script, by where they act."""
    seams: dict[str, list[str]] = {}
    for name, kind in shipped().items():
        if kind.card.in_scripts:
            seams.setdefault(kind.card.seam.value, []).append(f"[`{name}`](../catalogue.md#{name})")
    return "\n".join(
        ["| acts on | techniques |", "|---|---|", *(f"| {seam} | {', '.join(names)} |" for seam, names in seams.items())]
    )


def _machines(entries: list[dict[str, Any]]) -> list[str]:
    """List the jobs and machines of the measurements."""
    rows = [row for item in entries for row in item["measured"] or ()]
    runs = sorted({(_where(row), row["machine"], str(row["created"])[:10], str(row["commit"])) for row in rows})
    lines = [f"- {where}: {machine}; {day}, commit {commit}" for where, machine, day, commit in runs]
    return ["## Machines", "", *lines, ""] if lines else []


def _where(row: Mapping[str, Any]) -> str:
    return "jobs made for one technique each (`benchmarks/jobs`)" if is_made_for_it(row) else f"`{row['job']}`"


def _line(row: Mapping[str, Any], *, in_scripts: bool) -> str:
    cells = (
        f"[`{row['name']}`](#{row['name']})",
        row["summary"],
        row["relieves"],
        row["numerics"],
        "yes" if in_scripts else "-",
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _section(row: Mapping[str, Any]) -> list[str]:
    """Return everything that was claimed and measured of a technique."""
    claim, address = claim_words(row["hoped_gain"])
    lines = [
        f"### `{row['name']}` {{ #{row['name']} }}",
        "",
        f"{row['summary'][:1].upper()}{row['summary'][1:]}. Numerics: {row['numerics']}.",
        "",
    ]
    if claim:
        lines += [f"Claimed elsewhere: {claim}" + (f" ([source]({address}))." if address else "."), ""]
    if row["measured"]:
        lines += ["| measured on | settings | gain | outcome |", "|---|---|---|---|", *map(_seen, row["measured"]), ""]
    else:
        lines += [f"Not measured: {row['why_not_measured']}.", ""]
    return lines


def _seen(row: Mapping[str, Any]) -> str:
    """Return one measurement as a row."""
    verdict = row["verdict"] if is_made_for_it(row) else row["outcome"]
    settings = ", ".join(f"{name}={value}" for name, value in row["settings"].items()) or "-"
    outcome = "; ".join(filter(None, [f"{verdict}{compared_words(row)}", memory_words(row)]))
    return "| " + " | ".join(_cell(cell) for cell in (place_words(row), settings, gain_words(row), outcome)) + " |"


def _cell(words: str) -> str:
    return words.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    main()
