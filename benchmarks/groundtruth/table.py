"""The tables of docs/results/groundtruth.md, generated only from the result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.result_file import machines

WORDS: Mapping[str, str] = {
    "diagnosed_frac": "bottleneck named right",
    "located_frac": "line named right",
    "clean_false_alarms": "false alarms on clean scripts",
    "remedied_frac": "remedy found, if the catalogue has one",
    "remedied_or_advised_frac": "remedy found, or given to the author as lines to write",
    "within_bound_frac": "gain within 25 % of the predicted bound",
    "own_cost_frac_2ms": "cost of watching, steps of 2 ms",
    "own_cost_frac_100ms": "cost of watching, steps of 100 ms",
}


def headline(result: Mapping[str, Any]) -> str:
    """Summarize the score in one line."""
    words = []
    if result["diagnosed_frac"] is not None:
        right = round(result["diagnosed_frac"] * result["injected"])
        words.append(f"{right} of {result['injected']} bottlenecks named right")
    if result["clean_false_alarms"] is not None:
        words.append(f"false alarms on {result['clean_false_alarms']} of {result['clean']} clean scripts")
    if result["remedied_frac"] is not None:
        words.append(f"a remedy kept in {round(result['remedied_frac'] * result['tuned'])} of {result['tuned']}")
    return "; ".join(words)


def score(result: Mapping[str, Any]) -> str:
    """Return the scores with their goals."""
    goals, reached = result["goals"], result["reached"]
    commits = ", ".join(result["row_commits"]) or "unknown"
    where = machines(result["rows"]) or result["machine"]
    lines = [f"{result['scripts']} scripts, {result['skipped']} of them skipped. Measured on {where}, at {commits}.", ""]
    lines += ["| score | value | goal | reached |", "|---|---|---|---|"]
    for name, told in WORDS.items():
        value, goal = result[name], goals.get(name)
        sign = "at most" if name == "clean_false_alarms" or name.startswith("own_cost") else "at least"
        wanted = "-" if goal is None else f"{sign} {goal:.0f}" if name == "clean_false_alarms" else f"{sign} {goal:.0%}"
        answer = {None: "-", True: "yes", False: "no"}[reached.get(name)]
        lines.append(f"| {told} | {_value(name, value)} | {wanted} | {answer} |")
    return "\n".join(lines)


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "not measured"
    return str(value) if name == "clean_false_alarms" else f"{value:.1%}"


def cost(result: Mapping[str, Any]) -> str:
    """Return the overhead that watching adds to a step."""
    sessions = result["own_cost"]
    if not sessions:
        return "Not measured."
    lines = [
        "| step of the script | compared with unwatched | measured | takes longer by | 95 % interval | per step | rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    for session, sizes in sessions.items():
        where = "in one process" if session == "hasten" else "between processes"
        for size in sizes.values():
            for arm, row in size["arms"].items():
                interval = "-" if row["low"] is None else f"{row['low']:+.2%} to {row['high']:+.2%}"
                longer = (f"{row['cost_frac']:+.2%}", interval, f"{row['cost_s'] * 1e6:+.0f} µs")
                cells = (f"{size['step_ms']:.2f} ms", arm, where, *longer, size["rounds"])
                lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def rival(result: Mapping[str, Any]) -> str:
    """Return what TraceML found in the same scripts."""
    found = result["traceml"]
    if found is None:
        return f"TraceML: {result['traceml_why']}."
    name = f"TraceML {', '.join(found['versions'])}"
    names = {"plain": f"{name}, the script unchanged", "marked": f"{name}, steps marked in the script"}
    lines = ["| | gave an answer | named the truth | false alarms on clean scripts |", "|---|---|---|---|"]
    for arm, told in names.items():
        row = found[arm]
        answered, right = (f"{row[key]} of {row['injected']}" for key in ("answered", "right"))
        lines.append(f"| {told} | {answered} | {right} | {row['clean_false_alarms']} of {row['clean']} |")
    if result["diagnosed_frac"] is not None:
        injected = result["injected"]
        right = f"{round(result['diagnosed_frac'] * injected)} of {injected}"
        answered = f"{injected - result['failed']} of {injected}"
        alarms = f"{result['clean_false_alarms']} of {result['clean']}"
        lines.append(f"| Hasten, the script unchanged | {answered} | {right} | {alarms} |")
    return "\n".join(lines)


def scripts(result: Mapping[str, Any]) -> str:
    """Return a row for each script."""
    lines = ["| script | what is wrong with it | expected | Hasten | line | remedy | TraceML, steps marked |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        wrong = f"nothing: {row['about']}" if row["clean"] else row["about"]
        cells = [f"`{row['name']}`", wrong, " or ".join(row["expected"]), *_named(row), _remedy(row), _rivals_words(row)]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def _named(row: Mapping[str, Any]) -> tuple[str, str]:
    profile = row["profile"]
    if row["skipped"] or profile is None:
        return f"skipped: {row['skipped']}" if row["skipped"] else "not measured", "-"
    if profile["outcome"] == "failed":
        return f"failed: {profile['why']}", "-"
    place = {None: "-", True: "right", False: "not named"}[profile["located"]]
    return f"{profile['named']} {profile['share']:.0%} ({'right' if profile['diagnosed'] else 'wrong'})", place


def _remedy(row: Mapping[str, Any]) -> str:
    tune = row["tune"]
    if tune is None:
        return "-" if row["skipped"] or row["remedies"] else "none to find"
    gain = f", {tune['gain']:.2f}x" if tune.get("gain") else ""
    words = "kept" if tune["remedied"] else "lines to write" if tune["advised"] else "not kept"
    why = (
        tune["remedied_why"]
        if tune["remedied"]
        else ", ".join(dict.fromkeys(re.findall(r"(?:^|; )(\w+): ", tune["remedied_why"])))
    )
    return f"{words}: {why}{gain}"


def _rivals_words(row: Mapping[str, Any]) -> str:
    answer = (row["traceml"] or {}).get("marked")
    if answer is None:
        return "-"
    found = (answer["kind"] or answer["why"].split(":")[0]).replace("_", " ").lower()
    return f"{found} ({'right' if answer['right'] else 'not right'})"
