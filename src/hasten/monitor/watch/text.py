"""Draw the runs in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hasten.monitor.alerts.engine import seconds_text
from hasten.monitor.alerts.judge import EVENTS, step_s
from hasten.monitor.watch.runs import Watched, describe
from hasten.monitor.window import Window

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = ("cyan", "green", "yellow", "magenta", "blue", "red", "white")
_OF_STATE = {"running": "green", "finished": "blue", "failed": "red", "killed": "red"}


def draw(ranks: Sequence[Watched], width: int) -> RenderableType:
    """Return a page of all runs: a table, then for each of the first runs its phases, its step time and its alerts."""
    if not ranks:
        return Text("No run has written windows yet. `hasten run` writes them while it trains.")
    shown = [(rank, describe(rank)) for rank in ranks]
    shown.sort(key=lambda pair: (pair[1]["state"] != "running", pair[1]["age_s"] or 0.0))
    parts: list[RenderableType] = [_table([about for _, about in shown])]
    for rank, about in shown[:4]:
        parts += ["", *_details(rank, about, width)]
    return Group(*parts)


def _table(runs: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name, side in (("run", "left"), ("state", "left"), ("step", "right"), ("s/step", "right"), ("samples/s", "right")):
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("alerts", no_wrap=True, overflow="ellipsis")
    for run in runs:
        values = run["values"]
        planned = f"/{run['planned']:,}" if run["planned"] else ""
        table.add_row(
            run["id"],
            Text(run["state"], style=_OF_STATE.get(run["state"], "")),
            f"{run['step']:,}{planned}",
            _number(values.get("training.step_time"), seconds_text),
            _number(values.get("training.samples"), lambda value: f"{value:,.0f}"),
            _number(values.get("training.loss"), lambda value: f"{value:.4g}"),
            Text(", ".join(alert["rule"] for alert in run["firing"]), style="bold red"),
        )
    return table


def _details(rank: Watched, about: dict[str, Any], width: int) -> list[RenderableType]:
    steps = [window for window in rank.windows if window.steps]
    lines: list[RenderableType] = [Text(about["id"], style="bold")]
    if steps:
        lines += [_phases(steps[-1], width), _history("s/step", [step_s(window) or 0.0 for window in steps], width)]
        losses = [loss for window in steps if (loss := window.metrics().get("training.loss")) is not None]
        if losses:
            lines.append(_history("loss", losses, width))
    lines += [Text(f"! {alert['rule']}: {alert['words']}", style="red") for alert in about["firing"]]
    return lines


def _phases(window: Window, width: int) -> Text:
    """Return a bar of the phases of a step, and its legend."""
    phases = {name: spent for name, spent in window.phases.items() if name not in EVENTS and spent > 0.0}
    whole = sum(phases.values())
    text = Text()
    if not whole:
        return Text("no phases were timed")
    for (_, spent), style in zip(phases.items(), _STYLES, strict=False):
        text.append("█" * round(spent / whole * min(width - 1, 100)), style=style)
    text.append("\n")
    for (name, spent), style in zip(phases.items(), _STYLES, strict=False):
        text.append(f"{name} ", style=style)
        text.append(f"{spent / whole:.0%}  ")
    return text


def _history(name: str, values: Sequence[float], width: int) -> Text:
    """Return the last values as a line of bars, from the least to the most."""
    shown = values[-max(width - 30, 10) :]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    bars = "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in shown)
    return Text(f"{name:<7} {bars} {low:.4g} to {high:.4g}")


def _number(value: float | None, words: Any) -> str:
    return "" if value is None else str(words(value))
