"""`hasten pipeline`: run stages of training as a graph, with gates, leases and exact resumption."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from hasten.cli.command import JsonOption, Verbs
from hasten.cli.queue import queue
from hasten.cli.say import errors, give_json, say, say_error, voice
from hasten.core.errors import HastenError, MachineError
from hasten.report.words import bytes_words, seconds_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hasten.pipeline.control import State
    from hasten.pipeline.description import Pipeline, Stage
    from hasten.pipeline.lease import Totals

pipeline = Verbs(help="Run stages of training as a graph, with gates, leases and exact resumption.")
pipeline.add_typer(queue, name="queue")

FileArgument = Annotated[Path, typer.Argument(metavar="[FILE]", help="pipeline.toml, or its folder. Default: here.")]
HERE = Path()
MARKS = {
    "ended": ("✓", "green"), "running": ("▸", "cyan"), "waiting": ("…", ""), "to run": ("·", "dim"), "blocked": ("·", "dim"),
    "refused": ("✗", "red"), "failed": ("✗", "red"), "killed": ("!", "yellow"), "stopped": ("!", "yellow"),
}  # fmt: skip
_FAILED = 1


@pipeline.command()
def run(
    file: FileArgument = HERE,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE.GATE", help="Let a gate pass that did not. Repeatable; needs --reason."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
) -> None:
    """Run the stages whose inputs changed, or that have not ended. Runs that were killed are resumed.

    A command that finds the pipeline running follows it. Ctrl-C asks all stages to save, and waits until they have.
    """
    from hasten.pipeline.control import run as run_pipeline
    from hasten.pipeline.control import state_of
    from hasten.pipeline.folder import out_of
    from hasten.pipeline.judge import override as record_override

    described = _read(file)
    if override:
        before = state_of(described)
        for name in override:
            stage, _, gate = name.partition(".")
            view = before.views[described.stage(stage).name]
            if not view.done:
                raise HastenError(f"stage {stage} has not ended, so {name} decided nothing yet. Run without --override.")
            record_override(described, view.stage, gate, out_of(described, stage, view.key), reason)
            say(f"Recorded in the audit log: {name} is overridden.")
    elif reason:
        raise HastenError("--reason belongs to --override STAGE.GATE. Give both.")
    began = time.time()
    with _Follower(described) as follower:
        after = run_pipeline(described, follower)
    _say_end(described, after, began)


@pipeline.command()
def resume(file: FileArgument = HERE) -> None:
    """Continue a pipeline that was killed or stopped: the same as run, but something must have been started before."""
    from hasten.pipeline.description import WORK

    described = _read(file)
    if not described.work.is_dir():
        raise HastenError(f"there is no {WORK} in {described.root}, so nothing can be resumed. Use hasten pipeline run.")
    run(file)


@pipeline.command()
def status(file: FileArgument = HERE, json: JsonOption = None) -> None:
    """Show what has ended, what is running and what was refused."""
    from hasten.pipeline.control import state_of

    described = _read(file)
    state = state_of(described)
    if give_json(json, _rows(described, state)):
        return
    for line in _lines(described, state):
        say(line)
    say(f"The pipeline is {'running' if state.running else 'complete' if state.complete else 'not running'}.")


@pipeline.command()
def graph(file: FileArgument = HERE) -> None:
    """Draw the stages, each below what it needs. `hasten pipeline ui` draws them in the browser."""
    described, depth = _read(file), dict[str, int]()
    for name, stage in described.stages.items():
        depth[name] = 1 + max((depth[other] for other in stage.needs), default=-1)
        needs = f"  <- {', '.join(stage.needs)}" if stage.needs else ""
        gates = f"  gates: {', '.join(stage.gates)}" if stage.gates else ""
        say(Text.assemble("  " * depth[name], (name, "bold"), f" ({stage.kind})", (needs, "dim"), (gates, "yellow")))


@pipeline.command()
def explain(file: FileArgument = HERE, json: JsonOption = None) -> None:
    """Say what would run and why, what each stage leases, and how long it is predicted to take."""
    from hasten.pipeline.control import needs_of, predicted, state_of
    from hasten.pipeline.lease import read_totals

    described = _read(file)
    totals = read_totals()
    needs, state = needs_of(described, totals), state_of(described)
    selected = state.selected
    if json is not None:
        whole, rest = (predicted(described, state, totals, names) for names in (list(described.stages), selected))
        if give_json(json, {"stages": _rows(described, state), "would_run": asdict(rest), "everything": asdict(whole)}):
            return
    say(f"{len(selected)} of {len(described.stages)} stages would run, on {_machine(totals)}.")
    for name, stage in described.stages.items():
        view, need = state.views[name], needs[name]
        say("")
        say(Text.assemble((name, "bold"), f"  {_what(stage)}"))
        said = {"ended": "not run again", "refused": "not run again, and did not pass", "blocked": "blocked"}
        waits = ", ".join(other for other in stage.needs if state.words(other) != "ended")
        say(f"  {said.get(state.words(name), 'would run')}: {f'after {waits}' if waits else view.why}")
        whole_memory = stage.memory is None and need.memory_bytes == totals.memory_bytes
        unknown = (
            "at most: hasten size is asked at the start" if stage.job and not stage.devices else "not known, so all of it"
        )
        where = "stated" if stage.memory is not None else unknown if whole_memory else "measured"
        devices = f", {need.devices} device{'s' if need.devices > 1 else ''}" if need.devices else ""
        say(f"  leases {cores_words(need.cores)}{devices}, {bytes_words(need.memory_bytes)} ({where})")
        if view.last:
            took = f"{seconds_words(view.last['seconds'])} on {cores_words(view.last['cores'])}"
            say(f"  took {took}, measured {seconds_words(max(time.time() - view.last['ended'], 0.0))} ago")
        else:
            say("  has not been measured: its time is unknown")
        for one in state.judged.get(name, []):
            for words in (*one.words, *([f"overridden: {one.reason}"] if one.reason else [])):
                say(f"  gate {one.name}: {words}")
    say("")
    for line in _prediction_words(described, state, totals, selected):
        say(line)


@pipeline.command()
def ui(
    file: FileArgument = HERE,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 3000,
) -> None:
    """Show the pipeline and its runs in the browser, with Dagster's own pages. It serves this machine only."""
    import os
    from importlib.util import find_spec

    described = _read(file)
    if find_spec("dagster_webserver") is None:
        raise MachineError("the pages need dagster-webserver: pip install 'hasten[pipeline]'.")
    from hasten.pipeline.engine import HOME, UI, open_instance

    open_instance(described, alone=False).dispose()
    environ = {**os.environ, "DAGSTER_HOME": str(described.work / HOME), UI: str(described.path)}
    say(f"Serving http://127.0.0.1:{port} until Ctrl-C.")
    options = f"-h 127.0.0.1 -p {port} -m hasten.pipeline.engine -a definitions --log-level warning"
    command = [sys.executable, "-m", "dagster_webserver", *options.split()]
    sys.stdout.flush()
    os.execve(sys.executable, command, environ)  # noqa: S606 - fixed words


