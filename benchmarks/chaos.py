"""Kill a run again and again at random moments, and check that it ends as if it had never been killed.

A run is started, one of its processes is killed with SIGKILL after a random time, and the run is started again with
`--resume`, until it completes. Its weights and validation results must then equal those of an undisturbed run, bit for bit.
Each attempt is forked from a process that has only imported torch, so that two hundred kills take minutes instead of an
hour.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.record import RESULTS, ROOT, record
from hasten.core.optimization import joined_environment, required_environment
from hasten.core.plan import Plan
from hasten.optimizations import catalogue

EVERY = 4
"""Number of updates between checkpoints."""
FULL, QUICK = 50, 12
"""Number of kills for each setting."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Configuration of a run.

    Attributes:
        ranks: Number of processes that train together.
        plan: The plan in the form of `hasten.toml`.
        updates: Number of updates of the run.
        target: The job.
        tuned: Name of the recorded tuning whose plan is used, such as `tune_text`; empty to use `plan`.
        most_kills: Limit of the number of kills for this setting.
    """

    ranks: int = 1
    updates: int = 120
    plan: Mapping[str, Any] = field(default_factory=dict)
    target: str = "benchmarks.chaos_job:ChaosJob"
    tuned: str = ""
    most_kills: int | None = None

    def chosen(self) -> Plan:
        """The plan to use."""
        if not self.tuned:
            return Plan.from_dict(dict(self.plan), catalogue())
        evidence = json.loads((RESULTS / f"{self.tuned}.json").read_text(encoding="utf-8"))["evidence"]
        return Plan.from_toml(evidence["plan_toml"], catalogue())


SETTINGS: dict[str, Setting] = {
    "one process": Setting(),
    "two workers": Setting(plan={"loader_workers": {"num_workers": 2}}),
    "DDP, two ranks": Setting(ranks=2, plan={"gradient_buckets": {}}),
    "FSDP2, two ranks": Setting(ranks=2, plan={"sharding": {}}, updates=60),
    "the text example under its whole plan": Setting(
        target="examples/text.py:TextJob", tuned="tune_text", updates=60, most_kills=10
    ),
}


class Attempts:
    """A context manager for attempts at runs in one setting, each forked from one process."""

    def __init__(self, setting: Setting) -> None:
        plan = setting.chosen()
        told = {
            "ranks": setting.ranks, "plan": plan.to_dict(), "updates": setting.updates, "every": EVERY,
            "target": setting.target,
        }  # fmt: skip
        self._command = [sys.executable, "-m", "benchmarks.chaos_fork", json.dumps(told)]
        self._environ = joined_environment(required_environment(plan.optimizations), os.environ)

    def __enter__(self) -> Self:
        quiet = {**self._environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # DDP warns in every attempt
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._read() != "ready":
            raise RuntimeError("the process that forks attempts did not start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def attempt(self, out: Path, kill: tuple[float, float] | None = None) -> bool:
        """Make an attempt; return whether the run completed.

        Args:
            out: Folder of the run.
            kill: Delay in seconds before a process is killed, and which one, as a number in [0, 1); None kills none.

        Raises:
            RuntimeError: The attempt ended for another reason.
        """
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(f"{out}\n")
        self._process.stdin.flush()
        ranks: list[int] = json.loads(self._read())
        victim = None if kill is None else int(kill[1] * len(ranks))
        if kill is not None and victim is not None:
            time.sleep(kill[0])
            try:
                os.kill(ranks[victim], signal.SIGKILL)
            except ProcessLookupError:  # the process has already ended
                victim = None
        codes: list[int] = json.loads(self._read())
        if not any(codes):
            return True
        if victim is None or codes[victim] != -signal.SIGKILL:
            raise RuntimeError(f"a run failed with exit codes {codes}: see its output above")
        return False

    def _read(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError("no pipe")
        return self._process.stdout.readline().strip()


def chaos(kills: int, seed: int, setting: Setting, say: Callable[[str], None]) -> dict[str, Any]:
    """Kill runs this number of times in total, and compare the result of each with that of an undisturbed run.

    Returns:
        Number of kills, number of completed runs, number of runs with other results, and where the kills happened.
    """
    order = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="hasten-chaos-"))
    try:
        with Attempts(setting) as attempts:
            started = time.monotonic()
            attempts.attempt(folder / "whole")
            whole_s = time.monotonic() - started
            want = results(folder / "whole")
            ended = wrong = 0
            newest: list[int] = []
            while len(newest) < kills:
                out = folder / f"run{ended}"
                # Some processes die early, some late: short and long delays are equally likely.
                while not attempts.attempt(out, _kill(order, whole_s) if len(newest) < kills else None):
                    newest.append(newest_checkpoint(out))
                ended += 1
                wrong += results(out) != want
                shutil.rmtree(out)
                say(f"{len(newest)} kills, {ended} completed runs, {wrong} of them with other results")
        return {"kills": len(newest), "runs": ended, "wrong": wrong, "newest_checkpoint_at_kill": newest, "whole_s": whole_s}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def results(out: Path) -> tuple[bytes, dict[int, dict[str, float]]]:
    """Return the weights of a run, and its validation results by update."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return (out / "model.pt").read_bytes(), {line["update"]: line["held_out"] for line in lines if line["held_out"]}


def newest_checkpoint(out: Path) -> int:
    """Return the update of the newest checkpoint; 0 if there is none."""
    try:
        return int((out / "checkpoints" / "latest").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0


def _kill(order: random.Random, whole_s: float) -> tuple[float, float]:
    return order.uniform(0.0, 0.7) * whole_s, order.random()


def _print(name: str, words: str) -> None:
    print(f"{name}: {words}", flush=True)


def main(arguments: list[str]) -> None:
    """Run the command `python -m benchmarks chaos`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=FULL, help="number of kills for each setting")
    parser.add_argument(
        "--quick", action="store_true", help=f"only {QUICK} kills of one process, without recording a result"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=SETTINGS, help="only this setting, without recording a result")
    given = parser.parse_args(arguments)
    only = "one process" if given.quick else given.only
    found = {}
    for name, setting in SETTINGS.items():
        if only is None or name == only:
            kills = QUICK if given.quick else min(given.kills, setting.most_kills or given.kills)
            found[name] = chaos(kills, given.seed, setting, partial(_print, name))
    shown = {name: {key: one[key] for key in ("kills", "runs", "wrong")} for name, one in found.items()}
    print(json.dumps(shown))
    if any(one["wrong"] for one in found.values()):
        sys.exit(1)
    if only is None:
        print(f"wrote {record('chaos', {'settings': found}, 'python -m benchmarks chaos')}")


if __name__ == "__main__":
    main(sys.argv[1:])
