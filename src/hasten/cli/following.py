"""Follow the run of a script: where its metrics go, and the record of the run in its folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli.say import say_error

if TYPE_CHECKING:
    from hasten.train.records.record import RunRecord


def following_of(
    out: Path, default_out: Path, log_to: Sequence[str], alerts: Path | None, alert_to: Sequence[str], of_plan: Sequence[str]
) -> dict[str, Any] | None:
    """Return how a script is followed, as `hasten.script.monitoring.Following` has it; None if nothing asks for it.

    Raises:
        HastenError: An option cannot be used.
    """
    log_to = [*of_plan, *log_to]
    if out == default_out and not (log_to or alerts or alert_to):
        return None
    from hasten.monitor.begin import parse_sinks

    parse_sinks(log_to)
    if alerts or alert_to:
        from hasten.monitor.alerts.live import read_options

        read_options(alerts, alert_to)
    rules = str(alerts.absolute()) if alerts else ""
    return {"out": str(out.absolute()), "log_to": log_to, "alerts": rules, "alert_to": list(alert_to)}


@contextmanager
def recorded(
    following: Mapping[str, Any] | None, command: Sequence[str], names: Collection[str], plan: str
) -> Iterator[RunRecord | None]:
    """Keep the record of a script's run in its folder: `run.toml`, `hasten.toml`, `log.txt`. None if it is not followed."""
    if following is None:
        yield None
        return
    from hasten.core.files import write_atomically
    from hasten.monitor.windows_file import last_step
    from hasten.train.records.lock import hold_folder
    from hasten.train.records.log import LOG, RunLog
    from hasten.train.records.record import PLAN, RunRecord, part_of_script

    log, out = RunLog(say_error), Path(following["out"])
    with ExitStack() as stack:
        stack.callback(os.close, hold_folder(out, 0, log))
        stack.callback(log.close)
        log.open(out / LOG, append=False)
        write_atomically(out / PLAN, plan)
        part, updates = part_of_script(names, command), partial(last_step, out)
        record = RunRecord(out, part, target=shlex.join(command), updates=updates, log=log, append=False)
        yield stack.enter_context(record)
