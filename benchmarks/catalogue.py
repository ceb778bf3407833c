"""What was measured of each optimization: the file that ships with the package, and the page of the catalogue.

Two kinds of figures, told apart everywhere: what recorded tunings saw on top of what they had kept, and what the benchmark
of techniques saw on a job made for the technique.

python -m benchmarks.catalogue     # writes both; `make docs` does too
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.pruning_techniques import section
from benchmarks.record import ROOT
from benchmarks.technique_table import ELSEWHERE, NOT_HERE
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
PAGE = ROOT / "docs" / "catalogue.md"
COMMAND = "python -m benchmarks.catalogue"

_NAMES_GPU = re.compile(r"\b(cuda|gpus?|nvidia|runs on (the )?cpu)\b", re.IGNORECASE)


def main() -> None:
    """Write both files."""
    kinds = shipped()
    found = results()
    measured = recorded(kinds, found)
    write_atomically(PACKAGED, packaged(measured))
    write_atomically(PAGE, page(kinds, measured, found.get("pruning_techniques")))


def shipped() -> dict[str, Kind]:
    """The catalogue without what other packages registered on this machine."""
    return {name: kind for name, kind in catalogue().items() if kind.__module__.startswith("hasten.")}


def recorded(kinds: Mapping[str, Kind], found: Mapping[str, Any]) -> dict[str, Any]:
    """All that recorded results say: name -> `measured` and `why_not_measured`."""
    return measurements(kinds, tunings(found), benchmarked(kinds, found))


def benchmarked(kinds: Mapping[str, Kind], found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Name -> what the benchmark of techniques saw on jobs made for it, a row a case; those without a figure too."""
    result = found.get("techniques", {"rows": []})
    table: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        if row["technique"] in kinds:
            card = kinds[row["technique"]].card
            with_memory = card.memory_technique or card.saves_memory
            told = made_for_it(row, machine=result["machine"], with_memory=with_memory)
            table.setdefault(row["technique"], []).append(told)
    return table


def tunings(found: Mapping[str, Any]) -> list[Evidence]:
    """The evidence of every recorded tuning, whatever benchmark it belongs to."""

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
    """Name -> `measured`, a list of rows or null, and `why_not_measured`, null or a sentence.

    Args:
        kinds: The catalogue.
        evidences: Of recorded tunings.
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
    """Why the benchmark of techniques has no figure of it; empty where it was not run there."""
    if alone:
        seen = dict.fromkeys(f"{row['outcome']} {place_words(row)}: {row['reason']}" for row in alone)
        return "; ".join(seen)
    return f"it has a benchmark of its own: python -m benchmarks {ELSEWHERE[name]}" if name in ELSEWHERE else ""


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
    """The text of the file that ships with the package."""
    return json.dumps({"made_by": COMMAND, "optimizations": dict(measured)}, indent=1, ensure_ascii=False) + "\n"


def page(kinds: Mapping[str, Kind], measured: Mapping[str, Any], pruned: Mapping[str, Any] | None = None) -> str:
    """The page: one line an optimization, in the order of what they relieve, and why some stay without a recorded gain."""
    entries = [entry(kind, measured) for kind in kinds.values()]
    order = list(dict.fromkeys(kind.card.relieves for kind in kinds.values()))
    entries.sort(key=lambda row: (order.index(row["relieves"]), row["name"]))
    lines = [
        "# The catalogue",
        "",
        "Every optimization Hasten can try. Made from the cards and from `benchmarks/results/` by `make docs`; nothing",
        "here is typed by hand. In a terminal: `hasten doctor --catalogue`, and `hasten explain NAME` for all about one.",
        "",
        "*Hoped for* is what others promise, on their jobs and machines. *Measured* is what recorded tunings of this",
        "project saw on top of what they had kept before: the ratio of speeds (above 1 is faster), its interval, and what",
        "became of the candidate. *On a job made for it* is no tuning: the technique alone, with and without, on a small",
        "job that has the bottleneck it relieves. None of these says what it brings to your job: `hasten tune` does.",
        "",
        *_machines(entries),
        "| name | what it does | relieves | numerics | hoped for | measured |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in entries),
        "",
        *(section(pruned) if pruned else []),
    ]
    return "\n".join(lines)


def _machines(entries: list[dict[str, Any]]) -> list[str]:
    """Which jobs and machines the measured column speaks of."""
    rows = [row for item in entries for row in item["measured"] or ()]
    runs = sorted({(_where(row), row["machine"], str(row["created"])[:10], str(row["commit"])) for row in rows})
    lines = [f"- {where}: {machine}; {day}, commit {commit}" for where, machine, day, commit in runs]
    return ["Measured on:", "", *lines, ""] if lines else []


def _where(row: Mapping[str, Any]) -> str:
    return "jobs made for one technique each (`benchmarks/jobs`)" if is_made_for_it(row) else f"`{row['job']}`"


def _seen(row: Mapping[str, Any]) -> str:
    """One measurement, in a cell of the page."""
    verdict = row["verdict"] if is_made_for_it(row) else row["outcome"]
    parts = [f"{place_words(row)}: {gain_words(row)}, {verdict}{compared_words(row)}", memory_words(row)]
    return "; ".join([*filter(None, parts), *(f"{name}={value}" for name, value in row["settings"].items())])


def _line(row: Mapping[str, Any]) -> str:
    claim, address = claim_words(row["hoped_gain"])
    hoped = f"{claim} ([source]({address}))" if address else claim or "-"
    measured = "<br>".join(map(_seen, row["measured"] or ()))
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
