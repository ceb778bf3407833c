"""`hasten`: the verbs put together, and one clear line for every error."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from hasten.cli.batch import batch
from hasten.cli.checkpoints import checkpoints
from hasten.cli.compare import compare
from hasten.cli.data import data
from hasten.cli.demo import demo
from hasten.cli.doctor import doctor
from hasten.cli.explain import explain
from hasten.cli.profile import profile
from hasten.cli.recipes import recipes, synth
from hasten.cli.run import run
from hasten.cli.runs import runs
from hasten.cli.say import errors
from hasten.cli.tune import tune
from hasten.core.errors import HastenError
from hasten.core.version import __version__

app = typer.Typer(
    name="hasten",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"hasten {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Makes PyTorch training faster, and proves it."""


for verb in (profile, tune, run, compare, batch, doctor, explain, demo):
    app.command()(verb)
data.command()(synth)
app.add_typer(data, name="data")
app.add_typer(recipes, name="recipes")
app.add_typer(checkpoints, name="checkpoints")
app.add_typer(runs, name="runs")


def main() -> None:
    """Run a verb; exit 1 with one line on an error, 130 on Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except HastenError as error:
        line = " ".join(part.strip() for part in str(error).splitlines())  # user code may raise several
        errors.print(f"hasten: {line}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("hasten: interrupted", markup=False)
        sys.exit(130)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
