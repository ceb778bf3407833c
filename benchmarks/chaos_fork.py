"""Fork attempts at a run, one process per rank, from a process that has only imported torch.

For each line of stdin, which names the folder of a run, the process forks the ranks and prints two lines of JSON: their
process ids, and, when all have ended, their exit codes. It acts as their launcher: if one fails, the others are killed.

Usage: python -m benchmarks.chaos_fork '{"ranks": 2, "plan": {"sharding": {}}, "updates": 60, "every": 4,
    "target": "benchmarks.chaos_job:ChaosJob"}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loaded once, and not by every attempt; so is what sharding needs
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor

from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.train.checkpoints.saver import Pace
from hasten.train.process_group import die_with_parent, leave_group
from hasten.train.run import RunOptions, train


def attempt(out: Path, setting: dict[str, Any], rank: int, meeting: Path) -> None:
    """Train as one rank of a run."""
    die_with_parent()
    torch.set_num_threads(1)
    if setting["ranks"] > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=setting["ranks"])
    plan = Plan.from_dict(setting["plan"], catalogue())
    options = RunOptions(resume=True, pace=Pace(every=setting["every"]), say=lambda _: None)
    train(load_job(setting["target"]), plan, out, max_updates=setting["updates"], options=options)
    leave_group()


def forked(out: Path, setting: dict[str, Any], rank: int, meeting: Path) -> int:
    """Fork a process that makes an attempt, and return its id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    status = 1
    try:
        attempt(out, setting, rank, meeting)
        status = 0
    except BaseException:  # noqa: BLE001  nothing may go on from here in the fork
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(children: list[int]) -> list[int]:
    """Wait for all processes and return their exit codes, negative for signals."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child]:
            for other in children:
                if other not in codes:
                    os.kill(other, signal.SIGKILL)
    return [codes[child] for child in children]


def main() -> None:
    """Process lines until the input ends."""
    setting = json.loads(sys.argv[1])
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        out = Path(line.strip())
        meeting = out.parent / f"meeting{number}"
        children = [forked(out, setting, rank, meeting) for rank in range(setting["ranks"])]
        print(json.dumps(children), flush=True)
        print(json.dumps(ended(children)), flush=True)


if __name__ == "__main__":
    main()
