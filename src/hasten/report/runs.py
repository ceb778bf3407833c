"""Write an HTML page about one run, or about several side by side: phases, losses, memory, machine, alerts, plan.

The page draws at most 2,000 points per line: of many windows it keeps the least and the largest value of each stretch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hasten.report.figure import Figure, axis, layout, safe
from hasten.report.html import without_folders
from hasten.report.page import Plot, environment, render_page
from hasten.report.words import bytes_words, key_words, ms_words, value_words

MOST_POINTS = 2000
MOST_TRACKS = 8
"""Ranks or runs whose phases are drawn. Lines are drawn for all."""
COLOURS = ("#2a8fb3", "#c0562b", "#4b7f2c", "#7a4fa3", "#a3852a", "#b03a6a")
DASHES = ("solid", "dot", "dash", "dashdot")
PHASES = ("data", "transfer", "forward", "backward", "sync", "optimizer", "logging")
"""Phases that have a colour, in the order of a step. Others follow in grey."""
PHASE, STEP, SAMPLES, LOSS = "phase.", "training.step_time", "training.samples", "training.loss"
MEMORY = ("process.memory.private", "process.memory.tree", "torch.memory.allocated", "gpu.memory.process")
"""Kinds of memory that are compared if there are several runs or ranks."""
_ROOM = ("system.", "gpu.memory.total", "gpu.memory.others")
"""Memory that is not the training's."""
_UNITS = {"By": ("MiB", 2.0**20), "By/s": ("MiB/s", 2.0**20), "Hz": ("MHz", 1e6)}
_PEAK = ("process.memory.tree", "process.memory.resident", "torch.memory.peak")


