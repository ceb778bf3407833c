"""A whole session with real processes: what it writes, what it survives, and how it is resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import HastenError, TargetError, TrialError
from hasten.core.plan import Plan
from hasten.core.provenance import commit_of, job_fingerprint, versions
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.report import schema
from hasten.report.evidence import load
from hasten.tune import baseline, budget, subject
from hasten.tune import session as module
from hasten.tune.proof.compare import NEIGHBOUR
from hasten.tune.request import TuneRequest
from hasten.tune.search.candidate import NOT_TRIED
from hasten.tune.session import Session
from tests.tune.jobs import children, write_job

SLOW_TO_READ = """
import inspect


def profiled():  # the profile itself runs a few updates with as many threads as cores
    return any(frame.function == "gain_within" for frame in inspect.stack())


class J(Good):
    def deterministic_transform(self, sample):
        time.sleep(0.003)
        return sample

    def loss(self, model, batch):
        if torch.get_num_threads() != 1 and not profiled():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
"""


PROOF_UPDATES = 48
"""Number of updates per arm of the proof: one update of the plain job takes 24 ms."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer only three candidates: one that pays, one whose trial dies, one that does not fit."""
    names = ("sample_cache", "cpu_threads", "zero_grad_to_none")
    monkeypatch.setattr(subject, "catalogue", lambda: {name: catalogue()[name] for name in names})


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_session_proves_what_pays_and_writes_it_all(tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_FINAL_UPDATES", PROOF_UPDATES)
    out, before = tmp_path / "out", children()
    said: list[str] = []
    target = write_job(tmp_path, SLOW_TO_READ)
    found = Session(TuneRequest(target=target, out=out, budget_s=110.0), said.append).run()
    assert children() <= before
    evidence = load(out / "evidence.json")
    assert evidence.finished
    assert schema.write(evidence.rungs) == schema.write(found.rungs)
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    rungs = {rung.name: rung for rung in evidence.rungs}
    assert set(rungs) == {"sample_cache", "cpu_threads", "zero_grad_to_none"}
    assert evidence.bottleneck is not None
    assert evidence.bottleneck.name == "input"
    assert rungs["zero_grad_to_none"].outcome == "refused"
    assert rungs["cpu_threads"].outcome != "applied"
    if rungs["cpu_threads"].outcome == "failed":
        assert "SIGKILL" in rungs["cpu_threads"].reason
    plan = Plan.load(out / "hasten.toml", catalogue())
    assert plan.target == target
    assert plan.proved["job_fingerprint"] == job_fingerprint(load_job(target))
    if NEIGHBOUR in rungs["sample_cache"].reason or rungs["sample_cache"].reason.startswith(NOT_TRIED):
        pytest.skip(f"this machine is too busy: {rungs['sample_cache'].reason}")
    comparison, numerics, losses = rungs["sample_cache"].comparison, rungs["sample_cache"].numerics, evidence.losses
    assert comparison is not None
    assert (comparison.ratio or 0.0) > 1.5  # a read sleeps 24 of 25 ms
    assert numerics is not None
    assert numerics.verdict == "passed"
    assert evidence.final is not None
    assert losses is not None
    assert losses.baseline == losses.tuned
    if plan.names:  # on a busy machine the proof may be undecided, and then the plan must be empty
        assert plan.names == ("sample_cache",)
        assert evidence.final.verdict == "faster"
    else:
        assert evidence.final.verdict != "faster"
        assert rungs["sample_cache"].outcome == "undecided"


@pytest.mark.slow
def test_a_job_that_cannot_train_is_one_error_and_no_process(tmp_path: Path) -> None:
    before = children()
    body = """
class J(Good):
    def loss(self, model, batch):
        raise RuntimeError("this cannot be")
"""
    with pytest.raises(TrialError, match="this cannot be"):
        Session(TuneRequest(target=write_job(tmp_path, body), out=tmp_path / "out", budget_s=20.0)).run()
    assert children() <= before


COUNTED = """
class Tiring(Rows):
    read = 0
    def __getitem__(self, index):
        Tiring.read += 1
        if Tiring.read > LIMIT:
            raise OSError("the server closed the connection")
        return super().__getitem__(index)

class J(Good):
    batch_size = 2
    def train_data(self):
        return Tiring(256)
"""


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(240)
def test_data_that_fails_late_leaves_the_evidence_so_far(tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiling succeeds; a later process reads beyond the data that the server sends."""
    target, out = write_job(tmp_path, "LIMIT = 10**9\n" + COUNTED), tmp_path / "out"
    before = children()
    real = baseline.losses_of_another_seed

    def breaks(*given: Any) -> Any:
        write_job(tmp_path, "LIMIT = 7\n" + COUNTED)
        return real(*given)

    monkeypatch.setattr(module, "losses_of_another_seed", breaks)
    found = Session(TuneRequest(target=target, out=out, budget_s=20.0)).run()
    assert found.ended == "trial failures"
    assert "the server closed the connection" in (found.failure or "")
    evidence = load(out / "evidence.json")
    assert evidence.phases
    assert evidence.ceilings
    assert (out / "report.html").exists()
    assert Plan.load(out / "hasten.toml", catalogue()).names == ()
    assert children() <= before


def wait_for_rung(process: subprocess.Popen[str], path: Path, seconds: float = 150.0) -> dict[str, Any]:
    """Wait until the evidence contains a measured candidate."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if path.exists():
            evidence: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if any(rung["comparison"] for rung in evidence["rungs"]):
                return evidence
        time.sleep(0.05)
    raise AssertionError(f"no rung was measured; exit code {process.poll()}")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Interrupt a real `hasten tune` with Ctrl-C after its first measured candidate."""
    folder: Path = tmp_path_factory.mktemp("interrupted")
    target, out = write_job(folder), folder / "out"
    command = [sys.executable, "-m", "hasten", "tune", target, "--budget", "100s", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for_rung(process, out / "evidence.json")
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    return {"code": process.returncode, "out": out, "target": target, "stdout": stdout, "stderr": stderr}


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(240)
def test_ctrl_c_exits_130_and_leaves_sound_files(interrupted: dict[str, Any]) -> None:
    out = interrupted["out"]
    assert interrupted["code"] == 130, interrupted["stderr"]
    evidence = load(out / "evidence.json")
    assert (evidence.ended, evidence.finished) == ("interrupted", True)
    assert any(rung.comparison for rung in evidence.rungs)
    Plan.load(out / "hasten.toml", catalogue())
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert "Traceback" not in interrupted["stderr"]
    assert "interrupted" in interrupted["stderr"]


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(240)
def test_resume_keeps_settled_candidates_and_refuses_another_job(interrupted: dict[str, Any]) -> None:
    out, target = interrupted["out"], interrupted["target"]
    first = load(out / "evidence.json")
    command = [sys.executable, "-m", "hasten", "tune", target, "--budget", "10s", "--out", str(out), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    second = load(out / "evidence.json")
    settled = [(rung.name, rung.settings, rung.comparison) for rung in first.rungs if rung.comparison]
    assert settled
    assert settled == [(rung.name, rung.settings, rung.comparison) for rung in second.rungs][: len(settled)]
    assert {rung.name for rung in second.rungs} == set(catalogue())
    assert second.seconds > first.seconds
    content = (out / "evidence.json").read_bytes()
    source = Path(target.rpartition(":")[0])
    source.write_text(source.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    with pytest.raises(HastenError, match="measured on another job"):
        Session(TuneRequest(target=target, out=out, resume=True))
    assert (out / "evidence.json").read_bytes() == content


@pytest.mark.parametrize(
    ("asked", "tried", "reason"),
    [
        ({"without": ("cpu_threads",)}, {"sample_cache", "zero_grad_to_none"}, "named in --without"),
        ({"only": ("sample_cache", "cpu_threads"), "without": ("cpu_threads",)}, {"sample_cache"}, "not named in --only"),
    ],
)
def test_excluded_techniques_are_reported_and_not_tried(
    tmp_path: Path, few: None, asked: dict[str, Any], tried: set[str], reason: str
) -> None:
    session = Session(TuneRequest(target=write_job(tmp_path), out=tmp_path / "out", **asked))
    told = {candidate.name: candidate.reason for candidate in session.left_out()}
    assert set(told) == {"sample_cache", "cpu_threads", "zero_grad_to_none"} - tried
    assert reason in told["cpu_threads" if "only" not in asked else "zero_grad_to_none"]
    for name, names in asked.items():
        assert f"--{name} {names[-1]}" in (session.record.evidence.commands or ("",))[0]


def test_an_unknown_technique_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(HastenError, match=r"no technique 'precison'\. Did you mean precision\?"):
        Session(TuneRequest(target=write_job(tmp_path), out=tmp_path / "out", without=("precison",)))


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(HastenError, match="nothing to resume"):
        Session(TuneRequest(target=write_job(tmp_path), out=tmp_path / "out", resume=True))


def test_a_missing_target_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        Session(TuneRequest(target=str(tmp_path / "no.py:J"), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_fingerprint_depends_on_the_content_and_not_the_path(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = job_fingerprint(load_job(write_job(tmp_path, name="one_job.py")))
    assert first == job_fingerprint(load_job(write_job(tmp_path / "other", name="two_job.py")))
    changed = job_fingerprint(load_job(write_job(tmp_path, "class J(Good):\n    batch_size = 9\n", name="one_job.py")))
    assert changed != first
    assert len(changed) == 16


def test_a_commit_is_named_with_its_changes(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    clean = commit_of(tmp_path)
    assert clean is not None
    assert len(clean) == 12
    (tmp_path / "a").write_text("2")
    assert commit_of(tmp_path) == f"{clean}+changes"
    assert {"hasten", "python", "torch", "numpy", "system"} == set(versions())
