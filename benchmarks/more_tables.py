"""Tables of single benchmarks: the gate, rivals side by side, checkpointing, single techniques."""

from __future__ import annotations

from typing import Any

from benchmarks.technique_table import words_of
from hasten.report.catalogue import compared_words


def gate_table(gate: dict[str, Any]) -> list[str]:
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


def rivals_table(result: dict[str, Any]) -> list[str]:
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


def checkpointing_table(result: dict[str, Any]) -> list[str]:
    """Return memory and time of checkpointing by budget, compared with recomputing everything and nothing."""
    lines = [
        f"Asked to keep {1 - result['asked_frac']:.0%} of the activations of `{result['target']}`.",
        f"Repeat it: `{result['command']}`.",
        "",
        "| way | activations saved | saved at the peak of a step | peak memory | time |",
        "|---|---|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        peak = f"{row['peak_rss_bytes'] / 2**20:.0f} MiB"
        saved = f"{row['saved_frac']:.1%} | {row['peak_saved_frac']:.1%}"
        lines.append(f"| {arm} | {saved} | {peak} | {row['time_ratio']:.2f}x |")
    return [*lines, ""]


def search_table(result: dict[str, Any]) -> list[str]:
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
        against = "the same plan" if row["is_the_ladders"] else _ratio(row, "ladder_over_it")
        lines.append(f"| {_plan(row['plan'], space)} | {row['screened']:.2f}x | {against} |")
    return [*lines, "", f"The search's plan: {_plan(ladder['plan'], space) or 'empty'}."]


def _plan(plan: dict[str, Any], space: dict[str, Any]) -> str:
    """List the names of a plan, with settings if the technique offered more than one."""
    several = {item["name"] for item in space["chosen"] if len(item["settings"]) > 1}
    words = {name: ", ".join(f"{key}={value}" for key, value in settings.items()) for name, settings in plan.items()}
    return ", ".join(f"{name} ({words[name]})" if name in several else name for name in plan)


def packing_table(result: dict[str, Any]) -> list[str]:
    """Return packing compared with batches of similar length and with the padded job."""
    lines = [
        "The rival puts samples of similar length into one batch and cuts it to its longest. Both train the same samples",
        f"for a whole epoch. The goal is {result['goal']}x over the rival. Repeat it: `{result['command']}`.",
        "",
        "| job | padding | if cut | if of similar length | gain over padded | over cut | over similar length | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    measured = [row for row in result["jobs"].values() if "skipped" not in row]
    for row in measured:
        padding = " | ".join(f"{row['data']['padding_frac'][name]:.0%}" for name in ("padded", "cut", "like_length"))
        gains = " | ".join(_ratio(row[f"against_{name}"]) for name in ("padded", "cut", "rival"))
        lines.append(f"| `{row['target']}` | {padding} | {gains} | {row['verdict']} |")
    skipped = [row for row in result["jobs"].values() if "skipped" in row]
    return [*lines, "", *(line for row in skipped for line in (f"`{row['target']}`: {row['skipped']}.", ""))]


def _ratio(row: dict[str, Any], name: str = "ratio") -> str:
    """Format a ratio with its interval; a dash if there is none."""
    return "-" if row[name] is None else f"{row[name]:.2f}x ({row['low']:.2f} to {row['high']:.2f})"


def techniques_words(result: dict[str, Any]) -> str:
    """Summarize the outcomes of the techniques on the jobs made for them in one line."""
    rows, outcomes = result["rows"], result["outcomes"]
    names = {"faster": "faster", "same": "the same", "slower": "slower", "undecided": "undecided"}
    names |= {"refused": "refused here", "failed": "failed"}
    counted = ", ".join(f"{outcomes[key]} {words}" for key, words in names.items() if outcomes.get(key))
    return f"{len(rows)} cases of {len({row['technique'] for row in rows})} techniques: {counted}"


def techniques_table(result: dict[str, Any]) -> list[str]:
    """Return each technique with and without, on the job made for it: speed and peak memory, or why there is no number."""
    lines = [
        f"{techniques_words(result)}. On {result['machine']}. Repeat it: `{result['command']}`.",
        "",
        "| technique | job | speed | peak memory | outcome |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        seen, memory = row["comparison"], row["memory"] or {}
        without, with_it = memory.get("without_bytes"), memory.get("with_bytes")
        told = f"{without / 2**20:.0f} to {with_it / 2**20:.0f} MiB" if without and with_it else "-"
        measured = row["outcome"] == "measured"
        speed = f"{seen['ratio']:.2f}x ({seen['low']:.2f} to {seen['high']:.2f})" if measured else "-"
        outcome = f"{row['verdict']}{compared_words(row)}" if measured else f"{row['outcome']}: {row['reason']}"
        chosen = "".join(f"<br>{name}={value}" for name, value in row["settings"].items())
        cells = [f"`{row['technique']}`{chosen}", words_of(row), speed, told, outcome]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return [*lines, ""]
