"""A whole check, from a request to a result: as the command line, the pytest plugin and benchmarks call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hasten.check.paired import Options, check_paired
from hasten.check.repository import Repository
from hasten.check.result import CheckResult
from hasten.check.subject import Subject


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What to check.

    Attributes:
        target: The job or script.
        command: The script and its arguments, see `Subject`; empty for a job.
        folder: The working folder.
        ranks: Number of processes that train together.
        against: The revision to compare with; None for the default of `Repository.base`.
        options: How the check is run.
    """

    target: str
    command: tuple[str, ...] = ()
    folder: Path
    ranks: int = 1
    against: str | None = None
    options: Options


def run_check(request: CheckRequest, say: Callable[[str], None] = lambda _: None) -> CheckResult:
    """Run a check.

    Raises:
        HastenError: It could not be measured.
    """
    subject = Subject(target=request.target, command=request.command, folder=request.folder, ranks=request.ranks)
    repository = Repository(request.folder)
    versions = repository.base(request.against), repository.candidate()
    say(f"comparing {versions[1].name} with {versions[0].name}")
    return check_paired(repository, subject.within(repository), versions, request.options, say)
