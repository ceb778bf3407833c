"""Whole checks on real repositories: jobs and scripts, in real processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hasten.check import paired
from hasten.check.check import CheckRequest, run_check
from hasten.check.paired import Options, prepare
from hasten.check.repository import PREFIX, Repository
from hasten.check.subject import Subject, check_loaded
from hasten.core.errors import HastenError
from hasten.core.stats import TRAINING_LOSS, Verdict
from hasten.tune.proof.compare import Comparison
from tests.check.repositories import commit, git, new_repository, worktrees
from tests.check.test_result import session
from tests.cli.called import called
from tests.optimizations.contract import facts
from tests.tune.jobs import HEAD, children

OPTIONS = Options(budget_s=60.0, floor_frac=0.03, updates=10)
SLOW_ROW = "time.sleep(0.002); return self.x[index],"
SCRIPT = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    loss = model(torch.randn(64, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repo", jobs__py=HEAD, train__py=SCRIPT)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = children()
    yield
    assert children() == before, "a process is left"
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")), "a worktree is left"


def hasten(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hasten", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, cwd=cwd)


# The flow, with sessions that are given.


def outcomes(monkeypatch: pytest.MonkeyPatch, *sessions: Comparison) -> list[Any]:
    """Let sessions have these outcomes; returns the settings of both versions in each."""
    taken: list[Any] = []
    prepared = paired.Prepared(
        described={"files": [], "python": "3", "threads": 1, "packages": {}}, facts=facts(), phases_ms={}
    )

    def compare(base: Any, *_: Any, candidate_setting: Any, **__: Any) -> Comparison:
        taken.append((base, candidate_setting))
        return sessions[len(taken) - 1]

    monkeypatch.setattr(paired, "prepare", lambda *_: prepared)
    monkeypatch.setattr(paired, "compare", compare)
    return taken


def request(folder: Path, target: str = "jobs.py:Good", **more: Any) -> CheckRequest:
    return CheckRequest(subject=Subject(target=target, folder=folder), options=OPTIONS, **more)


def test_a_slower_verdict_is_confirmed_in_fresh_worktrees(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, "two", jobs__py=HEAD + "# two\n")
    taken = outcomes(monkeypatch, session(1.2), session(1.2))
    told: list[str] = []
    found = run_check(request(folder), told.append)
    assert found.verdict is Verdict.SLOWER
    assert len(taken) == 2
    assert len({setting.cwd for pair in taken for setting in pair}) == 4
    assert any("checking out both versions again" in line for line in told)
    assert found.base.commit == git(folder, "rev-parse", "HEAD^")
    assert worktrees(folder) == 1


def test_a_slower_verdict_that_does_not_recur_is_undecided(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, "two", requirements__txt="torch")
    outcomes(monkeypatch, session(1.2), session(1.0))
    found = run_check(request(folder))
    assert (found.verdict, found.status) == (Verdict.UNDECIDED, 2)
    assert found.warnings == ("requirements.txt differ, but both versions ran with the packages installed here",)


def test_the_same_speed_needs_one_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "jobs.py").write_text(HEAD + "# changed\n")
    taken = outcomes(monkeypatch, session(1.0))
    found = run_check(request(folder))
    assert (found.verdict, len(taken)) == (Verdict.SAME, 1)
    assert found.candidate.name.endswith("with the changes of the working tree")


def test_a_subfolder_and_an_absolute_path_lead_to_the_same_file_of_each_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "x.txt").write_text("")
    commit(folder, "two")
    commit(folder, "three")
    taken = outcomes(monkeypatch, session(1.0))
    run_check(request(folder / "sub", f"{folder}/jobs.py:Good"))
    ((base, candidate),) = taken
    assert (base.target, base.cwd.name, candidate.cwd.name) == ("../jobs.py:Good", "sub", "sub")
    assert base.cwd != candidate.cwd


def test_code_of_the_working_tree_in_a_version_is_refused(folder: Path, tmp_path: Path) -> None:
    repository, tree = Repository(folder), tmp_path / "tree"
    (folder / "untracked.py").write_text("")
    check_loaded(
        {"files": [str(tree / "jobs.py"), str(folder / "untracked.py"), "/elsewhere/x.py"]}, "base", tree, repository
    )
    with pytest.raises(HastenError, match=r"base: jobs.py was imported from the working tree, not from this version"):
        check_loaded({"files": [str(folder / "jobs.py")]}, "base", tree, repository)


def test_only_a_metric_that_both_versions_return_is_measured() -> None:
    quality = {"metric": "accuracy", "direction": "max", "margin": 0.1}

    def quality_of(*metrics: str, of_script: bool = False) -> Any:
        arms = {
            arm: paired.Prepared(described={"quality": quality}, facts=facts(), phases_ms={}, metrics=frozenset({name}))
            for arm, name in zip("AB", metrics, strict=True)
        }
        return paired.design_of(arms, OPTIONS, 0.0, of_script=of_script).quality

    assert quality_of("accuracy", "accuracy").metric == "accuracy"
    assert quality_of("accuracy", "f1") is None
    assert quality_of("loss", "loss", of_script=True).metric == TRAINING_LOSS


def test_a_script_that_ends_limits_the_updates() -> None:
    arms = {
        arm: paired.Prepared(described={}, facts=facts(step_ms=1.0), phases_ms={}, most_updates=most)
        for arm, most in (("A", 40), ("B", 30))
    }
    options = Options(budget_s=60.0, floor_frac=0.03)
    assert paired.design_of(arms, options, 0.0, of_script=True).updates == 30
    long = {arm: paired.Prepared(described={}, facts=facts(step_ms=1.0), phases_ms={}) for arm in "AB"}
    assert paired.design_of(long, options, 0.0, of_script=True).updates == 2500


# What is refused, with status 3.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs.py:Good", "--against", "nowhere"), "'nowhere' is not a revision"),
        (("jobs.py:Good", "--budget", "1s"), "--budget 1s is too short"),
        (("jobs.py:Good", "--", "--epochs", "1"), "is a job, and jobs take no arguments"),
        (("train.py", "--ranks", "2"), "--ranks: for a job only"),
        (("jobs.py:Good", "--floor", "0.9"), "--floor"),
        (("jobs.py:Good", "--unknown"), "--unknown"),
        ((), "Missing argument 'target'"),
        (("missing.py:Good",), "there is no file missing.py in this version"),
        (("new.py",), "The base .*: there is no file new.py in this version"),
    ],
)
def test_errors_exit_with_3(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    (folder / "new.py").write_text(SCRIPT)
    done = called("check", *arguments, cwd=folder)
    assert done.returncode == 3, done
    assert re.search(words, " ".join(done.stderr.split()).replace("│ ", "")), done.stderr
    assert worktrees(folder) == 1


def test_a_folder_without_a_repository_exits_with_3(tmp_path: Path) -> None:
    done = called("check", "jobs.py:Good", cwd=tmp_path)
    assert done.returncode == 3
    assert "is not in a git repository" in done.stderr


def test_other_verbs_still_exit_with_1_after_it(tmp_path: Path) -> None:
    called("check", "jobs.py:Good", cwd=tmp_path)
    assert called("profile", "missing.py:Good", cwd=tmp_path).returncode == 1


# With processes.


@pytest.mark.slow
def test_each_version_runs_its_own_code_and_packages(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package in `src` is on the path as an editable installation puts it there."""
    (folder / "src" / "mine").mkdir(parents=True)
    (folder / "src" / "mine" / "__init__.py").write_text("SIZE = 4\n")
    base = commit(
        folder,
        "two",
        jobs__py=HEAD.replace("batch_size = 8", "batch_size = mine.SIZE").replace("import hasten", "import hasten, mine"),
    )
    (folder / "src" / "mine" / "__init__.py").write_text("SIZE = 16\n")
    monkeypatch.syspath_prepend(str(folder / "src"))
    repository = Repository(folder)
    subject = Subject(target="jobs.py:Good", folder=folder)
    with repository.checked_out([repository.base(base), repository.candidate()]) as trees:
        for tree, size in zip(trees, (4, 16), strict=True):
            setting = subject.setting(tmp_path / "scratch", "it", lambda _: None, tree, repository.root)
            prepared = prepare(setting, OPTIONS)
            assert prepared.facts.job.batch_size == size
            check_loaded(prepared.described, "it", tree, repository)
            assert prepared.described["packages"]["torch"]
            assert prepared.quality is not None
            assert sum(prepared.phases_ms.values()) > 0


