"""Tables of the single benchmarks: the gate judged by itself, rivals side by side, checkpointing, single techniques."""

from __future__ import annotations

from typing import Any

from hasten.report.catalogue import compared_words


def gate_table(gate: dict[str, Any]) -> list[str]:
    """Every seeded defect and every innocent change, and what became of it."""
    caught, defects = gate["caught"], gate["defects"]
    refused, innocents = gate["refused_innocents"], gate["innocents"]
    lines = ["## The numerics gate, judged by itself", ""]
    lines += [
        f"{caught} of {defects} seeded defects were refused, and {refused} of {innocents} innocent changes.",
        f"Repeat it: `{gate['command']}`.",
        "",
        "| change | claims to be | is | outcome | by | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in gate["rows"]:
        outcome = "refused" if row["caught"] else "let through"
        why = str(row["why"]).replace("|", "/")
        lines.append(f"| {row['name']} | {row['class']} | {row['kind']} | {outcome} | {row['by'] or '-'} | {why} |")
    return [*lines, ""]


def rivals_table(result: dict[str, Any]) -> list[str]:
    """Every arm against the naive one, and Hasten against it."""
    name = result["name"].removeprefix("rivals_")
    lines = [f"## Side by side: {name}", ""]
    lines += [
        f"Fresh processes taking turns in one run (`{result['command']}`); samples a second, as ratios.",
        "",
        "| trained by | against the naive loop | Hasten against it |",
        "|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        ours = f"{row['hasten_over_it']:.2f}x ({row['hasten_over_it_low']:.2f} to {row['hasten_over_it_high']:.2f})"
        lines.append(f"| {arm} | {row['ratio']:.2f}x ({row['low']:.2f} to {row['high']:.2f}) | {ours} |")
    return [*lines, ""]


def checkpointing_table(result: dict[str, Any]) -> list[str]:
    """Memory and time of checkpointing by budget against everything and nothing."""
    lines = ["## Activation checkpointing by budget", ""]
    lines += [
        f"Asked to keep {1 - result['asked_frac']:.0%} of the activations of `{result['target']}` (`{result['command']}`).",
        "",
        "| arm | activations saved | saved at the peak of a step | peak memory | time of a turn |",
        "|---|---|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        peak = f"{row['peak_rss_bytes'] / 2**20:.0f} MiB"
        saved = f"{row['saved_frac']:.1%} | {row['peak_saved_frac']:.1%}"
        lines.append(f"| {arm} | {saved} | {peak} | {row['time_ratio']:.2f}x |")
    return [*lines, ""]


def search_table(result: dict[str, Any]) -> list[str]:
    """The ladder against an exhaustive search: what each took, and the best subsets side by side with the ladder's plan."""
    lines = ["## The ladder against an exhaustive search", ""]
    lines += [
        "The same candidates for both, declared before any was measured: what the recorded tuning kept, then those of the",
        "largest ceiling times prior, as long as there are few enough subsets to measure them all. The best subsets and the",
        f"ladder's plan were measured again in fresh processes that take turns. Repeat it: `{result['command']}`.",
        "The image job was missed before. The ladder was changed for what that showed, given a longer budget, and judged",
        "again on the same job and its kept subsets (`--kept`).",
        "",
    ]
    for job in result["jobs"].values():
        lines += [*_search(job), ""]
    return lines


def _search(job: dict[str, Any]) -> list[str]:
    space, ladder = job["candidates"], job["ladder"]
    names = ", ".join(item["name"] for item in space["chosen"])
    others = f"; left out: {', '.join(item['name'] for item in space['left_out'])}" if space["left_out"] else ""
    took = f"{job['subsets']} subsets in {job['exhaustive_seconds']:.0f} s"
    took += "" if job["complete"] else f" (projected: {job['measured']} were measured)"
    took += f", {job['failed']} of them without a result" if job["failed"] else ""
    lines = [f"### `{job['target']}`: {job['verdict']}", ""]
    lines += [f"Candidates: {names}{others} (all together up to {space['most_subsets_of_all']:,} subsets).", ""]
    budget_s = ladder.get("budget_s")
    given = f" of a budget of {budget_s:.0f} s, half of which is the proof's, which is left out here" if budget_s else ""
    lines += [f"{took}; the ladder took {ladder['seconds']:.0f} s{given}. {job['why'][:1].upper()}{job['why'][1:]}.", ""]
    if job.get("exhaustive_commit", job["commit"]) != job["commit"]:
        lines += [f"The subsets were measured at {job['exhaustive_commit']}, the ladder climbed at {job['commit']}.", ""]
    lines += ["| best subsets | screened, against the plain job | the ladder's plan against it |", "|---|---|---|"]
    for row in job["best"]:
        against = "the same plan" if row["is_the_ladders"] else _ratio(row, "ladder_over_it")
        lines.append(f"| {_plan(row['plan'], space)} | {row['screened']:.2f}x | {against} |")
    return [*lines, "", f"The ladder's plan: {_plan(ladder['plan'], space) or 'empty'}."]


def _plan(plan: dict[str, Any], space: dict[str, Any]) -> str:
    """The names of a plan, with the setting where the technique offered more than one."""
    several = {item["name"] for item in space["chosen"] if len(item["settings"]) > 1}
    words = {name: ", ".join(f"{key}={value}" for key, value in settings.items()) for name, settings in plan.items()}
    return ", ".join(f"{name} ({words[name]})" if name in several else name for name in plan)


def packing_table(result: dict[str, Any]) -> list[str]:
    """Packing against batches of like length and against the padded job."""
    lines = ["## Packing against batches of like length", ""]
    lines += [
        "Fresh processes in pairs. The rival puts samples of like length into one batch and cuts it to its longest; both",
        f"train the same samples, a whole epoch. The goal is {result['goal']}x over the rival.",
        f"Repeat it: `{result['command']}`.",
        "",
        "| job | padding as it is | cut | of like length and cut | against padded | against cut | against rival | goal |",
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
    """A ratio with its interval; a dash where there is none."""
    return "-" if row[name] is None else f"{row[name]:.2f}x ({row['low']:.2f} to {row['high']:.2f})"


def techniques_words(result: dict[str, Any]) -> str:
    """How many techniques brought what on the jobs made for them, in a line."""
    rows, outcomes = result["rows"], result["outcomes"]
    names = {"faster": "faster", "same": "the same", "slower": "slower", "undecided": "undecided"}
    names |= {"refused": "refused here", "failed": "failed"}
    counted = ", ".join(f"{outcomes[key]} {words}" for key, words in names.items() if outcomes.get(key))
    return f"{len(rows)} cases of {len({row['technique'] for row in rows})} techniques: {counted}"


def techniques_table(result: dict[str, Any]) -> list[str]:
    """Every technique with and without, on the job made for it: speed and peak memory, or why there is no figure."""
    lines = ["## Techniques, each on a job made for it", ""]
    lines += [
        "No tuning: the technique alone, with and without, on a small job that has the bottleneck it relieves; fresh",
        "processes in pairs; by the time of updates, where nothing else is said.",
        f"Repeat it: `{result['command']}`. {techniques_words(result)}.",
        "",
        "| technique | settings | job | speed | peak memory | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        seen, memory = row["comparison"], row["memory"] or {}
        without, with_it = memory.get("without_bytes"), memory.get("with_bytes")
        told = f"{without / 2**20:.0f} to {with_it / 2**20:.0f} MiB" if without and with_it else "-"
        measured = row["outcome"] == "measured"
        speed = f"{seen['ratio']:.2f}x ({seen['low']:.2f} to {seen['high']:.2f})" if measured else "-"
        outcome = f"{row['verdict']}{compared_words(row)}" if measured else f"{row['outcome']}: {row['reason']}"
        chosen = ", ".join(f"{name}={value}" for name, value in row["settings"].items()) or "-"
        cells = [row["technique"], chosen, row["job_words"], speed, told, outcome]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return [*lines, ""]
