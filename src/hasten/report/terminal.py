"""The summary a person sees when tuning ends: one answer, where the time went, and what became of every candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.report.evidence import PHASES
from hasten.report.words import (
    Evidence,
    Tone,
    headline,
    interval_words,
    is_to_target,
    ms_words,
    number,
    percent,
    ratio_words,
    rows,
    seconds_words,
    settings_words,
    table,
    text,
)

STYLES: Mapping[Tone, str] = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}
OUTCOMES = {
    "applied": ("✓", "+", "green"),
    "pruned": ("✂", "~", "dim"),
    "undecided": ("?", "?", "yellow"),
    "failed": ("✗", "x", "red"),
    "refused": ("–", "-", "dim"),
}
FILES = (
    ("report.html", "the whole story, with plots"),
    ("hasten.toml", "the plan"),
    ("hasten.patch", "the plan as changes of the script"),
    ("evidence.json", "every number"),
)
WAITING = "not tried: it needs about"
"""Begins the reason of a candidate whose turn did not come."""
BAR_CELLS, LEAST_BAR_CELLS = 28, 8
"""Of the bar of a whole update; less where the console is too narrow for two."""


def print_summary(evidence: Evidence, console: Console, folder: Path | None = None) -> None:
    """Print what the tuning found; also without a terminal, and for evidence that is only partly there.

    Args:
        evidence: What `evidence.json` holds.
        console: Where to print.
        folder: Where the files of this tuning are; None leaves their names out.
    """
    answer = headline(evidence)
    say = _Speaker(console)
    console.print()
    say.line(Text(answer.line, style=STYLES[answer.tone]))
    bottleneck = table(evidence, "bottleneck")
    if words := text(bottleneck, "words"):
        say.line(Text(words))
    _print_phases(evidence, say)
    _print_rungs(evidence, say)
    if cost := _cost_line(evidence):
        say.line(Text(cost, style="dim"))
    if folder is not None:
        console.print()
        for name, meaning in FILES:
            if name == "hasten.patch" and not table(table(evidence, "patch"), "written"):
                continue
            say.line(Text.assemble((f"{folder / name}", "bold"), (f"  {meaning}", "dim")))
    console.print()


class _Speaker:
    """A console with an indent, that knows whether it may draw more than ASCII."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.plain = is_plain(console)

    def line(self, words: Text | Table, indent: int = 0) -> None:
        if self.plain and isinstance(words, Text):
            words = Text(_ascii(words.plain))
        self.console.print(Padding(words, (0, 1, 0, 1 + indent)), highlight=False)


def is_plain(console: Console) -> bool:
    """Whether the console's encoding cannot carry bars and marks."""
    try:
        "█✓✂–→".encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _ascii(words: str) -> str:
    for fancy, simple in (("–", "-"), ("→", "->"), ("×", "x"), ("█", "#"), ("…", "...")):
        words = words.replace(fancy, simple)
    return words.encode("ascii", "replace").decode("ascii")


def _print_phases(evidence: Evidence, say: _Speaker) -> None:
    before, after = table(evidence, "phases"), table(evidence, "phases_after")
    step = table(evidence, "step_ms")
    whole = number(step, "baseline"), number(step, "tuned")
    if not before:
        return
    # Without times, both arms are drawn as shares of their own update.
    relative = (whole[1] / whole[0]) if after and whole[0] and whole[1] is not None else 1.0
    grid = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    grid.add_column("update", no_wrap=True)
    cells = _bar_cells(say.console.width, 2 if after else 1)
    for title, total, present in (("before", whole[0], True), ("after", whole[1], bool(after))):
        if present:
            grid.add_column(f"{title} {ms_words(total)}" if total is not None else title, width=cells, no_wrap=True)
            grid.add_column("", justify="right", no_wrap=True)
    block = "#" if say.plain else "█"
    for name in PHASES:
        shares = number(before, name) or 0.0, number(after, name) or 0.0
        if max(shares) < 0.005:
            continue
        row = [Text(name), _bar(shares[0], block, "cyan", cells), Text(percent(shares[0]))]
        if after:
            row += [_bar(shares[1] * relative, block, "green", cells), Text(percent(shares[1]))]
        grid.add_row(*row)
    say.console.print()
    say.line(grid)


