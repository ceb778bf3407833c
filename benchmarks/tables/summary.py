"""All results in one table, and the few that README.md shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.data_layer import table as data_layer
from benchmarks.datacube import table as datacube
from benchmarks.dialogue import table as dialogue
from benchmarks.groundtruth import table as groundtruth
from benchmarks.public import page as public
from benchmarks.recipes import table as recipes
from benchmarks.tables.monitor import check_words
from benchmarks.tables.techniques import techniques_words

Found = Mapping[str, Any]


def readme_table(found: Found) -> str:
    """Return the four rows that README.md shows."""
    proofs = found["proof"]["jobs"].values()
    rows = [
        f"| a language model on padded text, written naively (`{job['target']}`) | {_proved(job)} |"
        for job in proofs
        if "text" in job["target"]
    ]
    rows += [f"| public scripts by others, unchanged | {public.gains(found['public'])} |"]
    rows += [f"| scripts with a known bottleneck | {groundtruth.headline(found['groundtruth'])} |"]
    rows += [f"| a plan compared with itself | {_false_verdicts(found['aa'])} |"]
    machines = " and ".join(dict.fromkeys(found[name]["machine"] for name in ("proof", "public", "groundtruth", "aa")))
    return "\n".join(["", "| what | result |", "|---|---|", *rows, "", f"Machines: {machines}.", ""])


def summary(found: Found) -> str:
    """Return a line for each benchmark, with the command that repeats it."""
    rows = [_tuned(found[name]) for name in ("tune_text", "tune_image") if name in found]
    for job in found.get("proof", {}).get("jobs", {}).values():
        pairs = f"{job['comparison']['pairs']} pairs of fresh processes"
        rows.append((f"the plan of `{job['target']}`, {pairs}", _proved(job), found["proof"]))
    rows += _honesty(found)
    if stores := found.get("data"):
        seen, where = data_layer.headline(stores), data_layer.machines(stores)
        seen += f" on {where}" if where != stores["machine"] else ""
        rows.append(("data loading, compared with other libraries", seen, stores))
    if trained := found.get("recipes"):
        rows.append(("recipes: object detection and text detection", recipes.headline(trained), trained))
    if gridded := found.get("datacube"):
        rows.append(("gridded data: reading, regridding, physics, forecasting", datacube.headline(gridded), gridded))
    if spoken := found.get("dialogue"):
        rows.append(("conversations: packing, scanning, voices, private data", dialogue.headline(spoken), spoken))
    if not rows:
        return ""
    machines = [result["machine"] for _, _, result in rows]
    usual = max(machines, key=machines.count)
    marks = {usual: "", **dict(zip(sorted({*machines} - {usual}), "†‡§¶", strict=False))}
    lines = ["| what | result | repeat it |", "|---|---|---|"]
    lines += [f"| {what}{marks[result['machine']]} | {words} | `{result['command']}` |" for what, words, result in rows]
    notes = [f"Measured on {usual}.", *(f"{mark} Measured on {other}." for other, mark in marks.items() if mark)]
    return "\n".join([*lines, "", *notes])


Line = tuple[str, str, Mapping[str, Any]]
"""What was measured, the result in words, and the file it is from."""


def _tuned(result: dict[str, Any]) -> Line:
    evidence = result["evidence"]
    final, target = evidence["final"], f"tuning `{evidence['job']['target']}`"
    if final is None:
        return target, "nothing was proved", result
    words = f"**{final['ratio']:.2f}x** faster ({final['low']:.2f} to {final['high']:.2f}, {final['pairs']} pairs)"
    if quality := final["quality"]:
        verdict = quality["verdict"].replace("_", " ")
        words += f"; held-out {quality['metric']} {quality['baseline']:.4f} before, {quality['tuned']:.4f} after: {verdict}"
        words += f" (margin {quality['margin']})"
    return target, words, result


def _proved(job: dict[str, Any]) -> str:
    found = job["comparison"]
    if found.get("low") is None:
        return str(found["why"])
    words = f"**{found['ratio']:.2f}x** faster ({found['low']:.2f} to {found['high']:.2f})"
    if quality := job["quality"]:
        words += f"; held-out {quality['verdict'].replace('_', ' ')}"
    if not job["reached"]:
        words += f"; goal of {job['goal_low']}x at the lower end: missed"
    return words


def _false_verdicts(aa: Mapping[str, Any]) -> str:
    return f"{aa['false_verdicts']} false verdicts in {aa['comparisons']} comparisons"


def pipeline_kills(found: Found) -> str:
    """Return how many kills pipelines survived."""
    chaos = found["pipeline"]["parts"]["chaos"]
    kills = sum(chaos["kills"].values())
    return (
        f"Measured on {chaos['where']['machine']}: {kills} kills at random moments in {chaos['rounds']} runs; "
        f"{chaos['wrong']} runs ended with other weights, and {chaos['run_again']} finished stages ran again."
    )


def _honesty(found: Found) -> list[Line]:
    rows: list[Line] = []
    if aa := found.get("aa"):
        rows.append(("honesty: a plan compared with itself (A/A)", _false_verdicts(aa), aa))
    if power := found.get("power"):
        tried = {name.split("_")[1]: row for name, row in power.items() if name.startswith("plus_")}
        words = "; ".join(f"+{percent} % found in {row['found']} of {row['comparisons']}" for percent, row in tried.items())
        rows.append(("power: injected slowdowns", words, power))
    if checks := found.get("check"):
        rows.append(("`hasten check` of commits whose slowdown is known", check_words(checks), checks))
    if cost := found.get("own_cost"):
        words = "; ".join(_cost(cost[name]) for name in ("text", "tiny"))
        rows.append(("cost of profiling", words, cost))
    if start := found.get("run_start"):
        words = "; ".join(f"{arm}: {one['added_s']:+.2f} s" for arm, one in start["arms"].items())
        rows.append(("start and end of a script under `hasten run --plan`", words, start))
    if shown := found.get("progress"):
        jobs = [shown[name] for name in ("text", "tiny")]
        words = "; ".join(f"{job['cost_frac']:.2%} of a {job['update_ms']:.1f} ms update" for job in jobs)
        rows.append(("cost of progress and metrics in `hasten run`", words, shown))
    if gate := found.get("gate"):
        words = f"{gate['caught']} of {gate['defects']} seeded defects refused; "
        words += f"{gate['refused_innocents']} of {gate['innocents']} harmless changes refused"
        rows.append(("the numerics gate", words, gate))
    return [*rows, *_scripts_and_rivals(found)]


def _runs(found: Found) -> list[Line]:
    rows: list[Line] = []
    if chaos := found.get("chaos"):
        settings = chaos["settings"]
        kills, wrong = (sum(one[key] for one in settings.values()) for key in ("kills", "wrong"))
        words = f"{kills} runs killed with SIGKILL in {len(settings)} settings and resumed; {wrong} ended with other weights"
        rows.append(("runs that are killed", words, chaos))
    if costs := found.get("checkpoints"):
        words = "; ".join(
            f"{size} MB: training loses {one['ways']['hasten']['lost_s']:.2f} s, "
            f"{one['lost_ratio']:.2f}x of {one['best_other']}"
            for size, one in costs["sizes"].items()
        )
        rows.append(("the cost of a checkpoint", words, costs))
    if scaling := found.get("scaling"):
        words = "; ".join(f"{name}, {job['words']}" for name, job in scaling["jobs"].items())
        rows.append(("two ranks on two cores", words, scaling))
    return rows


def _scripts_and_rivals(found: Found) -> list[Line]:
    rows = _runs(found)
    if known := found.get("groundtruth"):
        rows.append(("scripts with a known bottleneck", groundtruth.headline(known), known))
    if others := found.get("public"):
        rows.append(("public scripts, unchanged", public.headline(others), others))
    if techniques := found.get("techniques"):
        rows.append(("single techniques on jobs made for them", techniques_words(techniques), techniques))
    for name in ("rivals_text", "rivals_image"):
        if rivals := found.get(name):
            best = rivals["best_rival"]
            row = rivals["arms"][best]
            words = f"{row['hasten_over_it']:.2f}x ({row['hasten_over_it_low']:.2f} to {row['hasten_over_it_high']:.2f})"
            rows.append(
                (f"the {name.removeprefix('rivals_')} job, compared with the best other way ({best})", words, rivals)
            )
    return rows


def _cost(job: dict[str, Any]) -> str:
    low, high = job["profiling_cost_interval"]
    return f"{job['profiling_cost_frac']:.2%} ({low:.2%} to {high:.2%}) of a {job['update_ms']:.1f} ms update"
