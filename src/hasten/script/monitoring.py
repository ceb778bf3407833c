"""Follow the training of a script's own loop, from inside its process."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from hasten.monitor.alerts.live import LiveAlerts, read_options
from hasten.monitor.begin import make_monitor, parse_sinks
from hasten.monitor.metric import GRADIENT_NORM, LEARNING_RATE, LOSS, SAMPLES, TOKENS
from hasten.monitor.monitor import Monitor, Pace, Progress
from hasten.monitor.sampler import Host
from hasten.monitor.window import Start
from hasten.script.patches import Patches, harmless
from hasten.script.watch.fetch import BatchCounts, Fetch
from hasten.script.watch.record import PHASES, Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

RUN_FOLDER = "hasten-run"
"""Folder for the metrics if none is given, in the current folder."""


@dataclass(frozen=True, kw_only=True)
class Following:
    """How a script is followed.

    Attributes:
        out: Folder for `windows.jsonl`.
        log_to: Further sinks, as `--log-to` names them.
        alerts: File with rules of alerts; empty for the built-in ones.
        alert_to: Webhooks for alerts.
        pace: When a window ends.
    """

    out: Path
    log_to: Sequence[str] = ()
    alerts: str = ""
    alert_to: Sequence[str] = ()
    pace: Pace | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Following:
        """Return it from plain data, with the attributes as keys."""
        return cls(**{**data, "out": Path(data["out"])})


class ScriptMonitor:
    """Follows a script from its first step on."""

    def __init__(
        self,
        following: Following,
        recorder: Recorder,
        seams: Seams,
        fetch: Fetch,
        *,
        say: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._following, self._say = following, say
        self._requests = parse_sinks(following.log_to)
        rules = Path(following.alerts) if following.alerts else None
        self._alerts = LiveAlerts(*read_options(rules, following.alert_to), say=say)
        self._recorder, self._seams = recorder, seams
        self._counts = fetch.counts = BatchCounts()
        self._patches = Patches(failed)
        self._seen, self._steps, self._phases = 0, 0, [0.0] * len(PHASES)
        self._gradient_norm: Any = None
        self._monitor: Monitor | None = None
        self._pid = os.getpid()
        recorder.on_step = harmless(self._after_step, failed)
        self._patches.put(torch.nn.utils, "clip_grad_norm_", self._clipping)

    def end(self) -> None:
        """Write the last window, and close the sinks. Does nothing in a forked process."""
        self._patches.restore()
        self._recorder.on_step = None
        monitor, self._monitor = self._monitor, None
        if monitor is not None and os.getpid() == self._pid:
            monitor.__exit__(None, None, None)

    def _after_step(self) -> None:
        if self._monitor is not None:
            self._monitor.after_step()
            return
        rank, following = int(os.environ.get("RANK", "0")), self._following
        host = Host(rank=rank, folder=following.out, device=_device, loader=self._counts.loader)
        at = psutil.Process(os.getppid() if "RANK" in os.environ else os.getpid()).create_time()  # the same on all ranks
        start = Start(run="", rank=rank, world=int(os.environ.get("WORLD_SIZE", "1")), at=at)
        self._monitor = make_monitor(
            start, self._progress, host, self._requests, say=self._say, pace=following.pace, alerts=self._alerts
        )
        self._monitor.__enter__()

    def _progress(self) -> Progress:
        steps, number = self._recorder.steps, self._recorder.num_steps
        new = max(number - self._seen, 0)
        kept = min(new, len(steps))
        if kept:
            last = [steps[place] for place in range(len(steps) - kept, len(steps))]
            self._phases = [
                before + sum(each) * new / kept for before, each in zip(self._phases, zip(*last, strict=True), strict=True)
            ]
        self._seen, self._steps = number, self._steps + new
        world = int(os.environ.get("WORLD_SIZE", "1"))
        counts = {SAMPLES.name: world * self._counts.samples, TOKENS.name: world * self._counts.tokens}
        values = {
            LOSS.name: self._seams.losses.last,
            GRADIENT_NORM.name: self._gradient_norm,
            LEARNING_RATE.name: self._rate(),
        }
        return Progress(
            step=self._steps,
            phases={name: seconds for name, seconds in zip(PHASES, self._phases, strict=True) if seconds},
            counts={name: count for name, count in counts.items() if count},
            values={name: value for name, value in values.items() if value is not None},
        )

    def _rate(self) -> Any:
        """Return the learning rate of the optimizer that stepped last; None if there is none."""
        optimizer = self._seams.optimizer()
        return None if optimizer is None else optimizer.param_groups[0].get("lr")

    def _clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clipping_seam(*args: Any, **kwargs: Any) -> Any:
            self._gradient_norm = norm = original(*args, **kwargs)
            return norm

        return clipping_seam


def _device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None


def say_on_stderr(message: str) -> None:
    """Print a message that begins with `hasten: ` to standard error."""
    sys.stderr.write(f"hasten: {message}\n")


def follow(following: Following) -> None:
    """Follow the training in this process until it ends."""
    failures = Failures()
    recorder = Recorder(updates=0, seconds=0.0, rests=True, follows=True)
    fetch = Fetch(recorder, Trained())
    seams = Seams(recorder, fetch)
    monitor = ScriptMonitor(following, recorder, seams, fetch, say=say_on_stderr, failed=failures)
    seams.on_failure = failures
    seams.install()

    def disarm() -> None:
        recorder.active = False
        seams.remove()

    os.register_at_fork(after_in_child=harmless(disarm, failures))
    atexit.register(harmless(monitor.end, failures))


class Failures:
    """Reports the first error while it is handled. The script continues."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, _error: Exception | None = None) -> None:
        """Report the error that is being handled, unless one was reported."""
        told, self._told = self._told, True
        if not told:
            say_on_stderr(f"the training is not followed in full: {traceback.format_exc(limit=-3)}")
