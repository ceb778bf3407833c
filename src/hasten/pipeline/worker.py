"""The process of a stage: wait for its lock and its lease, run it, record what it gave.

    python -m hasten.pipeline.worker pipeline.toml STAGE

The lock and the lease are held by this process and by those it starts, until the last has ended. So a stage cannot run twice
at a time, whatever was killed: a second process waits, and then finds that the stage has ended, or resumes it.

It loads neither torch nor Dagster, and survives the death of the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, Any

import psutil

from hasten.core.errors import HastenError
from hasten.core.files import write_atomically
from hasten.core.lock import hold
from hasten.pipeline import merge
from hasten.pipeline.description import METRICS, Pipeline, PipelineError, Stage, filled, read_pipeline
from hasten.pipeline.folder import (
    DONE,
    HOLD,
    LATEST,
    View,
    hashes_of,
    link_latest,
    log_of,
    note,
    out_of,
    read_json,
    stage_folder,
    view_of,
)
from hasten.pipeline.judge import SEQUENTIAL, judge
from hasten.pipeline.lease import Lease, Totals, need_of, take

MACHINE, ATTEMPTS = "machine.json", "attempts.json"
STOPPED, FAILED = 3, 4
"""Exit statuses."""
_POLL_S = 0.2
_SPARE = 1.15
"""Factor on measured memory, for what varies between runs."""
_BASE_BYTES = 2**30
"""Main memory of a process with torch, beside what a job allocates."""
PR_SET_PDEATHSIG = 1


class StoppedError(HastenError):
    """The stage was asked to stop, and has saved what it could."""

    state = "stopped"


class KilledError(HastenError):
    """The process of the stage was killed. It can be resumed."""

    state = "killed"


class Worker:
    """Runs one stage.

    Args:
        pipeline: The pipeline.
        stage: The stage; that of a sequential form may not be among the pipeline's.
    """

    def __init__(self, pipeline: Pipeline, stage: Stage) -> None:
        self.pipeline, self.stage = pipeline, stage
        self._stopped = Event()
        self._inner: Worker | None = None
        self._peak = 0
        self._began = 0.0

    def stop(self, *_: object) -> None:
        """Ask the stage to save and end."""
        self._stopped.set()
        if self._inner is not None:
            self._inner.stop()

    def run(self) -> View:
        """Run the stage, unless it has ended with these inputs. Returns it as ended.

        Raises:
            StoppedError: It was asked to stop.
            KilledError: Its process was killed.
            PipelineError: It failed: says how, and where its output is.
            HastenError: An input or the machine does not allow it.
        """
        pipeline, stage = self.pipeline, self.stage
        lock = hold(stage_folder(pipeline, stage.name) / HOLD, wait=True, inherited=True)
        assert lock is not None  # noqa: S101 - it waits
        try:
            view = self.view()
            if view.done:
                return view
            if not view.key:
                raise PipelineError(
                    f"stage {stage.name}: what it needs has not ended. Run the pipeline: hasten pipeline run."
                )
            out = out_of(pipeline, stage.name, view.key)
            out.mkdir(parents=True, exist_ok=True)
            told = {"key": view.key, "pid": os.getpid(), "why": view.why}
            try:
                done = self._attempt(view, out, told, lock)
            except Exception as error:
                known = isinstance(error, HastenError)
                words = str(error) if known else f"stage {stage.name}: {type(error).__name__}: {error}."
                with suppress(OSError):  # a full disk may be the reason
                    note(pipeline, stage.name, state=getattr(error, "state", "failed"), error=words, **told)
                raise error if known else PipelineError(words) from error
            link_latest(pipeline, stage.name, view.key)
            note(pipeline, stage.name, state="ended", **told)
            return View(stage=stage, key=view.key, inputs=view.inputs, done=done, last=done)
        finally:
            os.close(lock)

    def view(self) -> View:
        """Return the stage at this moment, and keep the views of those that it needs."""
        hashes = hashes_of(self.pipeline)
        self._before = dict[str, View]()
        for name in self.pipeline.upstream(self.stage):
            self._before[name] = view_of(self.pipeline, self.pipeline.stages[name], self._before, hashes)
        return view_of(self.pipeline, self.stage, self._before, hashes)

    def _attempt(self, view: View, out: Path, told: Mapping[str, Any], lock: int) -> dict[str, Any]:
        """Do the work, and record it. Returns the record."""
        stage = self.stage
        places = {name: out_of(self.pipeline, name, self._before[name].key) for name in stage.needs} | {"out": out}
        if stage.after:
            places["start"] = places[stage.after]
        self._told, self._lock = told, lock
        if stage.merge:
            extra = self._merge(out, places)
        else:
            extra = {}
            if stage.command or stage.evaluate:  # it starts from its beginning, and may refuse what an earlier start wrote
                for path in (out / name for name in stage.gives):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            with self._leased(out, places) as lease:
                self._command(command_of(self.pipeline, stage, places, out), stage, places, lease)
            if stage.job:
                self._check_finished(out)
        if missing := [name for name in stage.gives if not (out / name).exists()]:
            raise PipelineError(
                f"stage {stage.name} ended, but did not give {', '.join(missing)}. Write it into {{out}}, or change `gives`."
            )
        hashes = hashes_of(self.pipeline)
        done = {
            "stage": stage.name, "key": view.key, "inputs": dict(view.inputs), "ended": time.time(),
            "gave": {name: hashes.of(out / name) for name in stage.gives}, "memory_bytes": self._peak,
            **read_json(out / ATTEMPTS), **extra,
        }  # fmt: skip
        write_atomically(out / DONE, json.dumps(done))
        hashes.save()
        return done

    @contextmanager
    def _leased(self, out: Path, places: Mapping[str, Path]) -> Iterator[Lease]:
        """Hold a lease. The seconds within are added to those of the stage."""
        pipeline, stage, told = self.pipeline, self.stage, self._told
        totals, asked = Totals.load(pipeline.work / MACHINE), time.time()
        note(pipeline, stage.name, state="waiting", **told)
        need = need_of(stage, totals, self._memory_needed(places, totals))

        def waiting(words: str) -> None:
            if self._stopped.is_set():
                raise StoppedError(f"stage {stage.name} was stopped while it waited.")
            if words:
                note(pipeline, stage.name, state="waiting", words=words, **told)

        lease = take(need, totals, stage.name, waiting=waiting)
        began = time.time()
        self._began = self._began or began
        try:
            note(pipeline, stage.name, state="running", cores=list(lease.cores), devices=list(lease.devices), **told)
            yield lease
        finally:
            os.close(lease.handle)
            before = {"seconds": 0.0, "waited_s": 0.0, "attempts": 0} | read_json(out / ATTEMPTS)
            facts = {
                "seconds": before["seconds"] + time.time() - began, "waited_s": before["waited_s"] + began - asked,
                "attempts": before["attempts"] + 1, "began": self._began,
                "cores": len(lease.cores), "devices": len(lease.devices),
            }  # fmt: skip
            with suppress(OSError):
                write_atomically(out / ATTEMPTS, json.dumps(facts))

    def _memory_needed(self, places: Mapping[str, Path], totals: Totals) -> int | None:
        """Return the main memory that the stage needs by measurement, or for a job by `hasten size`; None if unknown."""
        stage = self.stage
        known = known_memory(self.pipeline, stage)
        if known is not None or stage.memory is not None or not stage.job or stage.devices:
            return known
        command = [sys.executable, "-m", "hasten", "size", stage.words[0], "--json", "-"]
        environ = {**os.environ, **stage.environ(places)}
        done = subprocess.run(command, env=environ, cwd=self.pipeline.root, capture_output=True, check=False)  # noqa: S603
        try:
            return int(json.loads(done.stdout)["memory"]["peak_bytes"] * _SPARE) + _BASE_BYTES
        except (ValueError, KeyError, TypeError):
            return None

    def _check_finished(self, out: Path) -> None:
        """A run that was asked to stop saves and exits with 0: only its record says whether it is complete."""
        parts = tomllib.loads((out / "run.toml").read_text(encoding="utf-8")).get("parts", [{}])
        if parts[-1].get("outcome") != "finished":
            raise StoppedError(
                f"stage {self.stage.name} was stopped at update {parts[-1].get('updates', 0)}; it can be resumed."
            )

    def _command(self, command: Sequence[str], stage: Stage, places: Mapping[str, Path], lease: Lease) -> None:
        """Run a command on the cores and devices of the lease, its output in the stage's log."""
        if self._stopped.is_set():
            raise StoppedError(f"stage {stage.name} was stopped before it began.")
        environ = {**os.environ, **stage.environ(places)}
        environ |= {"HASTEN_STAGE": stage.name, "HASTEN_STAGE_OUT": str(places["out"])}
        environ.setdefault("OMP_NUM_THREADS", str(len(lease.cores)))
        if lease.devices or stage.job:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, lease.devices))
        folder = self.pipeline.root / filled([stage.folder], places)[0]
        log = log_of(self.pipeline, stage.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"--- {time.strftime('%F %T')} {' '.join(command)}\n".encode())
            output.flush()
            code = self._wait(command, environ, folder, output, lease)
        if self._stopped.is_set() and not stage.job:
            raise StoppedError(f"stage {stage.name} was stopped. Its command starts again from the beginning.")
        if code == -signal.SIGKILL:
            raise KilledError(f"stage {stage.name} was killed by SIGKILL: by a person, or because memory ran out.")
        if code:
            ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            raise PipelineError(f"stage {stage.name} {ending}{_last_line(log)}. Its output is in {log}.")

    def _wait(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, output: IO[bytes], lease: Lease
    ) -> int:
        """Run a command until it ends. It holds the stage's lock and lease too. Returns its exit status."""
        libc = ctypes.CDLL(None, use_errno=True)

        def before_exec() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a run saves, and no stage goes on unrecorded
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.sched_setaffinity(0, lease.cores)

        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                pass_fds=(self._lock, lease.handle), preexec_fn=before_exec,  # noqa: PLW1509 - this process has one thread
            )  # fmt: skip
        except OSError as error:
            raise PipelineError(f"stage {self.stage.name}: {command[0]} cannot be started: {error.strerror}.") from error
        told = False
        while (code := process.poll()) is None:
            self._peak = max(self._peak, _memory(process.pid))
            if self._stopped.is_set() and not told:
                process.terminate()
                told = True
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        return code

    def _merge(self, out: Path, places: dict[str, Path]) -> dict[str, Any]:
        """Merge the branches, judge the result, and fall back to the sequential form if it does not pass."""
        stage, target, sequential = self.stage, out / self.stage.file, out / SEQUENTIAL
        with self._leased(out, places) as lease:
            branches = [places[name] / stage.file for name in stage.words]
            merge.merge_files(branches, target, stage.shares, how=stage.how)
            self._measure(target, out, places, lease)
        compares = any(gate.within is not None for gate in stage.gates.values())
        chained: Path | None = None
        if compares and stage.baseline:
            write_atomically(sequential / METRICS, (self.pipeline.root / stage.baseline).read_bytes())
        elif compares:
            chained = self._one_after_another(out, places)
        judged = judge(self.pipeline, stage, out)
        words = [word for one in judged for word in one.words]
        if all(one.passed for one in judged):
            return {"form": "merged", "gates": words, "seconds": time.time() - self._began}
        merge.replace_by(chained or self._one_after_another(out, places), target)
        (out / METRICS).replace(out / "merged-metrics.json")
        merge.replace_by(sequential / METRICS, out / METRICS)  # which the gates judge now
        return {"form": "sequential", "gates": words, "seconds": time.time() - self._began}

    def _measure(self, file: Path, out: Path, places: dict[str, Path], lease: Lease) -> None:
        """Run the command that measures weights, and writes `metrics.json` into its `{out}`."""
        out.mkdir(exist_ok=True)
        here = {**places, "out": out, "merged": file}
        self._command(_python(filled(self.stage.judge, here)), self.stage, here, lease)

    def _one_after_another(self, out: Path, places: dict[str, Path]) -> Path:
        """Train the branches in their order, each from the one before it, and measure the last. Returns its weights.

        The first branch has been trained already. Each of the others is a stage of its own, with its own checkpoints.
        """
        pipeline, before = self.pipeline, self.stage.words[0]
        file = places[before] / self.stage.file
        for name in self.stage.words[1:]:
            stage = merge.chained(pipeline.stages[name], before)
            pipeline = replace(pipeline, stages={**pipeline.stages, stage.name: stage})
            note(self.pipeline, self.stage.name, state="running", words=f"trains {name} after {before}", **self._told)
            self._inner = Worker(pipeline, stage)
            view = self._inner.run()
            file, before = out_of(pipeline, stage.name, view.key) / self.stage.file, stage.name
        self._inner = None
        with self._leased(out, places) as lease:
            self._measure(file, out / SEQUENTIAL, places, lease)
        return file


