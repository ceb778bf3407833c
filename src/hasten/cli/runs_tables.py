"""Print runs: a table of all, a page for one, several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from hasten.cli.say import console, say
from hasten.report.curve import curve
from hasten.report.terminal import is_plain
from hasten.report.words import bytes_words, percent, seconds_words
from hasten.train.records.clean import Leftovers
from hasten.train.records.record import ended_words
from hasten.train.records.reports import finite
from hasten.train.run import metrics_words

STYLES = {"running": "bold cyan", "finished": "green", "stopped": "yellow", "killed": "red", "failed": "red"}
EPOCHS, CHECKPOINTS, UPDATES, STARTS = 10, 8, 6, 5
"""Number of lines of each that a page shows, newest last."""
WIDE_CELLS = 100
"""Least width of a terminal for the table of runs."""
_DAY_S = 86_400.0


def show_list(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Print a table of runs, or two lines for each on a narrow terminal."""
    table = _table("run", "state", "updates", "loss", "held-out", "samples/s", "saved", "active")
    table.padding = (0, 1, 0, 0)
    for row in rows:
        name = Text(_short(Path(row["run"]), folder), overflow="fold")
        cells = (
            _of(row["updates"], row["planned"]),
            _number(row["loss"]),
            _foremost(row["held_out"]),
            "" if row["samples_per_s"] is None else f"{row['samples_per_s']:,.0f}",
            bytes_words(row["checkpoint_bytes"]) if row["checkpoint_bytes"] else "",
            f"{age_words(row['age_s'])} ago",
        )
        table.add_row(name, _state(row["state"]), *cells)
        if console.width < WIDE_CELLS:
            labels = ("{}", "loss {}", "held-out {}", "{} samples/s", "{} saved", "{}")
            facts = "  ".join(label.format(cell) for label, cell in zip(labels, cells, strict=True) if cell)
            say(Text.assemble((name.plain, "bold"), "\n  ", _state(row["state"]), f"  {facts}"))
    if console.width >= WIDE_CELLS:
        console.print(table)


