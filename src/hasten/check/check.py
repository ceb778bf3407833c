"""A whole check, from a request to a result: as the command line, the pytest plugin and benchmarks call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from hasten.check.history import FOLDER, Record, append, read, record_of
from hasten.check.paired import Options, check_paired, run_session
from hasten.check.repository import Repository, Version
from hasten.check.result import AnchorResult, CheckResult, joined
from hasten.check.stored import check_stored
from hasten.check.subject import Subject
from hasten.core.errors import HastenError
from hasten.core.stats import Interval, Verdict
from hasten.train.process_group import read_shared_machine
from hasten.tune.proof.compare import interval_fields

ANCHOR_FRAC = 0.35
"""Share of the budget for the comparison with the anchor of a history."""


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What to check.

    Attributes:
        subject: The job or script, in the working folder.
        against: The revision to compare with; None for the default of `Repository.base`.
        baseline: File of stored samples to compare with instead of a revision.
        record: Add the result to a history: `baseline`, or the machine's file in the repository.
        options: How the check is run.
    """

    subject: Subject
    against: str | None = None
    baseline: Path | None = None
    record: bool = False
    options: Options


def run_check(request: CheckRequest, say: Callable[[str], None] = lambda _: None) -> CheckResult:
    """Run a check.

    Raises:
        HastenError: It could not be measured or recorded.
    """
    if request.baseline is not None and request.against is not None:
        raise HastenError("--against and --baseline exclude each other: compare with a commit or with stored samples.")
    if request.baseline is not None:
        return _against_file(request, request.baseline, say)
    repository = Repository(request.subject.folder)
    versions = repository.base(request.against), repository.candidate()
    subject = request.subject.within(repository)
    say(f"comparing {versions[1].name} with {versions[0].name}")
    if not request.record:
        return check_paired(repository, subject, versions, request.options, say)
    _refuse_changes(versions[1])
    fingerprint = read_shared_machine(subject.ranks).fingerprint()
    path = repository.root / FOLDER / f"{fingerprint}.jsonl"
    records, problems = read(path) if path.exists() else ([], [])
    first = next((record for record in records if (record.target, record.fingerprint) == (subject.name, fingerprint)), None)
    if first is None or first.commit == versions[1].commit:
        result = check_paired(repository, subject, versions, request.options, say)
    else:
        result = _with_anchor(repository, subject, versions, request.options, first=first, say=say)
    return _recorded(result, path, problems, say)


def _with_anchor(
    repository: Repository, subject: Subject, versions: tuple[Version, Version], options: Options, *, first: Record,
    say: Callable[[str], None],
) -> CheckResult:  # fmt: skip
    """Check two versions, and compare the candidate with the anchor too."""
    base, candidate = versions
    anchor = None
    if first.commit is not None and first.commit != base.commit and repository.has(first.commit):
        anchor = Version(commit=first.commit, name=f"{first.commit[:12]} (the anchor)")
    rest_s = ANCHOR_FRAC * options.budget_s if anchor else 0.0
    result = check_paired(repository, subject, versions, replace(options, budget_s=options.budget_s - rest_s), say)
    if first.commit == base.commit:
        return replace(result, anchor=_anchor(first, result.verdict, result.interval))
    if anchor is None:
        name = (first.commit or "without a commit")[:12]
        return _warned(result, [f"the anchor {name} is not in this repository: creep cannot be seen"])
    say(f"comparing with {anchor.name} too, which shows creep")
    found = run_session(
        repository, subject, (anchor, candidate), options, deadline=monotonic() + rest_s, say=say, number=2
    ).comparison
    return replace(result, anchor=_anchor(first, found.verdict, joined([found])))


def _anchor(first: Record, verdict: Verdict, interval: Interval | None) -> AnchorResult:
    ratio, low, high, *_ = interval_fields(interval).values()
    return AnchorResult(commit=str(first.commit), verdict=str(verdict), ratio=ratio, low=low, high=high)


def _against_file(request: CheckRequest, path: Path, say: Callable[[str], None]) -> CheckResult:
    subject = request.subject
    try:
        repository = Repository(subject.folder)
        candidate, subject = repository.candidate(), subject.within(repository)
        if request.record:
            _refuse_changes(candidate)
    except HastenError:
        if request.record and (subject.folder / ".git").exists():
            raise
        candidate = Version(commit=None, name=str(subject.folder))
    if not path.exists() and not request.record:
        raise HastenError(f"There is no file {path}. --record writes one: hasten check TARGET --baseline {path} --record")
    records, problems = read(path) if path.exists() else ([], [])
    result = check_stored(subject, records, path, candidate, request.options, say=say)
    return _recorded(result, path, problems, say) if request.record else _warned(result, problems)


def _recorded(result: CheckResult, path: Path, problems: list[str], say: Callable[[str], None]) -> CheckResult:
    append(path, record_of(result))
    say(f"recorded in {path}")
    return _warned(result, problems)


def _warned(result: CheckResult, problems: list[str]) -> CheckResult:
    return replace(result, warnings=(*result.warnings, *problems))


def _refuse_changes(version: Version) -> None:
    if version.changed:
        raise HastenError("--record keeps one line a commit, and the working tree has changes. Commit them first.")
