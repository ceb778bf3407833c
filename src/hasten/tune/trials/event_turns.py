"""The inside of a trial process, for what stands around the updates: one turn of an event, timed as the training feels it.

A turn has a quiet part, some updates, and a part with the event: it happens, as many updates run on, and all that it left to
be done is waited for. What the second part takes longer is what the event costs: the wait for it, what it takes from the
updates meanwhile, and what was still under way at the end.
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

from hasten.train.loop import Loop
from hasten.train.periodic import METRICS, PeriodicWork
from hasten.tune.trials.machine_load import Meter

Event = Literal["report", "checkpoint", "validation"]


class EventTurns:
    """Takes turns of events on one loop. Its files lie in a folder of its own and are gone when it is closed.

    Args:
        loop: The loop.
        folder: Where to write: on the disk that the run writes to.
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
            event: Which one.
            updates: Updates of the quiet part, and as many beside the events; without meaning for `validation`, which stops
                the training.
            repeats: Events of one turn, spread over its updates. Each checkpoint is waited for
                before the next; `updates` is then a multiple of `repeats`.
            max_batches: Held-out batches of one pass; None takes all.
            quiet_first: Which part comes first.
            check: See whether what was written is what should have been; the times count for nothing then.

        Returns:
            `seconds` of the part with the events, `quiet_seconds` of the other, `stall_s` in which the training stood
            still for the events, the `losses` of the updates, the held-out `metrics`, the account of the machine, and where
            checked `faithful`, and for `validation` the `metrics_before` of another pass over the same weights.
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
        """Let the files go."""
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
    """A fingerprint of the tensors of a state_dict, by name, dtype, shape and bytes; the device does not count."""
    total = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if isinstance(value, torch.Tensor):
            plain = value.detach().cpu().contiguous()
            total.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
            total.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