def show_run(page: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> None:
    """Print a run on one page."""
    say(Text.assemble((page["run"], "bold"), "  ", _state(page["state"]), f"  {_where(page)}"))
    if not page["record"]:
        say("The run has no record (run.toml): it was made by an older version of Hasten.")
    console.print()
    table = _table("", "")
    table.show_header = False
    for name, words in facts(page):
        table.add_row(Text(name, "dim"), Text(words, overflow="fold"))
    console.print(table)
    losses = [loss for row in reports if (loss := finite(row.get("loss"))) is not None]
    if len(losses) > 1:
        _headline("loss")
        for line in curve(losses, width=min(60, max(console.width - 12, 10)), plain=is_plain(console)):
            console.print(Text(line), no_wrap=True)
    epochs = page["held_out_by_epoch"]
    names = list(epochs[-1]["held_out"]) if epochs else []
    _show_last(
        "held-out", EPOCHS, epochs, ("epoch", "update", *names),
        lambda row: (str(row["epoch"]), f"{row['update']:,}", *(_number(row["held_out"].get(name)) for name in names)),
    )  # fmt: skip
    _show_last(
        "checkpoints", CHECKPOINTS, page["checkpoints"], ("update", "size", "written", ""),
        lambda row: (f"{row['update']:,}", bytes_words(row["num_bytes"]), row["created"], "best" if row["best"] else ""),
    )  # fmt: skip


def show_comparison(found: Mapping[str, Any]) -> None:
    """Print runs side by side."""
    names = short_names(found["runs"])
    if found["differences"]:
        table = _table("differs", *names)
        for row in found["differences"]:
            table.add_row(row["what"], *(Text(value or "-", overflow="fold") for value in row["values"]))
        console.print(table)
    else:
        console.print("Their records do not differ.")
    shared = found["held_out"]
    if shared:
        _headline("held-out, at the same update")
        table = _table("update", *names)
        for row in shared[-UPDATES:]:
            table.add_row(f"{row['update']:,}", *(Text(metrics_words(values)) for values in row["values"]))
        console.print(table)
    else:
        say("\nNo update has held-out results of all runs.")
    _show_speeds(found, names)
    console.print()
    for words in found["warnings"]:
        say(words)


def show_leftovers(found: Sequence[Leftovers], folder: Path) -> None:
    """Print what would be removed."""
    if not found:
        console.print("There is nothing to remove.")
        return
    table = _table("run", "state", "to remove", "kept")
    for one in found:
        table.add_row(
            Text(_short(one.run.path, folder), overflow="fold"),
            _state(one.run.state),
            bytes_words(one.num_bytes),
            Text(one.stays),
        )
    console.print(table)


def age_words(seconds: float) -> str:
    """Return an age such as `42 s` or `3 days`."""
    return seconds_words(seconds) if seconds < 2 * _DAY_S else f"{seconds / _DAY_S:.0f} days"


def facts(page: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the facts of the record and of the last report as names and values, without unknown ones."""
    parts = page["record"].get("parts", [])
    part, last = parts[-1] if parts else {}, page["last"]
    plan = "; ".join(_optimization(name, settings) for name, settings in page["plan"].items())
    repository = part.get("repository", {})
    memory = [bytes_words(last["memory_bytes"])] if last.get("memory_bytes") else []
    memory += [f"GPU {bytes_words(last['device_bytes'])}"] if last.get("device_bytes") else []
    phases = sorted(page["phases"].items(), key=lambda item: -item[1])
    lines = {
        "target": page["target"],
        "called with": " ".join(part.get("arguments", [])),
        "plan": plan or "no optimization",
        "seed": part.get("seed"),
        "batch size": part.get("batch_size"),
        "ranks": part.get("ranks"),
        "machine": part.get("machine"),
        "fingerprint": part.get("machine_fingerprint"),
        "versions": ", ".join(f"{name} {value}" for name, value in part.get("versions", {}).items()),
        "commit": f"{repository['commit']}{' with changes' if repository.get('changed') else ''}" if repository else None,
        "code, data": ", ".join(part[name] for name in ("code", "data") if part.get(name)),
        "trained for": None if page["seconds"] is None else seconds_words(page["seconds"]),
        "speed": None if page["samples_per_s"] is None else f"{page['samples_per_s']:,.0f} samples/s",
        "memory": ", ".join(memory),
        "incidents": ", ".join(f"{count} of {kind}" for kind, count in page["incidents"].items()),
        "an update": ", ".join(f"{name} {percent(share)}" for name, share in phases),
    }
    for number, one in list(enumerate(parts, 1))[-STARTS:]:
        ended = ended_words(one) or ("running" if page["state"] == "running" and one is part else "killed")
        name = "started" if len(parts) == 1 else f"start {number}"
        until = f", until {one['ended']}" if one.get("ended") else ""
        yield name, f"{one.get('started', '')} from update {one.get('from_update', 0):,}{until}: {ended}"
    yield from ((name, str(words)) for name, words in lines.items() if words not in (None, ""))


def _show_last(
    what: str, most: int, rows: Sequence[Mapping[str, Any]], names: Sequence[str],
    cells: Callable[[Mapping[str, Any]], Iterable[str]],
) -> None:  # fmt: skip
    """Print the last rows as a table; nothing if there are none."""
    if not rows:
        return
    _headline(f"{what}, the last {most} of {len(rows)}" if len(rows) > most else what)
    table = _table(*names)
    for row in rows[-most:]:
        table.add_row(*cells(row))
    console.print(table)


def _show_speeds(found: Mapping[str, Any], names: Sequence[str]) -> None:
    speed, same = found["speed"], found["to_same_loss"]
    _headline("speed")
    table = _table("", *names)
    for name, key in (
        ("samples/s while training", "training_samples_per_s"),
        ("samples/s of the whole run", "whole_samples_per_s"),
    ):
        table.add_row(name, *("-" if value is None else f"{value:,.0f}" for value in speed[key]))
    table.add_row("trained for", *(seconds_words(value) for value in speed["seconds"]))
    table.add_row("updates", *("-" if value is None else f"{value:,}" for value in found["updates"]))
    if same is not None:
        name = f"to a {same['kind']} of {same['loss']:.4g}"
        table.add_row(
            name,
            *(
                f"{seconds_words(at)}, {update:,} updates"
                for at, update in zip(same["seconds"], same["updates"], strict=True)
            ),
        )
    console.print(table)


def _headline(words: str) -> None:
    console.print(Text(f"\n{words}", "bold"))


def _table(*names: str) -> Table:
    return Table(*(Column(Text(name)) for name in names), box=None, padding=(0, 2, 0, 0), header_style="dim")


def _state(state: str) -> Text:
    return Text(state, STYLES.get(state, "dim"))


def _where(page: Mapping[str, Any]) -> str:
    """Return how far the run got, or how it ended."""
    return (
        page["how"].removeprefix(page["state"]).strip()
        or f"at update {_of(page['updates'], page['planned'], ' of ') or 'unknown'}"
    )


def _of(done: int | None, planned: int | None, between: str = "/") -> str:
    if done is None:
        return ""
    return f"{done:,}{between}{planned:,}" if planned else f"{done:,}"


def _foremost(metrics: Mapping[str, float | None]) -> str:
    """Return the first of the job's own metrics, or the loss if it has none: a table has no room for all."""
    known = {name: value for name, value in metrics.items() if value is not None}
    return next((metrics_words({name: known[name]}) for name in sorted(known, key=lambda name: name == "loss")), "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _optimization(name: str, settings: Any) -> str:
    words = ", ".join(f"{key}={value}" for key, value in settings.items()) if isinstance(settings, Mapping) else ""
    return f"{name} ({words})" if words else name


def _short(path: Path, folder: Path) -> str:
    """Return the path of a run below a folder; its own path if it is that folder."""
    inside = path.relative_to(folder)
    return str(inside) if inside.parts else str(path)


def short_names(paths: Sequence[str]) -> list[str]:
    """Return short names that differ: the last part of each path, or whole paths if two are equal."""
    names = [Path(path).name or path for path in paths]
    return names if len(set(names)) == len(names) else list(paths)