def _read(file: Path) -> Pipeline:
    from importlib.util import find_spec

    if find_spec("dagster") is None:
        raise MachineError("pipelines need Dagster: pip install 'hasten[pipeline]'.")
    from hasten.pipeline.description import read_pipeline

    return read_pipeline(file)


class _Follower:
    """Shows the state of a pipeline: drawn in place on a terminal, one line for each change elsewhere."""

    def __init__(self, described: Pipeline) -> None:
        self._pipeline = described
        self._told: dict[str, str] = {}
        self._quiet = voice.get().level < 0
        drawn = errors.is_terminal and not self._quiet
        self._live = Live(console=errors, refresh_per_second=4, transient=True) if drawn else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, state: State) -> None:
        lines = list(_lines(self._pipeline, state))
        if self._live is not None:
            self._live.update(Group(*lines))
            return
        for name, line in zip(self._pipeline.stages, lines, strict=True):
            words = state.words(name)
            if not self._quiet and self._told.get(name, "to run") != words:
                say(line, to=errors)
            self._told[name] = words


def _lines(described: Pipeline, state: State) -> Iterator[Text]:
    """Yield one line for each stage, of at most 80 columns."""
    width = min(max(map(len, described.stages)), 24)
    for name in described.stages:
        words = state.words(name)
        mark, style = MARKS[words]
        line = Text.assemble(
            (f"{mark} ", style), f"{name:<{width}.{width}}  ", (f"{words:<8}", style), f"  {_detail(described, state, name)}"
        )
        line.truncate(79, overflow="ellipsis")
        yield line


def _detail(described: Pipeline, state: State, name: str) -> str:
    from hasten.pipeline.folder import out_of
    from hasten.train.records.reports import skim_reports

    view, words = state.views[name], state.words(name)
    if words == "ended":
        overridden = [one.name for one in state.judged[name] if one.reason]
        form = {"merged": "merged", "sequential": "fell back to the sequential form"}.get(view.done.get("form", ""), "")
        parts = [seconds_words(view.done["seconds"]), form, f"overridden: {', '.join(overridden)}" if overridden else ""]
        return ", ".join(part for part in parts if part)
    if words == "refused":
        return next(word for one in state.judged[name] if not one.passed for word in one.words if "not passed" in word)
    if words in ("failed", "stopped", "killed"):
        return str(view.now.get("error", "continue with hasten pipeline resume"))
    if words == "running":
        last, _ = skim_reports(out_of(described, name, view.now["key"]))
        took = seconds_words(time.time() - view.now["at"])
        planned = f" of {last['planned']:,}" if last.get("planned") else ""
        at = f"update {last['update']:,}{planned}, loss {last.get('loss') or float('nan'):.4g}" if last.get("update") else ""
        return ", ".join(part for part in (at, view.now.get("words", ""), took) if part)
    if words == "waiting":
        return str(view.now.get("words", "waits for its lease"))
    missing = [other for other in view.stage.needs if state.words(other) != "ended"]
    return f"after {', '.join(missing)}" if missing else view.why


