"""A history of checks: small files in the repository, one JSON line a commit and machine.

Times of different days drift with the machine, so the trend is drawn from paired comparisons: each recorded commit is also
compared with the anchor, the first recorded commit. Its ratio shows creep that every single step hides, and is what change
points are searched in (ruptures; PELT with a penalty for each change).
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from hasten.check.repository import OWN_FOLDER
from hasten.check.result import CheckResult
from hasten.core.errors import HastenError, MachineError
from hasten.core.files import write_atomically
from hasten.core.stats import MIN_FLOOR_FRAC
from hasten.report import schema
from hasten.tune.proof.compare import interval_fields

FOLDER = Path(OWN_FOLDER) / "history"
MIN_CHANGE_RECORDS, MIN_SEGMENT = 8, 3
"""Fewest records to search for changes, and fewest records before and after one."""
PENALTY = 5.0
"""Penalty of a change point, in units of the noise variance times the logarithm of the number of records."""
_DAMAGED = (ValueError, TypeError, KeyError)
"""What `parse_record` raises for a line that is not a record."""
MAD_TO_SD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of a history: the samples of a commit on a machine, and what they were compared with.

    Attributes:
        when: Time of the check, ISO 8601 in UTC.
        commit: The commit; None outside of a repository.
        machine: `fingerprint`, `summary`, `cpu`, `accelerators`.
        seconds_per_item: Seconds per sample, one for each process.
        peak_bytes: Peak memory of each process.
        phases_ms: Phase -> milliseconds of an update.
        environment: `python`, `threads`, `packages`.
        verdict: The verdict against `base`.
        ratio: Speed relative to the commit `base`; above 1 is faster. Its interval is from `low` to `high`.
        anchor: The comparison with the anchor: `commit`, `verdict`, `ratio`, `low`, `high`.
    """

    target: str
    when: str
    commit: str | None
    machine: dict[str, Any]
    seconds_per_item: list[float]
    peak_bytes: list[float] = field(default_factory=list)
    phases_ms: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    verdict: str | None = None
    base: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    anchor: dict[str, Any] | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the machine."""
        return str(self.machine["fingerprint"])

    @property
    def seconds(self) -> float:
        """Seconds per sample: the geometric mean of the processes."""
        return math.exp(statistics.fmean(map(math.log, self.seconds_per_item)))

    def replaces(self, other: Record) -> bool:
        """Whether a history has one line of both: of one target, commit and machine."""
        same = (self.target, self.commit, self.fingerprint) == (other.target, other.commit, other.fingerprint)
        return same and self.commit is not None


def record_of(result: CheckResult) -> Record:
    """Return the line of a finished check.

    Raises:
        HastenError: Too little was measured to be kept.
    """
    if not result.measured.get("seconds_per_item"):
        raise HastenError("Nothing was recorded: no pair of processes was undisturbed. Give a longer --budget.")
    interval = interval_fields(result.interval)
    return Record(
        target=result.target,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=result.candidate.commit,
        machine=dict(result.machine),
        **result.measured,
        verdict=str(result.verdict),
        base=result.base.commit,
        ratio=interval["ratio"],
        low=interval["low"],
        high=interval["high"],
        anchor=asdict(result.anchor) if result.anchor else None,
    )


def parse_record(line: str) -> Record:
    """Return the record of a line.

    Raises:
        ValueError: It is not a record.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or data.get("schema") != 1:
        raise ValueError("not a record of schema 1")
    known = {item.name for item in fields(Record)}
    times, machine = data.get("seconds_per_item"), data.get("machine")
    if not times or not all(isinstance(time, int | float) and math.isfinite(time) and time > 0 for time in times):
        raise ValueError("its times are not positive numbers")
    if not isinstance(machine, dict) or "fingerprint" not in machine:
        raise ValueError("it names no machine")
    return Record(**{name: value for name, value in data.items() if name in known})


