"""A queue of pipelines on one machine: Dagster's queued run coordinator, its daemon, and PostgreSQL for their records.

A queued run is one run of Dagster. All it does is run one pipeline in that pipeline's own folder, in a process of its own
(`queue_run.py`). Cores, memory and devices are still leased by each stage, so the queue only bounds how many pipelines wait
for leases at once. What a run did is in files; the database holds the order of the runs, their owners and their states.

    hasten-queue/
      dagster.yaml       settings; the folder is DAGSTER_HOME
      postgres/          PostgreSQL, unless the user named a server
      runs/ID.json       what happened to a run
      daemon.log         what Dagster's daemon and the processes of runs printed

Owners take turns by start-time fair queueing (Goyal, Vin and Cheng, 1996): `turns`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import sqlalchemy
from dagster._core.events import DagsterEvent
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from hasten.core.errors import HastenError, MachineError
from hasten.core.lock import hold, is_held
from hasten.pipeline import control, postgres
from hasten.pipeline.description import Pipeline, read_pipeline
from hasten.pipeline.folder import ENGINE_LOCK, read_json
from hasten.pipeline.lease import Totals, read_totals
from hasten.pipeline.queue_launcher import LOG, PIPELINE, Tell, ask_to_save, processes, report, spawn
from hasten.pipeline.queue_run import RUNS, record_of
from hasten.pipeline.worker import MACHINE

SETTINGS, DAEMON, ALONE = "dagster.yaml", ".daemon", ".alone"
OWNER, TURN, PRIORITY = "hasten/owner", "hasten/turn", "dagster/priority"
JOB = "pipeline"
SPARE = 2
"""Pipelines that are started beyond those that can run, so that the next one is ready when a lease is free."""
MOST = 8
"""Pipelines that are started at once by default, without devices: each of them takes 0.5 GiB for its engine."""
RESUMES = 100
"""How often the killed process of a run is started again."""
_POLL_S, _START_S, _STOP_S = 0.2, 120.0, 10.0
_Status = dg.DagsterRunStatus
_NAMES = {_Status.SUCCESS: "ended", _Status.FAILURE: "failed", _Status.CANCELED: "removed", _Status.CANCELING: "stopping"}


def _silent(_: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A queued run.

    Attributes:
        run: Its identifier.
        owner: Whose it is.
        pipeline: Path of the description.
        state: `waiting` (also for a lease), `running`, `stopping`, `ended`, `failed` or `removed`.
        turn: Its place among the turns of the owners.
        added: When it was added, in seconds since 1970.
        began: When its first stage got a lease; None if none did.
        ended: When it ended.
        error: Why it failed; empty if it did not.
    """

    run: str
    owner: str
    pipeline: str
    state: str
    turn: int
    added: float
    began: float | None = None
    ended: float | None = None
    error: str = ""

    @property
    def unfinished(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("waiting", "running", "stopping")


def turns(entries: Iterable[Entry], owner: str, count: int) -> range:
    """Return the turns of runs that an owner adds: the run with the lowest turn is started first, of equals the earlier one.

    A first run takes the turn of the run that was started last, or the one after the owner's own last run if that is later.
    So owners alternate. Who comes late does not wait for all that others added before, and gains nothing over them either.
    """
    known = [entry for entry in entries if entry.state != "removed"]
    started = max((entry.turn for entry in known if entry.state != "waiting"), default=0)
    own = max((entry.turn for entry in known if entry.owner == owner), default=0)
    first = max(started, own + 1)
    return range(first, first + count)


def start(folder: Path, *, url: str = "", at_once: int = 0, tell: Tell = _silent) -> None:
    """Start what does not run of a queue: PostgreSQL and Dagster's daemon. Runs that were killed go on.

    Args:
        folder: The queue's folder; created if missing.
        url: A PostgreSQL server of the user's own, `postgresql://USER:PASSWORD@HOST/DATABASE`. Kept for the next start.
        at_once: Pipelines that are started at once; 0 keeps the last setting, or takes what fits the machine.
        tell: Called with words for each step.

    Raises:
        MachineError: PostgreSQL or the daemon does not start.
        HastenError: The folder is used for something else.
    """
    before = read_json(folder / SETTINGS)
    if folder.exists() and any(folder.iterdir()) and not (folder / ALONE).exists():
        raise HastenError(f"{folder} holds other files. Name a new or an empty folder for the queue.")
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o711)  # the system user of PostgreSQL must be able to pass, whatever the umask is
    with _alone(folder):
        (folder / RUNS).mkdir(mode=0o700, exist_ok=True)
        server = folder / "postgres"
        own = not url and (server.exists() or not before)
        restarted = postgres.start(server, tell) if own else False
        url = postgres.url_of(server) if own else url or _url(before)
        url = url.replace("postgresql://", "postgresql+psycopg2://", 1)
        _connect(folder, url)
        if not at_once and before:
            at_once = before["run_coordinator"]["config"]["max_concurrent_runs"]
        tell("reading what this machine has")
        totals = read_totals()
        totals.save(folder / MACHINE)
        settings = _settings(url, at_once or _fitting(totals))
        _write_private(folder / SETTINGS, json.dumps(settings, indent=2))
        if is_held(folder / DAEMON):
            if not restarted and settings == before:
                return
            _end_daemon(folder)
        tell("starting Dagster's daemon")
        with _records(folder) as instance:
            _submit_left(instance)
            for run in instance.get_runs(dg.RunsFilter(statuses=[_Status.STARTING])):
                report(instance, run, dg.DagsterEventType.RUN_START)  # its daemon was killed: run monitoring starts it
            _start_daemon(folder, instance)


