"""The tables of docs/results/public.md, generated only from the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from benchmarks.public.verdict import Row, as_without, found, reached, score, score_rivals, traceml_right
from benchmarks.result_file import machines

MOST_PHASES = 3
MOST_FUNCTIONS = 4
RIVALS = {"train_doctor": "train-doctor", "traceml": "TraceML", "loadtune": "loadtune", "autotune": "pytorch-autotune"}


def headline(result: Mapping[str, Any]) -> str:
    """Summarize the result in one line."""
    counts = score(result["rows"])
    tuned = f"{counts['profiled']} of {counts['scripts']} profiled, {counts['tuned']} tuned"
    proved = f"{counts['faster']} at least {counts['goals']['ratio']}x as fast by the lower end of the interval"
    if not counts["ran"]:
        return f"{tuned}, {proved}"
    whole = f"{counts['as_without']} of {counts['ran']} whole runs as without Hasten, {counts['whole_faster']} at least"
    return f"{tuned}; {whole} {counts['goals']['ratio']}x as fast, {counts['whole_mean']:.2f}x in the geometric mean"


def gains(result: Mapping[str, Any]) -> str:
    """Summarize in one line how much faster the scripts became."""
    rows = result["rows"]
    proved = [tuned["ratio"] for row in rows if (tuned := found(row, "tune")) and _is_proved(tuned)]
    if not proved:
        return f"none of {len(rows)} proved faster"
    return f"{len(proved)} of {len(rows)} proved faster, {min(proved):.2f}x to {max(proved):.2f}x a step"


def tables(result: Mapping[str, Any]) -> str:
    """Return all tables of the page."""
    rows, counts = result["rows"], score(result["rows"])
    commits = ", ".join(result["row_commits"]) or "unknown"
    place = machines(rows) or result["machine"]
    lines = [f"Measured on {place}, at {commits}: {headline(result)}.", "", "## Goals", ""]
    lines += _goals(counts)
    lines += ["", "## Whole runs", ""]
    lines += [
        "Wall time of the whole process, from start to end: the script alone, then how much faster it is under",
        "`hasten run --plan` with an empty plan, with its own (-: it is empty), and with the source patch. Variables that",
        "no source can set (an allocator's) were set with the patch where the script's details say so. In brackets the",
        "smallest and the largest of the rounds.",
        "",
        "| script | alone | empty plan | plan | patch | as alone |",
        "|---|---|---|---|---|---|",
        *(_whole(row) for row in rows),
        "",
        "## Diagnoses",
        "",
        "| script | step | largest phases | right |",
        "|---|---|---|---|",
        *(_profiled(row) for row in rows),
        "",
        *_others(rows),
        "## Scripts",
        "",
    ]
    for row in rows:
        lines += [*_script(row), ""]
    return "\n".join(lines).rstrip() + "\n"


def _goals(counts: Row) -> list[str]:
    goals, met, ran = counts["goals"], reached(counts), counts["ran"]
    share, unchanged = counts["patch_share"], f"{counts['as_without']} of {ran}; without a plan, {counts['exact']}"
    listed = {
        "scripts": ("run as without Hasten", f"all, at least {goals['scripts']}", unchanged),
        "diagnosis_right": (
            "diagnosis right",
            goals["diagnosis_right"],
            f"{counts['diagnosis_right']} of {counts['judged']}",
        ),
        "faster": (f"whole run at least {goals['ratio']}x", goals["faster"], f"{counts['whole_faster']} of {ran}"),
        "mean": ("geometric mean of whole runs", f"{goals['mean']}x", _times(counts["whole_mean"])),
        "slowest": ("slowest whole run", f"{goals['slowest']}x", _times(counts["whole_slowest"])),
        "patch_share": (
            "gain that the patch keeps",
            f"{goals['patch_share']:.0%}",
            "-" if share is None else f"{share:.0%}",
        ),
    }
    lines = ["| goal | wanted | found | reached |", "|---|---|---|---|"]
    for name, (what, wanted, got) in listed.items():
        lines.append(f"| {what} | {wanted} | {got} | {'yes' if met[name] else 'no'} |")
    return lines


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _whole(row: Row) -> str:
    whole = found(row, "whole")
    name = f"`{row['name']}`{' (unseen)' if row.get('unseen') else ''}"
    if whole is None:
        return f"| {name} | {_why(row, 'whole')} | - | - | - | - |"
    same = "yes" if as_without(row) else "**no**"
    if row.get("varies"):
        return f"| {name} | {_plain_s(whole):.1f} s | not comparable: {row['varies']} | - | - | {same} |"
    plan, empty = _ratio(whole["plan"]), _ratio(whole.get("empty"))
    patch = f"refused: {_cell(whole['patch_refused'])}" if whole["patch_refused"] else _ratio(whole["patch"])
    return f"| {name} | {_plain_s(whole):.1f} s | {empty} | {plan} | {patch} | {same} |"


def _plain_s(whole: Row) -> float:
    times = sorted(run["wall_s"] for run in whole["arms"]["plain"])
    middle: float = times[len(times) // 2]
    return middle


def _ratio(arm: Row | None) -> str:
    if arm is None:
        return "-"
    if arm["failures"]:
        return "**fails**"
    return f"{arm['ratio']:.2f}x ({arm['low']:.2f} to {arm['high']:.2f})"


def _why(row: Row, part: str) -> str:
    return _cell(row[part]["why"]) if part in row else "not run"


def _profiled(row: Row) -> str:
    profile = found(row, "profile")
    if profile is None:
        return f"| `{row['name']}` | - | not profiled: {_why(row, 'profile')} | - |"
    phases = sorted(profile["phases"].items(), key=lambda item: -item[1])[:MOST_PHASES]
    told = ", ".join(f"{name} {share:.0%}" for name, share in phases)
    judged = row.get("judged")
    right = "not judged" if judged is None else "yes" if judged["right"] else "**no**"
    return f"| `{row['name']}` | {profile['step_ms']:.1f} ms | {told} | {right} |"


def _script(row: Row) -> list[str]:
    lines = [*_run(row), ""]
    if profile := found(row, "profile"):
        lines.append(
            f"- Diagnosis: {_cell(profile['bottleneck']['words'])} Cost of watching: {profile['own_cost_frac']:.2%}."
        )
    elif "profile" in row:
        lines.append(f"- Not profiled: {_why(row, 'profile')}")
    if judged := row.get("judged"):
        lines.append(f"- Judged by hand: {'right' if judged['right'] else 'wrong'}. {_cell(judged['reason'])}")
    if functions := found(row, "cprofile"):
        own = "; ".join(f"`{each['function']}` {each['own']:.0%}" for each in functions["own"][:MOST_FUNCTIONS])
        lines.append(f"- Own time of functions, by cProfile: {_cell(own)}")
    lines += _tuned(row) + _differences(row) + _rivals(row)
    return lines


def _tuned(row: Row) -> list[str]:
    tuned = found(row, "tune")
    if tuned is None:
        return [f"- Not tuned: {_why(row, 'tune')}"]
    plan = ", ".join(_setting(name, settings) for name, settings in tuned["plan"].items()) or "empty"
    outcome = _cell(tuned["words"])
    if _is_proved(tuned):
        outcome = f"**{tuned['ratio']:.2f}x** a step ({tuned['low']:.2f} to {tuned['high']:.2f}, {tuned['pairs']} pairs)"
    place = f" on {row['tune']['where']['machine']}" if "where" in row["tune"] else ""
    lines = [f"- Tuned in {row['tune'].get('budget', '5m')}{place}: {outcome}", f"- Plan: {_cell(plan)}"]
    if judged := "; ".join(f"{name}: {verdict}" for name, verdict in tuned["gates"].items()):
        lines.append(f"- Losses: {_cell(judged)}")
    whole, patch = found(row, "whole") or {}, tuned["evidence"].get("patch") or {}
    left = whole.get("patch_left", patch.get("left", {}))
    lines += [f"- Left out of the patch: {name}, {_cell(why)}" for name, why in left.items()]
    if variables := whole.get("patch_variables"):
        lines.append(f"- Variables set with the patch: {', '.join(f'`{name}`' for name in variables)}")
    return lines


def _is_proved(tuned: Row) -> bool:
    return bool(tuned["low"]) and tuned["verdict"] == "faster"


def _differences(row: Row) -> list[str]:
    whole = found(row, "whole")
    if whole is None:
        return []
    names = {"alone": "Hasten without a plan", "empty": "An empty plan", "plan": "The plan", "patch": "The patch"}
    lines = []
    for arm, name in names.items():
        judged = whole.get(arm)
        if judged is None or judged["same"]:
            continue
        output = judged["output"][0]
        told = [*judged["failures"], *(f"does not print `{line}`" for line in output["missing"])]
        if output["typical"] is not None:
            told.append(
                f"{output['numbers'] - output['equal']} of {output['numbers']} printed numbers differ, "
                f"by {output['typical']:.1%} in the median"
            )
        lines.append(f"- {name}: {_cell('; '.join(told))}")
    return lines


def _others(rows: Sequence[Row]) -> list[str]:
    """Return the section about other tuners; nothing if none was started."""
    ran = [row for row in rows if found(row, "rivals")]
    if not ran:
        return []
    counts = score_rivals(ran)
    return [
        "## Other tuners",
        "",
        f"On {len(ran)} scripts. train-doctor proves a gain in {counts['proved']}, and breaks {counts['broken']}.",
        f"TraceML answers in {counts['answered']}, {counts['marked']} of them with the steps marked for it, and names",
        f"the bottleneck in {counts['right']} of {counts['judged']} that were judged by hand; {counts['ended']} scripts",
        "end under it as they do alone. loadtune and pytorch-autotune cannot be started on a script.",
        "",
        "| script | train-doctor | whole run with its patch | TraceML | right |",
        "|---|---|---|---|---|",
        *(_other(row) for row in ran),
        "",
    ]


def _other(row: Row) -> str:
    doctor, traceml = (found(row, "rivals") or {})["train_doctor"], (found(row, "rivals") or {})["traceml"]
    proved = f"{doctor['gain']:.2f}x a step" if doctor["gain"] else _outcome(doctor)
    whole = doctor.get("whole")
    with_patch = "-" if whole is None else f"refused: {_cell(whole['refused'])}" if whole["refused"] else _ratio(whole)
    says = (traceml.get("kind") or "no answer").replace("_", " ").lower()
    right = {None: "-", True: "yes", False: "**no**"}[traceml_right(row)]
    ended = "" if traceml["outcome"] == "ended" else f" ({_cell(traceml['outcome'])})"
    return f"| `{row['name']}` | {proved} | {with_patch} | {says}{ended} | {right} |"


def _outcome(doctor: Row) -> str:
    return _cell("no proven win" if any("no proven win" in line for line in doctor["says"]) else doctor["outcome"])


def _rivals(row: Row) -> list[str]:
    lines = []
    for name, rival in (found(row, "rivals") or {}).items():
        version = f" {rival['version']}" if rival["version"] else ""
        says = f": {_cell(' '.join(rival['says']))}" if rival["says"] else ""
        lines.append(f"- {RIVALS[name]}{version}: {_cell(rival['outcome'])}{says}")
    return lines


def _setting(name: str, settings: Mapping[str, Any]) -> str:
    chosen = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({chosen})" if chosen else name


def _run(row: Row) -> list[str]:
    path = f"PYTHONPATH={shlex.quote(':'.join(row['path']))} " if row["path"] else ""
    folder = PurePosixPath(row["repository"].split("/")[1]) / row["folder"]
    arguments = ["--", *row["arguments"]] if row["arguments"] else []
    commit = next(row[part]["of"] for part in ("tune", "profile", "whole", "cprofile", "rivals") if part in row)
    address = f"https://github.com/{row['repository']}/blob/{commit}/{row['script']}"
    field, loader = row.get("field"), row.get("loader")
    kind = f" {field[:1].upper()}{field[1:]}; batches from {loader}." if field and loader else ""
    told = [
        f"### {row['name']}",
        "",
        f"[{row['repository']}: {row['script']}]({address}), {row['licence']}.{kind}",
        f"{row['about'][:1].upper()}{row['about'][1:]}.",
        *(["It was not started here before its first recorded run."] if row.get("unseen") else []),
        "",
        "```",
        f"cd {folder}",
        f"{path}{shlex.join(['hasten', 'tune', PurePosixPath(row['script']).name, *arguments])}",
        "```",
        "",
        f"Changed: {'; '.join(row['changed'])}."
        + (f" Whole runs with {shlex.join(row['shorter'])}." if row.get("shorter") else ""),
    ]
    return [*told, f"Data: {row['data']}"] if row["data"] else told


def _cell(words: str) -> str:
    return words.replace("|", "/").replace("<", "&lt;").replace("\n", " ")
