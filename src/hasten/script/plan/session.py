"""Apply a plan inside a script's process once torch is loaded."""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.core.errors import PlanError
from hasten.core.files import write_atomically
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.core.validity import outdated_words
from hasten.optimizations import catalogue_of
from hasten.script.entry.hooks import note_failure
from hasten.script.entry.launch import REFUSED
from hasten.script.patches import harmless
from hasten.script.plan.host import Host
from hasten.script.plan.reach import beyond


def install(config: Mapping[str, Any]) -> None:
    """Apply the plan of `config` to this process. Called by the import hook once torch is loaded."""
    plan = _checked(config)
    gc.freeze()  # the modules loaded so far live as long as the process: no collection, not even the last, must visit them
    host, pid = Host(plan), os.getpid()
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

    def begin() -> None:
        if config["rank"] == 0 and (words := outdated_words(plan, read_machine(), config.get("target", ""))):
            sys.stderr.write(f"hasten: {words}\n")
        write_report(host.applied)

    host.on_failure = lambda: note_failure(dict(config))
    host.on_open = harmless(begin, lambda _: note_failure(dict(config)))  # a script may end without exit handlers
    host.on_stop = lambda: write_report(host.applied)
    host.begin()
    if config.get("following"):
        from hasten.script.monitoring import Following, follow  # noqa: PLC0415 - few scripts need it

        harmless(follow, lambda _: note_failure(dict(config)))(Following.from_dict(config["following"]))
    atexit.register(harmless(finish, lambda _: note_failure(dict(config))))


def _checked(config: Mapping[str, Any]) -> Plan:
    """Return the plan of `config`. If it is not valid, end the script, which does not continue after `SystemExit`."""
    settings, where = config["plan"], config.get("where", "plan")
    try:
        plan, why = Plan.from_dict(settings, catalogue_of(settings), where=where), ""
    except PlanError as error:
        why = str(error)
    else:
        if missing := beyond(plan):
            words = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
            why = f"{where} has techniques that cannot be applied to a script: {words}. Remove them from the plan."
    if why:
        write_atomically(Path(config["folder"]) / REFUSED, why)
        raise SystemExit(1)
    return replace(plan, proved=config.get("proved", {}))