def add(folder: Path, paths: Sequence[Path], owner: str) -> list[Entry]:
    """Queue pipelines, all or none of them.

    Args:
        folder: The queue's folder.
        paths: Descriptions, or their folders.
        owner: Whose they are.

    Raises:
        PipelineError: A description is wrong, or asks for more than the machine has.
        HastenError: A pipeline already waits or runs, or the queue does not run.
    """
    _check(folder)
    totals = Totals.load(folder / MACHINE)
    pipelines: dict[str, Pipeline] = {}
    for path in paths:
        pipeline = read_pipeline(path)
        control.needs_of(pipeline, totals)
        if str(pipeline.path) in pipelines:
            raise HastenError(f"{pipeline.root} is named twice. Name each pipeline once.")
        pipelines[str(pipeline.path)] = pipeline
    if not owner.strip():
        raise HastenError("--owner is empty. Give a name.")
    with _alone(folder), _records(folder) as instance:
        _submit_left(instance)
        before = _entries(folder, instance)
        busy = {entry.pipeline: entry for entry in before if entry.unfinished}
        for path_of, pipeline in pipelines.items():
            if path_of in busy:
                entry = busy[path_of]
                raise HastenError(f"{pipeline.root} is already {entry.state}, for {entry.owner}. Add it when it has ended.")
            if is_held(pipeline.work / ENGINE_LOCK):
                raise HastenError(f"{pipeline.root} is running outside of the queue. Add it when it has ended.")
        added = []
        for path_of, turn in zip(pipelines, turns(before, owner, len(pipelines)), strict=True):
            tags = {OWNER: owner, PIPELINE: path_of, TURN: str(turn), PRIORITY: str(-turn)}
            origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("hasten"), "hasten"), JOB)
            run = instance.add_run(dg.DagsterRun(JOB, tags=tags, remote_job_origin=origin))
            added.append(run.run_id)
            _submit_left(instance)
        return [entry for entry in _entries(folder, instance) if entry.run in added]


def entries(folder: Path) -> list[Entry]:
    """Return all runs of a queue in the order in which they were added.

    Raises:
        HastenError: There is no queue, or it does not run.
    """
    with _records(folder) as instance:
        return _entries(folder, instance)


def is_running(folder: Path) -> bool:
    """Whether the daemon runs, which starts what waits."""
    return is_held(folder / DAEMON)


def stop(folder: Path, tell: Tell = _silent) -> None:
    """Ask all running trainings to save, and end the daemon and PostgreSQL. The next start continues.

    Raises:
        HastenError: There is no queue.
    """
    _check(folder)
    with _alone(folder):
        tell("ending Dagster's daemon")
        _end_daemon(folder)
        unfinished = {
            file.stem: record for file in (folder / RUNS).glob("*.json") if "ended" not in (record := read_json(file))
        }
        ask_to_save(folder, list(unfinished), tell)
        for record in unfinished.values():  # the engine of a run whose process was killed
            try:
                control.stop(read_pipeline(Path(record["pipeline"])))
            except HastenError as error:
                tell(str(error))
        tell("ending PostgreSQL")
        postgres.stop(folder / "postgres")


