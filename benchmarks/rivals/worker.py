"""Run one arm in a separate process: it trains on command, and reports how long that took.

    python -m benchmarks.rivals.worker TARGET ARM SEED PLAN_JSON

Each line of stdin is a number of seconds: train for about this time, finish the update, and answer with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter

import torch

from benchmarks.rivals.arms import arms
from hasten.core.target import load_job


def main() -> None:
    """Train on command until stdin ends."""
    target, name, seed, plan = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of trainers must not mix with the answers
    torch.manual_seed(int(seed))
    until, begun, samples, updates = 0.0, perf_counter(), 0, 0

    def pause(size: int) -> None:
        nonlocal until, begun, samples, updates
        samples, updates = samples + size, updates + 1
        now = perf_counter()
        if now < until:
            return
        answers.write(json.dumps({"seconds": now - begun, "samples": samples, "updates": updates}) + "\n")
        answers.flush()
        order = sys.stdin.readline()
        if not order:
            os._exit(0)  # a trainer offers no other way to stop in the middle
        samples, updates, begun = 0, 0, perf_counter()
        until = begun + float(order)

    arms(load_job(target), json.loads(plan))[name](pause)


if __name__ == "__main__":
    main()
