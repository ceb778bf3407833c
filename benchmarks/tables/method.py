"""Tables of tests of the method: the gate with seeded defects, and the search next to an exhaustive one."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.techniques import ratio_words


def gate(gate: dict[str, Any]) -> list[str]:
    """Return every seeded defect and every harmless change, and whether it was refused."""
    caught, defects = gate["caught"], gate["defects"]
    refused, innocents = gate["refused_innocents"], gate["innocents"]
    lines = [
        f"{caught} of {defects} seeded defects were refused, and {refused} of {innocents} harmless changes.",
        f"Repeat it: `{gate['command']}`.",
        "",
        "| change | class | is | outcome | refused by |",
        "|---|---|---|---|---|",
    ]
    for row in gate["rows"]:
        outcome = "refused" if row["caught"] else "let through"
        kind = {"innocent": "harmless"}.get(row["kind"], row["kind"])
        lines.append(f"| {row['name']} | {row['class']} | {kind} | {outcome} | {row['by'] or '-'} |")
    return [*lines, ""]


def search(result: dict[str, Any]) -> list[str]:
    """Return the cost of the search and of an exhaustive one, and the best subsets next to the search's plan."""
    lines = [
        "Both had the same candidates, declared before any was measured: those of the recorded plan, then those with the",
        "largest ceiling times prior, as many as allow all subsets to be measured. The best subsets and the search's plan",
        f"were measured again in fresh processes that take turns. Repeat it: `{result['command']}`.",
        "The search missed the goal for the image job at first. It was changed accordingly, given a longer budget,",
        "and judged again on the same job and its recorded subsets (`--kept`).",
        "",
    ]
    for job in result["jobs"].values():
        lines += [*_search(job), ""]
    return lines


def _search(job: dict[str, Any]) -> list[str]:
    space, ladder = job["candidates"], job["ladder"]
    names = ", ".join(item["name"] for item in space["chosen"])
    others = f". Left out: {', '.join(item['name'] for item in space['left_out'])}" if space["left_out"] else ""
    took = f"{job['subsets']} subsets in {job['exhaustive_seconds']:.0f} s"
    took += "" if job["complete"] else f" (projected: {job['measured']} were measured)"
    took += f", {job['failed']} of them without a result" if job["failed"] else ""
    lines = [f"### `{job['target']}`: goal {job['verdict']}", ""]
    lines += [f"Candidates: {names}{others} (with them up to {space['most_subsets_of_all']:,} subsets).", ""]
    budget_s = ladder.get("budget_s")
    given = f" of a budget of {budget_s:.0f} s, half of which is reserved for the proof (not run here)" if budget_s else ""
    lines += [f"Everything: {took}. The search: {ladder['seconds']:.0f} s{given}.", ""]
    if job.get("exhaustive_commit", job["commit"]) != job["commit"]:
        lines += [f"The subsets were measured at commit {job['exhaustive_commit']}, the search ran at {job['commit']}.", ""]
    lines += ["| best subsets | gain in screening | the search's plan, times as fast |", "|---|---|---|"]
    for row in job["best"]:
        against = "the same plan" if row["is_the_ladders"] else ratio_words(row, "ladder_over_it")
        lines.append(f"| {_plan(row['plan'], space)} | {row['screened']:.2f}x | {against} |")
    return [*lines, "", f"The search's plan: {_plan(ladder['plan'], space) or 'empty'}."]


def _plan(plan: dict[str, Any], space: dict[str, Any]) -> str:
    """List the names of a plan, with settings if the technique offered more than one."""
    several = {item["name"] for item in space["chosen"] if len(item["settings"]) > 1}
    words = {name: ", ".join(f"{key}={value}" for key, value in settings.items()) for name, settings in plan.items()}
    return ", ".join(f"{name} ({words[name]})" if name in several else name for name in plan)