def _bar_cells(width: int, arms: int) -> int:
    """Cells of the bar of a whole update, so that all columns fit beside each other."""
    names = max(len(name) for name in PHASES) + 2
    shares = len("0.018 %") + 4  # with the space behind a bar and behind its share
    return min(max((width - 2 - names) // arms - shares, LEAST_BAR_CELLS), BAR_CELLS)


def _bar(frac: float, block: str, style: str, whole: int) -> Text:
    cells = round(min(max(frac, 0.0), 1.0) * whole)
    return Text(block * cells or ("." if frac > 0 else ""), style=style)


def _print_rungs(evidence: Evidence, say: _Speaker) -> None:
    rungs = rows(evidence, "rungs")
    tried = [rung for rung in rungs if table(rung, "comparison") or text(rung, "outcome") != "refused"]
    refused = [rung for rung in rungs if rung not in tried]
    say.console.print()
    if not rungs:
        say.line(Text("No candidate was tried.", style="dim"))
    width = max((len(text(rung, "name")) for rung in rungs), default=0)
    waiting = [rung for rung in tried if text(rung, "reason").startswith(WAITING)]
    for rung in tried:
        if rung not in waiting:
            _print_tried(rung, width, say)
    if waiting:
        counts = Counter(text(rung, "name") for rung in waiting)
        names = ", ".join(name if count == 1 else f"{name} ({count} settings)" for name, count in counts.items())
        say.console.print()
        say.line(Text(f"Not tried for want of time; a larger --budget reaches them ({len(waiting)}):", style="yellow"))
        say.line(Text(names, style="dim"))
    if refused:
        say.console.print()
        say.line(Text(f"Not run, because they cannot help here ({len(refused)}):", style="dim"))
        for rung in refused:
            line = Text(f"{text(rung, 'name'):<{width}}  {text(rung, 'reason')}", style="dim")
            line.truncate(max(say.console.width - 2, 20), overflow="ellipsis")
            say.line(line)
    say.console.print()


def _print_tried(rung: Mapping[str, Any], width: int, say: _Speaker) -> None:
    outcome, comparison, numerics = text(rung, "outcome"), table(rung, "comparison"), table(rung, "numerics")
    mark, simple, style = OUTCOMES.get(outcome, (".", ".", ""))
    gain = ratio_words(number(comparison, "ratio"))
    if interval := interval_words(comparison):
        gain += f" ({interval})"
    parts = [(f"{simple if say.plain else mark} {outcome:<9}  ", style), (f"{text(rung, 'name'):<{width}}  ", "bold")]
    parts += [(f"{gain:<24}", "")]
    if is_to_target(comparison):
        parts += [("to the target  ", "")]
    if numerics:
        parts += [(f"numbers {text(numerics, 'class')}: {text(numerics, 'verdict').replace('_', ' ')}", "dim")]
    say.line(Text.assemble(*parts))
    settings = settings_words(rung)
    say.line(Text(text(rung, "reason") + (f" ({settings})" if settings else ""), style="dim"), indent=13)


def _cost_line(evidence: Evidence) -> str:
    parts = []
    if (seconds := number(evidence, "seconds")) is not None:
        parts.append(f"Tuning took {seconds_words(seconds)}")
    if (floor := number(table(evidence, "noise"), "floor_frac")) is not None:
        parts.append(f"noise floor {percent(floor)}")
    if (cost := number(evidence, "own_cost_frac")) is not None:
        parts.append(f"Hasten's own cost {percent(cost)} of an update")
    line = "; ".join(parts)
    return f"{line[:1].upper()}{line[1:]}." if line else ""
