"""What is known of each optimization, for people and for JSON: its card, its docstrings, its refusals, what was measured.

Nothing here names a technique: the classes are handed in, and all that is told of them is read from their cards, their
source and the evidence of tunings. A figure that was promised and a figure that was measured never share a key.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal

from hasten.core.card import Numerics
from hasten.core.optimization import Optimization, clash
from hasten.report.evidence import Candidate, Evidence
from hasten.report.words import Tone, outcome_in_words

Kind = type[Optimization]
Row = dict[str, Any]

NUMERICS: Mapping[Numerics, str] = {
    Numerics.EXACT: "every loss stays bit-equal",
    Numerics.ROUNDING: "gradients and losses move less than other batches and other seeds move them",
    Numerics.TRAINING: "held-out quality is proved not worse, over several seeds",
}
"""A tuning keeps an optimization of that class only where this holds."""

MEMORY_SAVED = 0.95
"""A peak below this share of what it was counts as memory saved."""
NOT_TRIED = "not tried in a recorded run yet"
MADE_FOR_IT = "made_for_it"
"""`how` of a row that no tuning found: the technique alone, on a job made to have its bottleneck."""
_HEADINGS = ("Relieves", "Numerics", "Limits")


def entry(kind: Kind, recorded: Mapping[str, Any]) -> Row:
    """One optimization as `hasten doctor --catalogue --json` prints it.

    Args:
        kind: The optimization.
        recorded: Name -> `measured` and `why_not_measured`, as the file of recorded measurements holds them.

    Returns:
        Its card; `hoped_gain`, null where nothing is promised; `measured`, a list of rows (see `measurement` and
        `made_for_it`), or null and then `why_not_measured` says why.
    """
    card = kind.card
    mine = recorded.get(card.name) or {}
    measured = list(mine.get("measured") or [])
    return {
        "name": card.name,
        "summary": card.summary,
        "relieves": str(card.relieves),
        "numerics": str(card.numerics),
        "seam": card.seam.value,
        "source": card.source,
        "hoped_gain": card.hoped_gain or None,
        "measured": measured or None,
        "why_not_measured": None if measured else mine.get("why_not_measured") or NOT_TRIED,
    }


def explanation(kind: Kind, kinds: Mapping[str, Kind], recorded: Mapping[str, Any]) -> Row:
    """All that is known of one optimization: `entry`, and what its source says.

    Args:
        kind: The optimization.
        kinds: The whole catalogue, for what cannot stand beside it.
        recorded: As for `entry`.
    """
    said = docstring_lines(inspect.getdoc(sys.modules[kind.__module__]) or "")
    return {
        **entry(kind, recorded),
        "kept_where": NUMERICS[kind.card.numerics],
        "judged_by": str(kind.card.judged_by),
        **{heading.lower() + "_words": said.get(heading, "") for heading in _HEADINGS},
        "settings": settings(kind),
        "refused_when": refusals(kind),
        "conflicts": conflicts(kind, kinds),
        "follows": list(kind.card.after),
        "memory_technique": kind.card.memory_technique,
        "setup_seconds": kind.card.setup_s,
    }


def measurement(candidate: Candidate, evidence: Evidence) -> Row:
    """What a tuning measured of one candidate, on one flat row.

    `ratio`, `low`, `high`, `pairs` and `verdict` are null where it was not run; `how` is `screening` (resident processes in
    turns) or `confirmation` (fresh ones). The gain is that on top of what the tuning had kept before.
    """
    comparison, summary = candidate.comparison, evidence.machine.get("summary")
    return {
        "job": evidence.job.target,
        "settings": dict(candidate.settings),
        "outcome": candidate.outcome,
        "ratio": comparison.ratio if comparison else None,
        "low": comparison.low if comparison else None,
        "high": comparison.high if comparison else None,
        "pairs": comparison.pairs if comparison else None,
        "verdict": comparison.verdict if comparison else None,
        "how": comparison.kind if comparison else None,
        "numerics": candidate.numerics.verdict if candidate.numerics else None,
        "reason": candidate.reason,
        "machine": str(summary.get("value") if isinstance(summary, Mapping) else summary or ""),
        "commit": evidence.commit,
        "created": evidence.created,
    }


def made_for_it(row: Mapping[str, Any], *, machine: str, with_memory: bool) -> Row:
    """What the benchmark of techniques saw of one on a job made for it: a row with the keys of `measurement`, and some more.

    `job_words` says what the job is, `compared` what the ratio is of; `memory` holds the peak of a process `without_bytes`
    and `with_bytes` the technique, or is null where it promises nothing about memory. `outcome` is `measured`, for no tuning
    decided anything.

    Args:
        row: Of `benchmarks/results/techniques.json`.
        machine: Where it was measured.
        with_memory: Whether the technique may save memory.
    """
    comparison, memory = row.get("comparison") or {}, row.get("memory") or {}
    peaks = {key: None if memory.get(key) is None else float(memory[key]) for key in ("without_bytes", "with_bytes")}
    return {
        **{key: row.get(key) or "" for key in ("job", "job_words", "compared")},
        "settings": dict(row.get("settings") or {}),
        "outcome": row.get("outcome") or "",
        **{key: comparison.get(key) for key in ("ratio", "low", "high")},
        "memory": peaks if with_memory and None not in peaks.values() else None,
        "pairs": comparison.get("pairs"),
        "verdict": row.get("verdict"),
        "how": MADE_FOR_IT,
        "numerics": (row.get("numerics") or {}).get("verdict"),
        "reason": row.get("reason") or "",
        "machine": machine,
        "commit": row.get("commit"),
        "created": row.get("created"),
    }


def docstring_lines(doc: str) -> dict[str, str]:
    """The lines `Relieves:`, `Numerics:` and `Limits:` of an optimization's module docstring, each on one line."""
    lines = re.findall(rf"^({'|'.join(_HEADINGS)}):[ ]*(.*(?:\n[ ]+\S.*)*)", doc, re.MULTILINE)
    return {heading: " ".join(words.split()) for heading, words in lines}


