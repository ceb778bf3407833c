"""Watch a training loop from inside, and train under a plan: for people who would rather write a line.

    with hasten.attach() as watched:
        train()
    print(watched.summary())

The seams are those of an attached script (docs/attach.md), put on for the time of the block and taken off at its end. No
ceilings are measured: nothing is run twice. `hasten.step()` ends a step that no optimizer of torch.optim makes.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hasten.core.errors import HastenError, TrialError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report.evidence import write_json
from hasten.script.entry.tracebacks import strip_chain
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

_OPEN: list[Watched] = []
"""The one watch of this process, while it is open: the seams are the whole process's."""
_TAKING = threading.Lock()


def attach(plan: str | os.PathLike[str] | Plan | None = None, json: str | os.PathLike[str] | None = None) -> Watched:
    """Watch the training loop inside a `with` block, and train it under a plan if one is given.

    An example::

        with hasten.attach(plan="hasten.toml", json="profile.json") as watched:
            train()
        print(watched.summary())

    Exceptions pass through, everything is taken off at the end, and what fails of ours never ends the training: it stands in
    `watched.failures`, and a warning says so.

    Args:
        plan: A plan, or the file of one. What cannot act on a loop that is not ours, or only on a process that was started
            for it, is named with the reason.
        json: Where to write the profile at the end.

    Raises:
        PlanError: The plan file is missing or wrong.
        HastenError: The folder of `json` is not there.
    """
    target = None if json is None else Path(json)
    if target is not None and not target.absolute().parent.is_dir():
        raise HastenError(f"There is no folder {target.absolute().parent} to write {target.name} to. Make it first.")
    chosen = plan if plan is None or isinstance(plan, Plan) else Plan.load(Path(plan), catalogue())
    return Watched(chosen, target)