def _say_end(described: Pipeline, state: State, began: float) -> None:
    """Print how a run ended, and exit with 1 if it is not complete."""
    from hasten.pipeline.control import history

    for line in _lines(described, state):
        say(line)
    runs = history(described)
    if runs and runs[-1]["began"] >= began:
        known = "" if runs[-1]["unknown"] else f" (predicted {seconds_words(runs[-1]['predicted_s'])})"
        say(f"Took {seconds_words(runs[-1]['seconds'])}{known}.")
    elif state.complete:
        say("Nothing to run: every stage is unchanged.")
    if state.complete:
        say(f"What the stages gave is in {described.work / 'stages'}/NAME/latest.")
        return
    for name, view in state.views.items():
        words = state.words(name)
        if words in ("failed", "killed", "stopped"):
            todo = "Correct it, and run again." if words == "failed" else "Continue with hasten pipeline resume."
            say_error(f"{view.now.get('error') or f'stage {name} was killed.'} {todo}")
        for one in state.judged.get(name, []):
            if not one.passed:
                say_error(
                    f"{name}.{one.name}: {'; '.join(one.words)}. Improve the stage, or let it pass with a reason: "
                    f"hasten pipeline run --override {name}.{one.name} --reason TEXT"
                )
    if any(state.can_go_on(name) for name in state.views):
        say_error("processes were killed again and again. Continue with hasten pipeline resume.")
    raise typer.Exit(_FAILED)


def _rows(described: Pipeline, state: State) -> list[dict[str, Any]]:
    return [
        {
            "stage": name, "kind": described.stages[name].kind, "needs": list(described.stages[name].needs),
            "state": state.words(name), "why": view.why, "key": view.key, "seconds": (view.done or view.last).get("seconds"),
            "form": view.done.get("form"), "error": view.now.get("error"),
            "gates": {
                one.name: {"passed": one.passed, "words": list(one.words), "override": one.reason}
                for one in state.judged.get(name, [])
            },
        }
        for name, view in state.views.items()
    ]  # fmt: skip


def _what(stage: Stage) -> str:
    return f"{stage.kind} {' '.join(stage.words) if stage.kind != 'merge' else ' + '.join(stage.words)}"


def _machine(totals: Totals) -> str:
    devices = f", {len(totals.devices)} devices" if totals.devices else ", no devices"
    return f"{cores_words(len(totals.cores))}, {bytes_words(totals.memory_bytes)}{devices}"


def cores_words(cores: int) -> str:
    """Return `1 core` or `2 cores`."""
    return f"{cores} core{'' if cores == 1 else 's'}"


def _prediction_words(described: Pipeline, state: State, totals: Totals, selected: Sequence[str]) -> Iterator[str]:
    from hasten.pipeline.control import overhead, predicted

    if not selected:
        yield "Nothing to run: every stage is unchanged. A run of everything, from measured times:"
    whole = predicted(described, state, totals, selected or list(described.stages))
    added = overhead(described)
    if whole.unknown:
        yield f"Not measured yet, so counted as {seconds_words(whole.guess_s)} each: {', '.join(whole.unknown)}."
    yield f"Predicted: {seconds_words(whole.seconds)}; one after another: {seconds_words(whole.sequential_s)}."
    yield f"Critical path: {' -> '.join(whole.path)}."
    if added.runs:
        yield (
            f"Of it, Dagster: {added.start_s + added.end_s:.1f} s a run and {added.stage_s:.1f} s a stage "
            f"(median of {added.runs} runs here)."
        )
    if whole.seconds > 0.95 * whole.sequential_s and _branches(described, selected or list(described.stages)):
        why = "there is no device for each" if not totals.devices else "each takes the devices that the other needs"
        yield f"Parallel branches save nothing here: {why}, and they share {cores_words(len(totals.cores))}."


def _branches(described: Pipeline, names: Sequence[str]) -> bool:
    """Whether two of these stages, in their order, could run at the same time."""
    before = [set(described.upstream(described.stages[name])) & set(names) for name in names]
    return any(len(needed) < place for place, needed in enumerate(before))
