"""The inside of a script's trial: between two steps of the script, commands are taken and answered.

A command is a generator that yields wherever the script is to do its next step. The script itself never notices: it stands
in its optimizer's step while the parent thinks, and is frozen while the other arm counts.
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
from hasten.optimizations import catalogue
from hasten.script.entry.isolation import isolate
from hasten.script.patches import Patches
from hasten.script.plan.host import Host
from hasten.script.watch.elsewhere import follow_children
from hasten.train.process_group import die_with_parent
from hasten.tune.scripts.commands import Commands
from hasten.tune.scripts.profiling import ScriptEnded, Steps
from hasten.tune.trials.trial import NO_STEP
from hasten.tune.trials.worker import describe, failure_kind

MAX_NUMPY_SEED = 1 << 32


class Service:
    """Takes commands, one JSON object a line, and answers each with one.

    Args:
        commands: Where they come from.
        answers: Where the answers go.
        scratch: Folder for what the script saves.
        private: The script has files of its own, see `isolate`.
    """

    def __init__(self, commands: TextIO, answers: TextIO, scratch: Path, *, private: bool) -> None:
        self._commands, self._answers = commands, answers
        self._pid, self._scratch = os.getpid(), scratch
        self._harmless = Patches()
        isolate(self._harmless, scratch, silent=False, private=private)
        self._waiting: Steps | None = None
        self._obeys: Commands | None = None

    def begin(self) -> None:
        """Take the first command, which loads the plan, and let the script begin."""
        line = self._commands.readline()
        if not line:
            os._exit(0)
        told = json.loads(line)
        seed_script(told["seed"] or 0)
        host = Host(Plan.from_dict(told["plan"], catalogue()))
        self._obeys = Commands(host, self._progress)
        host.begin()
        self._waiting = self._obeys.load()
        next(self._waiting)
        host.on_step = self.after_step
        os.register_at_fork(after_in_child=self._let_go)
        follow_children(self._scratch, self._harmless)
        atexit.register(self._finish)

    def after_step(self) -> None:
        """The script has done a step: go on with the command under way, and with the next ones, until one wants a step."""
        while True:
            if self._waiting is None:
                self._waiting = self._next()
            try:
                next(self._waiting)
            except StopIteration as done:
                self.answer({"ok": True, **done.value})
            except Exception as error:  # noqa: BLE001 - the parent is told, whatever it is
                self.answer({"ok": False, "kind": failure_kind(error), "message": describe(error)})
            else:
                return

    def _next(self) -> Steps:
        line = self._commands.readline()
        told = json.loads(line) if line else {"op": "exit"}
        operation = told.pop("op")
        if operation == "exit":
            sys.stdout.flush()
            os._exit(0)  # loader workers have nothing to save, and the script's own end is not wanted
        if self._obeys is None:
            raise HastenError("a command came before the plan was loaded")
        steps: Steps = getattr(self._obeys, operation)(**told)
        return steps

    def _finish(self) -> None:
        """The script has come to its end while a command waited for a step."""
        if os.getpid() != self._pid or self._waiting is None or self._obeys is None:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.answer({"ok": False, "kind": failure_kind(error), "message": describe(error)})
            return
        while self._waiting is not None:  # each further step that a command asks for never comes
            try:
                self._waiting.throw(ScriptEnded())
            except StopIteration as done:
                self.answer({"ok": True, **done.value})
            except ScriptEnded:
                steps = self._obeys.host.steps
                words = f"The script came to its end after {steps} steps, and more were wanted." if steps else NO_STEP
                self.answer({"ok": False, "kind": "raised", "message": words})
            except Exception as ending:  # noqa: BLE001 - the parent is told, whatever it is
                self.answer({"ok": False, "kind": failure_kind(ending), "message": describe(ending)})

    def _progress(self, words: str) -> None:
        self._send({"progress": words})

    def answer(self, message: Mapping[str, Any]) -> None:
        """Answer the command under way."""
        self._waiting = None
        self._send(message)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def _let_go(self) -> None:
        """A forked process answers nobody: else the parent would wait for it when the script has died."""
        for pipe in (self._commands, self._answers):
            os.close(pipe.fileno())


def install(config: Mapping[str, Any]) -> None:
    """Set to work in the script's process. Called by the import hook once torch is loaded."""
    die_with_parent()
    sys.dont_write_bytecode = True  # a trial leaves nothing in the folder of the user's code
    for number in (config["commands"], config["answers"]):
        os.set_inheritable(number, False)  # noqa: FBT003 - the flag is the call's only meaning
    commands = os.fdopen(config["commands"], encoding="utf-8")
    answers = os.fdopen(config["answers"], "w", encoding="utf-8")
    service = Service(commands, answers, Path(config["folder"]), private=config["private"])
    try:
        service.begin()
    except Exception as error:  # noqa: BLE001 - a trial that cannot be held is no trial, whatever the reason
        service.answer({"ok": False, "kind": failure_kind(error), "message": describe(error)})
        os._exit(1)


def seed_script(offset: int) -> None:
    """Seed the generators, and add `offset` to every seed that the script sets later; 0 leaves its own seeds as they are.

    Its randomness then repeats, and differs from pair to pair, whether it seeds itself or not.

    Seeds of generators that the script makes for itself (`torch.Generator().manual_seed`, `numpy.random.default_rng`) stay.
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
