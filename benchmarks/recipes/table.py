"""The tables of docs/results/recipes.md, and the recipes' line in the summary, generated only from the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.recipes.passes import NAIVE, REAL
from benchmarks.recipes.wishes import report
from benchmarks.recipes.wishes import table as wishes_table

Result = Mapping[str, Any]

_SAID = {
    "detection_train_low": "detection {:.2f}x at the lower end",
    "detection_map50": "mAP50 {:.2f}",
    "ocr_train_low": "OCR training {:.2f}x at the lower end",
    "ocr_valid_low": "OCR validation {:.2f}x",
    "ocr_hmean": "H-mean {:.2f}",
    "ocr_maps_exact": "exact target maps {:.0f}x",
}

_OF = {
    "detection_train_low": "detection-train",
    "detection_map50": "detection-learn",
    "ocr_train_low": "ocr-train",
    "ocr_valid_low": "ocr-valid",
    "ocr_hmean": "ocr-learn",
    "ocr_maps_exact": "maps",
}
"""Summary number -> the part it belongs to."""


def headline(result: Result) -> str:
    """Summarize both recipes in one line; missed goals and other machines are named."""
    words: dict[str, list[str]] = {result["machine"]: []}
    for name, form in _SAID.items():
        if (seen := result.get(name)) is None:
            continue
        missed = f" (goal {result['goals'][name]:g}: missed)" if not result["reached"].get(name, True) else ""
        where = result["parts"].get(_OF[name], {}).get("where", result)["machine"]
        words.setdefault(where, []).append(form.format(seen) + missed)
    here = "; ".join(words.pop(result["machine"]))
    return "; ".join([*([here] if here else []), *(f"on {where}: {', '.join(said)}" for where, said in words.items())])


def detection(result: Result) -> str:
    """Return the results of object detection: quality, the requested features one by one, and rivals side by side."""
    return _page(
        result,
        {
            "detection-learn": lambda part: [_learnt(part, "blood cells (BCCD: 205 images, 87 held out)"), ""],
            "detection-train": lambda part: [_proof(part), "", wishes_table(report(part["evidence"]))],
            "detection-rivals": _rivals,
        },
    )


def ocr(result: Result) -> str:
    """Return the results of text detection: quality, training, validation, target maps, and rivals side by side."""
    return _page(
        result,
        {
            "ocr-learn": lambda part: [_learnt(part, "receipts (SROIE: 80 scans, 40 held out)"), ""],
            "ocr-train": lambda part: [_proof(part), "", *_rungs(part["evidence"])],
            "ocr-valid": _valid,
            "maps": _maps,
            "ocr-rivals": _rivals,
        },
    )


def pruned(result: Result) -> str:
    """Return the gain of each part of the OCR recipe, measured by disabling it alone."""
    lines = [
        f"Time of whole steps without one part, divided by that with it, on {result['machine']}: CPU seconds of one thread,",
        "95 % intervals over fresh processes. A part stays if it saves 10 % of either in at most 150 lines.",
        "",
        "| part | lines | training | validation | decision |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in result["rows"]:
        ratios = " | ".join(_interval(row[phase]) if phase in row else "-" for phase in ("train", "valid"))
        lines.append(f"| {row['what']} | {row['lines']} | {ratios} | {row['decision']} |")
    return "\n".join(["", *lines, ""])


def _page(result: Result, makers: Mapping[str, Callable[[Result], list[str]]]) -> str:
    """Return the measurements of a recipe, each part with its machine; or a note that there are none yet."""
    lines, machine = [""], ""
    for name, make in makers.items():
        if (part := result["parts"].get(name)) is None:
            continue
        where = part.get("where", result)["machine"]
        if where != machine:
            lines += [f"On {where}. Repeat it: `{result['command']}`.", ""]
            machine = where
        lines += make(part)
    if not machine:
        return f"\nNot measured yet: `{result['command']}`.\n"
    return "\n".join(lines)


def _learnt(part: Result, what: str) -> str:
    goal = f"held-out {part['metric']} {part['best']:.3f} at its best and {part['last']:.3f} at the end"
    return f"**Quality.** A run under the plan trains on {what} for {part['seconds'] / 60:.0f} minutes: {goal}."


def _proof(part: Result) -> str:
    final = part["evidence"]["final"]
    asked = f"**Speed.** Tuning the naive form for up to {part['budget']}"
    if left_out := part.get("without"):
        asked += f" without {', '.join(left_out)}"
    if final is None or final.get("low") is None:
        return f"{asked} proved nothing."
    words = f"{asked}: **{final['ratio']:.2f}x** "
    words += f"({final['low']:.2f} to {final['high']:.2f}, {final['pairs']} pairs of fresh processes)"
    if quality := final["quality"]:
        words += f"; held-out {quality['metric']} {quality['baseline']:.4f} before, {quality['tuned']:.4f} after: "
        words += f"{quality['verdict'].replace('_', ' ')} (margin {quality['margin']})"
    return f"{words}."


def _rungs(evidence: Result) -> list[str]:
    """Return the gain of each measured technique."""
    lines = ["| technique | outcome | gain |", "|---|---|---|"]
    for rung in evidence["rungs"]:
        seen = rung["comparison"]
        if seen and seen["ratio"]:
            ratio = f"{seen['ratio']:.2f}x ({seen['low']:.2f} to {seen['high']:.2f})"
            lines.append(f"| `{rung['name']}` | {rung['outcome']} | {ratio} |")
    return [*lines, ""]


def _valid(part: Result) -> list[str]:
    lines = ["| validation pass | share of a training pass | boxes and counting, ms per image | targets, ms per image |"]
    lines += ["|---|---|---|---|"]
    for form, name in ((NAIVE, "naive"), (REAL, "under the plan")):
        metrics = part["rows"][-1][form]["turns"][-1]["metrics"]
        found = metrics["postprocess_ms"] + metrics["metric_ms"]
        ratio = _interval(part["valid_over_train"][form])
        lines.append(f"| {name} | {ratio} | {found:.1f} | {metrics['polygon_ms']:.2f} |")
    return [*lines, "", f"A validation pass is {_interval(part['valid_gain'])} as fast as the naive one.", ""]


def _maps(part: Result) -> list[str]:
    lines = [
        f"Target maps at {part['size'][0]}x{part['size'][1]}, compared with the paper's code and its libraries:", "",
        "| polygons, corners | paper, ms per image | Hasten, times as fast |", "|---|---|---|",
    ]  # fmt: skip
    for name, case in part["cases"].items():
        kind, _, count = name.partition("_")
        corners = {"quads": 4, "gons": 12}[kind]
        lines.append(f"| {count}, {corners} | {case['median_ms']['official']:.1f} | {case['ratios']['exact']:.1f}x |")
    lines += [""]
    if other := part.get("doctr"):
        took, ratio = other["median_ms"]["doctr"], other["exact_over_doctr"]
        lines += [f"docTR takes {took:.1f} ms for 60 quads; Hasten is {ratio:.1f}x as fast."]
    return [*lines, ""]


def _rivals(part: Result) -> list[str]:
    """Return the same training with other libraries, in turns."""
    lines = ["The same model, loss and images in fresh processes that take turns:", ""]
    lines += ["| trained by | times as fast as the naive form | Hasten, times as fast as this |", "|---|---|---|"]
    for name, arm in part["arms"].items():
        over = {"ratio": arm["hasten_over_it"], "low": arm["hasten_over_it_low"], "high": arm["hasten_over_it_high"]}
        lines.append(f"| {name} | {_interval(arm)} | {'-' if name == 'Hasten' else _interval(over)} |")
    return [*lines, ""]


def _interval(found: Result) -> str:
    return f"{found['ratio']:.2f}x ({found['low']:.2f} to {found['high']:.2f})"
