"""A pipeline as assets, blocking checks and a job of Dagster, run by its multiprocess executor with SQLite in a folder.

Dagster decides what may start, retries, and records; its home is in the pipeline's folder, it needs no server and sends
nothing. Each step starts `hasten.pipeline.worker` through Dagster Pipes, and judges the gates when that has ended.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Dagster warns of its own beta features.
warnings.filterwarnings("ignore", module=r"dagster.*")
os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")

import dagster as dg  # noqa: E402 - after the settings that it reads
from dagster import build_reconstructable_job  # noqa: E402

from hasten.core.errors import CorruptError, HastenError  # noqa: E402
from hasten.core.files import write_atomically  # noqa: E402
from hasten.pipeline.description import Pipeline, Stage, read_pipeline  # noqa: E402
from hasten.pipeline.folder import ENGINE_ERROR, INCOMPLETE, NOW, check_disk, out_of, read_json, stage_folder  # noqa: E402
from hasten.pipeline.judge import judge  # noqa: E402
from hasten.pipeline.worker import STOPPED, Worker  # noqa: E402

HOME, JOB = "dagster", "pipeline"
UI = "HASTEN_PIPELINE"
"""Environment variable with the description that Dagster's pages show."""
MODULE = "hasten.pipeline.engine"
SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false
compute_logs: # what a stage prints is in its log, and what a step prints in that of the engine
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""


def build_job(path: str, selected: Sequence[str]) -> dg.JobDefinition:
    """Return the job that runs these stages of a description. Each step's process calls this again."""
    pipeline = read_pipeline(Path(path))
    executor = dg.multiprocess_executor.configured(
        {"max_concurrent": len(selected), "start_method": {"forkserver": {"preload_modules": [MODULE]}}}
    )
    definitions = dg.Definitions(
        assets=_assets(pipeline), jobs=[dg.define_asset_job(JOB, selection=list(selected))], executor=executor
    )
    return definitions.resolve_job_def(JOB)


def definitions() -> dg.Definitions:
    """Return what Dagster's pages show."""
    return dg.Definitions(assets=_assets(read_pipeline(Path(os.environ[UI]))))


def _assets(pipeline: Pipeline) -> list[dg.AssetsDefinition]:
    return [_asset(pipeline, stage) for stage in pipeline.stages.values()]


def _asset(pipeline: Pipeline, stage: Stage) -> dg.AssetsDefinition:
    """Return a stage as an asset, with its gates as blocking checks."""
    checks = [dg.AssetCheckSpec(name=gate, asset=stage.name, blocking=True) for gate in stage.gates]

    @dg.asset(
        name=stage.name, deps=list(stage.needs), check_specs=checks, kinds={stage.kind}, group_name="pipeline",
        retry_policy=dg.RetryPolicy(max_retries=stage.retries, delay=1) if stage.retries else None,
    )  # fmt: skip
    def body(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from _run_stage(pipeline, stage, context)

    return body


def _run_stage(pipeline: Pipeline, stage: Stage, context: dg.AssetExecutionContext) -> Iterator[Any]:
    """Run a stage in a process of its own, and judge it."""
    command = [sys.executable, "-m", "hasten.pipeline.worker", str(pipeline.path), stage.name]
    try:
        invocation = dg.PipesSubprocessClient().run(command=command, context=context)
    except Exception as error:
        now = read_json(stage_folder(pipeline, stage.name) / NOW)
        stopped = f"exit code {STOPPED}" in str(error) or now.get("state") == "stopped"
        raise dg.Failure(str(now.get("error") or error), allow_retries=not stopped) from error
    view = Worker(pipeline, stage).view()
    yield from invocation.get_results(implicit_materializations=True)
    for one in judge(pipeline, stage, out_of(pipeline, stage.name, view.key)):
        yield dg.AssetCheckResult(
            passed=one.passed, check_name=one.name, asset_key=stage.name,
            metadata={"decision": "\n".join(one.words), "override": one.reason},
        )  # fmt: skip


def open_instance(pipeline: Pipeline, *, alone: bool) -> dg.DagsterInstance:
    """Open Dagster's records of this pipeline. If no other engine runs, `alone`, unfinished runs are recorded as failed.

    Raises:
        CorruptError: Its database is damaged. Nothing that stages gave is in it.
        MachineError: The disk is full.
    """
    home = pipeline.work / HOME
    write_atomically(home / "dagster.yaml", SETTINGS)
    os.environ["DAGSTER_HOME"] = str(home)
    try:
        instance = dg.DagsterInstance.get()
        unfinished = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
        for run in instance.get_runs(unfinished) if alone else []:
            instance.report_run_failed(run, "its controller was killed")
    except Exception as error:
        check_disk(pipeline)
        raise CorruptError(
            f"Dagster's records in {home} cannot be used: {str(error).splitlines()[0]}. Move it away and run again: "
            f"what stages gave is kept elsewhere, so nothing is run twice."
        ) from error
    return instance


def main(path: str, *selected: str) -> int:
    """Run stages of a pipeline. Returns 0 if all of them ended and passed their gates, and `INCOMPLETE` otherwise."""
    logging.captureWarnings(capture=True)
    pipeline = read_pipeline(Path(path))
    try:
        with open_instance(pipeline, alone=True) as instance:
            job = build_reconstructable_job(MODULE, "build_job", (path, list(selected)), {})  # type: ignore[arg-type]
            done = dg.execute_job(job, instance=instance, raise_on_error=False)
            return 0 if done.success else INCOMPLETE
    except HastenError as error:
        write_atomically(pipeline.work / ENGINE_ERROR, str(error))
        return 2
