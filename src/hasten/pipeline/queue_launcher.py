"""How Dagster's daemon starts the processes of queued runs, and learns which of them have ended or were killed.

The daemon asks for each started run once a second (its run monitoring). The process of a run holds a lock, which the system
releases when it dies, and writes a record when its pipeline has ended. A free lock without such a record: it was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

# Dagster warns of its own beta features.
warnings.filterwarnings("ignore", module=r"dagster.*")

import dagster as dg  # noqa: E402 - after the filter
import psutil  # noqa: E402
from dagster._core.events import DagsterEvent  # noqa: E402
from dagster._core.launcher.base import (  # noqa: E402
    CheckRunHealthResult,
    LaunchRunContext,
    ResumeRunContext,
    RunLauncher,
    WorkerStatus,
)
from dagster._serdes import ConfigurableClass, ConfigurableClassData  # noqa: E402

from hasten.core.lock import hold, is_held  # noqa: E402
from hasten.pipeline.folder import read_json  # noqa: E402
from hasten.pipeline.queue_run import lock_of, record_of  # noqa: E402

PIPELINE = "hasten/pipeline"
"""Tag of a run with the path of its description."""
LOG = "daemon.log"
_POLL_S = 0.2
Tell = Callable[[str], None]


class Launcher(RunLauncher[Any], ConfigurableClass):
    """Starts the processes of runs for Dagster's daemon, and tells it which of them have ended or were killed."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """What Dagster read this from."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """It has no settings."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        """Create it as Dagster does."""
        return cls(inst_data)

    supports_check_run_worker_health = True
    supports_resume_run = True

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the process of a run."""
        self._start(context.dagster_run)

    def resume_run(self, context: ResumeRunContext) -> None:
        """Start the process of a run again, after it was killed."""
        self._start(context.dagster_run)

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Say whether the process of a run lives. If it has ended, record what it wrote: it cannot reach the database."""
        if is_held(lock_of(self._queue, run.run_id)):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        record = read_json(record_of(self._queue, run.run_id))
        if "ended" not in record:
            return CheckRunHealthResult(WorkerStatus.FAILED, "it was killed")
        if record["error"]:
            self._instance.report_run_failed(run, record["error"])
        else:
            report(self._instance, run, dg.DagsterEventType.RUN_SUCCESS)
        return CheckRunHealthResult(WorkerStatus.SUCCESS)

    def terminate(self, run_id: str) -> bool:
        """Ask the process of a run to save and end, and wait until it has."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        ask_to_save(self._queue, [run_id])
        self._instance.report_run_canceled(run)
        return True

    @property
    def _queue(self) -> Path:
        return Path(self._instance.root_directory)

    def _start(self, run: dg.DagsterRun) -> None:
        """Start the process. It alone then holds the lock, so a living run never looks killed."""
        lock = hold(lock_of(self._queue, run.run_id), wait=False, inherited=True)
        try:
            if run.status != dg.DagsterRunStatus.STARTED:
                report(self._instance, run, dg.DagsterEventType.RUN_START)
            if lock is None:  # its process lives
                return
            command = [sys.executable, "-m", "hasten.pipeline.queue_run", str(self._queue), run.run_id, run.tags[PIPELINE]]
            spawn(command, self._queue, lock)
        except OSError as error:
            self._instance.report_engine_event(f"its process did not start: {error}. This is tried again.", run)
        finally:
            if lock is not None:
                os.close(lock)


def report(instance: dg.DagsterInstance, run: dg.DagsterRun, what: dg.DagsterEventType) -> None:
    """Record what happens to a run."""
    instance.report_dagster_event(DagsterEvent(event_type_value=what.value, job_name=run.job_name), run.run_id)


def spawn(command: Sequence[str], queue: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that it outlives this one. It alone then holds the lock."""
    with (queue / LOG).open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - this package, and Dagster
            command, cwd=queue, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=(lock,),
            start_new_session=True, env={**os.environ, "DAGSTER_HOME": str(queue), "DAGSTER_DISABLE_TELEMETRY": "yes"},
        )  # fmt: skip


def processes(queue: Path, word: str) -> list[psutil.Process]:
    """Return the processes that were started in a queue's folder with this word on their command lines."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if word in process.cmdline() and Path(process.cwd()) == queue:
                found.append(process)
    return found


def ask_to_save(folder: Path, runs: Sequence[str], tell: Tell = lambda _: None) -> None:
    """Ask the processes of runs to save and end, and wait until they have."""
    asked: set[psutil.Process] = set()
    while living := [run for run in runs if is_held(lock_of(folder, run))]:
        for process in {one for run in living for one in processes(folder, run)} - asked:
            asked.add(process)
            with suppress(psutil.Error):
                process.terminate()
        tell(f"waiting until {len(living)} running pipeline{'s have' if len(living) > 1 else ' has'} saved")
        time.sleep(_POLL_S)
