"""Watch the script's process: install the seams, save what they observed, and remove them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hasten.core.files import write_atomically
from hasten.core.user_code import error_words
from hasten.script.entry.hooks import note_failure
from hasten.script.entry.isolation import isolate
from hasten.script.patches import Patches, harmless
from hasten.script.watch.elsewhere import follow_children
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.memory import memory_in_use, memory_limit
from hasten.script.watch.operators import Tracer
from hasten.script.watch.padding import Padding
from hasten.script.watch.record import Recorder, report
from hasten.script.watch.replay import Replay
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained


class Session:
    """The watch of one process.

    Args:
        config: Configuration from `hasten.script.entry.launch`, with `folder` and `rank`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.folder = Path(config["folder"])
        self.ends = config["mode"] != "observe"
        # Ranks must stop after the same step: a rank that stopped by its own clock would leave the others waiting.
        seconds = 0.0 if config["ranked"] else config["seconds"]
        endless = not config["updates"] and not config["seconds"]
        self.recorder = Recorder(
            updates=config["updates"], seconds=seconds, memory=memory_in_use, rests=endless, follows=True
        )
        replay = Replay(self.recorder) if config["mode"] == "replay" else None
        self.padding = Padding(cuts=config["mode"] == "cut")
        self.seams = Seams(self.recorder, Fetch(self.recorder, Trained(), replay, self.padding, self.folder))
        traces = config["mode"] == "trace"
        self._tracer = Tracer(self.recorder, self._stop, ranked=config["ranked"]) if traces else None
        self._harmless = Patches(self._note)
        self._pid = os.getpid()
        self._kept = False

    def begin(self) -> None:
        """Start watching."""
        if self.ends:
            silent, private = self.config["mode"] == "silent", self.config["private"]
            isolate(self._harmless, self.folder, silent=silent, private=private, on_failure=self._note)
        self.recorder.on_stop = self._stopped
        self.seams.on_failure = self._note
        self.seams.install()
        self._harmless.put(os, "_exit", self._exiting)
        if self.ends:
            self.recorder.on_snapshot = harmless(self._snapshot, self._note)
            follow_children(self.folder, self._harmless)
        os.register_at_fork(after_in_child=harmless(self._disarm, self._note))
        atexit.register(harmless(self._finish, self._note))

    def _note(self, _error: Exception | None = None) -> None:
        """Record the current internal error for the launcher."""
        note_failure(dict(self.config))

    def _stop(self) -> None:
        self.recorder.stop()

    def _stopped(self) -> None:
        """Stop watching because enough was observed."""
        harmless(self._rest, self._note)()
        if self.ends:
            self._leave()

    def _rest(self) -> None:
        self.seams.rest()
        self._keep(ended=False)

    def _leave(self) -> None:
        """End the script inside its own step. No internal error may escape here."""
        atexit._run_exitfuncs()  # noqa: SLF001 - temporary folders, worker processes and the user's own handlers
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the script may have closed or replaced it
                stream.flush()
        os._exit(0)

    def _finish(self) -> None:
        """Save the observations at the end of the script, for every kind of end that Python reports."""
        if os.getpid() == self._pid and self.folder.is_dir():
            self._keep(ended=True)
        self.recorder.active = False
        self.seams.remove()
        self._harmless.restore()

    def _exiting(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        """Save the observations before `os._exit`, which skips exit handlers."""

        @functools.wraps(original)
        def exit_seam(status: int) -> Any:
            harmless(self._finish, self._note)()
            return original(status)

        return exit_seam

    def _disarm(self) -> None:
        """Stop watching in a forked process."""
        self.recorder.active = False
        self.seams.remove()

    def _keep(self, *, ended: bool) -> None:
        if self._kept:
            return
        self._kept = True
        self._write("seen", ended=ended)

    def _snapshot(self) -> None:
        """Save the observations so far, in case a signal kills the script. Their cost is not measured in its steps."""
        self._write("partial", ended=True, cost=False)

    def _write(self, name: str, *, ended: bool, cost: bool = True) -> None:
        more: dict[str, Any] = {"device": device_in_use(), "rank": self.config["rank"], "padding_frac": self.padding.frac}
        if self._tracer is not None and name == "seen":
            self._tracer.finish()
            more["operators"] = self._tracer.found
        error = getattr(sys, "last_value", None)
        more |= {"memory_limit_bytes": memory_limit(), "error": None if error is None else error_words(error)}
        more["not_finite"] = self.seams.losses.not_finite()
        observations = report(self.recorder, ended=ended, cost=cost, **more)
        write_atomically(self.folder / f"{name}-{self.config['rank']}.json", json.dumps(observations))


def device_in_use() -> str:
    """Return `cuda` if this process uses a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"


def install(config: Mapping[str, Any]) -> None:
    """Watch this process. Called by the import hook once torch is loaded."""
    Session(config).begin()
