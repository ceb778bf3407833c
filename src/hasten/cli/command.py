"""What all verbs of the command line share: common options, `--json [FILE]`, and help that imports no verb."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from hasten.cli.say import voice
from hasten.core.errors import HastenError

HELP = {"help_option_names": ["-h", "--help"]}
OPTIONAL_FILE = "[FILE]"
"""The metavar of an option whose file may be left out; it then gets `-`."""


def _set_quiet(value: bool) -> None:
    if value:
        voice.set(replace(voice.get(), level=-1))


def _set_verbose(value: bool) -> None:
    if value:
        voice.set(replace(voice.get(), level=1))


def _set_traceback(value: bool) -> None:
    if value:
        voice.set(replace(voice.get(), traceback=True))


def common(
    _quiet: Annotated[
        bool, typer.Option("--quiet", "-q", callback=_set_quiet, expose_value=False, help="Print results and errors only.")
    ] = False,
    _verbose: Annotated[
        bool, typer.Option("--verbose", "-v", callback=_set_verbose, expose_value=False, help="Print each step in detail.")
    ] = False,
    _traceback: Annotated[
        bool, typer.Option("--traceback", callback=_set_traceback, expose_value=False, help="Print errors with all frames.")
    ] = False,
) -> None:
    """Options of every verb."""


def common_options() -> list[Any]:
    """Make the options that every verb takes."""
    app = typer.Typer(add_completion=False)
    app.command()(common)
    return list(typer.main.get_command(app).params)


JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar=OPTIONAL_FILE, help="Write JSON to FILE; without FILE, print it.")
]


class Verb(TyperCommand):
    """A verb with the common options. `--json` and others take an optional file."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += common_options()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and explain an option of a script that stands before `--`."""
        given = list(args)
        try:
            return super().parse_args(ctx, with_destination(args, self._with_optional_file()))
        except Exception as error:
            option = getattr(error, "option_name", None)
            script = next((word for word in given if word.endswith(".py")), None)
            if option is None or script is None or not any(item.name == "arguments" for item in self.params):
                raise
            place = given.index(script)
            before, after = " ".join(given[: place + 1]), " ".join(word for word in given[place + 1 :] if word != "--")
            command = f"{ctx.command_path} {before} -- {after}"
            raise HastenError(
                f"{option} is not an option of {ctx.command_path}. Options of the script follow `--`: {command}"
            ) from error

    def _with_optional_file(self) -> set[str]:
        return {name for item in self.params if item.metavar == OPTIONAL_FILE for name in item.opts}


def with_destination(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the command line with `-` after each of these options that names no file."""
    given: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            return [*given, *words[position:]]
        given.append(word)
        following = words[position + 1 : position + 2]
        if word in options and (not following or (following[0].startswith("-") and following[0] != "-")):
            given.append("-")
    return given


class Verbs(typer.Typer):
    """A group of verbs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Add a verb."""
        return super().command(name, **{"cls": Verb, **settings})


class LazyGroup(TyperGroup):
    """A group that imports a verb when it is called: help and completion of names need no import of torch.

    Attributes:
        verbs: Name -> where the verb is (`module:attribute`) and one line of help.
    """

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in the order of the table."""
        return list(self.verbs)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb."""
        if cmd_name not in self.verbs:
            return None
        module, _, attribute = self.verbs[cmd_name][0].partition(":")
        verb = getattr(importlib.import_module(module), attribute)
        if isinstance(verb, typer.Typer):
            command: Any = typer.main.get_group(verb)
        else:
            app = typer.Typer(pretty_exceptions_enable=False, context_settings=HELP, add_completion=False)
            app.command(cmd_name, cls=Verb, context_settings=HELP)(verb)
            command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print help from the table."""
        self._listing().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a verb from the table."""
        return self._listing().shell_complete(ctx, incomplete)

    def _listing(self) -> TyperGroup:
        """Make a group of the same names with help alone."""
        commands: Any = {name: TyperCommand(name, help=words) for name, (_, words) in self.verbs.items()}
        return TyperGroup(
            name=self.name, commands=commands, params=self.params, help=self.help, context_settings=self.context_settings,
            no_args_is_help=True, rich_markup_mode=self.rich_markup_mode, rich_help_panel=self.rich_help_panel,
        )  # fmt: skip


def technique_names(incomplete: str) -> list[str]:
    """Complete the name of a technique, without an import of torch."""
    table = json.loads((files("hasten") / "optimizations" / "measured.json").read_text(encoding="utf-8"))
    return [name for name in table["optimizations"] if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    """Complete the folder of a run: those at most two folders below the present one."""
    folders = {str(path.parent) for pattern in ("run.toml", "*/run.toml", "*/*/run.toml") for path in Path().glob(pattern)}
    return sorted(name for name in folders if name.startswith(incomplete))
