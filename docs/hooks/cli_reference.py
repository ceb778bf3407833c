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
    sections = list(_contexts(typer.main.get_command(app), "hasten", None))
    rows = [f"| [`{name}`](#{_anchor(name)}) | {_cell(_first(context.command.help))} |" for name, context in sections]
    overview = ["| command | what it does |", "|---|---|", *rows]
    return "\n\n".join([INTRODUCTION, "\n".join(overview), *(_section(name, context) for name, context in sections)]) + "\n"


def _contexts(command: Any, name: str, parent: typer.Context | None) -> Iterator[tuple[str, typer.Context]]:
    """Yield the commands that do something, by their full name."""
    context = typer.Context(command, info_name=name, parent=parent, **command.context_settings)
    children = command.list_commands(context) if hasattr(command, "list_commands") else []
    if not children or parent is None:
        yield name, context
    for child in children:
        yield from _contexts(command.get_command(context, child), f"{name} {child}", context)


def _section(name: str, context: typer.Context) -> str:
    command: Any = context.command
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    lines = [f"## `{name}` {{ #{_anchor(name)} }}", "", _escaped(command.help), "", "```text", usage, "```", ""]
    for kind in ("argument", "option"):
        records = [param.get_help_record(context) for param in command.get_params(context) if param.param_type_name == kind]
        rows = [f"| `{names.replace('|', '/')}` | {_cell(words)} |" for names, words in filter(None, records)]
        lines += [f"| {kind} | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines).rstrip()


def _first(words: str | None) -> str:
    """Return the first paragraph."""
    return (words or "").partition("\n\n")[0]


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _cell(words: str | None) -> str:
    return " ".join(_escaped(words).replace("|", "/").split())


def _escaped(words: str | None) -> str:
    """Return help text that Markdown shows as it is."""
    return (words or "").replace("[", "\\[").replace("<", "&lt;").replace("*", "\\*")