def command_of(pipeline: Pipeline, stage: Stage, places: Mapping[str, Path], out: Path) -> list[str]:
    """Return the command of a stage."""
    words = filled(stage.words, places)
    if stage.command or stage.evaluate:
        return _python(words)
    plan = ["--plan", str(pipeline.root / stage.plan)] if stage.plan else []
    hasten = [sys.executable, "-m", "hasten", "run"]
    if stage.job:
        updates = ["--updates", str(stage.updates)] if stage.updates else []
        return [*hasten, words[0], "--out", str(out), "--resume", *plan, *updates, *filled(stage.options, places)]
    return [*hasten, str(pipeline.root / words[0]), "--out", str(out), *plan, "--", *words[1:]]


def known_memory(pipeline: Pipeline, stage: Stage) -> int | None:
    """Return the main memory that a stage took when it last ended, with some spare; None if that is unknown."""
    peak = read_json(stage_folder(pipeline, stage.name) / LATEST / DONE).get("memory_bytes")
    return int(peak * _SPARE) if isinstance(peak, int) and peak else None


def _python(words: Sequence[str]) -> list[str]:
    """Return a command in which `python` is the one that runs Hasten."""
    return [sys.executable if words[0] in ("python", "python3") else words[0], *words[1:]]


def _memory(pid: int) -> int:
    """Return the resident bytes of a process and all below it; shared pages count for each."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:  # one of them has just ended: the next look counts
        return 0


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:300].rstrip('.')}" if last and not last.startswith("--- ") else ""


def main(path: str, name: str) -> int:
    """Run a stage of a pipeline, and report it to Dagster, if that has started this process. Returns the exit status."""
    from dagster_pipes import PipesEnvVarParamsLoader, open_dagster_pipes  # noqa: PLC0415 - of an extra

    pipeline = read_pipeline(Path(path))
    worker = Worker(pipeline, pipeline.stage(name))
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command asks for a stop by SIGTERM
    try:
        view = worker.run()
    except StoppedError:
        return STOPPED
    except HastenError as error:
        print(error, file=sys.stderr)  # noqa: T201 - to the log of Dagster
        return FAILED
    if PipesEnvVarParamsLoader().is_dagster_pipes_process():  # type: ignore[no-untyped-call]
        with open_dagster_pipes() as pipes:
            names = ("seconds", "attempts", "waited_s", "memory_bytes", "form")
            facts = {name: view.done[name] for name in names if name in view.done}
            pipes.report_asset_materialization(
                metadata={**facts, "folder": str(out_of(pipeline, name, view.key))}, data_version=view.key
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
