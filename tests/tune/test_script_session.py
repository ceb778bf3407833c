"""A whole tuning of a script, with real processes. No test asserts a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hasten.core.errors import HastenError, TargetError, TrialError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report.evidence import load
from hasten.tune import budget
from hasten.tune.proof.compare import NEIGHBOUR
from hasten.tune.request import TuneRequest
from hasten.tune.scripts.subject import script_subject
from hasten.tune.search.candidate import NOT_TRIED
from hasten.tune.session import Session
from tests.tune.jobs import children

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOP = str(Path(__file__).parent / "scripts" / "loop.py")
BUDGET_S = 240.0
"""Estimated time of the candidates and the proof, even on a busy machine; the session ends far earlier."""


def request_of(folder: Path, *arguments: str, ranks: int = 1, only: tuple[str, ...] = ()) -> TuneRequest:
    command, out = (LOOP, *arguments), folder / "out"
    return TuneRequest(target="loop.py", out=out, budget_s=BUDGET_S, ranks=ranks, command=command, only=only)


def tune(request: TuneRequest) -> None:
    Session(request, subject=script_subject(request)).run()


@pytest.mark.long
def test_a_script_that_waits_for_its_data_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "ENOUGH_S", 0.0)
    before, out = children(), tmp_path / "out"
    arguments = ("--wait", "0.015", "--seed", "1", "--epochs", "500", "--rows", "12000")  # with few, all would be compared
    tune(request_of(tmp_path, *arguments, only=("sample_cache",)))
    assert children() <= before
    assert not list((out / "trials").glob("script-*"))
    evidence = load(out / "evidence.json")
    assert evidence.job.name == "loop.py"
    assert evidence.bottleneck is not None
    assert evidence.bottleneck.name == "input"
    (cache,) = [rung for rung in evidence.rungs if rung.name == "sample_cache"]
    if cache.reason.startswith(NOT_TRIED):
        pytest.skip(f"this machine is too slow for this budget: {cache.reason}")
    assert cache.numerics is not None
    assert cache.numerics.verdict == "passed", cache.numerics.why
    if NEIGHBOUR in cache.reason:
        pytest.skip(f"this machine is too busy: {cache.reason}")
    assert cache.outcome == "applied", cache.reason
    final = evidence.final
    assert final is not None
    assert (final.ratio or 0.0) > 1.0
    assert final.quality is not None
    assert final.quality.verdict != "worse"
    assert final.quality.seeds is not None
    assert final.quality.seeds["A"] == final.quality.seeds["B"]
    refused = {rung.name: rung.reason for rung in evidence.rungs if rung.outcome == "refused"}
    assert "not on an unmodified script" in refused["sequence_packing"]
    assert evidence.patch is not None
    assert list(evidence.patch.written) == ["sample_cache"]
    assert evidence.patch.left == {}
    plan = out / "hasten.toml"
    assert Plan.load(plan, catalogue()).names == ("sample_cache",)
    command = [sys.executable, "-m", "hasten", "run", "--plan", str(plan), LOOP, "--", "--epochs", "3", "--seed", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    plain = subprocess.run([sys.executable, *command[6:7], *command[8:]], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout == plain.stdout


@pytest.mark.alone
@pytest.mark.long
def test_a_script_of_some_sixty_short_steps_is_tuned(tmp_path: Path) -> None:
    tune(request_of(tmp_path, "--epochs", "8", "--wait", "0.01", only=("loader_workers", "fused_optimizer")))
    evidence = load(tmp_path / "out" / "evidence.json")
    assert evidence.ended == "done", evidence.failure
    assert any(rung.tried for rung in evidence.rungs)
    assert [rung.reason for rung in evidence.rungs if rung.outcome == "failed"] == []


def test_a_script_that_ends_at_once_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="too few to measure"):
        tune(request_of(tmp_path, "--epochs", "1"))


@pytest.mark.parametrize("text", ["print('no torch')\n", "import torch\nprint(torch.ones(1))\n"])
def test_a_file_that_does_not_train_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "idle.py"
    path.write_text(text)
    with pytest.raises(TrialError, match="without a step of a torch optimizer"):
        tune(TuneRequest(target="idle.py", out=tmp_path / "out", command=(str(path),)))


def test_a_script_that_refuses_its_arguments_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="unrecognized arguments: fast_pages"):
        tune(request_of(tmp_path, "fast_pages"))


def test_commands_that_cannot_be_tuned_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HastenError, match="in one process"):
        script_subject(request_of(tmp_path, ranks=2))
    with pytest.raises(TargetError, match="no script"):
        script_subject(TuneRequest(target="x.py", out=tmp_path, command=("x.py",)))
