"""Stored samples: what may be compared with them, and how weak that is. Then whole checks that record."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from hasten.check import check, paired, stored
from hasten.check.check import CheckRequest, run_check
from hasten.check.history import FOLDER, append, read
from hasten.check.stored import DRIFT_FRAC, choose_baseline, pair_times, unpaired_interval
from hasten.check.subject import Subject
from hasten.core.errors import HastenError
from hasten.core.stats import Verdict
from tests.check.repositories import commit, git, new_repository
from tests.check.test_check import OPTIONS, outcomes
from tests.check.test_history import MACHINE, record
from tests.check.test_result import sample, session
from tests.cli.called import called
from tests.optimizations.contract import facts

HERE = facts().machine.fingerprint()
HERE_MACHINE = {**MACHINE, "fingerprint": HERE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repo", jobs__py="", train__py="")


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (check, stored):
        monkeypatch.setattr(user, "read_shared_machine", lambda _: facts().machine)


def test_welch_covers_the_ratio_as_often_as_it_says() -> None:
    draws, covered = random.Random(0), 0
    for _ in range(400):
        base = [math.exp(draws.gauss(0, 0.02)) for _ in range(5)]
        candidate = [1.1 * math.exp(draws.gauss(0, 0.05)) for _ in range(7)]
        interval = unpaired_interval(base, candidate, 0.95)
        covered += interval.low <= 1 / 1.1 <= interval.high
    assert 0.93 <= covered / 400 <= 1.0
    assert unpaired_interval([1.0, 1.0], [2.0, 2.0], 0.95).ratio == 0.5


def test_samples_of_another_machine_or_target_are_refused(tmp_path: Path) -> None:
    subject, path = Subject(target="train.py", command=("train.py",), folder=tmp_path), tmp_path / "h.jsonl"
    assert choose_baseline([record(0), record(1)], subject, MACHINE, path) == [record(0), record(1)]
    other = {**MACHINE, "fingerprint": "other", "summary": "96 cores, B"}
    with pytest.raises(HastenError, match=r"another machine \(2 cores, A\), and this one is 96 cores, B.*never compared"):
        choose_baseline([record(0)], subject, other, path)
    with pytest.raises(HastenError, match=r"no samples of train.py --lr 1. It has: train.py"):
        choose_baseline([record(0)], Subject(target="x", command=("train.py", "--lr", "1"), folder=tmp_path), MACHINE, path)


def test_a_pair_counts_once_and_only_undisturbed() -> None:
    spoilt = sample("A", 1, 5.0)
    samples = [sample("A", 0, 1.0), sample("B", 0, 4.0), spoilt, sample("B", 1, 5.0)]
    samples[2] = type(spoilt)(**{**vars(spoilt), "spoilt": True})
    assert pair_times(samples) == [2.0]


def given(monkeypatch: pytest.MonkeyPatch, *factors: float) -> None:
    """Let sessions of the working folder take these times."""
    left = list(factors)
    prepared = paired.Prepared(
        described={"files": [], "python": "3", "threads": 1, "packages": {}}, facts=facts(), phases_ms={"data": 2.0}
    )

    def compare_settings(*_: Any) -> Any:
        factor = left.pop(0)
        made = session(1.0)
        made.samples = [
            type(item)(**{**vars(item), "seconds_per_item": factor * item.seconds_per_item}) for item in made.samples
        ]
        return made

    monkeypatch.setattr(stored, "prepare", lambda *_: prepared)
    monkeypatch.setattr(stored, "compare_settings", compare_settings)


def against(folder: Path, path: Path, **more: Any) -> CheckRequest:
    return CheckRequest(subject=Subject(target="jobs.py:J", folder=folder), baseline=path, options=OPTIONS, **more)


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [((1.0,), "same"), ((0.8,), "faster"), ((1.3, 1.3), "slower"), ((1.3, 1.0), "undecided"), ((1.02,), "same")],
)
def test_a_folder_against_its_stored_samples(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...], verdict: str
) -> None:
    path = tmp_path / "h.jsonl"
    append(path, record(0, target="jobs.py:J", machine=HERE_MACHINE, phases_ms={"data": 1.0}, environment={"python": "2"}))
    given(monkeypatch, *factors)
    found = run_check(against(folder, path))
    assert found.verdict == verdict, found.headline
    assert found.floor_frac == DRIFT_FRAC
    assert "weaker evidence" in found.warnings[0]
    assert "changes below 7.0% (this machine's usual drift) cannot be distinguished from drift" in found.warnings[0]
    assert found.environment[0] == "python: 2 -> 3"
    if verdict == "slower":
        assert found.phases is not None
        assert found.phases.named == "data"


def test_the_first_samples_are_recorded_and_then_compared_with(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h.jsonl"
    with pytest.raises(HastenError, match=r"There is no file .* --record writes one"):
        run_check(against(folder, path))
    given(monkeypatch, 1.0, 1.0)
    first = run_check(against(folder, path, record=True))
    assert (first.verdict, first.why) == (Verdict.UNDECIDED, f"{path} had no samples to compare with")
    assert run_check(against(folder, path)).verdict is Verdict.SAME


def test_it_works_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h.jsonl"
    append(path, record(0, target="jobs.py:J", machine=HERE_MACHINE))
    (tmp_path / "jobs.py").write_text("")
    given(monkeypatch, 1.0)
    assert run_check(against(tmp_path, path)).candidate.commit is None


def test_both_kinds_of_base_exclude_each_other(folder: Path) -> None:
    done = called("check", "jobs.py:J", "--against", "main", "--baseline", "x.jsonl", cwd=folder)
    assert done.returncode == 3
    assert "--against and --baseline exclude each other" in done.stderr


# Recording paired checks.


def request(folder: Path) -> CheckRequest:
    return CheckRequest(subject=Subject(target="jobs.py:J", folder=folder), record=True, options=OPTIONS)


def test_checks_are_recorded_with_their_anchor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / FOLDER / f"{HERE}.jsonl"
    commit(folder, "two", jobs__py="2")
    outcomes(monkeypatch, session(1.0))
    first = run_check(request(folder))
    assert first.anchor is None
    anchor = git(folder, "rev-parse", "HEAD")
    commit(folder, "three", jobs__py="3")
    outcomes(monkeypatch, session(1.0))
    second = run_check(request(folder))
    assert second.anchor is not None
    assert (second.anchor.commit, second.anchor.verdict) == (anchor, "same"), "the base is the anchor"
    commit(folder, "four", jobs__py="4")
    taken = outcomes(monkeypatch, session(1.0), session(1.07))
    third = run_check(request(folder))
    assert (third.verdict, len(taken)) == (Verdict.SAME, 2)
    assert third.anchor is not None
    assert (third.anchor.commit, third.anchor.verdict) == (anchor, "slower")
    assert "small slowdowns have added up" in third.anchor.words
    records, problems = read(path)
    assert (len(records), problems) == (3, [])
    assert [item.base and item.base[:7] for item in records[1:]] == [item.commit and item.commit[:7] for item in records[:2]]


def test_a_working_tree_is_not_recorded(folder: Path) -> None:
    commit(folder, "two")
    (folder / "jobs.py").write_text("changed")
    with pytest.raises(HastenError, match="one line a commit, and the working tree has changes"):
        run_check(request(folder))


def test_an_anchor_that_is_gone_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, "two")
    append(folder / FOLDER / f"{HERE}.jsonl", record(0, target="jobs.py:J", machine=HERE_MACHINE, commit="e" * 40))
    outcomes(monkeypatch, session(1.0))
    assert "the anchor eeeeeeeeeeee is not in this repository" in run_check(request(folder)).warnings[-1]
