"""Assemble the result: one row per workload and system, each compared with Hasten, with raw samples and judged goals."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from statistics import median

from benchmarks.data_layer.goals import CONFIDENCE, PAGE_CACHE, judged
from benchmarks.data_layer.systems import LEFT_OUT, PACKAGES, WORKLOADS
from benchmarks.result_file import Row
from hasten.core.stats import paired_interval


def row_name(workload: str, system: str) -> str:
    """Return the name of a row."""
    return f"{workload}: {system}"


def whole(rows: Mapping[str, Row], _beside: Row) -> Row:
    """Assemble the result of everything measured so far."""
    listed = []
    for workload, told in WORKLOADS.items():
        mine = {name: row for name in (*told.systems, PAGE_CACHE) if (row := rows.get(row_name(workload, name)))}
        listed += [_compared(workload, name, mine) for name in mine]
    for name, row in rows.items():
        workload, _, system = name.partition(": ")
        if workload not in WORKLOADS:
            listed.append({**row, "workload": workload, "system": system})
    goals = judged(listed)
    reached = sum(goal["verdict"] == "reached" for goal in goals)
    return {"rows": listed, "goals": goals, "goals_reached": reached, "packages": _versions(), "left_out": _left_out()}


def _compared(workload: str, name: str, rows: Mapping[str, Row]) -> Row:
    row = rows[name]
    measured = row["measured"]
    told = {"name": row["name"], "workload": workload, "system": name}
    if name == PAGE_CACHE:
        bytes_per_s = 1 / median(one["seconds_per_byte"] for one in measured["warm"])
        return {**told, "bytes_per_s": bytes_per_s, "measured": measured}
    system = WORKLOADS[workload].systems[name]
    told |= {"shuffle": system.shuffle, "against": system.against, "reference": system.reference}
    told |= {f"{kind}samples_per_s": _rate(measured[part]) for kind, part in (("", "warm"), ("cold_", "cold"))}
    told["private_bytes"] = median(one["private_bytes"] for one in measured["memory"])
    told["in_memory_before_cold_frac"] = max(one["in_memory_before_frac"] for one in measured["cold"])
    ours = rows.get(system.against)
    base = ours or rows.get(next(iter(WORKLOADS[workload].systems)))
    if base is not None and not system.own_samples:
        told["same"] = _same(measured, base["measured"], formless=not system.against)
    if ours is not None:
        for kind, part in (("", "warm"), ("cold_", "cold")):
            told[f"{kind}hasten_over_it"] = _over(measured[part], ours["measured"][part])
    return {**told, "measured": measured}


def _rate(parts: list[Row]) -> float:
    return 1 / float(median(one["seconds_per_sample"] for one in parts))


def _over(theirs: list[Row], ours: list[Row]) -> dict[str, float] | None:
    """Return how many times as fast Hasten is, with the interval; None if there are too few rounds."""
    if len(theirs) < 2 or len(theirs) != len(ours):
        return None
    base, candidate = ([one["seconds_per_sample"] for one in parts] for parts in (theirs, ours))
    interval = paired_interval(base, candidate, CONFIDENCE)
    return {"ratio": interval.ratio, "low": interval.low, "high": interval.high}


def _same(measured: Row, ours: Row, *, formless: bool) -> bool:
    """Return whether both give the same samples, once per epoch, and in the same form unless `formless` is set."""
    keys = ("digest", "count", "num_bytes") if formless else ("digest", "count", "num_bytes", "form")
    return all(measured["same"][key] == ours["same"][key] for key in keys)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a rival is not installed
            continue
    return found


def _left_out() -> dict[str, str]:
    """Return the rivals that were not measured, and why."""
    missing = {system.needs for told in WORKLOADS.values() for system in told.systems.values() if not system.is_there}
    return {**LEFT_OUT, **dict.fromkeys(sorted(missing), "it was not installed")}
