"""`hasten checkpoints`: list, inspect and verify what a run has saved, and export its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption, Verbs, run_names
from hasten.cli.say import console, give_json, say
from hasten.core.errors import CorruptError, DataError
from hasten.report.words import bytes_words

checkpoints = Verbs(help="Inspect the checkpoints of a run, and export weights.")

RunArgument = Annotated[Path, typer.Argument(help="Folder of the run, or of one checkpoint.", autocompletion=run_names)]


@checkpoints.command("list")
def list_(run: RunArgument, json: JsonOption = None) -> None:
    """List the checkpoints of a run."""
    from hasten.train.checkpoints.folder import CheckpointFolder

    found = CheckpointFolder(run).describe()
    if give_json(json, found):
        return
    if not found:
        raise DataError(f"{run} has no checkpoints: `hasten run TARGET --out {run}` writes them while it trains.")
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
    update: Annotated[int | None, typer.Option(help="Update of the checkpoint. Default: the newest.")] = None,
    json: JsonOption = None,
) -> None:
    """Show what a checkpoint contains: tensors, position of the run, facts about the run."""
    from hasten.train.checkpoints.read import open_whole

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
    if give_json(json, facts):
        return
    place = facts["position"]
    say(
        Text.assemble(
            (f"update {saved.update:,}", "bold"),
            f", epoch {place['epoch'] + 1}, {place['samples']:,} samples, {bytes_words(saved.num_bytes)}, "
            f"written {saved.created}\n",
        )
    )
    table = Table("tensor", "type", "shape", box=None, padding=(0, 2, 0, 0))
    for name, row in tensors.items():
        table.add_row(Text(name), str(row["dtype"]), " x ".join(map(str, row["shape"])))
    console.print(table)


@checkpoints.command()
def verify(run: RunArgument) -> None:
    """Verify checkpoint checksums. Exits with 1 if any is corrupt."""
    from hasten.train.checkpoints.folder import CheckpointFolder, damage

    found = CheckpointFolder(run).all()
    if not found:
        raise DataError(f"{run} has no checkpoints.")
    problems = {saved.path.name: damage(saved) for saved in found}
    for name, problem in problems.items():
        say(f"{name}  {problem or 'intact'}")
    damaged = [name for name, problem in problems.items() if problem]
    if damaged:
        raise CorruptError(f"{len(damaged)} of {len(found)} checkpoints are corrupt. A resumed run skips them.")


@checkpoints.command()
def export(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(help="FILE.safetensors, or FILE.pt for a plain state_dict.")],
    update: Annotated[int | None, typer.Option(help="Update of the checkpoint. Default: the newest.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Export the best instead of the newest.")] = False,
) -> None:
    """Export the model's weights to a file. Equal weights give equal bytes."""
    from hasten.train.checkpoints.read import export_weights

    saved = _chosen(run, update, best=best)
    count = export_weights(saved, file)
    say(f"Wrote {count:,} tensors of update {saved.update:,} to {file}.")


def _chosen(run: Path, update: int | None, *, best: bool = False) -> Any:
    from hasten.train.checkpoints.folder import CheckpointFolder, damage, read_saved

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
                raise DataError(f"no checkpoint of {run} is marked as best: the job sets no quality, or no epoch has ended.")
            saved = marked
        elif update is None:
            saved = found[-1]
        else:
            wanted = [one for one in found if one.update == update]
            if not wanted:
                updates = ", ".join(f"{one.update:,}" for one in found)
                raise DataError(f"{run} has no checkpoint of update {update:,}; it has {updates}.")
            saved = wanted[0]
    problem = damage(saved)
    if problem:
        raise CorruptError(f"{saved.path}: {problem}. Choose another (--update).")
    return saved
