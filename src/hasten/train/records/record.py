"""The record of a run, `run.toml`: what was trained, where, with which versions, from which commit, and how it ended.

A run that is taken up again is one run of several parts, each with a machine and an end of its own. What decides nothing for
anybody else is left out: no user, no home folder, no environment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
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
"""Seconds that git may take before a run begins."""
_HEAD = "# A run of Hasten; `hasten runs show FOLDER` shows it. Each of [[parts]] is a start of it, the newest last.\n"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a run was called.

    Attributes:
        target: What was to be trained, as the command line named it.
        arguments: All that followed the verb.
    """

    target: str = ""
    arguments: tuple[str, ...] = ()


class RunRecord:
    """Keeps the record of a run that begins. A context manager: leaving it writes how the run ended.

    Args:
        run: The run's folder, held by this run.
        part: What is known at the start, see `part_of`.
        target: What is trained.
        updates: Gives the updates that were done, whenever it is asked.
        log: Where the start and the end are noted.
        append: Go on behind the parts that are there.

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

    def stopped_by(self, name: str) -> None:
        """The run ends because a signal asked for it."""
        self._signal = name

    def __enter__(self) -> Self:
        try:
            self._write()
        except OSError as error:
            raise MachineError(
                f"Cannot write {self._path}: {error.strerror}. Make room, or choose another --out."
            ) from error
        plan = ", ".join(self._part["plan"]) or "no optimization"
        self._log.note(f"started from update {self._part['from_update']} of {self._part['planned']} with {plan}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._part |= {"ended": now(), **how_it_ended(error, self._signal), "updates": self._updates()}
        self._log.note(ended_words(self._part))
        try:
            self._write()
        except OSError as refused:
            self._log(f"{self._path} cannot be written ({refused.strerror}): how this run ended is not in it.")

    def _write(self) -> None:
        write_atomically(self._path, to_toml(self._target, [*self._before, self._part]))


def part_of(
    live: LiveJob, plan: Plan, origin: Origin, *, planned: int, world: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of a run, or of a part of it, when it starts.

    Args:
        live: The job.
        plan: Its plan.
        origin: How it was called.
        planned: Updates of the whole run.
        world: Ranks.
        facts: Fingerprints of the job's code and data, where they were taken.
    """
    machine = read_machine()
    return {
        "planned": planned,
        "plan": list(plan.names),
        "seed": live.seed,
        "batch_size": live.job.batch_size,
        "ranks": world,
        "arguments": [impersonal(word) for word in origin.arguments],
        "machine": machine.summary(),
        "machine_fingerprint": machine.fingerprint(),
        "versions": versions(),
        "repository": repository_of(job_folder(live.job) or Path.cwd(), patience_s=_GIT_S),
        **{name: facts[name] for name in ("code", "data") if facts.get(name)},
    }


def how_it_ended(error: BaseException | None, signal_name: str | None) -> dict[str, str]:
    """`outcome` (`finished`, `stopped`, `failed`), with the signal or the error that it was."""
    if isinstance(error, KeyboardInterrupt):
        return {"outcome": "stopped", "signal": signal_name or "SIGINT"}
    if error is not None:
        first = (str(error).strip().splitlines() or [""])[0]
        return {"outcome": "failed", "error": impersonal(f"{type(error).__name__}: {first}".removesuffix(": "))}
    if signal_name is not None:
        return {"outcome": "stopped", "signal": signal_name}
    return {"outcome": "finished"}


def ended_words(part: Mapping[str, Any]) -> str:
    """How a part ended, such as `stopped by SIGTERM at update 120 of 400`; empty where it did not."""
    outcome = part.get("outcome")
    if not outcome:
        return ""
    why = f" by {part['signal']}" if outcome == "stopped" and part.get("signal") else ""
    where = f" at update {part.get('updates', 0):,} of {part.get('planned', 0):,}"
    return f"{outcome}{why}{where}" + (f": {part['error']}" if part.get("error") else "")


def to_toml(target: str, parts: list[Mapping[str, Any]]) -> str:
    """The record as a file that a person can read."""
    return _HEAD + tomli_w.dumps({"schema": SCHEMA, "target": target, "plan_file": PLAN, "parts": parts})


def read_record(run: Path) -> dict[str, Any]:
    """What `run.toml` holds; empty where there is none.

    Raises:
        CorruptError: It cannot be read.
        DataError: It is of a newer version of Hasten.
    """
    path = run / RECORD
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorruptError(f"{path} cannot be read: {error}. The rest of the run is as it was.") from error
    schema, parts = read.get("schema"), read.get("parts")
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(f"{path} is of a newer version of Hasten (schema {schema}; this one reads {SCHEMA}): upgrade.")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise CorruptError(f"{path} holds no [[parts]]: it is no record of a run.")
    return read


def now() -> str:
    """The time, in ISO 8601 with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _parts_of(run: Path, log: RunLog) -> list[dict[str, Any]]:
    """The parts before; a record that cannot be read is set aside with a word, for it must not stop a training."""
    try:
        parts: list[dict[str, Any]] = read_record(run).get("parts", [])
    except DataError as error:
        aside = run / f"{RECORD}.unread"
        (run / RECORD).replace(aside)
        log(f"{error} It is kept as {aside.name}, and a new one is begun.")
        return []
    return parts