@dataclass(frozen=True, kw_only=True)
class Track:
    """What was measured on one rank of a run.

    Attributes:
        name: The run, and the rank if there are several.
        rank: The rank.
        begin: Steps completed before the first window.
        rows: Steps completed at the end of each window, and its metrics. `phase.NAME` are seconds per step.
    """

    name: str
    rank: int
    begin: int
    rows: Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run, as plain data.

    Attributes:
        name: Its folder's name.
        state: Its state, such as `finished`.
        tracks: One for each rank.
        facts: Name -> words, from its record.
        plan: Technique -> settings.
        proved: What the plan was proved to do: the terms of the contract.
        held_out: Step and metrics of each measurement on held-out data.
        alerts: Each with `rule`, `rank`, `from_step`, `to_step` (None while it fires), `words`, `cause` and `next`.
        incidents: Each with `kind`, `update`, `words` and `action`.
        units: Metric -> unit.
        notes: What a reader must know about the data.
    """

    name: str
    state: str
    tracks: Sequence[Track]
    facts: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    proved: Mapping[str, Any] = field(default_factory=dict)
    held_out: Sequence[tuple[int, Mapping[str, float]]] = ()
    alerts: Sequence[Mapping[str, Any]] = ()
    incidents: Sequence[Mapping[str, Any]] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def render_runs(runs: Sequence[RunFacts], comparison: Mapping[str, Any] | None = None) -> str:
    """Return the page as text. Absolute paths lose their folders, because pages are made to be shared.

    `comparison`: what `hasten runs compare --json` prints, with several runs.
    """
    tracks, plots = _tracks(runs), run_plots(runs)
    told = [
        {
            "name": run.name, "state": run.state, "tiles": _tiles(run), "facts": run.facts, "proved": _terms(run.proved),
            "plan": list(run.plan), "alerts": run.alerts, "incidents": run.incidents, "notes": run.notes,
        }
        for run in runs
    ]  # fmt: skip
    names = {start: [name for name in plots if name.startswith(start)] for start in ("phases-", "held-out-", "machine-")}
    return render_page(
        environment(), "runs.html.j2", plots, runs=without_folders(told), names=names,
        comparison=without_folders(comparison or {}),
        titles={name: _title_of(plot) for name, plot in plots.items()}, constant=_constant(tracks),
        num_tracks=len(tracks), most_tracks=MOST_TRACKS, banded=any(map(_band, runs)),
    )  # fmt: skip


def run_plots(runs: Sequence[RunFacts]) -> dict[str, Plot]:
    """Return the plots by name. Of several runs, the first rank of each is drawn."""
    tracks = _tracks(runs)
    several, metrics = len(tracks) > 1, _metrics(tracks)
    plots: dict[str, Plot] = {
        f"phases-{number}": phases(run, track) for number, (run, track) in enumerate(tracks[:MOST_TRACKS])
    }
    plots["step"] = _lines(
        tracks, STEP, "seconds per step", "No step times were recorded.", _band(runs[0]) if len(runs) == 1 else []
    )
    plots["throughput"] = _lines(tracks, SAMPLES, "samples per second", "No throughput was recorded.")
    plots["loss"] = _lines(tracks, LOSS, "training loss", "No training loss was recorded.", zero=False)
    for name in dict.fromkeys(name for run in runs for _, metrics in run.held_out for name in metrics):
        plots[f"held-out-{name}"] = held_out(runs, name)
    kinds = [name for name in metrics if is_memory(name)]
    plots["memory"] = memory(tracks, [name for name in kinds if name in MEMORY] if several else kinds)
    units = {name: unit for run in runs for name, unit in run.units.items()}
    for name, values in metrics.items():
        if not is_memory(name) and not name.startswith(PHASE) and name not in (STEP, SAMPLES, LOSS) and len(set(values)) > 1:
            unit, scale = _UNITS.get(units.get(name, "1"), (units.get(name, "1").strip("{}"), 1.0))
            plots[f"machine-{name}"] = _lines(tracks, name, "" if unit == "1" else unit, "", scale=scale, height=190)
    return plots


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """Return the places of at most `most` values, in order. The least and the largest value of each stretch are kept."""
    if len(values) <= most:
        return list(range(len(values)))
    size = math.ceil(len(values) / (most // 2))
    places: list[int] = []
    for begin in range(0, len(values), size):
        stretch = range(begin, min(begin + size, len(values)))
        places += sorted({min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)})
    return places


def is_memory(name: str) -> bool:
    """Return whether a metric is memory of the training."""
    return ".memory." in name and not name.startswith(_ROOM) and not name.endswith(".retries")


def phases(run: RunFacts, track: Track) -> Plot:
    """Return the seconds per step of each phase of a rank over the steps, as stacked areas."""
    rows = [(step, row) for step, row in track.rows if STEP in row and any(name.startswith(PHASE) for name in row)]
    if not rows:
        return "No phases were timed."
    rows = [rows[place] for place in thinned([row[STEP] for _, row in rows])]
    found = dict.fromkeys(name.removeprefix(PHASE) for _, row in rows for name in row if name.startswith(PHASE))
    names = [*(name for name in PHASES if name in found), *(name for name in found if name not in PHASES)]
    areas = {name: [row.get(PHASE + name, 0.0) for _, row in rows] for name in names}
    areas["other"] = [
        max(row[STEP] - sum(values[place] for values in areas.values()), 0.0) for place, (_, row) in enumerate(rows)
    ]
    steps = [track.begin, *(step for step, _ in rows)]  # the first window is drawn from its begin
    data = [
        {
            "type": "scatter", "mode": "lines", "name": safe(name), "stackgroup": "phases", "x": steps,
            "y": [values[0], *values], "line": {"width": 0.5, "color": colour}, "fillcolor": colour,
            "hovertemplate": "%{y:.4f} s",
        }
        for name, values in areas.items() if any(values)
        for colour in [f"$phase-{name}" if name in PHASES else "$phase-other"]
    ]  # fmt: skip
    shapes = [*_spans([(run, track)]), *_band(run)]
    return _figure(data, "seconds per step", shapes, legend=True, height=330, title=track.name)


def held_out(runs: Sequence[RunFacts], name: str) -> Plot:
    """Return a held-out metric of each run over the steps."""
    data = []
    for number, run in enumerate(runs):
        points = [(step, metrics[name]) for step, metrics in run.held_out if name in metrics]
        data.append(_line(run.name, points, COLOURS[number % len(COLOURS)], mode="lines+markers"))
    return _figure(data, f"held-out {safe(name)}", [], legend=len(runs) > 1, zero=False)


def memory(tracks: Sequence[tuple[RunFacts, Track]], kinds: Sequence[str]) -> Plot:
    """Return the memory of the training over the steps: a colour for each kind, or for each track if there are several."""
    several, data = len(tracks) > 1, []
    for number, (_, track) in enumerate(tracks):
        for place, kind in enumerate(kinds):
            points = [(step, row[kind] / 2**30) for step, row in track.rows if kind in row]
            if points:
                colour = COLOURS[(number if several else place) % len(COLOURS)]
                dash = DASHES[(place if several else place // len(COLOURS)) % len(DASHES)]
                data.append(_line(f"{track.name} {kind}" if several else kind, points, colour, dash=dash))
    if not data:
        return "No memory was recorded."
    return _figure(data, "GiB", _spans(tracks), legend=True, height=330)


def _lines(
    tracks: Sequence[tuple[RunFacts, Track]], metric: str, unit: str, none: str, shapes: Sequence[Figure] = (), *,
    zero: bool = True, scale: float = 1.0, height: int = 280,
) -> Plot:  # fmt: skip
    """Return a metric of each run or rank over the steps; the sentence `none` if there is none."""
    data = []
    for number, (_, track) in enumerate(tracks):
        points = [(step, row[metric] / scale) for step, row in track.rows if metric in row]
        if points:
            data.append(_line(track.name, points, COLOURS[number % len(COLOURS)]))
    if not data:
        return none
    title = metric if metric not in (STEP, SAMPLES, LOSS) else ""
    return _figure(data, unit, [*_spans(tracks), *shapes], legend=len(tracks) > 1, zero=zero, height=height, title=title)


def _line(name: str, points: Sequence[tuple[int, float]], colour: str, *, dash: str = "solid", mode: str = "") -> Figure:
    kept = [points[place] for place in thinned([value for _, value in points])]
    return {
        "type": "scatter", "mode": mode or ("lines" if len(kept) > 30 else "lines+markers"), "name": safe(name),
        "x": [step for step, _ in kept], "y": [value for _, value in kept],
        "line": {"color": colour, "width": 1.7, "dash": dash}, "marker": {"size": 5},
        "hovertemplate": "%{y:.4g}",
    }  # fmt: skip


def _figure(
    data: list[Figure], title_y: str, shapes: Sequence[Figure], *, legend: bool, zero: bool = True, height: int = 280,
    title: str = "",
) -> Figure:  # fmt: skip
    return {
        "data": data,
        "layout": layout(
            height=height, xaxis=axis("step", automargin=True, rangemode="tozero"), shapes=list(shapes), showlegend=legend,
            hovermode="x unified",
            yaxis=axis(title_y, automargin=True, **({"rangemode": "tozero"} if zero else {})),
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
            hoverlabel={"bgcolor": "$card", "bordercolor": "$line", "font": {"color": "$ink"}, "align": "left"},
            margin={"l": 8, "r": 12, "t": 12, "b": 44}, meta=title,
        ),
    }  # fmt: skip


def _band(run: RunFacts) -> list[Figure]:
    """Return what a step was proved to take, as a shaded range; empty if nothing was proved."""
    low, high = run.proved.get("update_low_s"), run.proved.get("update_high_s")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return []
    edge = {"color": "$ink", "width": 1, "dash": "dot"}
    return [
        {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "fillcolor": "#00795a", "opacity": 0.3,
         "line": edge}
    ]  # fmt: skip


def _spans(tracks: Sequence[tuple[RunFacts, Track]]) -> list[Figure]:
    """Return the alerts of these ranks as shaded steps."""
    shapes = []
    for run, track in tracks:
        last = track.rows[-1][0] if track.rows else 0
        for alert in run.alerts:
            if alert["rank"] == track.rank:
                end = last if alert["to_step"] is None else alert["to_step"]
                shapes.append({
                    "type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": alert["from_step"],
                    "x1": max(end, alert["from_step"] + 1), "fillcolor": "$bad", "opacity": 0.16, "line": {"width": 0},
                    "layer": "below",
                })  # fmt: skip
    return shapes


def _tracks(runs: Sequence[RunFacts]) -> list[tuple[RunFacts, Track]]:
    """Return what is drawn: all ranks of one run, or the first rank of each of several runs."""
    return [(run, track) for run in runs for track in (run.tracks if len(runs) == 1 else run.tracks[:1])]


def _metrics(tracks: Sequence[tuple[RunFacts, Track]]) -> dict[str, list[float]]:
    """Return all values of each metric, by name in alphabetical order."""
    found: dict[str, list[float]] = {}
    for _, track in tracks:
        for _, row in track.rows:
            for name, value in row.items():
                found.setdefault(name, []).append(value)
    return dict(sorted(found.items()))


def _terms(proved: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the terms of the contract as names and values."""
    return [
        (key_words(key.removesuffix("_s")), ms_words(1000 * value))
        if key.endswith("_s") and isinstance(value, int | float)
        else (key_words(key), value_words(key, value))
        for key, value in proved.items()
    ]


