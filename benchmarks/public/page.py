"""The tables of docs/results/public.md, generated only from the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from benchmarks.public.verdict import Row, found

MOST_PHASES = 3


def headline(result: Mapping[str, Any]) -> str:
    """Summarize the result in one line."""
    counts = f"{result['profiled']} of {result['scripts']} profiled, {result['tuned']} tuned"
    return f"{counts}, {result['faster']} at least {result['goals']['ratio']}x as fast by the lower end of the interval"


def gains(result: Mapping[str, Any]) -> str:
    """Summarize in one line how much faster each script became."""
    parts = []
    for row in result["rows"]:
        tuned = found(row, "tune")
        faster = tuned is not None and tuned["low"] and tuned["verdict"] == "faster"
        parts.append(
            f"{row['name']} {tuned['ratio']:.2f}x" if tuned is not None and faster else f"{row['name']}: nothing shown"
        )
    return ", ".join(parts)


def tables(result: Mapping[str, Any]) -> str:
    """Return all tables of the page."""
    rows, goals = result["rows"], result["goals"]
    commits = ", ".join(result["row_commits"]) or "unknown"
    lines = [f"Measured on {result['machine']}, at {commits}: {headline(result)}."]
    lines += ["", "## Profiles", ""]
    lines += ["| script | step | bottleneck | largest phases | cost of watching |", "|---|---|---|---|---|"]
    lines += [_profiled(row) for row in rows]
    lines += ["", "## Tunings", ""]
    lines += [
        f"The goal is {goals['faster']:.0f} scripts at least {goals['ratio']}x as fast, by the lower end of the interval,",
        f"with their losses within the gate. {result['faster']} scripts reached it.",
        "",
        "| script | outcome | plan | losses |",
        "|---|---|---|---|",
    ]
    lines += [_tuned(row) for row in rows]
    lines += ["", "## Commands", ""]
    for row in rows:
        lines += [*_run(row), ""]
    return "\n".join(lines)


def _why(row: Row, part: str) -> str:
    return _cell(row[part]["why"]) if part in row else "not run"


def _profiled(row: Row) -> str:
    profile = found(row, "profile")
    if profile is None:
        return f"| `{row['name']}` | - | not profiled: {_why(row, 'profile')} | - | - |"
    phases = sorted(profile["phases"].items(), key=lambda item: -item[1])[:MOST_PHASES]
    told = ", ".join(f"{name} {share:.0%}" for name, share in phases)
    words = _cell(profile["bottleneck"]["words"])
    return f"| `{row['name']}` | {profile['step_ms']:.1f} ms | {words} | {told} | {profile['own_cost_frac']:.2%} |"


def _tuned(row: Row) -> str:
    tuned = found(row, "tune")
    if tuned is None:
        return f"| `{row['name']}` | not tuned: {_why(row, 'tune')} | - | - |"
    plan = ", ".join(_setting(name, settings) for name, settings in tuned["plan"].items()) or "empty"
    judged = "; ".join(f"{name}: {verdict}" for name, verdict in tuned["gates"].items()) or "-"
    outcome = _cell(tuned["words"])
    if tuned["low"] and tuned["verdict"] == "faster":
        outcome = f"**{tuned['ratio']:.2f}x** ({tuned['low']:.2f} to {tuned['high']:.2f}, {tuned['pairs']} pairs)"
    return f"| `{row['name']}` | {outcome} | {_cell(plan)} | {_cell(judged)} |"


def _setting(name: str, settings: Mapping[str, Any]) -> str:
    chosen = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({chosen})" if chosen else name


def _run(row: Row) -> list[str]:
    path = f"PYTHONPATH={shlex.quote(':'.join(row['path']))} " if row["path"] else ""
    folder = PurePosixPath(row["repository"].split("/")[1]) / row["folder"]
    arguments = ["--", *row["arguments"]] if row["arguments"] else []
    commit = next(row[part]["of"] for part in ("tune", "profile") if part in row)
    address = f"https://github.com/{row['repository']}/blob/{commit}/{row['script']}"
    told = [
        f"### {row['name']}",
        "",
        f"[{row['repository']}: {row['script']}]({address}), {row['licence']}.",
        f"{row['about'][:1].upper()}{row['about'][1:]}.",
        "",
        "```",
        f"cd {folder}",
        f"{path}{shlex.join(['hasten', 'tune', PurePosixPath(row['script']).name, *arguments])}",
        "```",
        "",
        f"Changed: {'; '.join(row['changed'])}.",
    ]
    return [*told, f"Data: {row['data']}"] if row["data"] else told


def _cell(words: str) -> str:
    return words.replace("|", "/").replace("<", "&lt;").replace("\n", " ")
