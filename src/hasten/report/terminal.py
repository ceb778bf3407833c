"""The summary a person sees when tuning ends: one answer, where the time went, and what became of every candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.report.evidence import PHASES, Candidate, Evidence
from hasten.report.words import (
    Tone,
    headline,
    interval_words,
    is_to_target,
    ms_words,
    percent,
    ratio_words,
    seconds_words,
    settings_words,
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
    """Print what the tuning found; also without a terminal.

    Args:
        evidence: What `evidence.json` holds.
        console: Where to print.
        folder: Where the files of this tuning are; None leaves their names out.
    """
    answer = headline(evidence)
    say = _Speaker(console)
    console.print()
    say.line(Text(answer.line, style=STYLES[answer.tone]))
    if evidence.bottleneck is not None:
        say.line(Text(evidence.bottleneck.words))
    _print_phases(evidence, say)
    _print_candidates(evidence, say)
    say.line(Text(_cost_line(evidence), style="dim"))
    if folder is not None:
        console.print()
        for name, meaning in FILES:
            if name == "hasten.patch" and not (evidence.patch and evidence.patch.written):
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
    before, after, step = evidence.phases, evidence.phases_after or {}, evidence.step_ms
    whole = (step.baseline, step.tuned) if step else (None, None)
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
        shares = before.get(name, 0.0), after.get(name, 0.0)
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


def _print_candidates(evidence: Evidence, say: _Speaker) -> None:
    tried = [item for item in evidence.rungs if item.comparison or item.outcome != "refused"]
    refused = [item for item in evidence.rungs if not item.comparison and item.outcome == "refused"]
    say.console.print()
    if not evidence.rungs:
        say.line(Text("No candidate was tried.", style="dim"))
    width = max((len(item.name) for item in evidence.rungs), default=0)
    waiting = [item for item in tried if item.reason.startswith(WAITING)]
    for item in tried:
        if not item.reason.startswith(WAITING):
            _print_tried(item, width, say)
    if waiting:
        counts = Counter(item.name for item in waiting)
        names = ", ".join(name if count == 1 else f"{name} ({count} settings)" for name, count in counts.items())
        say.console.print()
        say.line(Text(f"Not tried for want of time; a larger --budget reaches them ({len(waiting)}):", style="yellow"))
        say.line(Text(names, style="dim"))
    if refused:
        say.console.print()
        say.line(Text(f"Not run, because they cannot help here ({len(refused)}):", style="dim"))
        for item in refused:
            line = Text(f"{item.name:<{width}}  {item.reason}", style="dim")
            line.truncate(max(say.console.width - 2, 20), overflow="ellipsis")
            say.line(line)
    say.console.print()


def _print_tried(candidate: Candidate, width: int, say: _Speaker) -> None:
    comparison, numerics = candidate.comparison, candidate.numerics
    mark, simple, style = OUTCOMES[candidate.outcome]
    gain = ratio_words(comparison.ratio if comparison else None)
    if interval := interval_words(comparison):
        gain += f" ({interval})"
    outcome = f"{simple if say.plain else mark} {candidate.outcome:<9}  "
    parts = [(outcome, style), (f"{candidate.name:<{width}}  ", "bold"), (f"{gain:<24}", "")]
    if is_to_target(comparison):
        parts += [("to the target  ", "")]
    if numerics:
        parts += [(f"numbers {numerics.kind}: {numerics.verdict.replace('_', ' ')}", "dim")]
    say.line(Text.assemble(*parts))
    settings = settings_words(candidate)
    say.line(Text(candidate.reason + (f" ({settings})" if settings else ""), style="dim"), indent=13)


def _cost_line(evidence: Evidence) -> str:
    parts = [f"Tuning took {seconds_words(evidence.seconds)}"]
    if evidence.noise is not None:
        parts.append(f"noise floor {percent(evidence.noise.floor_frac)}")
    if evidence.own_cost_frac is not None:
        parts.append(f"Hasten's own cost {percent(evidence.own_cost_frac)} of an update")
    return f"{'; '.join(parts)}."
