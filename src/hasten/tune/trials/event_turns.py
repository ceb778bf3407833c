"""Measure work around the updates inside a trial process: one turn of an event, timed by its cost to training.

A turn has a quiet part, some updates, and a part with the event: the event happens, the same number of updates follows, and
all remaining work is waited for. The additional time of the second part is the cost of the event: waiting for it, the
slowdown of the updates meanwhile, and the work that was still running at the end.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from hasten.core.layouts import raw_bytes, shape_of
from hasten.train.loop import Loop
from hasten.train.periodic import METRICS, PeriodicWork
from hasten.tune.trials.machine_load import Meter

Event = Literal["report", "checkpoint", "validation"]


class EventTurns:
    """Takes turns of events on one loop. Its files are in a temporary folder that is removed on `close`.

    Args:
        loop: The loop.
        folder: Where to write, on the same disk as the run.
    """

    def __init__(self, loop: Loop, folder: Path) -> None:
        self._loop = loop
        self._folder = tempfile.TemporaryDirectory(prefix="events-", dir=folder)
        self._work = PeriodicWork(loop, Path(self._folder.name))
        self._reports = 0
        self._checks = False
        self._given = ""

    def turn(
        self, *, event: Event, updates: int, repeats: int = 1, max_batches: int | None = None, quiet_first: bool = True,
        check: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Take a turn.

        Args:
            event: The event.
            updates: Updates of the quiet part, and of the part with the events; ignored for `validation`, which stops the
                training.
            repeats: Events per turn, spread over its updates. Each checkpoint is finished before the next one; `updates`
                must then be a multiple of `repeats`.
            max_batches: Held-out batches of one pass; None for all.
            quiet_first: Whether the quiet part comes first.
            check: Check that the written data is correct; the times are then meaningless.

        Returns:
            `seconds` of the part with the events, `quiet_seconds` of the other, `stall_s` for which the events stopped the
            training, the `losses` of the updates, the held-out `metrics`, the machine load and, if checked, `faithful` and,
            for `validation`, the `metrics_before` of another pass over the same weights.
        """
        act = {"report": self._report, "checkpoint": self._save, "validation": self._validate}[event]
        losses_before = len(self._loop.losses)
        updates = 0 if event == "validation" else updates
        results: dict[str, Any] = {"metrics": {}, "stall_s": 0.0}
        quiet_s = self._quiet(updates) if quiet_first else 0.0
        self._checks = check
        self._wait()
        meter, started = Meter(), perf_counter()
        act(results, updates, repeats, max_batches)
        self._wait()
        seconds = perf_counter() - started
        account = meter.read()
        if not quiet_first:
            quiet_s = self._quiet(updates)
        if check:
            results["faithful"] = self._faithful(event)
        return {
            "seconds": seconds, "quiet_seconds": quiet_s, "losses": self._loop.losses[losses_before:],
            **results, **account.to_dict(),
        }  # fmt: skip

    def close(self) -> None:
        """Remove the files."""
        try:
            self._work.close()
        finally:
            self._folder.cleanup()

    def _quiet(self, updates: int) -> float:
        if not updates:
            return 0.0
        self._wait()
        started = perf_counter()
        self._loop.run(updates)
        self._wait()
        return perf_counter() - started

    def _report(self, results: dict[str, Any], updates: int, repeats: int, _batches: int | None) -> None:
        done, stalled = 0, 0.0

        def report_sometimes() -> None:
            nonlocal done, stalled
            done += 1
            before = perf_counter()
            for _ in range(repeats * done // updates - repeats * (done - 1) // updates):
                self._work.report()
                self._reports += 1
            stalled += perf_counter() - before

        self._loop.run(updates, on_update=report_sometimes)
        self._work.wait()
        results["stall_s"] = stalled

    def _save(self, results: dict[str, Any], updates: int, repeats: int, _batches: int | None) -> None:
        for _ in range(repeats):
            if self._checks:
                self._given = digest(self._loop.live.whole_state())
            started = perf_counter()
            self._work.save()
            results["stall_s"] += perf_counter() - started
            self._loop.run(updates // repeats)
            self._work.wait()

    def _validate(self, results: dict[str, Any], _updates: int, repeats: int, max_batches: int | None) -> None:
        started = perf_counter()
        for _ in range(max(repeats, 2) if self._checks else repeats):
            results["metrics_before"] = results["metrics"]
            results["metrics"] = self._work.validate(max_batches=max_batches)
        results["stall_s"] = perf_counter() - started

    def _faithful(self, event: Event) -> bool:
        if event == "checkpoint":
            saved = torch.load(self._work.checkpoint.path, weights_only=True, map_location="cpu")
            return digest(saved) == self._given
        if event == "report":
            lines = (Path(self._folder.name) / METRICS).read_text(encoding="utf-8").splitlines()
            return len(lines) == self._reports and all(json.loads(line) for line in lines)
        return True

    def _wait(self) -> None:
        if self._loop.live.device.type != "cpu":
            torch.accelerator.synchronize()


def digest(state: Mapping[str, Any]) -> str:
    """Return a hash of the tensors of a state_dict, by name, dtype, shape and bytes; devices are ignored."""
    total = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if isinstance(value, torch.Tensor):
            total.update(f"{name} {value.dtype} {shape_of(value)}".encode())
            total.update(raw_bytes(value))
    return total.hexdigest()
