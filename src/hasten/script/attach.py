"""Watch a training loop from inside the script, and train it under a plan.

    with hasten.attach() as watched:
        train()
    print(watched.summary())

The seams are those of an attached script (docs/guides/process.md). They are installed when the block begins and removed when
it ends. No ceilings are measured because nothing runs twice. Call `hasten.step()` after each update if no optimizer of
torch.optim makes the steps.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hasten.core.errors import HastenError, TrialError
from hasten.core.plan import Plan
from hasten.monitor.begin import parse_sinks
from hasten.optimizations import catalogue
from hasten.report.evidence import write_json
from hasten.script.entry.tracebacks import strip_chain
from hasten.script.monitoring import RUN_FOLDER, Following, ScriptMonitor, say_on_stderr
from hasten.script.plan.host import Host
from hasten.script.plan.reach import out_of_reach
from hasten.script.watch import profile
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.memory import memory_in_use, memory_limit
from hasten.script.watch.record import OTHER, PHASES, Recorder, report
from hasten.script.watch.seams import Seams
from hasten.script.watch.session import device_in_use
from hasten.script.watch.trained import Trained

WORTH_A_WORD = 0.001
"""Smallest share of the time for which the summary names a phase."""

_OPEN: list[Watched] = []
"""The open watch of this process, at most one: its seams apply to the whole process."""
_TAKING = threading.Lock()


def attach(
    plan: str | os.PathLike[str] | Plan | None = None,
    json: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    log_to: Sequence[str] = (),
) -> Watched:
    """Watch the training loop inside a `with` block, and train it under a plan if one is given.

    An example:

        with hasten.attach(plan="hasten.toml", json="profile.json") as watched:
            train()
        print(watched.summary())

    Exceptions of the block propagate. All seams are removed at the end. An error in Hasten never ends the training: it is
    recorded in `watched.failures` and reported in a warning.

    Args:
        plan: A plan, or the path of a plan file. Optimizations that cannot act on a user's own loop, or only on a process
            started for them, are reported with the reason.
        json: File to which the profile is written at the end.
        out: Folder for `windows.jsonl` (docs/guides/monitor.md), written while the loop trains; none by default, or
            `hasten-run` with `log_to`.
        log_to: Further places for metrics, each `NAME[:OPTIONS]` as for `hasten run --log-to`, besides those of the plan.

    Raises:
        PlanError: The plan file is missing or invalid.
        HastenError: The folder of `json` does not exist, or a place in `log_to` is unknown or lacks its package.
    """
    target = None if json is None else Path(json)
    if target is not None and not target.absolute().parent.is_dir():
        raise HastenError(f"Folder {target.absolute().parent} does not exist. Create it before writing {target.name} to it.")
    chosen = plan if plan is None or isinstance(plan, Plan) else Plan.load(Path(plan), catalogue())
    places = [*(chosen.log_to if chosen else ()), *log_to]
    parse_sinks(places)
    if out is None and not places:
        return Watched(chosen, target)
    return Watched(chosen, target, Following(out=Path(out or RUN_FOLDER).absolute(), log_to=tuple(places)))


class Watched:
    """Observations of the training inside a `with hasten.attach()` block. Only the thread that opens the block is watched.

    Args:
        plan: Plan to apply for the duration of the block; none by default.
        json: File for the profile, written at the end by rank 0 only.
        following: How the training is followed in windows; not at all by default.

    Attributes:
        plan: As given.
        applied: Optimizations of the plan that were applied, available after the block.
        failures: Reason for each optimization that was not applied. The keys `watching`, `monitoring` and `plan` mean an
            internal error in one of these. The loop continues in every case.
    """

    def __init__(self, plan: Plan | None = None, json: Path | None = None, following: Following | None = None) -> None:
        self.plan = plan or Plan()
        self.applied: tuple[str, ...] = ()
        self.failures: dict[str, str] = {}
        self._json, self._following = json, following
        self._monitor: ScriptMonitor | None = None
        self._recorder = Recorder(updates=0, seconds=0.0, rests=True)
        self._seams: Seams | None = None
        self._host: Host | None = None
        self._seen: dict[str, Any] | None = None
        self._reported = frozenset[str]()
        self._pid = 0

    def __enter__(self) -> Self:
        """Start watching, and install the seams of the plan.

        Raises:
            HastenError: Another block is open, or this one was used before.
        """
        self._take()
        self.failures |= out_of_reach(self.plan)
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - an error in Hasten must not end the training
            self._take_off()
            self.failures["watching"] = f"{type(error).__name__}: {error}"
        self._reported = frozenset(self.failures)
        try:
            _warn(self.failures)
        except UserWarning:  # if warnings are errors, the block is never entered, and so `__exit__` is never called
            self._take_off()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove everything, keep the observations, and let an error propagate without Hasten's frames in its traceback."""
        if os.getpid() != self._pid:
            return  # a forked process left the block; the watch belongs to its parent
        self._attempt(lambda: self._keep(ended=error is None))
        self._take_off()
        if error is not None:
            strip_chain(error)
        self._attempt(self._write)
        if error is None:
            _warn({name: why for name, why in self.failures.items() if name not in self._reported})

    def phases(self) -> dict[str, float]:
        """Return the share of time of each phase over the last 512 steps or fewer. Empty before the second step."""
        steps = list(self._recorder.steps)
        if not steps:
            return {}
        seconds, _ = profile.phase_seconds({"seconds": steps, "phases": PHASES, "ended": False})
        whole = sum(seconds.values())
        return {name: value / whole for name, value in seconds.items()} if whole else {}

    def profile(self) -> dict[str, Any]:
        """Return the profile in the format of `hasten profile --json`, without ceilings because nothing ran twice.

        With a plan, the key `plan` holds the `applied` optimizations and the `failures`.

        Raises:
            HastenError: The block has not ended yet, or was never opened.
            TrialError: Fewer than two steps were observed.
        """
        if self in _OPEN or not self._pid:
            raise HastenError("The profile is only available after the block has ended. Call profile() after the block.")
        if self._seen is None or not self._seen["seconds"]:
            raise TrialError(self._why_nothing(), kind="raised")
        result = {**profile.make_profile(self._seen), "ceilings": {}}
        if self.plan.names:
            result["plan"] = {"applied": list(self.applied), "failures": dict(self.failures)}
        return result

    def summary(self) -> str:
        """Return the profile as readable text. Raises the errors of `profile`."""
        result = self.profile()
        shares = sorted(result["phases"].items(), key=lambda item: -item[1])
        lines = [
            result["bottleneck"]["words"],
            f"A step takes {result['step_ms']:.1f} ms, measured over {result['steps']} steps. Shares of the time: "
            + ", ".join(f"{name} {share:.1%}" for name, share in shares if share >= WORTH_A_WORD)
            + ".",
            *(f"  {line['share']:6.1%}  {line['what']}  {line['file']}:{line['line']}" for line in result["where"]),
        ]
        if self.applied:
            lines.append(f"Applied: {', '.join(self.applied)}.")
        lines += [f"Not applied: `{name}`: {why}" for name, why in self.failures.items()]
        return "\n".join([*lines, f"Overhead of watching: {result['own_cost_frac']:.3%} of a step."])

    def _why_nothing(self) -> str:
        if "watching" in self.failures:
            return f"The loop could not be watched: {self.failures['watching']}"
        return (
            "Fewer than two steps were observed in the block. Does the thread that opened the block train in it, and does "
            "it reach its second step? If no optimizer of torch.optim makes the steps, call hasten.step() after each update."
        )

    def _begin(self) -> None:
        self._recorder = Recorder(updates=0, seconds=0.0, memory=memory_in_use, rests=True)  # watches the current thread
        fetch = Fetch(self._recorder, Trained())
        self._seams = Seams(self._recorder, fetch)
        self._seams.on_failure = functools.partial(self._failed_in_part, "watching")
        if self._following is not None:
            self._monitor = ScriptMonitor(
                self._following, self._recorder, self._seams, fetch, say=say_on_stderr, failed=self._monitor_failed
            )
        if self.plan.names:
            self._host = Host(self.plan)
            self._host.on_failure = functools.partial(self._failed_in_part, "plan")
            self._host.begin()
        self._seams.install(excepthook=False, tensor_methods=not _compiled_already())

    def _keep(self, *, ended: bool) -> None:
        recorder = self._recorder
        if recorder.free():
            recorder.enter(OTHER)  # attribute the time since the last seam
            recorder.leave()
        recorder.active = False
        self._seen = report(recorder, ended=ended, device=device_in_use(), memory_limit_bytes=memory_limit())

    def _take_off(self) -> None:
        """Remove everything that was installed."""
        self._recorder.active = False
        if self._monitor is not None:
            self._attempt(self._monitor.end)
        self._monitor = None
        if self._seams is not None:
            self._seams.remove()
        if self._host is not None:
            self._leave(self._host)
        self._seams = self._host = None
        if self in _OPEN:
            _OPEN.remove(self)

    def _monitor_failed(self, error: Exception) -> None:
        self.failures.setdefault("monitoring", f"{type(error).__name__}: {error}")

    def _failed_in_part(self, name: str) -> None:
        """Note the error that is being handled, unless one was noted. The rest of the watch or of the plan continues."""
        error = sys.exception()
        self.failures.setdefault(name, f"failed in part: {type(error).__name__}: {error}")

    def _leave(self, host: Host) -> None:
        took = tuple(name for name in host.applied if name not in host.failures)
        self._attempt(host.end)
        self.applied = took
        self.failures |= host.failures
        missing = [name for name in self.plan.names if name not in took and name not in self.failures]
        self.failures |= dict.fromkeys(missing, "the block ended before the object it acts on was seen")

    def _take(self) -> None:
        with _TAKING:
            if _OPEN:
                raise HastenError(
                    "hasten.attach() is already open, and its seams apply to the whole process. End that block first, or "
                    "remove this one."
                )
            if self._pid:
                raise HastenError("This watch was already used. Call hasten.attach() again for each block.")
            _OPEN.append(self)
        self._pid = os.getpid()
        _guard_forks()

    def _write(self) -> None:
        if self._json is None or self._seen is None or not self._seen["seconds"] or not _leads():
            return
        write_json(self.profile(), self._json)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run an action whose failure must not end the training."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - as in __enter__
            self.failures["watching"] = f"{type(error).__name__}: {error}"

    def _disarm(self) -> None:
        """Stop watching in a forked process."""
        self._recorder.active = False
        if self._seams is not None:
            self._seams.remove()


def _warn(failures: Mapping[str, str]) -> None:
    """Warn about optimizations that are not applied, at the line of the block."""
    if failures:
        reasons = "; ".join(f"`{name}`: {why}" for name, why in failures.items())
        warnings.warn(f"hasten continues without {reasons}", UserWarning, stacklevel=3)


def _compiled_already() -> bool:
    """Return whether torch.compile was called before. Compiled graphs contain methods of tensors, so these must stay."""
    return bool(getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", None))


def _leads() -> bool:
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


@functools.cache
def _guard_forks() -> None:
    """Disable watching in forked processes. Cached, because a fork handler cannot be unregistered."""
    os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for watched in _OPEN:
        watched._disarm()  # noqa: SLF001 - same module
    _OPEN.clear()
