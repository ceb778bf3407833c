"""Tables of tuned jobs: the gain of each technique, and the same jobs trained with other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tuning import DIAGNOSIS

Found = Mapping[str, Any]


def table(found: Found) -> str:
    """Return the gain of each technique in each tuned job."""
    tuned: dict[str, Any] = {name: found[name]["evidence"] for name in ("tune_text", "tune_image") if name in found}
    tuned |= {name: found["tune_diagnosis"][name] for name in DIAGNOSIS if "tune_diagnosis" in found}
    lines: list[str] = []
    for evidence in tuned.values():
        measured = [rung for rung in evidence["rungs"] if rung["comparison"] and rung["comparison"]["ratio"]]
        rest = [rung for rung in evidence["rungs"] if rung not in measured]
        late = [rung["name"] for rung in rest if rung["outcome"] == "undecided"]
        unfit = [rung["name"] for rung in rest if rung["outcome"] != "undecided"]
        final = evidence["final"]
        words = f"Whole plan: **{final['ratio']:.2f}x** ({final['low']:.2f} to {final['high']:.2f})." if final else ""
        lines += [f"## `{evidence['job']['target']}`", "", f"{evidence['bottleneck']['words']} {words}", ""]
        if measured:
            lines += [
                "| candidate | outcome | gain | ceiling | numerics |",
                "|---|---|---|---|---|",
                *map(_rung, measured),
                "",
            ]
        lines += [f"- No time left in the budget: {_names(late)}."] if late else []
        lines += [f"- Does not fit, or could bring too little: {_names(unfit)}.", ""]
    return "\n".join(lines)


def plan_example(found: Found) -> str:
    """Return a recorded plan."""
    return f"```toml\n{found['tune_text']['evidence']['plan_toml'].strip()}\n```"


def rivals(found: Found) -> str:
    """Return the example jobs trained with other libraries."""
    return "\n".join(line for name in ("rivals_text", "rivals_image") if name in found for line in _rivals(found[name]))


def _rivals(result: dict[str, Any]) -> list[str]:
    """Return every way to train compared with the naive loop, and Hasten compared with it."""
    name = result["name"].removeprefix("rivals_")
    lines = [f"### The {name} job", ""]
    lines += [
        f"Speeds as ratios. On {result['machine']}. Repeat it: `{result['command']}`.",
        "",
        "| trained by | times as fast as the naive loop | Hasten, times as fast as this |",
        "|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        ours = f"{row['hasten_over_it']:.2f}x ({row['hasten_over_it_low']:.2f} to {row['hasten_over_it_high']:.2f})"
        lines.append(f"| {arm} | {row['ratio']:.2f}x ({row['low']:.2f} to {row['high']:.2f}) | {ours} |")
    return [*lines, ""]


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _rung(rung: dict[str, Any]) -> str:
    most = f"{rung['predicted_max_gain']:.2f}x" if rung["predicted_max_gain"] else "-"
    seen = rung["comparison"]
    gate = f"{rung['numerics']['class']}: {rung['numerics']['verdict'].replace('_', ' ')}" if rung["numerics"] else "-"
    settings = ", ".join(f"{key}={value}" for key, value in rung["settings"].items())
    name = f"`{rung['name']}`" + (f"<br>{settings}" if settings else "")
    return (
        f"| {name} | {rung['outcome']} | {seen['ratio']:.2f}x ({seen['low']:.2f} to {seen['high']:.2f}) | {most} | {gate} |"
    )
