"""Write the reference of the command line from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from hasten.cli.main import app

INTRODUCTION = """# Commands

All commands with their arguments and options, generated from the program when this site is built. In a terminal,
`hasten COMMAND --help` shows the same text."""


def page() -> str:
    """Return the page as Markdown: an overview, then a section for each command."""
    top = typer.main.get_command(app)
    sections = list(_sections(top, "hasten"))
    rows = [f"| [`{name}`](#{_anchor(name)}) | {_cell(_first(command.help))} |" for name, command in sections]
    overview = ["| command | what it does |", "|---|---|", *rows]
    context = typer.Context(top, info_name="hasten", **top.context_settings)
    parts = ["\n".join(overview), *(_section(command, name, context) for name, command in sections)]
    return "\n\n".join([INTRODUCTION, *parts]) + "\n"


def _sections(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands that do something, by their full name."""
    children = getattr(command, "commands", {})
    if not children or name == "hasten":
        yield name, command
    for child, below in children.items():
        yield from _sections(below, f"{name} {child}")


def _section(command: Any, name: str, parent: typer.Context) -> str:
    context = typer.Context(command, info_name=name, parent=parent)
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    lines = [f"## `{name}` {{ #{_anchor(name)} }}", "", _escaped(command.help), "", "```text", usage, "```", ""]
    for kind in ("argument", "option"):
        records = [param.get_help_record(context) for param in command.get_params(context) if param.param_type_name == kind]
        rows = [f"| `{names.replace('|', '/')}` | {_cell(words)} |" for names, words in filter(None, records)]
        lines += [f"| {kind} | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines).rstrip()


def _first(words: str) -> str:
    """Return the first paragraph."""
    return words.partition("\n\n")[0]


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _cell(words: str | None) -> str:
    return " ".join(_escaped(words).replace("|", "/").split())


def _escaped(words: str | None) -> str:
    """Return help text that Markdown shows as it is."""
    return (words or "").replace("[", "\\[").replace("<", "&lt;").replace("*", "\\*")
