"""Kill a run again and again, at any moment, and see whether it ends as if nobody had.

A run is started, killed by SIGKILL after a random time, and started again with `--resume`, until it reaches its end. Its
weights must then be those of a run that was never touched, bit for bit. Each attempt is a process of its own, forked from
one that has loaded torch and done nothing with it, so that two hundred kills take minutes and not an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, record

UPDATES, EVERY = 60, 4
FULL, QUICK = 200, 12
SETTINGS: dict[str, dict[str, Any]] = {
    "one process": {"workers": 0},
    "two workers": {"workers": 2},
}
_ZYGOTE = """
import os, sys
import torch
from pathlib import Path
from benchmarks.chaos_job import ChaosJob
from upshift.core.plan import Plan
from upshift.optimizations.loader_workers import LoaderWorkers
from upshift.train.run import Going, train
from upshift.train.saving.saver import Pace
workers, updates, every = map(int, sys.argv[1:4])
torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    out = line.strip()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            plan = Plan(optimizations=(LoaderWorkers(num_workers=workers),)) if workers else Plan()
            train(ChaosJob(), plan, Path(out), max_updates=updates, going=Going(resume=True, pace=Pace(every=every), say=lambda words: None))
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@dataclass
class Zygote:
    """A process that forks attempts."""

    process: subprocess.Popen[str]

    def attempt(self, out: Path, kill_after_s: float | None) -> int:
        """Start an attempt, kill it after a time, and give its exit code: 0 where it reached its end."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        self.process.stdin.write(f"{out}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:  # it reached its end before
                pass
        return int(self.process.stdout.readline())


def chaos(kills: int, seed: int, workers: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Kill a run so many times, over as many runs as that takes, and compare the weights of each with the untouched run's.

    Returns:
        How often it was killed, how many runs ended, how many of them with other weights, and where kills fell.
    """
    order = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="upshift-chaos-"))
    command = [sys.executable, "-c", _ZYGOTE, str(workers), str(UPDATES), str(EVERY)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        zygote = Zygote(process)
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError("the process that forks attempts did not start")
        started = time.monotonic()
        if zygote.attempt(folder / "whole", None):
            raise RuntimeError("the untouched run failed")
        whole_s = time.monotonic() - started
        want = (folder / "whole" / "model.pt").read_bytes()
        killed = ended = wrong = number = 0
        resumed_from: list[int] = []
        while killed < kills:
            out, number = folder / f"run{number}", number + 1
            while True:
                # Some die as they begin, some late: a short while is as likely as a long one.
                code = zygote.attempt(out, order.uniform(0.0, 0.7) * whole_s if killed < kills else None)
                if code == -signal.SIGKILL:
                    killed += 1
                    resumed_from.append(_newest(out))
                    continue
                if code:
                    raise RuntimeError(f"a resumed run failed with exit code {code}: see its words above")
                break
            ended += 1
            wrong += (out / "model.pt").read_bytes() != want
            shutil.rmtree(out)
            say(f"{killed} kills, {ended} runs at their end, {wrong} of them with other weights")
        return {
            "kills": killed,
            "runs": ended,
            "wrong": wrong,
            "newest_checkpoint_at_kill": resumed_from,
            "whole_s": whole_s,
        }
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(folder, ignore_errors=True)


def _newest(out: Path) -> int:
    try:
        return int((out / "checkpoints" / "latest").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0


def main(arguments: list[str]) -> None:
    """The command `python -m benchmarks chaos`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=FULL, help="of each setting")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} kills of one process, and nothing is recorded")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    settings = {"one process": SETTINGS["one process"]} if given.quick else SETTINGS
    found = {}
    for name, setting in settings.items():
        kills = QUICK if given.quick else given.kills
        found[name] = chaos(
            kills, given.seed, setting["workers"], lambda words, name=name: print(f"{name}: {words}", flush=True)
        )
    print(
        json.dumps({name: {k: v for k, v in one.items() if k in {"kills", "runs", "wrong"}} for name, one in found.items()})
    )
    if any(one["wrong"] for one in found.values()):
        sys.exit(1)
    if not given.quick:
        print(f"wrote {record('chaos', {'settings': found}, 'python -m benchmarks chaos')}")


if __name__ == "__main__":
    main(sys.argv[1:])
