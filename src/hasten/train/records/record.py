"""The record of a run, `run.toml`: what was trained, where, with which versions, from which commit, and how it ended.

A resumed run is one run with several parts, each with its own machine and outcome. Personal data is left out: no user, no
home folder, no environment.
"""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.core.files import write_atomically
from hasten.core.live import LiveJob
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.core.provenance import job_folder, repository_of, versions
from hasten.train.records.log import RunLog, impersonal

RECORD, PLAN = "run.toml", "hasten.toml"
SCHEMA = 1
_GIT_S = 3.0
"""Time limit in seconds for git before a run starts."""
_HEAD = "# A run of Hasten. Show it with `hasten runs show FOLDER`. Each of [[parts]] is one start, the newest last.\n"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a run was started.

    Attributes:
        target: The target named on the command line.
        arguments: The arguments after the command.
    """

    target: str = ""
    arguments: tuple[str, ...] = ()


class RunRecord:
    """Writes the record of a run. A context manager: on exit, it writes how the run ended.

    Args:
        run: The run's folder, locked by this run.
        part: The facts known at the start, see `part_of`.
        target: The target of the run.
        updates: Returns the number of completed updates.
        log: Log for the start and the end.
        append: Append to the parts of an existing record.

    Raises:
        MachineError: The folder cannot be written.
    """

    def __init__(
        self, run: Path, part: Mapping[str, Any], *, target: str, updates: Callable[[], int], log: RunLog, append: bool
    ) -> None:
        self._path, self._target, self._updates, self._log = run / RECORD, impersonal(target), updates, log
        self._before = _parts_of(run, log) if append else []
        self._part: dict[str, Any] = {"started": now(), "from_update": updates(), **part}
        self._signal: str | None = None
        self._failed: dict[str, str] = {}

    def stopped_by(self, name: str) -> None:
        """Record that a signal stopped the run."""
        self._signal = name

    def exited(self, code: int) -> None:
        """Record the exit code of a script; negative for a signal."""
        if code < 0:
            self._signal = signal.Signals(-code).name
        elif code:
            self._failed = {"outcome": "failed", "error": f"exit status {code}"}

    def __enter__(self) -> Self:
        try:
            self._write()
        except OSError as error:
            raise MachineError(
                f"Cannot write {self._path}: {error.strerror}. Free some space, or choose another folder (--out)."
            ) from error
        plan = ", ".join(self._part["plan"]) or "no optimization"
        self._log.note(f"started from update {self._part['from_update']}{_of(self._part)} with {plan}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._part |= {"ended": now(), **how_it_ended(error, self._signal), **self._failed, "updates": self._updates()}
        self._log.note(ended_words(self._part))
        try:
            self._write()
        except OSError as write_error:
            self._log(f"{self._path} cannot be written ({write_error.strerror}), so the outcome of the run is not in it.")

    def _write(self) -> None:
        write_atomically(self._path, to_toml(self._target, [*self._before, self._part]))


def part_of(
    live: LiveJob, plan: Plan, origin: Origin, *, planned: int, world: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the facts that are known when a run, or a part of it, starts.

    Args:
        live: The live job.
        plan: Its plan.
        origin: How it was started.
        planned: Updates of the whole run.
        world: Number of ranks.
        facts: Fingerprints of the job's code and data, if available.
    """
    return {
        "planned": planned,
        "plan": list(plan.names),
        "seed": live.seed,
        "batch_size": live.job.batch_size,
        "ranks": world,
        "arguments": [impersonal(word) for word in origin.arguments],
        **_surroundings(job_folder(live.job) or Path.cwd()),
        **{name: facts[name] for name in ("code", "data") if facts.get(name)},
    }


def part_of_script(names: Collection[str], command: Sequence[str]) -> dict[str, Any]:
    """Return the facts that are known when a script starts under a plan with these optimizations."""
    words = [impersonal(word) for word in command]
    return {"plan": list(names), "arguments": words, **_surroundings(Path.cwd())}


def _surroundings(folder: Path) -> dict[str, Any]:
    """Return the machine, the versions, and the repository of a folder."""
    machine = read_machine()
    return {
        "machine": machine.summary(),
        "machine_fingerprint": machine.fingerprint(),
        "versions": versions(),
        "repository": repository_of(folder, patience_s=_GIT_S),
    }


def how_it_ended(error: BaseException | None, signal_name: str | None) -> dict[str, str]:
    """Return `outcome` (`finished`, `stopped`, `failed`), with the signal or the error."""
    if isinstance(error, KeyboardInterrupt):
        return {"outcome": "stopped", "signal": signal_name or "SIGINT"}
    if error is not None:
        first = (str(error).strip().splitlines() or [""])[0]
        return {"outcome": "failed", "error": impersonal(f"{type(error).__name__}: {first}".removesuffix(": "))}
    if signal_name is not None:
        return {"outcome": "stopped", "signal": signal_name}
    return {"outcome": "finished"}


def ended_words(part: Mapping[str, Any]) -> str:
    """Describe how a part ended, such as `stopped by SIGTERM at update 120 of 400`; empty if it has not ended."""
    outcome = part.get("outcome")
    if not outcome:
        return ""
    why = f" by {part['signal']}" if outcome == "stopped" and part.get("signal") else ""
    where = f" at update {part.get('updates', 0):,}{_of(part)}"
    return f"{outcome}{why}{where}" + (f": {part['error']}" if part.get("error") else "")


def _of(part: Mapping[str, Any]) -> str:
    """Return the planned length in words, such as ` of 400`; empty if it is unknown, as that of a script."""
    return f" of {part['planned']:,}" if "planned" in part else ""


def to_toml(target: str, parts: list[Mapping[str, Any]]) -> str:
    """Return the record as TOML text."""
    return _HEAD + tomli_w.dumps({"schema": SCHEMA, "target": target, "plan_file": PLAN, "parts": parts})


def read_record(run: Path) -> dict[str, Any]:
    """Read `run.toml`; empty if there is none.

    Raises:
        CorruptError: It cannot be read.
        DataError: It was written by a newer version of Hasten.
    """
    path = run / RECORD
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorruptError(f"{path} cannot be read: {error}. The other files of the run are not affected.") from error
    schema, parts = record.get("schema"), record.get("parts")
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(
            f"{path} was written by a newer version of Hasten (schema {schema}; this one reads {SCHEMA}): upgrade Hasten."
        )
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise CorruptError(f"{path} has no [[parts]], so it is not the record of a run.")
    return record


def now() -> str:
    """Return the current time in ISO 8601 with its time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _parts_of(run: Path, log: RunLog) -> list[dict[str, Any]]:
    """Return the earlier parts. Rename an unreadable record and log a message, because it must not stop the training."""
    try:
        parts: list[dict[str, Any]] = read_record(run).get("parts", [])
    except DataError as error:
        renamed = run / f"{RECORD}.unread"
        (run / RECORD).replace(renamed)
        log(f"{error} It was renamed to {renamed.name}, and a new record is started.")
        return []
    return parts
