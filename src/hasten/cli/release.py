"""`hasten release`: put models into use, step by step and reversibly, and back them up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption, Verbs
from hasten.cli.say import console, give_json, say, say_error
from hasten.core.errors import DataError, HastenError
from hasten.report.words import bytes_words

if TYPE_CHECKING:
    from hasten.pipeline.release import Pointer, Releases

release = Verbs(help="Put models into use, with gates, trials, rollback and backups.")

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the releases.")]
UrlArgument = Annotated[str, typer.Argument(help="Folder of the backup, or a URL that fsspec supports.")]
MlflowOption = Annotated[str, typer.Option("--mlflow", metavar="URI", help="Set the aliases in this MLflow registry too.")]
NameOption = Annotated[str, typer.Option(metavar="MODEL", help="Name of the model in the MLflow registry.")]
_ROLLED_BACK = 1


@release.command()
def promote(
    folder: FolderArgument,
    source: Annotated[str, typer.Argument(help="A run, or a model of the list. Default: the model on trial.")] = "",
    share: Annotated[float | None, typer.Option(help="Share of the readers who get it, 0 to 1. Default: all.")] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="Folder of an evaluation with metrics.json. Default: the run's metrics.")
    ] = None,
    mlflow: MlflowOption = "",
    name: NameOption = "",
) -> None:
    """Release a run's newest weights to all readers, or to a share of them, if they pass gates.toml."""
    releases = _releases(folder, mlflow, name)
    pointer = releases.promote(source, share=share, metrics=metrics)
    say(_words(pointer))
    _mirror(releases, mlflow, name)


@release.command()
def rollback(
    folder: FolderArgument,
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    mlflow: MlflowOption = "",
    name: NameOption = "",
) -> None:
    """Withdraw the model on trial; without a trial, go back to the model before."""
    releases = _releases(folder, mlflow, name)
    say(_words(releases.rollback(reason)))
    _mirror(releases, mlflow, name)


@release.command()
def judge(
    folder: FolderArgument,
    model: Annotated[str, typer.Argument(help="The model that was measured: the newest.")],
    metrics: Annotated[Path, typer.Argument(help="Folder of the evaluation, with metrics.json.")],
    mlflow: MlflowOption = "",
    name: NameOption = "",
) -> None:
    """Judge new measurements by gates.toml, and roll back if one gate is not passed. Exits with 1 if it rolled back."""
    from hasten.pipeline.judge import read_metrics

    releases = _releases(folder, mlflow, name)
    words = releases.judge(model, read_metrics(metrics))
    if not words:
        say(f"{model} passes the gates.")
        return
    say_error(f"{model} was rolled back: {'; '.join(words)}. {_words(releases.pointer)}")
    _mirror(releases, mlflow, name)
    raise typer.Exit(_ROLLED_BACK)


@release.command("list")
def list_(folder: FolderArgument, json: JsonOption = None) -> None:
    """List the models, which of them are used, and the last changes."""
    releases = _releases(folder)
    models, history = releases.models(), releases.history()
    if give_json(json, {"models": models, "history": history}):
        return
    if not models:
        raise DataError(f"{folder} has no releases. Release a run: hasten release promote {folder} RUN.")
    table = Table("model", "state", "update", "size", "written", box=None, padding=(0, 1, 0, 0))
    for row in models:
        update = "" if row["update"] is None else f"{row['update']:,}"
        written = str(row["written"])
        table.add_row(row["model"], row["state"], update, bytes_words(row["num_bytes"]), Text(written))
    console.print(table)
    for entry in history[-5:]:
        say(Text(f"{entry['at']}  {entry['user']}  {entry['action']}: {entry['words']}"))


@release.command()
def verify(folder: FolderArgument) -> None:
    """Verify the checksums of all models, and that the pointer names them. Exits with 1 if anything was changed."""
    count = _releases(folder).verify()
    if not count:
        raise DataError(f"{folder} has no releases. Release a run: hasten release promote {folder} RUN.")
    say(f"{count} {'model is' if count == 1 else 'models are'} intact.")


@release.command()
def backup(folder: FolderArgument, url: UrlArgument) -> None:
    """Copy the models that the backup lacks, and the pointer. Each file is read back and compared."""
    from hasten.pipeline.backup import backup as back_up

    say(f"Models copied to {url}: {back_up(_releases(folder), url)}. Rehearse a restore: hasten release drill {url}")


@release.command()
def restore(url: UrlArgument, folder: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Restore a backup to a new folder. It is verified before the folder appears."""
    from hasten.pipeline.backup import restore as restore_backup

    say(f"Restored to {folder}. {_words(restore_backup(url, folder).pointer)}")


@release.command()
def drill(url: UrlArgument) -> None:
    """Rehearse a restore: copy the backup to a temporary folder, verify it, and open every model."""
    from hasten.pipeline.backup import drill as rehearse

    for model, count in rehearse(url).items():
        say(f"{model}  {count:,} tensors")
    say("The backup can be restored.")


def _releases(folder: Path, mlflow: str = "", name: str = "") -> Releases:
    from hasten.pipeline.release import Releases

    if bool(mlflow) != bool(name):
        raise HastenError("--mlflow URI and --name MODEL belong together. Give both.")
    return Releases(folder)


def _mirror(releases: Releases, mlflow: str, name: str) -> None:
    """Tell MLflow. A failure is reported; the release stands."""
    from hasten.pipeline.mirror import mirror

    if mlflow:
        try:
            mirror(releases, mlflow, name)
        except HastenError as error:
            say_error(f"the change is in effect, but MLflow was not told: {error}")


def _words(pointer: Pointer) -> Any:
    trial = f"; {pointer.share:.3g} of the readers get {pointer.waiting}" if pointer.share else ""
    return f"In use: {pointer.used} ({pointer.live}){trial}."