def read(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records of a file in order, and a message for each line that is not one.

    Raises:
        HastenError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise HastenError(f"The history {path} cannot be read: {error.strerror}.") from error
    records, problems = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(parse_record(line))
        except _DAMAGED as error:
            problems.append(f"{path}:{number} is not a record and was skipped ({error})")
    return records, problems


def append(path: Path, record: Record) -> None:
    """Add a record, in the place of an earlier one of the same target, commit and machine. Other lines stay as they are.

    Raises:
        HastenError: The file cannot be written.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    own = json.dumps({"schema": 1, **schema.write(asdict(record))}, sort_keys=True)
    place = len(lines)
    for number, line in enumerate(lines):
        with suppress(*_DAMAGED):
            place = number if record.replaces(parse_record(line)) else place
    try:
        write_atomically(path, "\n".join([*lines[:place], own, *lines[place + 1 :]]) + "\n")
    except OSError as error:
        raise HastenError(f"The history {path} cannot be written: {error.strerror}.") from error


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The history of one target on one machine.

    Attributes:
        records: Its records, oldest first.
        slowdown: Time of an update of each record, relative to the first one.
        paired: Whether `slowdown` comes from comparisons with the anchor. Otherwise it includes the machine's drift.
        changes: Where the speed changed for good: index of the first record after it -> change of the time of an update, as
            a share; above 0 is slower.
    """

    target: str
    records: tuple[Record, ...]
    slowdown: tuple[float, ...]
    paired: bool
    changes: dict[int, float]

    @property
    def creep(self) -> str:
        """A sentence if the newest commit is certainly slower than the first one; otherwise empty."""
        newest = self.records[-1]
        if not self.paired or newest.anchor is None or newest.anchor["verdict"] != "slower":
            return ""
        return f"The newest commit is slower than the first one: updates take {100 * (self.slowdown[-1] - 1):.1f} % longer."

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        records = [
            {"commit": record.commit, "when": record.when, "relative_time": slowdown, "verdict": record.verdict}
            for record, slowdown in zip(self.records, self.slowdown, strict=True)
        ]
        changes = [{"commit": self.records[index].commit, "frac": frac} for index, frac in self.changes.items()]
        machine = self.records[0].machine
        return {
            "target": self.target, "machine": machine, "paired": self.paired, "records": records, "changes": changes,
            "creep": self.creep,
        }  # fmt: skip


def trends(records: Iterable[Record]) -> list[Trend]:
    """Return the trend of each target on each machine.

    Raises:
        MachineError: The package ruptures is not installed.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.target, record.fingerprint), []).append(record)
    return [_trend(target, group) for (target, _), group in sorted(groups.items())]


def _trend(target: str, records: list[Record]) -> Trend:
    first = records[0]
    anchors = [record.anchor for record in records[1:]]
    ratios = [anchor["ratio"] for anchor in anchors if anchor and anchor["commit"] == first.commit and anchor["ratio"]]
    paired = 0 < len(ratios) == len(anchors)
    slowdown = (
        [1.0, *(1.0 / ratio for ratio in ratios)] if paired else [record.seconds / first.seconds for record in records]
    )
    return Trend(
        target=target, records=tuple(records), slowdown=tuple(slowdown), paired=paired, changes=find_changes(slowdown)
    )


def find_changes(slowdown: Sequence[float], *, floor_frac: float = MIN_FLOOR_FRAC) -> dict[int, float]:
    """Return where a series of relative times changed for good, by at least `floor_frac`.

    The noise is estimated from the differences of neighbours, which a few changes do not move.

    Raises:
        MachineError: The package ruptures is not installed.
    """
    if len(slowdown) < MIN_CHANGE_RECORDS:
        return {}
    try:
        import ruptures  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MachineError("Change points need the package ruptures. Run: pip install 'hasten[check]'") from error
    import numpy as np  # noqa: PLC0415

    logs = [math.log(value) for value in slowdown]
    steps = [abs(new - old) for old, new in pairwise(logs)]
    noise = max(MAD_TO_SD * statistics.median(steps) / math.sqrt(2.0), 1e-4)
    penalty = PENALTY * noise**2 * math.log(len(logs))
    ends = ruptures.Pelt(model="l2", min_size=MIN_SEGMENT, jump=1).fit(np.array(logs)).predict(pen=penalty)
    means = [statistics.fmean(logs[start:end]) for start, end in pairwise([0, *ends])]
    found = {end: math.exp(new - old) - 1.0 for end, (old, new) in zip(ends, pairwise(means), strict=False)}
    return {end: frac for end, frac in found.items() if abs(frac) >= floor_frac}


def drift_frac(records: Sequence[Record]) -> float | None:
    """Return how far unpaired times of two sessions may differ, as a share, from a history; None with too few records.

    95 % of the differences of two neighbours, if the code did not change, are smaller.
    """
    if len(records) <= MIN_CHANGE_RECORDS // 2:
        return None
    steps = [math.log(new.seconds) - math.log(old.seconds) for old, new in pairwise(records)]
    return math.exp(1.96 * MAD_TO_SD * statistics.median(map(abs, steps))) - 1.0


def otava_csv(trend: Trend) -> str:
    """Return a trend as CSV for apache-otava, whose other algorithm and reports then see the same data."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "commit", "seconds_per_item", "relative_time", "peak_bytes"])
    for record, slowdown in zip(trend.records, trend.slowdown, strict=True):
        peak = statistics.median(record.peak_bytes) if record.peak_bytes else ""
        writer.writerow([record.when, record.commit or "", f"{record.seconds:.9g}", f"{slowdown:.6g}", peak])
    return text.getvalue()