@pytest.mark.slow
def test_a_candidate_that_fails_is_named_and_exits_with_3(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT.replace("loss.backward()", "raise ValueError('broken')"))
    done = called("check", "train.py", "--budget", "30s", cwd=folder)
    assert done.returncode == 3
    assert "The candidate" in done.stderr
    assert "broken" in done.stderr
    assert worktrees(folder) == 1


@pytest.mark.slow
def test_ctrl_c_removes_the_worktrees(folder: Path) -> None:
    commit(folder, "two")
    command = [sys.executable, "-m", "hasten", "check", "jobs.py:Good"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while worktrees(folder) < 3 and time.monotonic() < limit:
        time.sleep(0.1)
    assert worktrees(folder) == 3
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert worktrees(folder) == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_slower_job_fails_and_names_the_phase(folder: Path) -> None:
    commit(folder, "slow", jobs__py=HEAD.replace("return self.x[index],", SLOW_ROW))
    done = hasten("check", "jobs.py:Good", "--budget", "200s", "--updates", "20", "--json", "out.json", cwd=folder)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("slower: updates take ")
    found = json.loads((folder / "out.json").read_text())
    assert (found["verdict"], found["status"], found["equal_losses"], found["phases"]["named"]) == (
        "slower",
        1,
        True,
        "data",
    )
    assert found["memory"]["verdict"] == "same"
    assert len(found["sessions"]) == 2
    assert worktrees(folder) == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_unmodified_script_that_ends_early_is_compared_with_fewer_updates(folder: Path) -> None:
    """The verdict depends on the load of the machine; what is compared does not."""
    (folder / "train.py").write_text(SCRIPT.replace("loss.backward()", "loss.backward(); torch.randn(20_000).sort()"))
    done = hasten("check", "train.py", "--budget", "100s", "--json", "out.json", cwd=folder)
    assert done.returncode in (1, 2), done.stderr
    assert "with the changes of the working tree" in done.stdout
    found = json.loads((folder / "out.json").read_text())
    updates = {sample["updates"] for sample in found["sessions"][0]["samples"]}
    assert len(updates) == 1
    assert 0 < updates.pop() < 200
    assert found["candidate"]["changed"]
    assert found["phases"]["candidate_ms"]["backward"] > 0
    assert found["quality"]["metric"] == TRAINING_LOSS


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_samples_are_stored_and_compared_with(folder: Path) -> None:
    arguments = ("check", "jobs.py:Good", "--baseline", "base.jsonl", "--budget", "40s", "--updates", "20")
    first = hasten(*arguments, "--record", cwd=folder)
    assert first.returncode == 2, first.stderr
    assert "had no samples to compare with" in first.stdout
    second = hasten(*arguments, "--json", "out.json", cwd=folder)
    assert second.returncode in (0, 1, 2), second.stderr
    found = json.loads((folder / "out.json").read_text())
    assert found["base"]["commit"] == git(folder, "rev-parse", "HEAD")
    assert len(found["measured"]["seconds_per_item"]) > 0
    assert "weaker evidence" in found["warnings"][0]
    shown = hasten("check", "history", "--file", "base.jsonl", cwd=folder)
    assert "1.000x" in shown.stdout
