"""Print the summary of a tuning: where the time goes, the outcome of every candidate, and at the end the answer."""

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
    command_words,
    comparable_phases,
    headline,
    interval_words,
    is_to_target,
    ms_words,
    next_command,
    outcome_words,
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
    ("report.html", "the full report, with plots"),
    ("hasten.toml", "the plan"),
    ("hasten.patch", "the plan as a patch of the script"),
    ("evidence.json", "all measurements"),
)
WAITING, EXCLUDED = "not tried: it needs about", "excluded by the request"
"""Start of the reason of a candidate that the budget did not reach, and of one that `--only` or `--without` excludes."""
BAR_CELLS, LEAST_BAR_CELLS = 28, 8
"""Width of the bar of a whole update; less if the console is too narrow for two bars."""


def print_summary(evidence: Evidence, console: Console, folder: Path | None = None, *, every: bool = False) -> None:
    """Print the summary of a tuning. The last lines are the answer and the next command.

    Args:
        evidence: The content of `evidence.json`.
        console: Where to print.
        folder: Folder with the files of this tuning; None leaves their names out.
        every: List the techniques that do not apply, instead of their number.
    """
    answer = headline(evidence)
    say = _Speaker(console)
    console.print()
    if evidence.bottleneck is not None:
        say.line(Text(evidence.bottleneck.words))
    _print_phases(evidence, say)
    _print_candidates(evidence, say, every=every)
    say.line(Text(_cost_line(evidence), style="dim"))
    if folder is not None:
        console.print()
        for name, meaning in FILES:
            place = ""
            if name == "hasten.patch":
                if not (evidence.patch and evidence.patch.written):
                    continue
                place = f"; apply it in {evidence.patch.folder}" if evidence.patch.folder else ""
            say.line(Text.assemble((f"{folder / name}", "bold"), (f"  {meaning}{place}", "dim")))
    console.print()
    say.line(Text(answer.line, style=STYLES[answer.tone]))
    if command := next_command(evidence):
        say.line(Text("Next:"))
        say.line(Text(command_words(command, console.width - 2), "bold"))
    console.print()


class _Speaker:
    """A console with an indent that knows whether it is limited to ASCII."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.plain = is_plain(console)

    def line(self, words: Text | Table, indent: int = 0) -> None:
        if self.plain and isinstance(words, Text):
            words = Text(_ascii(words.plain))
        self.console.print(Padding(words, (0, 1, 0, 1 + indent)), highlight=False)


def is_plain(console: Console) -> bool:
    """Return whether the console's encoding lacks the characters of bars and marks."""
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
    before, after, missing = comparable_phases(evidence)
    step = evidence.step_ms
    whole = (step.baseline, step.tuned) if step else (None, None)
    if not before:
        return
    # Without times, both bars show shares of their own update.
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
    if missing:
        say.line(Text(f"Not measured again under the plan, so left out of both: {', '.join(missing)}.", style="dim"))


def _bar_cells(width: int, arms: int) -> int:
    """Return the width of the bar of a whole update with which all columns fit on a line."""
    names = max(len(name) for name in PHASES) + 2
    shares = len("0.018 %") + 4  # with the spaces after a bar and after its share
    return min(max((width - 2 - names) // arms - shares, LEAST_BAR_CELLS), BAR_CELLS)


def _bar(frac: float, block: str, style: str, whole: int) -> Text:
    cells = round(min(max(frac, 0.0), 1.0) * whole)
    return Text(block * cells or ("." if frac > 0 else ""), style=style)


def _print_candidates(evidence: Evidence, say: _Speaker, *, every: bool) -> None:
    refused = [item for item in evidence.rungs if item.outcome == "refused" and not (item.comparison or item.tried)]
    tried = [item for item in evidence.rungs if item not in refused]
    say.console.print()
    if not evidence.rungs:
        say.line(Text("No technique was tried.", style="dim"))
    width = max((len(item.name) for item in evidence.rungs), default=0)
    waiting = [item for item in tried if item.reason.startswith(WAITING)]
    for item in tried:
        if not item.reason.startswith(WAITING):
            _print_tried(item, width, say)
    if waiting:
        counts = Counter(item.name for item in waiting)
        names = ", ".join(name if count == 1 else f"{name} ({count} settings)" for name, count in counts.items())
        say.console.print()
        say.line(Text(f"Not tried for lack of time ({len(waiting)}); a larger --budget reaches them:", style="yellow"))
        say.line(Text(names, style="dim"))
    if refused:
        say.console.print()
        if every:
            say.line(Text(f"Do not apply ({len(refused)}):"))
            for item in refused:
                say.line(Text(item.name))
                say.line(Text(item.reason, style="dim"), indent=2)
        else:
            why = Counter(EXCLUDED if item.reason.startswith(EXCLUDED) else "not applicable" for item in refused)
            parts = [f"{count} technique{'s' if count > 1 else ''} {reason}" for reason, count in why.items()]
            say.line(Text(f"{' and '.join(parts)}; report.html lists the reasons, and so does --all.", style="dim"))
    say.console.print()


def _print_tried(candidate: Candidate, width: int, say: _Speaker) -> None:
    comparison, numerics = candidate.comparison, candidate.numerics
    mark, simple, style = OUTCOMES[candidate.outcome]
    gain = ratio_words(comparison.ratio if comparison else None)
    if interval := interval_words(comparison):
        gain += f" ({interval})"
    outcome = f"{simple if say.plain else mark} {outcome_words(candidate):<9}  "
    target = " to the target" if is_to_target(comparison) else ""
    say.line(Text.assemble((outcome, style), (f"{candidate.name:<{width}}  ", "bold"), gain + target))
    settings = settings_words(candidate)
    checked = f"; numerics {numerics.kind}: {numerics.verdict.replace('_', ' ')}" if numerics else ""
    say.line(Text(candidate.reason + (f" ({settings})" if settings else "") + checked, style="dim"), indent=4)


def _cost_line(evidence: Evidence) -> str:
    parts = [f"Tuning took {seconds_words(evidence.seconds)}"]
    if evidence.noise is not None:
        parts.append(f"noise floor {percent(evidence.noise.floor_frac)}")
    if evidence.own_cost_frac is not None:
        parts.append(f"Hasten's own cost {percent(evidence.own_cost_frac)} of an update")
    return f"{'; '.join(parts)}."
