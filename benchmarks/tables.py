"""Write the tables of the documentation from benchmarks/results, so that no number is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import catalogue, pruning_scripts
from benchmarks.checkpoints import table as checkpoint_table
from benchmarks.data_layer import table as data_layer
from benchmarks.groundtruth import table as groundtruth
from benchmarks.more_tables import (
    checkpointing_table,
    gate_table,
    packing_table,
    rivals_table,
    search_table,
    techniques_table,
    techniques_words,
)
from benchmarks.public import page as public
from benchmarks.recipes import table as recipes
from benchmarks.record import ROOT
from benchmarks.tuning import DIAGNOSIS, results
from hasten.core.files import write_atomically

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def main() -> None:
    """Put the table into README.md, all details into docs/results.md, and write the catalogue with its measurements."""
    found = results()
    put_between(ROOT / "README.md", headline_table(found))
    if "groundtruth" in found:
        put_between(ROOT / "docs" / "groundtruth.md", groundtruth.tables(found["groundtruth"]))
    if "data" in found:
        put_between(ROOT / "docs" / "data.md", data_layer.tables(found["data"]))
    if "public" in found:
        put_between(ROOT / "docs" / "public.md", public.tables(found["public"]))
    if "checkpoints" in found:
        put_between(ROOT / "docs" / "resume.md", checkpoint_table.table(found["checkpoints"]))
    if "recipes" in found:
        put_between(ROOT / "docs" / "detection.md", recipes.detection(found["recipes"]))
        put_between(ROOT / "docs" / "ocr.md", recipes.ocr(found["recipes"]) + recipes.pruned(found["pruning_ocr"]))
    if "pruning_scripts" in found:
        put_between(ROOT / "docs" / "scripts.md", pruning_scripts.table(found["pruning_scripts"]))
    write_atomically(ROOT / "docs" / "results.md", details(found))
    catalogue.main()


def put_between(path: Path, text: str) -> None:
    """Put tables between the markers of a page."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, maxsplit=1)
    after = rest.split(END, maxsplit=1)[1]
    write_atomically(path, before + BEGIN + "\n" + text + END + after)


def headline_table(found: dict[str, Any]) -> str:
    """What was measured, a line a benchmark."""
    rows = [_tuned(found[name]) for name in ("tune_text", "tune_image") if name in found]
    rows += [_proved(job, found["proof"]) for job in found.get("proof", {}).get("jobs", {}).values()]
    rows += _honesty(found)
    if stores := found.get("data"):
        seen, where = data_layer.headline(stores), data_layer.machines(stores)
        seen += f" on {where}" if where != stores["machine"] else ""
        rows.append(f"| the data layer against other libraries | {seen} | `{stores['command']}` |")
    if trained := found.get("recipes"):
        rows.append(f"| detection and text detection, whole jobs | {recipes.headline(trained)} | `{trained['command']}` |")
    if not rows:
        return ""
    machine = next(iter(found.values()))["machine"]
    rows = [_with_machine(row, found, machine) for row in rows]
    lines = [f"## Measured ({machine})", "", "| what | result | repeat it |", "|---|---|---|", *rows]
    where = "Raw samples, versions and commits: `benchmarks/results/`; all rungs: [docs/results.md](docs/results.md)."
    return "\n".join(["", *lines, "", where, ""])


def _tuned(result: dict[str, Any]) -> str:
    evidence = result["evidence"]
    final = evidence["final"]
    if final is None:
        return f"| `{evidence['job']['target']}` | nothing proved | `{result['command']}` |"
    words = f"**{final['ratio']:.2f}x** faster ({final['low']:.2f} to {final['high']:.2f}, {final['pairs']} pairs)"
    if quality := final["quality"]:
        verdict = quality["verdict"].replace("_", " ")
        words += f"; held-out {quality['metric']} {quality['baseline']:.4f} before, {quality['tuned']:.4f} after: {verdict}"
        words += f" (margin {quality['margin']})"
    return f"| `{evidence['job']['target']}` | {words} | `{result['command']}` |"


def _proved(job: dict[str, Any], result: dict[str, Any]) -> str:
    found = job["comparison"]
    if found.get("low") is None:
        return f"| the plan of `{job['target']}`, {result['pairs']} fresh pairs | {found['why']} | `{result['command']}` |"
    words = f"**{found['ratio']:.2f}x** ({found['low']:.2f} to {found['high']:.2f})"
    if quality := job["quality"]:
        words += f"; held-out {quality['verdict'].replace('_', ' ')}"
    if not job["reached"]:
        words += f"; goal of {job['goal_low']}x at the lower end: missed"
    return f"| the plan of `{job['target']}`, {found['pairs']} fresh pairs | {words} | `{result['command']}` |"


def _with_machine(row: str, found: dict[str, Any], machine: str) -> str:
    """A row of the table, with the machine it was measured on where that is another one than the heading says."""
    others = {item["command"]: item["machine"] for item in found.values() if item["machine"] != machine}
    name = next((name for command, name in others.items() if row.endswith(f"| `{command}` |")), None)
    if name is None:
        return row
    result, _, command = row.rpartition(" | ")
    return f"{result} (on {name}) | {command}"