def settings(kind: Kind) -> list[Row]:
    """The settings: name, default, `choices` where only some values are allowed, and what the class docstring says."""
    types, doc = typing.get_type_hints(kind), inspect.getdoc(kind) or ""
    rows = []
    for item in fields(kind):
        allowed = typing.get_args(types[item.name]) if typing.get_origin(types[item.name]) is Literal else ()
        described = re.search(rf"^    {item.name}: (.*(?:\n {{8}}.*)*)", doc, re.MULTILINE)
        words = " ".join(described[1].split()) if described else ""
        rows.append({"name": item.name, "default": item.default, "choices": list(allowed) or None, "words": words})
    return rows


def refusals(kind: Kind) -> list[str]:
    """The reasons it can give for not fitting, in the order of its source; `...` stands for what it would have seen.

    Those of the functions that it shares with other optimizations come last.
    """
    module = sys.modules[kind.__module__]
    package = module.__name__.rpartition(".")[0]
    shared: list[Any] = [
        item
        for item in vars(module).values()
        if inspect.isfunction(item) and item.__module__ != module.__name__ and item.__module__.startswith(f"{package}.")
    ]
    found: list[str] = []
    try:
        for part in (module, *shared):
            tree = ast.parse(inspect.getsource(part))
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Fit.no"]
            calls.sort(key=lambda call: call.lineno)
            found += ["".join(_literal(call.args[0])) for call in calls if call.args]
    except OSError:  # no source lies beside the compiled module: the reasons are still given when they apply
        return []
    return list(dict.fromkeys(words for words in found if words.strip(". ")))


def _literal(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _literal(part)
    else:
        yield node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


def conflicts(kind: Kind, kinds: Mapping[str, Kind]) -> list[str]:
    """What cannot stand in a plan beside it, each with the reason."""
    own = kind()
    return [why for name, other in kinds.items() if name != kind.card.name and (why := clash(own, other()))]


# Short words for tables.


def is_made_for_it(row: Mapping[str, Any]) -> bool:
    """Whether a row tells of a job made for the technique, and not of what a tuning found."""
    return row.get("how") == MADE_FOR_IT


def job_words(row: Mapping[str, Any]) -> str:
    """The job of a row without its path: `TextJob`; `made for it` where it was made for the technique."""
    return "made for it" if is_made_for_it(row) else str(row["job"]).rpartition(":")[2]


def place_words(row: Mapping[str, Any]) -> str:
    """Where a row was measured, in full: `TextJob`, or `on a job made for it (large matrix products)`."""
    words = row.get("job_words") or ""
    return f"on a job made for it ({words[:1].lower()}{words[1:]})" if is_made_for_it(row) else job_words(row)


def row_outcome_words(row: Mapping[str, Any]) -> str:
    """Return the outcome of a row for a user, as `outcome_words` does for a candidate."""
    verdict, numerics = row.get("verdict"), row.get("numerics")
    return outcome_in_words(row.get("outcome") or "", tried=bool(verdict or numerics), verdict=verdict, numerics=numerics)


def compared_words(row: Mapping[str, Any]) -> str:
    """What a ratio is of, where it is not the time of updates: `, by the time of an epoch`; else empty."""
    compared = row.get("compared") or ""
    return f", by {compared}" if compared and "update" not in compared else ""


def memory_words(row: Mapping[str, Any]) -> str:
    """Peak memory without the technique and with it: `peak memory 800 to 500 MiB`; empty where it is not told."""
    without, with_it = _peaks(row)
    return "" if without is None or with_it is None else f"peak memory {without / 2**20:.0f} to {with_it / 2**20:.0f} MiB"


def gain_words(row: Mapping[str, Any]) -> str:
    """A measured gain: `1.75x (1.35 to 2.26)`; empty where nothing was measured."""
    ratio, low, high = (row.get(key) for key in ("ratio", "low", "high"))
    if ratio is None:
        return ""
    return f"{_times(ratio)}x" + (f" ({_times(low)} to {_times(high)})" if low is not None and high is not None else "")


def _times(ratio: float) -> str:
    """A ratio with as many digits as mean something."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"


def claim_words(hoped_gain: str | None) -> tuple[str, str]:
    """What is promised, and the address where: two strings, both empty for none."""
    parts = re.fullmatch(r"(.*?) ?\((https?://\S+)\)", hoped_gain or "", re.DOTALL)
    return (parts[1], parts[2]) if parts else (hoped_gain or "", "")


def tone(row: Mapping[str, Any]) -> Tone:
    """How a row is coloured: good where it was kept, or is faster by itself; bad where it was slower or failed; else open.

    What saved memory may be slower: that is its price.
    """
    outcome, verdict = row.get("outcome"), row.get("verdict")
    if outcome == "applied" or (is_made_for_it(row) and verdict == "faster"):
        return "good"
    without, with_it = _peaks(row)
    if without and with_it and with_it < MEMORY_SAVED * without:
        return "open"
    return "bad" if verdict == "slower" or outcome == "failed" else "open"


def _peaks(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    memory = row.get("memory") or {}
    return memory.get("without_bytes"), memory.get("with_bytes")
