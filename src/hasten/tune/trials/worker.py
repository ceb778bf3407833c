"""The code inside a trial process: it reads commands from stdin, one JSON object per line, and writes answers to stdout.

What the user's code prints goes to stderr, which the parent keeps in a log. The process and its loader workers end with
their parent, even while frozen. It is started as `python -m hasten.tune.trials.worker`; with `--ranks N` it is rank 0 of a
group and starts the other ranks as its children (`--member`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import numpy as np
import torch

from hasten.core import late_compiler
from hasten.core.doing import doing_shown
from hasten.core.errors import HastenError, LossError
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.core.provenance import process_environment
from hasten.core.target import load_job
from hasten.core.user_code import error_words
from hasten.optimizations import catalogue
from hasten.profile.measure import profile_loop
from hasten.profile.probes import job_facts, peak_memory_bytes, reset_peak_memory
from hasten.train.build import build
from hasten.train.guards.oom import tells_of_memory
from hasten.train.loop import Loop
from hasten.train.process_group import die_with_parent, join_group
from hasten.train.trace import trace_step
from hasten.train.validate import HeldOut
from hasten.tune.trials.event_turns import EventTurns
from hasten.tune.trials.gradients import (
    gradient_batches,
    gradient_sample,
    group_gradient_sample,
    load_weights,
    save_weights,
    update_sample,
)
from hasten.tune.trials.longest_samples import find_longest, hold_longest, micro_batch_size
from hasten.tune.trials.machine_load import Meter, begin_on
from hasten.tune.trials.ranks import Group

MOST_WARM_UPDATES = 64
"""Maximum number of warm-up updates, however short: by then nearly every shape has occurred."""


class Worker:
    """One live job and its commands. Each public method is a command; its result is the answer.

    Args:
        answers: Where progress messages are written.
        grouped: Whether this process is one of several ranks, which it joins before the job is loaded.
    """

    def __init__(self, answers: TextIO, *, grouped: bool = False) -> None:
        self._answers, self._grouped = answers, grouped
        self._loop: Loop | None = None
        self._held_out: HeldOut | None = None
        self._events: EventTurns | None = None

    def load(self, *, target: str, plan: dict[str, Any], seed: int | None) -> dict[str, Any]:
        """Load the job under a plan."""
        started = perf_counter()
        if self._grouped:
            join_group()
        job = load_job(target)
        self._loop = Loop(build(job, Plan.from_dict(plan, catalogue()), seed=seed))
        return {"seconds": perf_counter() - started, "batch_size": job.batch_size, "job": type(job).__name__}

    def describe(self) -> dict[str, Any]:
        """Return what a comparison must know of the job, and the environment that its code runs in."""
        job = self.live.job
        quality = asdict(job.quality) if job.quality is not None else None
        return {"uneven": job.overrides("length"), "seed": job.seed, "quality": quality, **process_environment()}

    def horizon(self) -> dict[str, Any]:
        """Return the optimizer updates of the whole run under the plan; None if the job does not define them."""
        return {"updates": self.live.planned_updates}

    def warm(self, *, updates: int, seconds: float = 0.0) -> dict[str, Any]:
        """Do uncounted updates, including one on the short last batch of an epoch, which is compiled separately.

        The run is not at its start afterwards.

        Args:
            updates: Minimum number of updates.
            seconds: Continue with more updates for this long.
        """
        started = perf_counter()
        self.loop.run(updates)
        while perf_counter() - started < seconds and updates < MOST_WARM_UPDATES:
            self.loop.run(1)
            updates += 1
        computed = self.live.batches(0)
        short = min(computed, key=len, default=[])
        if 0 < len(short) < len(max(computed, key=len, default=[])):
            short = list(self.loop.ranks.share(short))
            batch = (self.live.pipeline.fetch(0, short), len(short)) if short else (None, 0)
            self.loop.run(1, batches=[batch])
        self._wait()
        return {"seconds": perf_counter() - started, "updates": updates + 1}

    def prime(self, *, updates: int) -> dict[str, Any]:
        """Fill caches for the coming updates, as in a later epoch."""
        started = perf_counter()
        indices = [index for batch in self.loop.upcoming(updates) for index in batch]
        for fill in self.live.prime:
            fill(indices)
        return {"seconds": perf_counter() - started if self.live.prime else 0.0}

    def rewind(self) -> dict[str, Any]:
        """Go back to the start of the run."""
        self.loop.rewind()
        return {}

    def run(self, *, updates: int, core: int | None = None) -> dict[str, Any]:
        """Do updates. Return the time and number of samples of each, their losses, and the machine load meanwhile.

        Args:
            updates: Number of updates.
            core: The core to start on; None keeps the present one.
        """
        if core is not None:
            begin_on(core, offset=self.loop.ranks.rank)
        loop = self.loop
        times: list[float] = []
        items: list[int] = []
        before_losses, samples = len(loop.losses), loop.position.samples
        self._wait()
        meter = Meter()
        last = perf_counter()

        def note() -> None:
            nonlocal last, samples
            now = perf_counter()
            times.append(now - last)
            items.append(loop.position.samples - samples)
            last, samples = now, loop.position.samples

        loop.run(updates, on_update=note)
        self._wait()
        times[-1] += perf_counter() - last
        account = meter.read()
        return {
            "times": times,
            "items": items,
            "losses": loop.losses[before_losses:],
            "skipped": loop.skipped,
            **account.to_dict(),
        }

    def trace(self) -> dict[str, Any]:
        """Trace a step and let each optimization prove that it took effect. The loop is at the start afterwards."""
        trace = trace_step(self.loop)
        checks = {item.card.name: item.evidence(self.live, trace) for item, _ in self.live.applied}
        return {
            "evidence": {
                name: [{"name": check.name, "passed": check.passed, "seen": check.seen} for check in found]
                for name, found in checks.items()
            }
        }

    def gradients(self, *, batches: int, path: str, weights: str | None = None) -> dict[str, Any]:
        """Write gradients of the first batches and two later ones to a .npy file, one row per batch.

        Args:
            batches: Number of first batches.
            path: The file.
            weights: File of the weights to use, see `settle`; no rows if the model has other parameters. None: the initial
                weights.
        """
        self.loop.rewind()
        if weights is not None and not load_weights(self.live, Path(weights)):
            rows = np.empty((0, 0), dtype=np.float32)
        elif self._grouped:
            rows = group_gradient_sample(self.loop, batches)
        else:
            rows = gradient_sample(self.live, gradient_batches(self.loop, batches))
        if self.loop.ranks.rank == 0:
            np.save(path, rows, allow_pickle=False)
        self.loop.rewind()
        return {"rows": len(rows)}

    def settle(self, *, updates: int, seconds: float, path: str) -> dict[str, Any]:
        """Train from the start for a while, and write the weights to a file. The loop is at the start afterwards.

        A group of ranks, which may shard its weights, does nothing.

        Args:
            updates: Maximum number of updates; also limited by the length of the run.
            seconds: Maximum seconds; the last update may exceed them.
            path: The file.
        """
        if self._grouped:
            return {"updates": 0}
        self.loop.rewind()
        most = min(updates, self.live.planned_updates or updates)
        started, done = perf_counter(), 0
        while done < most and perf_counter() - started < seconds:
            self.loop.run(1)
            done += 1
        save_weights(self.live, Path(path))
        self.loop.rewind()
        return {"updates": done}

    def put_weights(self, *, path: str) -> dict[str, Any]:
        """Load the weights of a file into the model, see `settle`; `loaded` is false if the model has other parameters."""
        return {"loaded": load_weights(self.live, Path(path))}

    def updates(self) -> dict[str, Any]:
        """Return what the first updates of the run do. The loop is at the start afterwards."""
        return update_sample(self.loop).to_dict()

    def profile(self, *, slice_s: float, quick: bool, folder: str | None = None) -> dict[str, Any]:
        """Profile the job and return the facts field by field. `folder`: where the run will write."""
        where = None if folder is None else Path(folder)
        profile = profile_loop(self.loop, slice_s=slice_s, quick=quick, progress=self._progress, folder=where)
        facts = profile.facts
        sent = {name: getattr(facts, name) for name in facts.__dataclass_fields__ if name not in ("machine", "job")}
        return {"profile": profile.to_dict(), "facts": sent}

    def validate(self, *, max_batches: int | None) -> dict[str, Any]:
        """Measure the held-out data with the plain arithmetic and the unmodified job, regardless of the plan."""
        if self._held_out is None:
            self._held_out = HeldOut(self.live, as_written=True)
        return {"metrics": self._held_out.measure(max_batches=max_batches, plain=True)}

    def event(self, *, folder: str, **asked: Any) -> dict[str, Any]:
        """Take one turn of an event around the updates, see `EventTurns.turn`. The run continues from its position.

        Args:
            folder: Where to write, at the first turn.
            asked: Arguments of `EventTurns.turn`.
        """
        if self._events is None:
            self._events = EventTurns(self.loop, Path(folder))
        return self._events.turn(**asked)

    def end_events(self) -> dict[str, Any]:
        """Remove the files of the events."""
        if self._events is not None:
            self._events.close()
            self._events = None
        return {}

    def memory(self, *, reset: bool) -> dict[str, Any]:
        """Return the peak memory since the last reset."""
        peak = peak_memory_bytes()
        if reset:
            reset_peak_memory()
        return {"peak_bytes": peak, "device": self.live.device.type}

    def longest(self, *, seconds: float) -> dict[str, Any]:
        """Return the longest samples, as many as one update uses, and the facts about the job."""
        size = micro_batch_size(self.live)
        longest = find_longest(self.live, most=size * self.live.job.accumulation, seconds=seconds)
        return {**longest, "facts": {**asdict(job_facts(self.live)), "batch_size": size}}

    def hold(self, *, indices: list[int], updates: int) -> dict[str, Any]:
        """Do updates on these samples, longest first, and one held-out batch. Return time and memory."""
        return hold_longest(self.loop, indices=indices, updates=updates)

    @property
    def loop(self) -> Loop:
        """The loop; `load` must be called first."""
        if self._loop is None:
            raise HastenError("no job is loaded in this trial process")
        return self._loop

    @property
    def live(self) -> LiveJob:
        """The live job."""
        return self.loop.live

    def _progress(self, words: str) -> None:
        _send(self._answers, {"progress": words})

    def _wait(self) -> None:
        if self.live.device.type != "cpu":
            torch.accelerator.synchronize()


def serve(commands: TextIO, answers: TextIO, *, group: Group | None = None, grouped: bool = False) -> None:
    """Carry out commands until they end. An exception becomes an answer and does not end the process, except in a group.

    Args:
        commands: Source of the commands, one JSON object per line.
        answers: Destination of the answers, in the same format.
        group: The other ranks, on rank 0 of a group.
        grouped: Whether this process is one of several ranks.
    """
    worker = Worker(answers, grouped=grouped)
    with doing_shown(lambda words: _send(answers, {"progress": words})):
        for line in commands:
            command = json.loads(line)
            operation = command.pop("op")
            if operation == "exit":
                break
            if group is None:
                _send(answers, _obey(worker, operation, command))
                continue
            answer = group.perform(line, operation, partial(_obey, worker, operation, command))
            _send(answers, answer)
            if not answer["ok"]:  # the ranks are out of sync
                break


def _obey(worker: Worker, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": True, **getattr(worker, operation)(**arguments)}
    except Exception as error:  # noqa: BLE001  every error of user code is reported to the parent
        traceback.print_exc()
        return {"ok": False, "kind": failure_kind(error), "message": error_words(error), "traceback": traceback.format_exc()}


def failure_kind(error: BaseException) -> str:
    """Return the kind of failure that an exception means: `nan`, `out_of_memory` or `raised`."""
    if isinstance(error, LossError) and error.value is not None:
        return "nan"
    return "out_of_memory" if tells_of_memory(error) else "raised"


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def main() -> None:
    """Serve the parent on stdin and stdout. Prints of the user's code go to stderr."""
    parser = argparse.ArgumentParser(prog="python -m hasten.tune.trials.worker")
    parser.add_argument("--ranks", type=int, default=1, help="run as rank 0 of this number of ranks")
    parser.add_argument("--member", action="store_true", help="run as another rank, set by the environment")
    asked = parser.parse_args()
    die_with_parent()
    late_compiler.install()
    sys.dont_write_bytecode = True  # a trial leaves nothing in the folder of the user's code
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # user code that reads input gets an end of file, never a command
    os.dup2(2, 1)
    group = Group(asked.ranks, partial(_send, answers)) if asked.ranks > 1 else None
    serve(commands, answers, group=group, grouped=asked.member or group is not None)
    sys.stderr.flush()
    os._exit(0)  # loader workers and compile workers have nothing to save


if __name__ == "__main__":
    main()
