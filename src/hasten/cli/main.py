"""`hasten`: the verbs, and one clear line for every error."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Annotated, Any, ClassVar

import typer
from rich.text import Text

from hasten.cli.command import HELP, LazyGroup
from hasten.cli.say import Voice, errors, say_error, voice
from hasten.core import late_compiler
from hasten.core.errors import HastenError
from hasten.core.user_code import error_words, is_user_file
from hasten.core.version import __version__


class Hasten(LazyGroup):
    """The verbs of `hasten`."""

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = {
        "profile": ("hasten.cli.profile:profile", "Show where the time of a job or script goes and what could be gained."),
        "tune": ("hasten.cli.tune:tune", "Try techniques one at a time; keep those that are proved to help."),
        "run": ("hasten.cli.run:run", "Train a job or run a script under a plan."),
        "watch": ("hasten.cli.watch:watch", "Follow runs live, in the browser or in the terminal."),
        "compare": ("hasten.cli.compare:compare", "Compare two plans in paired, interleaved, fresh processes."),
        "check": ("hasten.cli.check:check", "Compare the speed of two commits, with a verdict and an exit status."),
        "batch": ("hasten.cli.batch:batch", "Find how many samples to compute at once."),
        "size": ("hasten.cli.size:size", "Say what a model takes to train before it exists: memory, operations, time."),
        "doctor": ("hasten.cli.doctor:doctor", "Report this machine's capabilities, and any problems with fixes."),
        "explain": ("hasten.cli.explain:explain", "Show everything known about one technique."),
        "schema": ("hasten.cli.schema:schema", "Print the JSON schema of a plan or of an evidence file."),
        "demo": ("hasten.cli.demo:demo", "Tune a real training job that ships with Hasten."),
        "data": ("hasten.cli.data:data", "Convert datasets to stores, and inspect stores and caches."),
        "recipes": ("hasten.cli.recipes:recipes", "List the reference workloads, and start one on your own data."),
        "checkpoints": ("hasten.cli.checkpoints:checkpoints", "Inspect the checkpoints of a run, and export weights."),
        "mcp": ("hasten.cli.mcp:mcp", "Serve Hasten's verbs as tools for agents."),
        "pipeline": ("hasten.cli.pipeline:pipeline", "Run stages of training as a graph, with gates and exact resumption."),
        "release": ("hasten.cli.release:release", "Put models into use, with gates, trials, rollback and backups."),
        "runs": ("hasten.cli.runs:runs", "List, show and compare runs, and remove what they no longer need."),
    }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb, and explain a target that stands where the verb belongs."""
        if args and args[0] not in self.verbs and (args[0].endswith(".py") or ":" in args[0]):
            target = args[0]
            commands = ", ".join(f"`hasten {verb} {target}`" for verb in ("profile", "tune", "run"))
            raise HastenError(f"{target} is not a command. Try one of {commands}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(name="hasten", cls=Hasten, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"hasten {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print each step in detail.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Print errors with all frames.")] = False,
) -> None:
    """Make PyTorch training faster, and prove it."""
    del version  # its callback prints it
    voice.set(Voice(level=-1 if quiet else int(verbose), traceback=traceback))


def main() -> None:
    """Run a verb. Exits with 1 (`check`: 3) and one line on an error, and with 130 on Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    late_compiler.install()
    voice.set(Voice())
    try:
        app(prog_name="hasten")
    except SystemExit as ended:
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):  # Typer turned it into an exit
            say_error("interrupted")
        raise
    except Exception as error:  # noqa: BLE001 - errors of user code are reported by their own line
        _report(error)
        sys.exit(voice.get().failed)


def _report(error: Exception) -> None:
    """Print an error: one line where Hasten raised it on purpose or user code raised it, the traceback otherwise."""
    frames = traceback.extract_tb(error.__traceback__)
    expected = isinstance(error, HastenError)
    if voice.get().traceback or not (expected or any(is_user_file(frame.filename) for frame in frames)):
        errors.print(Text("".join(traceback.format_exception(error)).rstrip()), soft_wrap=True)
        if details := getattr(error, "details", ""):
            errors.print(Text(f"In the trial process:\n{details.rstrip()}"), soft_wrap=True)
    words = " ".join(part.strip() for part in error_words(error).splitlines())
    say_error(words if expected else f"{words} `--traceback` shows all frames.")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
