"""`upshift`: the verbs put together, and one clear line for every error."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer

from upshift.cli.batch import batch
from upshift.cli.checkpoints import checkpoints
from upshift.cli.compare import compare
from upshift.cli.data import data
from upshift.cli.demo import demo
from upshift.cli.doctor import doctor
from upshift.cli.explain import explain
from upshift.cli.profile import profile
from upshift.cli.recipes import recipes, synth
from upshift.cli.run import run
from upshift.cli.runs import runs
from upshift.cli.say import errors
from upshift.cli.tune import tune
from upshift.core.errors import UpshiftError

app = typer.Typer(
    name="upshift",
    help="Makes PyTorch training faster, and proves it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    except UpshiftError as error:
        line = " ".join(part.strip() for part in str(error).splitlines())  # user code may raise several
        errors.print(f"upshift: {line}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("upshift: interrupted", markup=False)
        sys.exit(130)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
