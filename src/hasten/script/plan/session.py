"""Apply a plan inside a script's process once torch is loaded."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.core.files import write_atomically
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.entry.hooks import note_failure
from hasten.script.patches import harmless
from hasten.script.plan.host import Host


def install(config: Mapping[str, Any]) -> None:
    """Apply the plan of `config` to this process. Called by the import hook once torch is loaded."""
    host, pid = Host(Plan.from_dict(config["plan"], catalogue())), os.getpid()
    report = Path(config["folder"]) / f"applied-{config['rank']}.json"

    def write_report(applied: list[str]) -> None:
        try:
            result = {"applied": applied, "failures": host.failures, "steps": host.steps}
            write_atomically(report, json.dumps({**result, "stopped": host.stopped, "stale": host.stale}))
        except OSError:
            return  # the launcher was killed and its folder is gone: no one reads the report

    def finish() -> None:
        if os.getpid() != pid:
            return
        applied = host.applied
        host.end(undo=False)
        write_report(applied)

    host.on_failure = lambda: note_failure(dict(config))
    host.on_open = host.on_stop = lambda: write_report(host.applied)  # a script may end without exit handlers
    host.begin()
    atexit.register(harmless(finish, lambda _: note_failure(dict(config))))
