"""Collect what is known about each optimization, for users and for JSON: card, docstrings, refusals and measurements.

No technique is named here: callers pass the classes, and all facts come from their cards, their source and the evidence of
tunings. Reported and measured gains never share a key.
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
"""Condition for keeping an optimization, by its numerics class."""

MEMORY_SAVED = 0.95
"""Memory counts as saved if the peak is below this share of the earlier peak."""
NOT_TRIED = "not tried in a recorded run yet"
MADE_FOR_IT = "made_for_it"
"""Value of `how` in a row of the techniques benchmark: one technique, on a job made to have its bottleneck."""
_HEADINGS = ("Relieves", "Numerics", "Limits")


def entry(kind: Kind, recorded: Mapping[str, Any]) -> Row:
    """Return an optimization as `hasten doctor --catalogue --json` prints it.

    Args:
        kind: The optimization.
        recorded: Name -> `measured` and `why_not_measured`, from the file of recorded measurements.

    Returns:
        The card; `hoped_gain`, null if no figure is known; and `measured`, a list of rows (see `measurement` and
        `made_for_it`), or null with the reason in `why_not_measured`.
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
    """Return everything known about an optimization: its `entry`, and facts from its source.

    Args:
        kind: The optimization.
        kinds: The whole catalogue, to find conflicts.
        recorded: See `entry`.
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
    """Return the measurement of a candidate in a tuning as a flat row.

    `ratio`, `low`, `high`, `pairs` and `verdict` are null if it was not run. `how` is `screening` (resident processes in
    turns) or `confirmation` (fresh processes). The gain is on top of the techniques kept before.
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
    """Return a measurement of the techniques benchmark, on a job made for the technique: `measurement` with more keys.

    `job_words` describes the job, and `compared` the quantity of the ratio. `memory` contains the peak of a process
    `without_bytes` and `with_bytes` the technique, or is null if it does not save memory. `outcome` is `measured`, because
    no tuning decided.

    Args:
        row: A row of `benchmarks/results/techniques.json`.
        machine: The machine it was measured on.
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
    """Return the texts of `Relieves:`, `Numerics:` and `Limits:` in a module docstring, each on one line."""
    lines = re.findall(rf"^({'|'.join(_HEADINGS)}):[ ]*(.*(?:\n[ ]+\S.*)*)", doc, re.MULTILINE)
    return {heading: " ".join(words.split()) for heading, words in lines}


def settings(kind: Kind) -> list[Row]:
    """Return the settings: name, default, description, and `choices` if only some values are allowed."""
    types, doc = typing.get_type_hints(kind), inspect.getdoc(kind) or ""
    rows = []
    for item in fields(kind):
        allowed = typing.get_args(types[item.name]) if typing.get_origin(types[item.name]) is Literal else ()
        described = re.search(rf"^    {item.name}: (.*(?:\n {{8}}.*)*)", doc, re.MULTILINE)
        words = " ".join(described[1].split()) if described else ""
        rows.append({"name": item.name, "default": item.default, "choices": list(allowed) or None, "words": words})
    return rows


def refusals(kind: Kind) -> list[str]:
    """Return the reasons for which it can be not applicable, in source order, with `...` for the value seen.

    Reasons from functions that it shares with other optimizations come last.
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
    except OSError:  # compiled without its source; the reasons are still given when they apply
        return []
    return list(dict.fromkeys(words for words in found if words.strip(". ")))


def _literal(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _literal(part)
    else:
        yield node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


def conflicts(kind: Kind, kinds: Mapping[str, Kind]) -> list[str]:
    """Return why other optimizations cannot be in a plan with it, one reason each."""
    own = kind()
    return [why for name, other in kinds.items() if name != kind.card.name and (why := clash(own, other()))]


# Short words for tables.


def is_made_for_it(row: Mapping[str, Any]) -> bool:
    """Return whether a row was measured on a job made for the technique, and not by a tuning."""
    return row.get("how") == MADE_FOR_IT


def job_words(row: Mapping[str, Any]) -> str:
    """Return the job of a row without its path (`TextJob`), or `made for it` if it was made for the technique."""
    return "made for it" if is_made_for_it(row) else str(row["job"]).rpartition(":")[2]


def place_words(row: Mapping[str, Any]) -> str:
    """Return the job of a row in full: `TextJob`, or `on a job made for it (large matrix products)`."""
    words = row.get("job_words") or ""
    return f"on a job made for it ({words[:1].lower()}{words[1:]})" if is_made_for_it(row) else job_words(row)


def row_outcome_words(row: Mapping[str, Any]) -> str:
    """Return the outcome of a row for a user, as `outcome_words` does for a candidate."""
    verdict, numerics = row.get("verdict"), row.get("numerics")
    return outcome_in_words(row.get("outcome") or "", tried=bool(verdict or numerics), verdict=verdict, numerics=numerics)


def compared_words(row: Mapping[str, Any]) -> str:
    """Return the quantity of a ratio if it is not the update time, such as `, by the time of an epoch`; otherwise empty."""
    compared = row.get("compared") or ""
    return f", by {compared}" if compared and "update" not in compared else ""


def memory_words(row: Mapping[str, Any]) -> str:
    """Return the peak memory without and with the technique: `peak memory 800 to 500 MiB`; empty if unknown."""
    without, with_it = _peaks(row)
    return "" if without is None or with_it is None else f"peak memory {without / 2**20:.0f} to {with_it / 2**20:.0f} MiB"


def gain_words(row: Mapping[str, Any]) -> str:
    """Format a measured gain: `1.75x (1.35 to 2.26)`; empty if nothing was measured."""
    ratio, low, high = (row.get(key) for key in ("ratio", "low", "high"))
    if ratio is None:
        return ""
    return f"{_times(ratio)}x" + (f" ({_times(low)} to {_times(high)})" if low is not None and high is not None else "")


def _times(ratio: float) -> str:
    """Format a ratio with its significant digits."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def claim_words(hoped_gain: str | None) -> tuple[str, str]:
    """Return the reported gain and its address; both are empty if none is known."""
    parts = re.fullmatch(r"(.*?) ?\((https?://\S+)\)", hoped_gain or "", re.DOTALL)
    return (parts[1], parts[2]) if parts else (hoped_gain or "", "")


def tone(row: Mapping[str, Any]) -> Tone:
    """Return the colour of a row: good if it was kept or is faster alone, bad if it is slower or failed, otherwise open.

    A technique that saves memory may be slower: that is its cost.
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