def _constant(tracks: Sequence[tuple[RunFacts, Track]]) -> dict[str, str]:
    """Return the metrics of the machine that never changed, with their value."""
    found = {name: values[0] for name, values in _metrics(tracks).items() if len(set(values)) == 1 and not is_memory(name)}
    shown = (PHASE, STEP, SAMPLES, LOSS)
    return {name: f"{value:,.6g}" for name, value in found.items() if not name.startswith(shown)}


def _tiles(run: RunFacts) -> list[tuple[str, str]]:
    """Return the figures that a reader looks for first, as names and values."""
    rows = [row for track in run.tracks[:1] for _, row in track.rows]

    def of(name: str) -> list[float]:
        return [row[name] for row in rows if name in row]

    peak = max((value for name in _PEAK for value in of(name)), default=None)
    firing = sum(alert["to_step"] is None for alert in run.alerts)
    steps = run.tracks[0].rows[-1][0] if rows else 0
    told = {
        "steps": f"{steps:,}" if rows else "",
        "median step": ms_words(1000 * median(of(STEP))) if of(STEP) else "",
        "median samples per second": f"{median(of(SAMPLES)):,.4g}" if of(SAMPLES) else "",
        "last training loss": f"{of(LOSS)[-1]:.4g}" if of(LOSS) else "",
        "most memory": bytes_words(peak) if peak else "",
        "alerts": f"{len(run.alerts)}{f' ({firing} still firing)' if firing else ''}",
    }
    return [(name, words) for name, words in told.items() if words]


def _title_of(plot: Plot) -> str:
    return "" if isinstance(plot, str) else str(plot["layout"]["meta"])