class Watched:
    """What is seen of the training inside a `with hasten.attach()` block. The thread that opens the block is watched.

    Args:
        plan: Applied for the time of the block; nothing unless given.
        json: The profile is written here at the end, by rank 0 alone.

    Attributes:
        plan: As given.
        applied: What of the plan took hold, once the block has ended.
        failures: What of the plan did not, and why; `watching` stands for the watch itself. The loop goes on without it.
    """

    def __init__(self, plan: Plan | None = None, json: Path | None = None) -> None:
        self.plan = plan or Plan()
        self.applied: tuple[str, ...] = ()
        self.failures: dict[str, str] = {}
        self._json = json
        self._recorder = Recorder(updates=0, seconds=0.0, rests=True)
        self._seams: Seams | None = None
        self._host: Host | None = None
        self._seen: dict[str, Any] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        """Begin to watch, and put the seams of the plan on.

        Raises:
            HastenError: Another block is open, or this one was opened before.
        """
        self._take()
        self.failures |= out_of_reach(self.plan)
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - what fails of ours must not end the training
            self._take_off()
            self.failures["watching"] = f"{type(error).__name__}: {error}"
        try:
            _warn(self.failures)
        except UserWarning:  # where warnings are errors, the block is not entered, and so never left
            self._take_off()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Take everything off, keep what was seen, and let an error pass, without our frames in it."""
        if os.getpid() != self._pid:
            return  # a forked process left the block; the watch is its parent's
        told = dict(self.failures)
        self._attempt(lambda: self._keep(ended=error is None))
        self._take_off()
        if error is not None:
            strip_chain(error)
        self._attempt(self._write)
        if error is None:
            _warn({name: why for name, why in self.failures.items() if name not in told})

    def phases(self) -> dict[str, float]:
        """Phase -> share of the time, over the last steps so far (512 at most); empty before the second step."""
        steps = list(self._recorder.steps)
        if not steps:
            return {}
        seconds, _ = profile.phase_seconds({"seconds": steps, "phases": PHASES, "ended": False})
        whole = sum(seconds.values())
        return {name: value / whole for name, value in seconds.items()} if whole else {}

    def profile(self) -> dict[str, Any]:
        """The profile, as `hasten profile --json` writes it of a script, without ceilings: nothing was run twice.

        With a plan it also has `plan`: what was `applied`, and the `failures`.

        Raises:
            HastenError: The block has not ended yet, or was never opened.
            TrialError: No two steps were seen in it.
        """
        if self in _OPEN or not self._pid:
            raise HastenError("The block has not ended yet, and there is no profile before. Ask for it after the block.")
        if self._seen is None or not self._seen["seconds"]:
            raise TrialError(self._why_nothing(), kind="raised")
        found = {**profile.make_profile(self._seen), "ceilings": {}}
        if self.plan.names:
            found["plan"] = {"applied": list(self.applied), "failures": dict(self.failures)}
        return found

    def summary(self) -> str:
        """The profile in words, for a person. Raises as `profile` does."""
        found = self.profile()
        shares = sorted(found["phases"].items(), key=lambda item: -item[1])
        lines = [
            found["bottleneck"]["words"],
            f"A step takes {found['step_ms']:.1f} ms; {found['steps']} were counted. Of the time: "
            + ", ".join(f"{name} {share:.1%}" for name, share in shares if share >= WORTH_A_WORD)
            + ".",
            *(f"  {line['share']:6.1%}  {line['what']}  {line['file']}:{line['line']}" for line in found["where"]),
        ]
        if self.applied:
            lines.append(f"Applied: {', '.join(self.applied)}.")
        lines += [f"Not applied: `{name}`: {why}" for name, why in self.failures.items()]
        return "\n".join([*lines, f"Watching adds {found['own_cost_frac']:.3%} to a step."])

    def _why_nothing(self) -> str:
        if "watching" in self.failures:
            return f"The loop could not be watched: {self.failures['watching']}"
        return (
            "No two steps were seen in the block. Does the thread that opened it train in it, and does it reach its second "
            "step? Where no optimizer of torch.optim steps, call hasten.step() after each update."
        )

    def _begin(self) -> None:
        self._recorder = Recorder(updates=0, seconds=0.0, memory=memory_in_use, rests=True)  # of this thread, from now on
        self._seams = Seams(self._recorder, Fetch(self._recorder, Trained()))
        if self.plan.names:
            self._host = Host(self.plan)
            self._host.begin()
        self._seams.install(excepthook=False, tensor_methods=not _compiled_already())

    def _keep(self, *, ended: bool) -> None:
        recorder = self._recorder
        if recorder.free():
            recorder.enter(OTHER)  # what the last seam left behind is its own
            recorder.leave()
        recorder.active = False
        self._seen = report(recorder, ended=ended, device=device_in_use(), memory_limit_bytes=memory_limit())

    def _take_off(self) -> None:
        """Take everything off, whatever of it was put on."""
        self._recorder.active = False
        if self._seams is not None:
            self._seams.remove()
        if self._host is not None:
            self._leave(self._host)
        self._seams = self._host = None
        if self in _OPEN:
            _OPEN.remove(self)

    def _leave(self, host: Host) -> None:
        took = tuple(name for name in host.applied if name not in host.failures)
        self._attempt(host.end)
        self.applied = took
        self.failures |= host.failures
        missing = [name for name in self.plan.names if name not in took and name not in self.failures]
        self.failures |= dict.fromkeys(missing, "the block ended before what it acts on was seen")

    def _take(self) -> None:
        with _TAKING:
            if _OPEN:
                raise HastenError(
                    "hasten.attach() is open already, and its seams are the whole process's. Let that block end first, or "
                    "leave this one out."
                )
            if self._pid:
                raise HastenError("This watch was opened before. Call hasten.attach() anew for each block.")
            _OPEN.append(self)
        self._pid = os.getpid()
        _guard_forks()

    def _write(self) -> None:
        if self._json is None or self._seen is None or not self._seen["seconds"] or not _leads():
            return
        write_json(self.profile(), self._json)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do what must not end the training if it fails."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - as in __enter__
            self.failures["watching"] = f"{type(error).__name__}: {error}"

    def _disarm(self) -> None:
        """A forked process is not ours to watch."""
        self._recorder.active = False
        if self._seams is not None:
            self._seams.remove()


def _warn(failures: Mapping[str, str]) -> None:
    """Say what is not applied, at the line of the block."""
    if failures:
        words = "; ".join(f"`{name}`: {why}" for name, why in failures.items())
        warnings.warn(f"hasten goes on without {words}", UserWarning, stacklevel=3)


def _compiled_already() -> bool:
    """Whether torch.compile was called before: methods of tensors are what a compiled graph is made of."""
    return bool(getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", None))


def _leads() -> bool:
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


@functools.cache
def _guard_forks() -> None:
    """A forked process is not watched. Once in a process: such a handler cannot be taken off again."""
    os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for watched in _OPEN:
        watched._disarm()  # noqa: SLF001 - one thing in two pieces
    _OPEN.clear()