def _honesty(found: dict[str, Any]) -> list[str]:
    rows = []
    if aa := found.get("aa"):
        words = f"{aa['false_verdicts']} false verdicts in {aa['comparisons']} comparisons of a plan with itself"
        rows.append(f"| honesty (A/A) | {words} | `{aa['command']}` |")
    if power := found.get("power"):
        tried = {name.split("_")[1]: row for name, row in power.items() if name.startswith("plus_")}
        words = "; ".join(f"+{percent} % found in {row['found']} of {row['comparisons']}" for percent, row in tried.items())
        rows.append(f"| injected slowdowns | {words} | `{power['command']}` |")
    if cost := found.get("own_cost"):
        jobs = [cost[name] for name in ("text", "tiny")]
        words = "; ".join(_cost(job) for job in jobs)
        rows.append(f"| our own cost when profiling | {words} | `{cost['command']}` |")
    if told := found.get("progress"):
        jobs = [told[name] for name in ("text", "tiny")]
        words = "; ".join(f"{job['cost_frac']:.2%} of a {job['update_ms']:.1f} ms update" for job in jobs)
        rows.append(f"| the cost of progress and metrics while training | {words} | `{told['command']}` |")
    if gate := found.get("gate"):
        words = f"{gate['caught']} of {gate['defects']} seeded defects refused"
        words += f", {gate['refused_innocents']} of {gate['innocents']} innocent changes"
        rows.append(f"| the numerics gate | {words} | `{gate['command']}` |")
    return [*rows, *_scripts_and_rivals(found)]


def _runs(found: dict[str, Any]) -> list[str]:
    rows = []
    if chaos := found.get("chaos"):
        settings = chaos["settings"]
        kills, wrong = (sum(one[key] for one in settings.values()) for key in ("kills", "wrong"))
        words = f"{kills} kills -9 over {len(settings)} settings, {wrong} runs that ended with other weights"
        rows.append(f"| runs that are killed | {words} | `{chaos['command']}` |")
    if costs := found.get("checkpoints"):
        words = "; ".join(
            f"{size} MB: {one['ways']['hasten']['lost_s']:.2f} s, {one['lost_ratio']:.2f}x of {one['best_other']}"
            for size, one in costs["sizes"].items()
        )
        rows.append(f"| what training loses a checkpoint | {words} | `{costs['command']}` |")
    if scaling := found.get("scaling"):
        words = "; ".join(f"{name}, {job['words']}" for name, job in scaling["jobs"].items())
        rows.append(f"| two ranks on two cores | {words} | `{scaling['command']}` |")
    return rows


def _scripts_and_rivals(found: dict[str, Any]) -> list[str]:
    rows = _runs(found)
    if known := found.get("groundtruth"):
        rows.append(f"| scripts whose bottleneck is known | {groundtruth.headline(known)} | `{known['command']}` |")
    if others := found.get("public"):
        rows.append(f"| scripts that we did not write, unchanged | {public.headline(others)} | `{others['command']}` |")
    if techniques := found.get("techniques"):
        rows.append(f"| techniques on jobs made for them | {techniques_words(techniques)} | `{techniques['command']}` |")
    for name in ("rivals_text", "rivals_image"):
        if rivals := found.get(name):
            best = rivals["best_rival"]
            row = rivals["arms"][best]
            words = f"{row['hasten_over_it']:.2f}x ({row['hasten_over_it_low']:.2f} to {row['hasten_over_it_high']:.2f})"
            where = name.removeprefix("rivals_")
            rows.append(f"| against the best rival, {where} ({best}) | {words} | `{rivals['command']}` |")
    return rows


def _cost(job: dict[str, Any]) -> str:
    low, high = job["profiling_cost_interval"]
    return f"{job['profiling_cost_frac']:.2%} ({low:.2%} to {high:.2%}) of a {job['update_ms']:.1f} ms update"


def details(found: dict[str, Any]) -> str:
    """Every rung of every tuned job."""
    lines = ["# Results", "", "Made from `benchmarks/results/` by `make docs`; nothing here is typed by hand.", ""]
    tuned: dict[str, Any] = {name: found[name]["evidence"] for name in ("tune_text", "tune_image") if name in found}
    tuned |= {name: found["tune_diagnosis"][name] for name in DIAGNOSIS if "tune_diagnosis" in found}
    for name, evidence in tuned.items():
        lines += [f"## {name}: `{evidence['job']['target']}`", "", evidence["bottleneck"]["words"], ""]
        lines += ["| candidate | outcome | at most | measured | numerics | reason |", "|---|---|---|---|---|---|"]
        lines += [_rung(rung) for rung in evidence["rungs"]]
        lines.append("")
    others = {"gate": gate_table, "checkpointing": checkpointing_table, "search": search_table, "packing": packing_table}
    others |= {"techniques": techniques_table}
    for name, table in others.items():
        lines += table(found[name]) if name in found else []
    for name, result in found.items():
        lines += rivals_table(result) if name.startswith("rivals_") else []
    return "\n".join(lines)


def _rung(rung: dict[str, Any]) -> str:
    most = f"{rung['predicted_max_gain']:.2f}x" if rung["predicted_max_gain"] else "-"
    seen = rung["comparison"]
    measured = f"{seen['ratio']:.2f}x ({seen['low']:.2f} to {seen['high']:.2f})" if seen and seen["ratio"] else "-"
    gate = f"{rung['numerics']['class']}: {rung['numerics']['verdict']}" if rung["numerics"] else "-"
    reason = rung["reason"].replace("|", "/")
    return f"| {rung['name']} | {rung['outcome']} | {most} | {measured} | {gate} | {reason} |"


if __name__ == "__main__":
    main()
