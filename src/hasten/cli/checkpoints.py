"""`hasten checkpoints`: what a run has saved, whether it is whole, and its weights for others."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.say import console
from hasten.core.errors import CorruptError, DataError
from hasten.report.words import bytes_words

checkpoints = typer.Typer(
    help="Look into the checkpoints of a run, and export weights.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArgument = Annotated[Path, typer.Argument(help="The run's folder, or the folder of one checkpoint.")]


@checkpoints.command("list")
def list_(run: RunArgument, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the checkpoints of a run."""
    from hasten.train.checkpoints.folder import CheckpointFolder  # noqa: PLC0415  only this verb pays for its imports

    found = CheckpointFolder(run).describe()
    if json:
        typer.echo(json_module.dumps(found))
        return
    if not found:
        raise DataError(f"{run} has no checkpoints: `hasten run TARGET --out {run}` makes them as it trains.")
    table = Table("update", "size", "ranks", "written", "", box=None, padding=(0, 2, 0, 0))
    for row in found:
        table.add_row(
            f"{row['update']:,}",
            bytes_words(row["num_bytes"]),
            str(row["ranks"]),
            Text(str(row["created"])),
            "best" if row["best"] else "",
        )
    console.print(table)


@checkpoints.command()
def inspect(
    run: RunArgument,
    update: Annotated[int | None, typer.Option(help="Which; the newest unless given.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a checkpoint holds: tensors, where the run stood, what was noted."""
    from hasten.train.checkpoints.read import open_whole  # noqa: PLC0415  as above

    saved = _chosen(run, update)
    whole = open_whole(saved)
    tensors = {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in sorted(whole.tensors.items())
    }
    facts: dict[str, Any] = {
        "update": saved.update,
        "position": {**whole.meta["position"], "samples": whole.meta["samples"]},
        "ranks": saved.world,
        "created": saved.created,
        "num_bytes": saved.num_bytes,
        "facts": dict(saved.facts),
        "tensors": tensors,
    }
    if json:
        typer.echo(json_module.dumps(facts, indent=2))
        return
    place = facts["position"]
    console.print(
        f"[bold]update {saved.update:,}[/bold], epoch {place['epoch'] + 1}, {place['samples']:,} samples, "
        f"{bytes_words(saved.num_bytes)}, written {saved.created}\n",
        soft_wrap=True,
    )
    table = Table("tensor", "type", "shape", box=None, padding=(0, 2, 0, 0))
    for name, row in tensors.items():
        table.add_row(Text(name), str(row["dtype"]), " x ".join(map(str, row["shape"])))
    console.print(table)


@checkpoints.command()
def verify(run: RunArgument) -> None:
    """Compare all checkpoints with their checksums. Exit 1 if one is not what was written."""
    from hasten.train.checkpoints.folder import CheckpointFolder, damage  # noqa: PLC0415  as above

    found = CheckpointFolder(run).all()
    if not found:
        raise DataError(f"{run} has no checkpoints.")
    problems = {saved.path.name: damage(saved) for saved in found}
    for name, problem in problems.items():
        console.print(f"{name}  {problem or 'sound'}", soft_wrap=True)
    damaged = [name for name, problem in problems.items() if problem]
    if damaged:
        raise CorruptError(
            f"{len(damaged)} of {len(found)} checkpoints are not what was written; a resumed run passes them over."
        )


@checkpoints.command()
def export(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(help="FILE.safetensors, or FILE.pt for a plain state_dict.")],
    update: Annotated[int | None, typer.Option(help="Which; the newest unless given.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best instead of the newest.")] = False,
) -> None:
    """Write the model's weights alone; the same bytes for the same weights."""
    from hasten.train.checkpoints.read import export_weights  # noqa: PLC0415  as above

    saved = _chosen(run, update, best=best)
    count = export_weights(saved, file)
    console.print(f"{count:,} tensors of update {saved.update:,} are in {file}.", soft_wrap=True)


def _chosen(run: Path, update: int | None, *, best: bool = False) -> Any:
    from hasten.train.checkpoints.folder import CheckpointFolder, damage, read_saved  # noqa: PLC0415  as above

    if (run / "manifest.json").exists():
        saved = read_saved(run)
    else:
        folder = CheckpointFolder(run)
        found = folder.all()
        if not found:
            raise DataError(f"{run} has no checkpoints.")
        if best:
            marked = folder.best()
            if marked is None:
                raise DataError(
                    f"no checkpoint of {run} is marked as best: the job names no quality, or no epoch ended yet."
                )
            saved = marked
        elif update is None:
            saved = found[-1]
        else:
            wanted = [one for one in found if one.update == update]
            if not wanted:
                have = ", ".join(f"{one.update:,}" for one in found)
                raise DataError(f"{run} has no checkpoint of update {update:,}; it has {have}.")
            saved = wanted[0]
    problem = damage(saved)
    if problem:
        raise CorruptError(f"{saved.path}: {problem}. Choose another (--update).")
    return saved
