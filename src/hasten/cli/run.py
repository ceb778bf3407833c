"""`hasten run`: train a job, or run a script, under a plan."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hasten.cli.following import following_of, recorded
from hasten.cli.say import RanksOption, errors, loading_shown, refuse_of_a_script, say, say_error, script_command, voice
from hasten.core.errors import HastenError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hasten.core.job import Job
    from hasten.core.plan import Plan
    from hasten.monitor.contract import Contract
    from hasten.script.entry.launch import Ran
    from hasten.train.trainer import Result

EMPTY_PLAN = "schema = 1\n"
DEFAULT_OUT = Path("hasten-run")
STALE = 3
"""Exit status of a script that succeeded, but may have trained on samples that it changed during the run."""


class OnBreach(StrEnum):
    """What to do if a run no longer has the gain that its plan was proved to have."""

    WARN = "warn"
    STOP = "stop"
    FALLBACK = "fallback"


class OnNan(StrEnum):
    """The policies of `NonFinitePolicy`."""

    STOP = "stop"
    SKIP = "skip"
    ROLLBACK = "rollback"


def run(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script, after --.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    plan: Annotated[Path | None, typer.Option(help="The plan to train under. Default: none.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for metrics, weights and checkpoints.")] = DEFAULT_OUT,
    updates: Annotated[int | None, typer.Option(help="Stop after this number of updates.", min=1)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest intact checkpoint, if there is one.")
    ] = False,
    resume_anyway: Annotated[
        bool, typer.Option("--resume-anyway", help="Resume even if the job's code or data changed.")
    ] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=0, help="Updates between checkpoints; 0 for none. Default: by their cost.")
    ] = None,
    checkpoint_overhead: Annotated[float, typer.Option(help="Share of the training time that checkpoints may take.")] = 0.02,
    keep: Annotated[int, typer.Option(min=1, help="Number of checkpoints to keep, in addition to the best.")] = 3,
    on_nan: Annotated[
        OnNan, typer.Option(help="If a loss or gradient is NaN or infinite: stop, skip the update, or roll back.")
    ] = OnNan.STOP,
    ranks: RanksOption = 1,
    ray: Annotated[
        bool, typer.Option("--ray", help="Start the ranks on a Ray cluster: that of RAY_ADDRESS, or a local one.")
    ] = False,
    restarts: Annotated[int, typer.Option(min=0, help="Restarts from the newest checkpoint, if a rank dies.")] = 0,
    log_to: Annotated[
        list[str] | None, typer.Option(help="Also write metrics to NAME[:OPTIONS], such as tensorboard. Repeatable.")
    ] = None,
    alerts: Annotated[
        Path | None, typer.Option(help="Rules for alerts, in TOML. They change the built-in ones or add to them.")
    ] = None,
    on_breach: Annotated[
        OnBreach,
        typer.Option(
            help="If the gain that the plan was proved to have is lost: warn, stop with a checkpoint, or continue from the "
            "checkpoint without the plan (fallback)."
        ),
    ] = OnBreach.WARN,
    alert_to: Annotated[
        list[str] | None,
        typer.Option(help="Also send alerts to this webhook (Slack, Discord or JSON), or env:NAME. Repeatable."),
    ] = None,
) -> None:
    """Train a job under a plan, with progress, metrics and checkpoints; or run a script under a plan.

    A run can be killed at any time: --resume continues it exactly. On SIGTERM and SIGUSR1 it saves and exits with 0, on
    Ctrl-C it saves and exits with 130.

    --ranks starts one process for each rank; under torchrun, the ranks are torchrun's. --restarts restarts all ranks with
    --resume if one dies; under torchrun, use --max-restarts. A script runs as `python SCRIPT` would run it, under the plan.
    """
    if command := script_command(target, arguments, module=module):
        refuse_of_a_script(
            resume=resume or resume_anyway,
            ray=ray,
            updates=updates is not None,
            ranks=ranks > 1,
            restarts=restarts > 0,
            **{
                "checkpoint-every": checkpoint_every is not None,
                "checkpoint-overhead": checkpoint_overhead != 0.02,
                "keep": keep != 3,
                "on-nan": on_nan is not OnNan.STOP,
                "on-breach": on_breach is not OnBreach.WARN,
            },
        )
        follow = partial(following_of, out, DEFAULT_OUT, log_to or [], alerts, alert_to or [])
        run_script(command, plan, follow)
        return
    with loading_shown(target, is_shown=os.environ.get("RANK", "0" if ranks == 1 else "none") == "0"):
        from hasten.cli.progress import TrainingProgress
        from hasten.core.job import defaults_words
        from hasten.core.plan import Plan
        from hasten.core.target import load_job
        from hasten.monitor.alerts.live import EXIT_ALERT, LiveAlerts, read_options
        from hasten.monitor.alerts.rule import CONTRACT
        from hasten.monitor.begin import parse_sinks
        from hasten.monitor.of_loop import follow_loop
        from hasten.optimizations import catalogue
        from hasten.train.checkpoints.saver import Pace
        from hasten.train.guards.non_finite import NonFinitePolicy
        from hasten.train.process_group import end_rank, is_member, leave_group, restarted
        from hasten.train.records.record import Origin
        from hasten.train.run import RunOptions, start_under, train

        check_ranks(ranks, restarts, checkpoint_every, ray=ray, on_breach=on_breach)
        chosen = Plan.load(plan, catalogue()) if plan else Plan()
        sinks = parse_sinks([*chosen.log_to, *(log_to or ())])
        become_ranks(ranks, restarts, ray=ray)
        resume = resume or resume_anyway or restarted()
        start_under(chosen)
        job = load_job(target)
    silent = is_member() and os.environ["RANK"] != "0"
    pace = Pace(every=checkpoint_every, overhead_frac=checkpoint_overhead, keep=keep) if checkpoint_every != 0 else None
    origin = Origin(target=target, arguments=tuple(sys.argv[2:]))
    quiet = silent or voice.get().level < 0
    with TrainingProgress(errors, silent=quiet) as progress:
        if not quiet and (words := defaults_words(job)):
            progress.say(words)
        live_alerts = LiveAlerts(
            *read_options(alerts, alert_to or []),
            say=progress.say,
            stop=lambda: os.kill(os.getpid(), signal.SIGTERM),
            contract=contract_of(chosen, job, on_breach),
        )
        observe = follow_loop(out, sinks, say=progress.say, alerts=live_alerts)
        options = RunOptions(
            resume=resume,
            anyway=resume_anyway,
            pace=pace,
            non_finite=NonFinitePolicy(policy=on_nan.value),
            say=progress.say,
            observe=observe,
        )
        result = train(job, chosen, out, max_updates=updates, on_report=progress.on_report, options=options, origin=origin)
    leave_group()
    status = 130 if result.stopped_by is signal.SIGINT else 0
    if not silent:
        say_result(result, out)
    if is_member():  # another status would make the launcher start the ranks again
        end_rank(status)
    if (failed := live_alerts.failed) is None or status:
        raise typer.Exit(status)
    if failed.rule != CONTRACT or on_breach is not OnBreach.FALLBACK:
        raise typer.Exit(EXIT_ALERT)
    if result.stopped_by is signal.SIGTERM:  # otherwise it was the last window, and the run is complete
        continue_plain(chosen)


def contract_of(plan: Plan, job: Job, on_breach: OnBreach) -> Contract | None:
    """Return what a run is held to; None without a plan."""
    from hasten.core.provenance import job_fingerprint
    from hasten.monitor.contract import Contract

    if not plan.names:
        return None
    return Contract(plan=plan, job=job_fingerprint(job), action="warn" if on_breach is OnBreach.WARN else "stop")


def continue_plain(plan: Plan) -> NoReturn:
    """Continue the run from its checkpoint without the plan: the same command again, with --resume, in this process."""
    from hasten.core.optimization import cleared_environment, required_environment

    say_error("the plan's gain was lost: continuing from the checkpoint without the plan")
    command = [*without_options(sys.orig_argv[1:], ("--plan", "--on-breach")), "--resume"]
    environment = cleared_environment(required_environment(plan.optimizations), os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command], environment)  # noqa: S606 - the user's own command


def without_options(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a command line without some options, each of which takes one value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return kept


def become_ranks(ranks: int, restarts: int, *, ray: bool = False) -> None:
    """Start the ranks and exit as they do, if asked to. A rank that was started this way watches its launcher instead."""
    from hasten.train.launch import launch, say_on_stderr
    from hasten.train.process_group import is_member, stay_with_launcher, was_launched
    from hasten.train.ray_launch import launch_on_ray

    if ray and not is_member():
        raise typer.Exit(launch_on_ray(ranks, [sys.executable, *sys.orig_argv[1:]]))
    if (ranks > 1 and not is_member()) or (restarts and not was_launched()):
        raise typer.Exit(launch(ranks, [sys.executable, *sys.orig_argv[1:]], restarts=restarts, say=say_on_stderr))
    stay_with_launcher(ranks)


def check_ranks(
    ranks: int, restarts: int, checkpoint_every: int | None, *, ray: bool, on_breach: OnBreach = OnBreach.WARN
) -> None:
    """Refuse --restarts, --ray and --on-breach if they cannot work.

    Raises:
        HastenError: There would be no checkpoint to continue from, torchrun started this rank, or there is only one rank.
    """
    from hasten.train.process_group import is_member, was_launched

    if restarts and checkpoint_every == 0:
        raise HastenError("--restarts continues from checkpoints, and --checkpoint-every 0 writes none: omit one of them.")
    if restarts and is_member() and not was_launched():
        raise HastenError("--restarts is for ranks that Hasten starts. With torchrun, use its --max-restarts.")
    if restarts and ray:
        raise HastenError("--restarts is for ranks on this machine. On Ray, run the same command again with --resume.")
    if ray and ranks == 1:
        raise HastenError("--ray starts several ranks: give --ranks 2 or more.")
    if on_breach is OnBreach.FALLBACK and (ranks > 1 or is_member()):
        raise HastenError("--on-breach fallback works with one process. With several ranks, use --on-breach stop.")
    if on_breach is OnBreach.FALLBACK and checkpoint_every == 0:
        raise HastenError(
            "--on-breach fallback continues from a checkpoint, and --checkpoint-every 0 writes none: omit one."
        )


def say_result(result: Result, out: Path) -> None:
    """Print the result of a run. The speed is that of this part of the run."""
    first = result.went_on_from or 0
    if result.went_on_from is not None:
        say(f"Resumed from update {first}.")
    if result.updates > first or not first:
        rate = result.part_samples / result.seconds if result.seconds else 0.0
        say(f"Trained {result.updates - first} updates in {result.seconds:.1f} s ({rate:.0f} samples/s).")
    else:
        say(f"All {first} updates were already done.")
    say(f"Weights, metrics, checkpoints and plan are in {out}: hasten runs show {out}")
    if result.stopped_by is not None:
        say(f"Stopped by {result.stopped_by.name}. Run the same command with --resume to continue.")


def run_script(
    command: tuple[str, ...], path: Path | None, follow: Callable[[Sequence[str]], dict[str, Any] | None] = lambda _: None
) -> None:
    """Run a script under a plan and exit as it exits. Parts of the plan that were not applied or had to stop are reported.

    If batches may have differed from those of the script alone, a script that succeeded exits with `STALE`. Without a plan,
    the script replaces this process. This process does not load torch, which takes long: the script's process loads it
    anyway, and checks the plan then.
    """
    from hasten.core.plan_file import read_plan_text, read_tables
    from hasten.script.entry.command import check_command

    check_command(command)
    text = EMPTY_PLAN if path is None else read_plan_text(path)
    tables = read_tables(text, where=str(path))
    following = follow(tables.get("log_to", ()))
    if path is None and following is None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606 - the user's own command
    from hasten.optimizations import may_set_environment
    from hasten.script.entry.launch import exit_like, run_under

    names: dict[str, Any] = tables.get("optimizations", {})
    environment = environment_under(path, {name: names[name] for name in names if may_set_environment(name)})
    target = shlex.join(command[:2] if command[0] == "-m" else command[:1])
    more = {"where": str(path), "target": target, "proved": tables.get("proved", {})}
    with recorded(following, command, names, text) as record:
        done = run_under(command, names, env=environment, following=following, **more)
        if record is not None:
            record.exited(done.code)
    if done.refused:
        raise PlanError(done.refused)
    say_how_it_ran(done, names)
    exit_like(done.code or (STALE if any(report["stale"] for report in done.ranks.values()) else 0))


def say_how_it_ran(done: Ran, names: Collection[str]) -> None:
    """Report what of a plan was not applied to a script, or had to stop."""
    for rank, why in done.failures.items():
        say_error(f"rank {rank} ran without the plan, or without parts of it:\n{why}")
    for rank, report in done.ranks.items():
        for name in names:
            if name not in report["applied"]:
                why = report["failures"].get(name, "the script has no place where it applies")
                how = "stopped" if name in report["stopped"] else "ran without"
                say_error(f"rank {rank} {how} {name}: {why}")
        if report["stale"]:
            say_error(
                f"rank {rank}: THIS RUN MAY DIFFER FROM THE SCRIPT ALONE: {report['stale']}. "
                f"Train again without {' and '.join(report['stopped'])}."
            )
    if names and not done.ranks and not done.failures:
        say_error("the plan was not applied: the script never loaded torch, or ended before its first optimizer step")


def environment_under(path: Path | None, tables: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the environment that these optimizations of a plan need. Raises PlanError if one of them is not valid."""
    if not tables:
        return os.environ
    from hasten.core.optimization import joined_environment, required_environment
    from hasten.core.plan import Plan
    from hasten.optimizations import catalogue_of

    plan = Plan.from_dict(tables, catalogue_of(tables), where=str(path))
    return joined_environment(required_environment(plan.optimizations), os.environ)
