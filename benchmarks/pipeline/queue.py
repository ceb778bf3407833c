"""Many trainings in a queue: 5 owners with unequal numbers, and SIGKILL for everything when half of them have ended.

Each training is a pipeline of one job, with other weights for each. All are added at once, those of the owner with the most
first. Then: how long each owner waited, whether the machine was ever oversubscribed, and whether each record is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.record import ROOT
from hasten.pipeline import lease, queue
from hasten.pipeline.control import state_of
from hasten.pipeline.description import read_pipeline
from hasten.pipeline.folder import DONE, read_json
from hasten.pipeline.queue import Entry
from hasten.pipeline.queue_run import record_of

RUNS = int(os.environ.get("HASTEN_QUEUED", "50"))
SHARES = {"ann": 0.4, "bob": 0.24, "cy": 0.18, "dan": 0.12, "eve": 0.06}
"""Share of the runs that each owner adds."""
STAGE = """\
schema = 1

[stages.train]
job = "stages.py:Stage"
env = {{ SEED = {number} }}
updates = 40
options = ["--checkpoint-every", "10"]
cores = 1
memory = "2 GiB"
"""
_POLL_S = 0.5


def run(found: Mapping[str, Any]) -> dict[str, Any]:
    """Run the queue, with a kill of everything in the middle."""
    del found
    with tempfile.TemporaryDirectory(prefix="hasten-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # for the system user of PostgreSQL, if this is root
        os.environ |= {
            lease.FOLDER: str(folder / "leases"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        totals = lease.read_totals()
        try:
            return _measure(folder, len(totals.cores))
        finally:
            _kill_everything(folder)


def _measure(folder: Path, cores: int) -> dict[str, Any]:
    where = folder / "queue"
    start_s = _start(where)
    began, number = time.time(), 0
    for owner, count in _counts(RUNS).items():
        added = [_pipeline(folder, number + offset) for offset in range(count)]
        queue.add(where, added, owner)
        number += count
    peaks: list[int] = []
    _follow(where, peaks, until=number // 2)
    before = {entry.run: _ended(entry) for entry in queue.entries(where) if entry.state == "ended"}
    killed_at = time.time()
    killed = _kill_everything(folder)
    restart_s = _start(where)
    last = _follow(where, peaks, until=number)
    total_s = time.time() - began
    again = sum(_ended(entry) != before[entry.run] for entry in last if entry.run in before)
    complete = sum(entry.state == "ended" and state_of(read_pipeline(Path(entry.pipeline))).complete for entry in last)
    owners = {owner: _waited([entry for entry in last if entry.owner == owner]) for owner in SHARES}
    most, least = (owners[owner]["longest_s"] for owner in ("ann", "eve"))
    queue.stop(where)
    return {
        "runs": number,
        "cores": cores,
        "peak_cores_leased": max(peaks),
        "total_s": total_s,
        "start_s": start_s,
        "restart_s": restart_s,
        "killed_processes": killed,
        "ended_before_kill": len(before),
        "owners": owners,
        "added_s": _added(where, last, killed_at),
        "complete": complete,
        "run_again": again,
        "goals": {
            "complete records": {"goal": number, "seen": complete, "reached": complete == number},
            "runs lost or doubled": {"goal": 0, "seen": abs(len(last) - number), "reached": len(last) == number},
            "trainings run again after they had ended": {"goal": 0, "seen": again, "reached": again == 0},
            "most cores leased": {"goal": cores, "seen": max(peaks), "reached": max(peaks) <= cores},
            "longest wait of the owner with the fewest, in seconds": {
                "goal": f"below {most:.0f}, that of the owner with the most", "seen": round(least), "reached": least < most,
            },
        },
    }  # fmt: skip


def _start(where: Path) -> float:
    """Start the queue by its command. Returns the seconds it took."""
    began = time.time()
    subprocess.run([sys.executable, "-m", "hasten", "-q", "pipeline", "queue", "start", str(where)], check=True)
    return time.time() - began


def _counts(runs: int) -> dict[str, int]:
    """Return how many of the runs each owner adds, at least one."""
    counts = {owner: max(1, round(share * runs)) for owner, share in SHARES.items()}
    counts["ann"] += runs - sum(counts.values())
    return counts


def _pipeline(folder: Path, number: int) -> Path:
    made = folder / f"p{number:02}"
    made.mkdir()
    shutil.copy(Path(__file__).parent / "stages" / "stages.py", made)
    (made / "pipeline.toml").write_text(STAGE.format(number=number), encoding="utf-8")
    return made


def _follow(where: Path, peaks: list[int], *, until: int) -> list[Entry]:
    """Wait until so many runs have ended, and collect how many cores are leased."""
    told = -1
    while True:
        entries = queue.entries(where)
        ended = sum(not entry.unfinished for entry in entries)
        if ended != told:
            print(f"{ended} of {len(entries)} ended", flush=True)
            told = ended
        if ended >= until:
            return entries
        for _ in range(10):
            peaks.append(sum(len(one["cores"]) for one in lease.held()))
            time.sleep(_POLL_S)


def _waited(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return how long the runs of an owner waited for their leases."""
    waited_s = sorted(entry.began - entry.added for entry in entries if entry.began)
    return {"runs": len(entries), "shortest_s": waited_s[0], "median_s": median(waited_s), "longest_s": waited_s[-1]}


def _ended(entry: Entry) -> float:
    """Return when the training ended, by its own record."""
    return float(_done(entry)["ended"])


def _done(entry: Entry) -> dict[str, Any]:
    return read_json(Path(entry.pipeline).parent / "hasten-pipeline" / "stages" / "train" / "latest" / DONE)


def _added(where: Path, entries: Sequence[Entry], killed_at: float) -> float:
    """Return the median of the seconds that the queue and Dagster add to a run: those of runs that were not killed."""
    added = []
    for entry in entries:
        done, record = _done(entry), json.loads(record_of(where, entry.run).read_text(encoding="utf-8"))
        if entry.ended and not record["launched"] < killed_at < entry.ended:
            added.append(entry.ended - record["launched"] - done["seconds"] - done["waited_s"])
    return float(median(added))


def _kill_everything(folder: Path) -> int:
    """Kill all processes of the queue: trainings, engines, Dagster's daemon, PostgreSQL. Returns how many."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process.environ().get(lease.FOLDER) == str(folder / "leases") or f"{folder}/" in " ".join(
                process.cmdline()
            )
            if mine and process.pid != os.getpid():
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=20)
    return len(found)
