"""The plots of the report as plotly figures: pure functions of the evidence.

A figure is a dict with `data` and `layout` for plotly.js. Colours are tokens such as `$accent`, which the page replaces with
its CSS variables, so one figure works for light, dark and print. A plot without data is a sentence instead of a figure.
Names from users are escaped, because plotly interprets HTML in labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from hasten.report.evidence import PHASES, Comparison, Evidence, Sample
from hasten.report.figure import (
    Figure,
    axis,
    distinct,
    dots,
    layout,
    note,
    ratio_axis,
    reach_of,
    rows_axis,
    safe,
    vertical,
    whiskers,
)
from hasten.report.page import Plot
from hasten.report.words import comparable_phases, interval_words, is_to_target, ms_words, percent, ratio_words, wall_ms

FAR = 20.0
"""Ceilings above this speed-up are drawn at it."""


def figures(evidence: Evidence) -> dict[str, Plot]:
    """Return the plots of the report by name, with a sentence instead of a plot without data."""
    return {
        "phases": phases(evidence),
        "ceilings": ceilings(evidence),
        "climb": climb(evidence),
        "pairs": pairs(evidence.final),
        "losses": losses(evidence),
    }


def phases(evidence: Evidence) -> Plot:
    """Return stacked bars of the phases of an update before and after, in ms, or in shares if no time is known.

    Phases that were not measured again under the plan are in neither bar.
    """
    step = evidence.step_ms
    before, after, _ = comparable_phases(evidence)
    arms = (
        ("before", before, step.baseline if step else None),
        ("after", after, step.tuned if step else None),
    )
    bars = [(label, shares, wall_ms(shares, update_ms)) for label, shares, update_ms in arms if shares]
    if not bars:
        return "The phases of an update were not measured, so there is nothing to draw here."
    in_ms = all(total is not None for _, _, total in bars)
    scale = [(total or 0.0) if in_ms else 100.0 for _, _, total in bars]
    longest = max(scale) or 1.0
    data = []
    for name in PHASES:
        shares = [shares.get(name, 0.0) for _, shares, _ in bars]
        if not any(share >= 0.0005 for share in shares):
            continue
        lengths = [share * whole for share, whole in zip(shares, scale, strict=True)]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [label for label, _, _ in bars],
                "x": lengths,
                "width": 0.62,
                "marker": {"color": f"$phase-{name}", "line": {"color": "$page", "width": 1.5}},
                "text": [name if length / longest > 0.02 + 0.011 * len(name) else "" for length in lengths],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "textfont": {"color": f"$on-{name}"},
                "hovertext": [
                    f"{name}, {bar[0]}: {ms_words(length) + ', ' if in_ms else ''}{percent(share)} of the update"
                    for bar, length, share in zip(bars, lengths, shares, strict=True)
                ],
                "hoverinfo": "text",
            }
        )
    title = "time per update (ms)" if in_ms else "share of an update (%)"
    return {
        "data": data,
        "layout": layout(
            height=70 + 66 * len(bars),
            barmode="stack",
            xaxis=axis(title, rangemode="tozero"),
            yaxis={"autorange": "reversed", "automargin": True, "ticksuffix": "  ", "showgrid": False, "fixedrange": True},
        ),
    }


def ceilings(evidence: Evidence) -> Plot:
    """Return the largest possible gains and the measured ones, with a row for each ceiling and each measured candidate."""
    labels: list[str] = []
    limits: list[float | None] = []
    reached: list[float | None] = []
    errors: list[tuple[float | None, float | None]] = []
    for name, gain in sorted(evidence.ceilings.items(), key=lambda item: -item[1]):
        labels.append(f"if {safe(name.replace('_', ' '))} were free")
        limits.append(min(gain, FAR))
        reached.append(None)
        errors.append((None, None))
    for candidate in evidence.rungs:
        comparison = candidate.comparison
        if comparison is not None and comparison.ratio is not None:
            labels.append(safe(candidate.name))
            limits.append(candidate.predicted_max_gain)
            reached.append(comparison.ratio)
            errors.append(reach_of(comparison))
    if not labels:
        return "No ceiling was measured and no candidate was run, so there is no prediction to compare with a result."
    labels = distinct(labels)
    bar = {"type": "line", "line": {"color": "$line", "width": 6}, "layer": "below"}
    spans: list[Figure] = [
        {**bar, "x0": 1, "x1": limit, "y0": label, "y1": label}
        for label, limit in zip(labels, limits, strict=True)
        if limit is not None
    ]
    data = [
        dots(labels, limits, color="$muted", symbol="line-ns", size=15),
        {**dots(labels, reached, color="$accent", symbol="circle", size=11), "error_x": whiskers(errors, "$accent")},
    ]
    return {
        "data": data,
        "layout": layout(
            height=74 + 30 * len(labels),
            xaxis=ratio_axis("speed-up (log scale)", [*limits, *reached, 1.0]),
            yaxis=rows_axis(labels),
            shapes=[*spans, vertical(1.0, "$muted", "solid")],
        ),
    }


def climb(evidence: Evidence) -> Plot:
    """Return the search as a waterfall: each kept candidate starts where the last one ended; removed ones do not count."""
    labels, bases, lengths, colours, patterns, hover, errors = [], [], [], [], [], [], []
    height = 1.0
    for candidate in evidence.rungs:
        comparison = candidate.comparison
        if candidate.outcome not in ("applied", "pruned") or comparison is None or comparison.ratio is None:
            continue
        if is_to_target(comparison) or candidate.event:
            continue  # not a speed of updates, so it does not multiply with them
        pruned = candidate.outcome == "pruned"
        labels.append(safe(candidate.name) + (" (removed)" if pruned else ""))
        bases.append(height)
        lengths.append(height * (comparison.ratio - 1))
        colours.append("$line" if pruned else "$accent")
        patterns.append("/" if pruned else "")
        below, above = reach_of(comparison)
        errors.append((None if below is None else below * height, None if above is None else above * height))
        hover.append(f"{labels[-1]}: {ratio_words(comparison.ratio, '×')} alone ({interval_words(comparison, '×')})")
        height *= 1.0 if pruned else comparison.ratio
    if not labels:
        if evidence.applied:
            return "The plan does not make updates faster. The table below shows what its techniques are judged by."
        return "No candidate was kept, so the job stays as it is."
    final = evidence.final
    if final is not None and final.ratio is not None:
        labels.append("all together, proved" if final.verdict == "faster" else "all together")
        bases.append(1.0)
        lengths.append(final.ratio - 1)
        colours.append("$good")
        patterns.append("")
        errors.append(reach_of(final))
        hover.append(f"{labels[-1]}: {ratio_words(final.ratio, '×')} ({interval_words(final, '×')})")
    labels = distinct(labels)
    ends = [base + length for base, length in zip(bases, lengths, strict=True)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": labels,
            "base": bases,
            "x": lengths,
            "width": 0.56,
            "marker": {"color": colours, "pattern": {"shape": patterns, "fgcolor": "$muted", "size": 6}},
            "hovertext": hover,
            "hoverinfo": "text",
        },
        {
            **dots(labels, ends, color="$ink", symbol="circle", size=5),
            "error_x": whiskers(errors, "$ink"),
            "hoverinfo": "skip",
        },
    ]
    tops = [end + (arm[1] or 0.0) for end, arm in zip(ends, errors, strict=True)]
    return {
        "data": data,
        "layout": layout(
            height=78 + 38 * len(labels),
            xaxis=ratio_axis("speed-up since the start (log scale)", [*bases, *ends, *tops]),
            yaxis=rows_axis(labels),
            shapes=[vertical(1.0, "$muted", "solid")],
        ),
    }


def pairs(comparison: Comparison | None) -> Plot:
    """Return the speed-up of each pair of the final proof, with their interval and the noise floor to exceed."""
    points = pair_ratios(comparison.samples or () if comparison else ())
    if comparison is None or not points:
        return "There are no paired samples of a final comparison, so there is no proof to draw."
    labels = [f"pair {pair}{' (disturbed)' if bad else ''}:  {ratio_words(ratio, '×')}" for pair, ratio, bad in points]
    sound = [None if disturbed else ratio for _, ratio, disturbed in points]
    disturbed = [ratio if disturbed else None for _, ratio, disturbed in points]
    low, high, ratio, floor = comparison.low, comparison.high, comparison.ratio, comparison.floor
    shapes: list[Figure] = [vertical(1.0, "$muted", "solid")]
    notes: list[Figure] = [note(1.0, "no change")]
    if low is not None and high is not None:
        band = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": low, "x1": high}
        shapes.insert(0, {**band, "fillcolor": "$band", "line": {"width": 0}, "layer": "below"})
    if ratio is not None:
        shapes.append(vertical(ratio, "$good", "solid"))
        notes.append(note(ratio, ratio_words(ratio, "×")))
    if floor is not None:
        shapes.append(vertical(1 + floor, "$bad", "dot"))
    data = [dots(labels, sound, color="$accent", symbol="circle", size=11)]
    if any(value is not None for value in disturbed):
        data.append(dots(labels, disturbed, color="$bad", symbol="x-thin-open", size=10))
    drawn = [value for value in (*sound, *disturbed, low, high, 1.0, 1 + (floor or 0.0)) if value is not None]
    return {
        "data": data,
        "layout": layout(
            height=92 + 26 * len(labels),
            xaxis=ratio_axis("speed-up of the pair (log scale)", drawn),
            yaxis=rows_axis(labels),
            shapes=shapes,
            annotations=notes,
            margin={"l": 8, "r": 16, "t": 24, "b": 48},
        ),
    }


def pair_ratios(samples: Sequence[Sample]) -> list[tuple[int, float, bool]]:
    """Return for each pair its number, ratio and whether a sample was disturbed.

    The ratio is the geometric mean time of arm A divided by that of arm B. Disturbed samples count only if an arm has no
    others.
    """
    by_pair: dict[int, dict[str, list[Sample]]] = {}
    for sample in samples:
        if sample.seconds_per_item > 0:
            by_pair.setdefault(sample.pair, {"A": [], "B": []})[sample.arm].append(sample)
    ratios = []
    for pair, arms in sorted(by_pair.items()):
        clean = {arm: [sample for sample in some if not sample.spoilt] for arm, some in arms.items()}
        disturbed = not all(clean.values())
        used = arms if disturbed else clean
        if all(used.values()):
            logs = {arm: fmean(math.log(sample.seconds_per_item) for sample in some) for arm, some in used.items()}
            ratios.append((pair, math.exp(logs["A"] - logs["B"]), disturbed))
    return ratios


def losses(evidence: Evidence) -> Plot:
    """Return the training loss of both arms at each update."""
    recorded = evidence.losses
    curves = {"baseline": recorded.baseline, "tuned": recorded.tuned} if recorded else {}
    if not curves or not all(any(value is not None for value in values) for values in curves.values()):
        return "No pair of loss curves was recorded, so there is none to draw."
    styles = {"baseline": ("$muted", "solid", 3), "tuned": ("$accent", "dot", 2.5)}
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": list(range(1, len(values) + 1)),
            "y": list(values),
            "line": {"color": styles[name][0], "dash": styles[name][1], "width": styles[name][2]},
            "hovertemplate": f"{name}, update %{{x}}: %{{y:.4g}}<extra></extra>",
        }
        for name, values in curves.items()
    ]
    loss_axis = axis("training loss", automargin=True)
    return {"data": data, "layout": layout(height=330, xaxis=axis("update"), yaxis=loss_axis)}
