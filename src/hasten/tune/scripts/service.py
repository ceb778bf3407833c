"""The part of a trial that runs inside the script: it takes commands between two steps of the script and answers them.

A command is a generator. It yields each time the script should do its next step. The script does not notice: it waits inside
its optimizer's step while the parent decides, and is frozen while the other arm is measured.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.core.seeding import seed_everything
from hasten.core.user_code import error_words
from hasten.optimizations import catalogue
from hasten.script.entry.isolation import isolate
from hasten.script.patches import Patches
from hasten.script.plan.host import Host
from hasten.script.watch.elsewhere import follow_children
from hasten.train.process_group import die_with_parent
from hasten.tune.scripts.commands import Commands
from hasten.tune.scripts.profiling import ScriptEnded, Steps
from hasten.tune.trials.trial import NO_STEP
from hasten.tune.trials.worker import failure_kind

MAX_NUMPY_SEED = 1 << 32


class Service:
    """Takes commands, one JSON object per line, and sends one answer to each.

    Args:
        commands: Source of the commands.
        answers: Destination of the answers.
        scratch: Folder for the files that the script saves.
        private: Whether the script works on its own copy of its files, see `isolate`.
    """

    def __init__(self, commands: TextIO, answers: TextIO, scratch: Path, *, private: bool) -> None:
        self._commands, self._answers = commands, answers
        self._pid, self._scratch = os.getpid(), scratch
        self._harmless = Patches()
        isolate(self._harmless, scratch, silent=False, private=private)
        self._waiting: Steps | None = None
        self._executor: Commands | None = None

    def begin(self) -> None:
        """Take the first command, which loads the plan, and let the script start."""
        line = self._commands.readline()
        if not line:
            os._exit(0)
        command = json.loads(line)
        seed_script(command["seed"] or 0)
        host = Host(Plan.from_dict(command["plan"], catalogue()))
        host.fallback.on = False  # a technique that fails is a failed trial
        host.scratch = self._scratch
        self._executor = Commands(host, self._progress)
        host.begin()
        self._waiting = self._executor.load()
        next(self._waiting)
        host.on_step = self.after_step
        os.register_at_fork(after_in_child=self._close_pipes)
        follow_children(self._scratch, self._harmless)
        atexit.register(self._finish)

    def after_step(self) -> None:
        """Continue the current command after a step of the script, and then the next ones, until one needs a step."""
        while True:
            if self._waiting is None:
                self._waiting = self._next()
            try:
                next(self._waiting)
            except StopIteration as done:
                self.answer({"ok": True, **done.value})
            except Exception as error:  # noqa: BLE001 - every error is reported to the parent
                self.answer({"ok": False, "kind": failure_kind(error), "message": error_words(error)})
            else:
                return

    def _next(self) -> Steps:
        line = self._commands.readline()
        command = json.loads(line) if line else {"op": "exit"}
        operation = command.pop("op")
        if operation == "exit":
            sys.stdout.flush()
            os._exit(0)  # loader workers have nothing to save, and the script must not run on to its own end
        if self._executor is None:
            raise HastenError("a command arrived before the plan was loaded")
        steps: Steps = getattr(self._executor, operation)(**command)
        return steps

    def _finish(self) -> None:
        """Answer the current command if the script ends while the command waits for a step."""
        if os.getpid() != self._pid or self._waiting is None or self._executor is None:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.answer({"ok": False, "kind": failure_kind(error), "message": error_words(error)})
            return
        while self._waiting is not None:  # no further step will come
            try:
                self._waiting.throw(ScriptEnded())
            except StopIteration as done:
                self.answer({"ok": True, **done.value})
            except ScriptEnded:
                steps = self._executor.host.steps
                message = f"The script ended after {steps} steps, before the measurement was complete." if steps else NO_STEP
                self.answer({"ok": False, "kind": "raised", "message": message})
            except Exception as ending:  # noqa: BLE001 - every error is reported to the parent
                self.answer({"ok": False, "kind": failure_kind(ending), "message": error_words(ending)})

    def _progress(self, message: str) -> None:
        self._send({"progress": message})

    def answer(self, message: Mapping[str, Any]) -> None:
        """Answer the current command."""
        self._waiting = None
        self._send(message)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def _close_pipes(self) -> None:
        """Close the pipes in a forked process, or the parent would wait for it after the script has died."""
        for pipe in (self._commands, self._answers):
            os.close(pipe.fileno())


def install(config: Mapping[str, Any]) -> None:
    """Install the service in the script's process. The import hook calls this once torch is loaded."""
    die_with_parent()
    sys.dont_write_bytecode = True  # a trial leaves nothing in the folder of the user's code
    for number in (config["commands"], config["answers"]):
        os.set_inheritable(number, False)  # noqa: FBT003 - the flag is the call's only meaning
    commands = os.fdopen(config["commands"], encoding="utf-8")
    answers = os.fdopen(config["answers"], "w", encoding="utf-8")
    service = Service(commands, answers, Path(config["folder"]), private=config["private"])
    try:
        service.begin()
    except Exception as error:  # noqa: BLE001 - the trial cannot continue after any error here
        service.answer({"ok": False, "kind": failure_kind(error), "message": error_words(error)})
        os._exit(1)


def seed_script(offset: int) -> None:
    """Seed the generators, and add `offset` to every seed that the script sets later; 0 keeps the script's own seeds.

    With an offset the script's randomness is reproducible and differs from pair to pair, even if the script sets no seed.

    Generators that the script creates itself (`torch.Generator().manual_seed`, `numpy.random.default_rng`) keep their seeds.
    """
    seed_everything(offset)
    if not offset:
        return
    torch.manual_seed = torch.random.manual_seed = _shifted(torch.manual_seed, offset)
    random.seed = _shifted(random.seed, offset)
    np.random.seed = _shifted(np.random.seed, offset, MAX_NUMPY_SEED)


def _shifted(original: Callable[..., Any], offset: int, modulus: int = 0) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(value: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = (value + offset) % modulus if modulus else value + offset
        return original(value, *args, **kwargs)

    return seed
