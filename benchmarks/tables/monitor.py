"""Tables of monitoring, alerts and checks: what the cards of samplers and sinks say, and what was measured."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from benchmarks.result_file import machines
from hasten.monitor.catalogue import samplers, sinks
from hasten.monitor.metric import OWN, TRAINING, Card

_OURS = ("start", "folder")
FAULTS = {
    "sleep_15": "steps take 15 % longer",
    "sleep_50": "steps take 50 % longer",
    "neighbour": "other processes keep all cores busy",
    "leak": "each step leaks 4 MiB",
    "nan": "a loss is NaN",
    "spike": "a loss is far above the others",
    "hang": "a step hangs for 100 s",
    "recompiles": "a function is compiled again every 20 steps",
}
"""Fault of the benchmark of alerts -> what it does."""
NOT_YET = "Not measured yet: `{}`."


def metrics_table(_found: Any) -> str:
    """Return each metric with its unit and meaning, and each sampler with its source and needs."""
    lines = ["| metric | unit | what it is |", "|---|---|---|"]
    for card in (TRAINING, *(kind.card for kind in samplers().values()), OWN):
        lines.append(f"| **{card.name}**, from {_source(card)} | | |")
        lines += [f"| `{metric.name}` | `{metric.unit}` | {metric.help} |" for metric in card.metrics]
    return "\n".join(lines)


def sinks_table(_found: Any) -> str:
    """Return each sink with its options and what to install."""
    lines = ["| name | where the metrics go | options | needs | ranks |", "|---|---|---|---|---|"]
    for name, kind in sinks().items():
        options = [
            f"`{option.name}`" + (f" (`{option.default}`)" if option.default else "")
            for option in inspect.signature(kind).parameters.values()
            if option.name not in _OURS
        ]
        needs = f"`pip install 'hasten[{kind.card.extra}]'`" if kind.card.extra else "nothing"
        ranks = "all" if kind.card.every_rank else "0"
        lines.append(f"| `{name}` | {kind.card.summary} | {', '.join(options) or 'none'} | {needs} | {ranks} |")
    return "\n".join(lines)


def alerts_table(found: Mapping[str, Any]) -> str:
    """Return how many windows each fault takes to be found, and how often an alert is false."""
    result = found.get("alerts")
    if result is None:
        return NOT_YET.format("python -m benchmarks alerts")
    jobs = list(dict.fromkeys(row["job"] for row in result["results"]))
    heads = [f"windows, {job} job" for job in jobs]
    lines = [f"| fault | {' | '.join(heads)} |", "|---" * (len(jobs) + 1) + "|"]
    for fault, words in FAULTS.items():
        cells = [_delays(result["faults"].get(f"{job}_{fault}")) for job in jobs]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    words = (
        f"Windows without a fault, after the calibration: {result['undisturbed_windows']:,}. False alarms: "
        f"{len(result['false_alarms'])}, or {result['false_alarms_per_1000']:.1f} in 1,000 windows. Judging takes "
        f"{100 * result['median_judging_frac']:.3f} % of a window's time. Measured on {machines(result['rows'])}."
    )
    return "\n".join([*lines, "", words])


def limits_table(found: Mapping[str, Any]) -> str:
    """Return what other limits of the rule `slower` would have found in the recorded runs."""
    result = found.get("alerts")
    if result is None:
        return NOT_YET.format("python -m benchmarks alerts")
    lines = [
        "| steps take longer by | false alarms in 1,000 windows | windows until 15 % longer steps are found, by run |",
        "|---|---|---|",
    ]
    for row in result["limits"]:
        delays = ", ".join("missed" if delay is None else str(delay) for delay in row["delays_windows"])
        lines.append(f"| {100 * row['limit']:.0f} % | {row['false_alarms_per_1000']:.1f} | {delays} |")
    return "\n".join(lines)


def check_table(found: Mapping[str, Any]) -> str:
    """Return how often `hasten check` gives each verdict on commits whose slowdown is known."""
    result = found.get("check")
    if result is None:
        return NOT_YET.format("python -m benchmarks check")
    verdicts = ("faster", "same", "slower", "undecided", "failed")
    heads = ("updates", "checks", *verdicts, "measured, median", "median time")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for percent, kind in _by_slowdown(result):
        words = f"{percent} % longer" if percent else "unchanged"
        counts = " | ".join(str(kind["verdicts"][verdict]) for verdict in verdicts)
        longer = kind["median_longer_frac"]
        measured = "nothing" if longer is None else f"{100 * longer:+.1f} %"
        lines.append(f"| {words} | {kind['checks']} | {counts} | {measured} | {kind['median_seconds']:.0f} s |")
    return "\n".join([*lines, "", f"Measured on {machines(result['rows'])}."])


def check_example(found: Mapping[str, Any]) -> str:
    """Return what a recorded check of commits that are 10 % slower printed."""
    checks = (row["check"] for row in found.get("check", {}).get("rows", ()))
    shown = next((check for check in checks if check["injected_frac"] == 0.1 and check["verdict"] == "slower"), None)
    if shown is None:
        return NOT_YET.format("python -m benchmarks check")
    lines = [f"{shown['candidate']['name']} against {shown['base']['name']}: {shown['method']}"]
    lines += [shown["phases"]["words"], shown["memory"]["words"]]
    lines += ["the training losses are bit-equal"] if shown["equal_losses"] else []
    lines.append(shown["headline"])
    return "\n".join(["```text", *lines, "```"])


def check_words(result: Mapping[str, Any]) -> str:
    """Return the false verdicts of `hasten check` on unchanged commits, and how many slower ones it found."""
    words: list[str] = []
    for percent, kind in _by_slowdown(result):
        if percent:
            words.append(f"slower by {percent} %: {kind['verdicts']['slower']} of {kind['checks']} found")
        else:
            false = kind["verdicts"]["faster"] + kind["verdicts"]["slower"]
            words.append(f"{false} false verdicts on {kind['checks']} unchanged ones")
    return "; ".join(words)


def _by_slowdown(result: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """Return the injected slowdown in percent (0 if nothing was changed) and the rates of each kind, the smallest first."""
    kinds = result["kinds"].items()
    return sorted(((0 if name == "aa" else int(name.split("_")[1]), kind) for name, kind in kinds), key=lambda one: one[0])


def _delays(runs: dict[str, Any] | None) -> str:
    if runs is None:
        return "not measured"
    delays = [str(delay) for delay in runs["delays_windows"]]
    return ", ".join(
        delays + ["missed"] * runs["missed"] + ["fired before"] * runs["masked"] + ["no effect"] * runs["harmless"]
    )


def _source(card: Card) -> str:
    return card.source + (f"; needs {card.needs}" if card.needs else "")
