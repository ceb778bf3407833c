"""A trial process as its parent sees it: start it, command it, freeze it, and learn how it died.

With several ranks a trial is a group of processes in one session. The parent talks to rank 0, which started the others. A
crash, a hang, a lack of memory and NaN are results: they arrive as `TrialError` with a kind, and the parent continues.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Self, cast

from hasten.core.errors import FailureKind, TrialError
from hasten.core.optimization import joined_environment, required_environment
from hasten.core.plan import Plan
from hasten.core.seeding import hash_seeded
from hasten.core.user_code import traceback_words
from hasten.optimizations.parts.sample_caching import TRIALS_VARIABLE
from hasten.script.entry.apart import Apart
from hasten.script.entry.launch import ELSEWHERE_WORDS, entered, trained_elsewhere
from hasten.train.process_group import shared_environment
from hasten.tune.trials.ranks import ended_words

LOG_TAIL_LINES = 4
"""Number of log lines to quote if a trial dies."""
LOOK_S, ELSEWHERE_S = 0.5, 10.0
"""Seconds between checks of a loading script, and seconds that it may train in other processes before it is ended."""
DEFAULT_TIMEOUT_S = 300.0
SCRIPT_MODULE = "hasten.tune.scripts.service"
"""The module that takes commands in the process of a script."""
NO_STEP = (
    "The script ended without a step of a torch optimizer. Is this the script that trains? To tune a job that it defines, "
    "name it as FILE.py:Job."
)


@dataclass(frozen=True, kw_only=True)
class TrialSetting:
    """Settings that all trials of a tuning share.

    Attributes:
        target: The job.
        folder: Folder for logs, gradients and compile caches of trials.
        hang_s: Seconds after which a command counts as hung.
        progress: Called with the progress messages of a trial.
        ranks: Number of processes that train together in each trial.
        command: The script to train instead of a job: the script, or `-m` and a module, followed by its arguments.
        told: Messages about the files of scripts that were already shown.
        cwd: The working folder of the trials; None for that of this process. `folder` must be absolute then.
        environ: The environment of the trials; None for that of this process.
        label: What errors of the trials name instead of the plan, such as a commit.
    """

    target: str
    folder: Path
    hang_s: float = DEFAULT_TIMEOUT_S
    progress: Callable[[str], None] = lambda _: None
    ranks: int = 1
    command: tuple[str, ...] = ()
    told: set[str] = field(default_factory=set, compare=False)
    cwd: Path | None = None
    environ: Mapping[str, str] | None = None
    label: str = ""


class Trial:
    """One live job in its own process. As a context manager it ends the process on exit.

    Args:
        setting: Settings that all trials share.
        plan: The plan of the job.
        seed: The seed of the run; None uses the job's own.
        wait: Wait until the job is loaded. Otherwise call `wait_until_loaded` before the first command.

    Raises:
        TrialError: The job could not be loaded under the plan.
        PlanError: Two optimizations of the plan need different environments.
        MachineError: This machine lacks something that the plan's environment requires.
    """

    def __init__(self, setting: TrialSetting, plan: Plan, *, seed: int | None = None, wait: bool = True) -> None:
        self.setting, self.plan = setting, plan
        environment = trial_environment(setting.folder, setting.environ, plan=plan, ranks=setting.ranks, seed=seed)
        setting.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="trial-", suffix=".log", dir=setting.folder)
        self._log, self._log_path = os.fdopen(handle, "wb"), Path(name)
        self._private: Path | None = None
        self._apart: Apart | None = None
        self._elsewhere: float | None = None
        if setting.command:
            self._start_script(environment)
        else:
            self._start_worker(environment)
        self._pending = b""
        try:
            self._send("load", target=setting.target, plan=plan.to_dict(), seed=seed)
            if wait:
                self.wait_until_loaded()
        except BaseException:
            self.end()
            raise

    def _start_worker(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603  Hasten's own module
            [sys.executable, "-m", "hasten.tune.trials.worker", "--ranks", str(self.setting.ranks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            cwd=self.setting.cwd,
            start_new_session=True,
        )
        self._commands, self._answers = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def _start_script(self, environment: Mapping[str, str]) -> None:
        """Start the script with pipes for commands. Its output goes to the log, and its input is empty."""
        self._private = Path(tempfile.mkdtemp(prefix="script-", dir=self.setting.folder.resolve()))
        self._apart = Apart(self.setting.command, [self.setting.folder], environment, self.setting.cwd)
        self._say(self._apart.words)
        theirs, ours = os.pipe()
        mine, answers = os.pipe()
        config = {"module": SCRIPT_MODULE, "commands": theirs, "answers": answers, "private": self._apart.private}
        try:
            self._process = subprocess.Popen(  # noqa: S603  the user's own script
                [*self._apart.prefix, sys.executable, *self.setting.command],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=entered(self._private, config, environment),
                cwd=self.setting.cwd,
                pass_fds=(theirs, answers),
                start_new_session=True,
            )
        except BaseException:
            self._apart.end()
            raise
        finally:
            os.close(theirs)
            os.close(answers)
        self._commands, self._answers = os.fdopen(ours, "wb"), os.fdopen(mine, "rb")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def call(self, operation: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            TrialError: The process died, hung, or the command failed; `kind` says which.
        """
        self._send(operation, **arguments)
        return self._answer(operation, timeout_s or self.setting.hang_s)

    def wait_until_loaded(self) -> None:
        """Wait until the job is loaded, if the trial was created with `wait=False`.

        Raises:
            TrialError: It could not be loaded.
        """
        self._answer("load", self.setting.hang_s)

    def _send(self, operation: str, **arguments: Any) -> None:
        try:
            self._commands.write(json.dumps({"op": operation, **arguments}).encode() + b"\n")
            self._commands.flush()
        except BrokenPipeError as error:
            raise self._death(operation) from error

    def _answer(self, operation: str, bound: float) -> dict[str, Any]:
        while True:
            answer = self._next_line(bound, operation)
            if "progress" in answer:
                self.setting.progress(answer["progress"])
                continue
            if not answer.pop("ok"):
                tail = self._log_tail() if answer["message"] == NO_STEP else ""  # the log says why it ended
                details = answer.get("traceback") or self._log_text()
                raise TrialError(f"{answer['message']}{tail}", kind=cast("FailureKind", answer["kind"]), details=details)
            return answer

    def freeze(self) -> None:
        """Stop the process and its loader workers, so that another process has the machine to itself."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process continue."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End the process and everything it started; safe to call again."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._commands, self._answers, self._log):
            try:
                pipe.close()
            except BrokenPipeError:  # a command was still unread when the process died
                continue
        if self._apart is not None:
            self._say(self._apart.end())
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
        if self._log_path.exists() and not self._log_path.stat().st_size:
            self._log_path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def _say(self, words: str) -> None:
        """Report what a script's run leaves behind; each message once per tuning."""
        if words and words not in self.setting.told:
            self.setting.told.add(words)
            self.setting.progress(words)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _next_line(self, bound_s: float, operation: str) -> dict[str, Any]:
        deadline = monotonic() + bound_s
        output = self._answers
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - monotonic()
                if left > 0 and not selector.select(timeout=min(left, LOOK_S)):
                    self._check_elsewhere(operation)
                    continue
                if left <= 0:
                    self.end()
                    message = f"`{operation}` did not answer within {bound_s:.0f} s; the trial was ended."
                    raise TrialError(message, kind="hung")
                chunk = os.read(output.fileno(), 1 << 16)
                if not chunk:
                    raise self._death(operation)
                self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        return cast("dict[str, Any]", json.loads(line))

    def _check_elsewhere(self, operation: str) -> None:
        """End the trial of a script that trains in other processes, which do not take commands."""
        if self._private is None or operation != "load" or not (count := trained_elsewhere(self._private)):
            return
        now = monotonic()
        self._elsewhere = self._elsewhere or now
        if now - self._elsewhere > ELSEWHERE_S:
            self.end()
            raise TrialError(ELSEWHERE_WORDS.format(count=count), kind="raised")

    def _death(self, operation: str) -> TrialError:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.end()
            code = self._process.returncode
        tail = self._log_tail()
        if code == 0:
            if operation == "load":
                return TrialError(f"{NO_STEP}{tail}", kind="raised")
            return TrialError(f"The trial process ended during `{operation}`.{tail}", kind="killed")
        if code < 0:
            return TrialError(f"The trial process {ended_words(code)} during `{operation}`.{tail}", kind="killed")
        memory = "MemoryError" in tail or "allocate memory" in tail
        kind: FailureKind = "out_of_memory" if memory else "killed"
        return TrialError(f"The trial process exited with code {code} during `{operation}`.{tail}", kind=kind)

    def _log_text(self) -> str:
        """Return what the process printed."""
        return self._log_path.read_text(encoding="utf-8", errors="replace").strip() if self._log_path.exists() else ""

    def _log_tail(self) -> str:
        """Return the error whose traceback the process printed, or the last lines that it printed."""
        text = self._log_text()
        if words := traceback_words(text):
            return f" It raised {words}"
        lines = text.splitlines()
        return f" Last output: {' | '.join(lines[-LOG_TAIL_LINES:])}" if lines else ""


def trial_environment(
    folder: Path,
    environ: Mapping[str, str] | None = None,
    *,
    plan: Plan | None = None,
    ranks: int = 1,
    seed: int | None = None,
) -> dict[str, str]:
    """Return the environment of a trial: this one plus what the plan requires, unbuffered, with a shared compile cache."""
    environ = hash_seeded(os.environ if environ is None else environ, seed or 0)
    environ = shared_environment(ranks, environ) if ranks > 1 else environ
    shared = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compile_cache"), TRIALS_VARIABLE: str(folder / "stores")}
    ours = {**shared, **environ, "PYTHONUNBUFFERED": "1"}
    return joined_environment(required_environment(plan.optimizations if plan else ()), ours)