def _settings(url: str, at_once: int) -> dict[str, Any]:
    never = 10**9
    return {
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},
        "storage": {"postgres": {"postgres_url": url}},
        "run_launcher": {"module": "hasten.pipeline.queue_launcher", "class": "Launcher"},
        "run_coordinator": {
            "module": "dagster", "class": "QueuedRunCoordinator",
            "config": {"max_concurrent_runs": at_once, "dequeue_interval_seconds": 1},
        },
        "run_monitoring": {
            "enabled": True, "poll_interval_seconds": 1, "max_resume_run_attempts": RESUMES,
            "start_timeout_seconds": never, "cancel_timeout_seconds": never,
        },
        "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
    }  # fmt: skip


def _fitting(totals: Totals) -> int:
    return SPARE + (len(totals.devices) or min(len(totals.cores), MOST))


def _write_private(path: Path, text: str) -> None:
    """Replace a file that may hold a password."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _check(folder: Path) -> None:
    if not (folder / SETTINGS).exists():
        raise HastenError(f"there is no queue in {folder}. Name its folder, or start one: hasten pipeline queue start.")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other command starts, stops or adds to the queue."""
    lock = hold(folder / ALONE, wait=True)
    assert lock is not None  # noqa: S101 - it waits
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def _records(folder: Path) -> Iterator[dg.DagsterInstance]:
    """Open the records of a queue.

    Raises:
        HastenError: There is none, or its database does not answer.
    """
    _check(folder)
    server = folder / "postgres"
    if server.exists() and not postgres.is_running(server):
        raise HastenError(f"the queue in {folder} is not running. Nothing is lost: hasten pipeline queue start {folder}")
    _connect(folder, _url(read_json(folder / SETTINGS)))
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        yield instance


def _url(settings: Mapping[str, Any]) -> str:
    return str(settings["storage"]["postgres"]["postgres_url"])


def _connect(folder: Path, url: str) -> None:
    """Check that the database answers: Dagster would try again and again, and print each error.

    Raises:
        MachineError: It does not.
    """
    try:
        sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).connect().close()
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise MachineError(
            f"the queue's PostgreSQL cannot be used: {str(error).strip().splitlines()[0]}. "
            f"Start it, or name another one: hasten pipeline queue start {folder} --postgres URL"
        ) from error


def _submit_left(instance: dg.DagsterInstance) -> None:
    """Queue the runs that were recorded, but not queued yet: by this process, or by one that was killed in between."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[_Status.NOT_STARTED]), ascending=True):
        instance.report_dagster_event(DagsterEvent.job_enqueue(run), run.run_id)


def _entries(folder: Path, instance: dg.DagsterInstance) -> list[Entry]:
    found = []
    for record in instance.get_run_records(ascending=True):
        run, said = record.dagster_run, read_json(record_of(folder, record.dagster_run.run_id))
        state = _NAMES.get(run.status, "waiting")
        if run.status == _Status.STARTED:  # its process knows more
            state = ("failed" if said["error"] else "ended") if "ended" in said else "running" if "began" in said else state
        ended = said.get("ended", record.end_time)
        found.append(
            Entry(
                run=run.run_id, owner=run.tags[OWNER], pipeline=run.tags[PIPELINE], state=state, turn=int(run.tags[TURN]),
                added=record.create_timestamp.timestamp(), began=said.get("began"), ended=ended, error=said.get("error", ""),
            )
        )  # fmt: skip
    return found


def _start_daemon(folder: Path, instance: dg.DagsterInstance) -> None:
    """Start the daemon, and wait until it looks at the queue."""
    lock = hold(folder / DAEMON, wait=True, inherited=True)
    assert lock is not None  # noqa: S101 - it waits
    began = time.time()
    command = [sys.executable, "-m", "dagster._daemon", "run", "--empty-workspace", "--log-level", "warning"]
    try:
        process = spawn(command, folder, lock)
    finally:
        os.close(lock)
    while time.time() - began < _START_S:
        beat = instance.get_daemon_heartbeats().get("QUEUED_RUN_COORDINATOR")
        if beat is not None and beat.timestamp >= began:
            process.returncode = 0  # it outlives this process, which Python would warn of
            return
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    raise MachineError(f"Dagster's daemon did not start. Its output is in {folder / LOG}.")


def _end_daemon(folder: Path) -> None:
    """Ask the daemon to end, and kill it if it does not: it holds nothing that is not in the database."""
    asked = time.monotonic()
    while is_running(folder):
        for process in processes(folder, "dagster._daemon"):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL if time.monotonic() - asked > _STOP_S else signal.SIGTERM)
        time.sleep(_POLL_S)
