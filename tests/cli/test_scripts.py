"""`hasten tune` and `hasten run` of an unmodified script, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from tests.cli.called import called

pytestmark = pytest.mark.slow

LOOP = str(Path(__file__).parents[1] / "tune" / "scripts" / "loop.py")
LIMIT_S = 200.0


def python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def hasten(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "hasten", *words, folder=folder)


def plan_file(folder: Path, **settings: dict[str, object]) -> str:
    path = folder / "hasten.toml"
    Plan.from_dict(settings, catalogue()).save(path)
    return str(path)


def test_a_script_runs_under_a_plan(tmp_path: Path) -> None:
    plan = plan_file(tmp_path, fused_optimizer={}, zero_grad_to_none={})
    done = hasten("run", "--plan", plan, LOOP, "--", "--epochs", "2", "--seed", "3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fused True" in done.stdout
    assert done.stderr == ""
    plain = python(LOOP, "--epochs", "2", "--seed", "3", folder=tmp_path)
    ours, theirs = (float(text.splitlines()[-1].split()[1]) for text in (done.stdout, plain.stdout))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.long
def test_without_a_plan_it_runs_as_python_would_run_it(tmp_path: Path) -> None:
    for arguments in (("--epochs", "2", "--seed", "3"), ("--raise-at", "4")):
        plain = python(LOOP, *arguments, folder=tmp_path)
        done = hasten("run", LOOP, "--", *arguments, folder=tmp_path)
        assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
        if "--raise-at" not in arguments:  # otherwise it prints values that no seed repeats
            assert done.stdout == plain.stdout


def test_what_did_not_take_hold_is_told_and_the_script_goes_on(tmp_path: Path) -> None:
    plan = plan_file(tmp_path, pinned_memory={}, fused_optimizer={})
    done = hasten("run", "--plan", plan, LOOP, "--", "--epochs", "1", folder=tmp_path)
    assert done.returncode == 0
    assert "fused True" in done.stdout
    assert "ran without pinned_memory" in done.stderr
    assert "fused_optimizer" not in done.stderr


def test_what_cannot_act_on_a_script_is_refused_before_it_starts(tmp_path: Path) -> None:
    plan = plan_file(tmp_path, drop_last={})
    done = called("run", "--plan", plan, LOOP, cwd=tmp_path)
    assert done.returncode == 1
    assert "drop_last" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("verb", "option"), [("run", "--updates"), ("run", "--keep"), ("profile", "--ranks")])
def test_an_option_for_jobs_is_refused_and_not_passed_over(tmp_path: Path, verb: str, option: str) -> None:
    done = called(verb, LOOP, option, "2", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{option}: for a job only" in done.stderr
    assert done.stdout == ""


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    for verb in ("tune", "run", "profile"):
        done = called(verb, "missing.py", cwd=tmp_path)
        assert done.returncode == 1
        assert "There is no script missing.py" in done.stderr


CHANGES = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Rows(Dataset):
    by = 1.0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), self.by * index), index % 2


rows, net = Rows(), torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for epoch in range(3):
    for step, (x, y) in enumerate(DataLoader(rows, 4, shuffle=True)):
        if epoch == 2 and step == int(sys.argv[1]):
            rows.by = 0.5
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch == 1 and sys.argv[1] == "-1":
        rows.by = 0.5
print(loss.item())
"""


@pytest.mark.parametrize(("step", "status"), [pytest.param(-1, 0, marks=pytest.mark.long), (5, 3)])
def test_a_run_whose_samples_may_have_been_old_ends_loudly(tmp_path: Path, step: int, status: int) -> None:
    script = tmp_path / "changes.py"
    script.write_text(CHANGES, encoding="utf-8")
    done = hasten("run", "--plan", plan_file(tmp_path, sample_cache={}), str(script), "--", str(step), folder=tmp_path)
    assert done.returncode == status, done.stderr
    assert "rank 0 stopped sample_cache: JobError: samples have changed: when read again, sample" in done.stderr
    assert ("THIS RUN MAY DIFFER FROM THE SCRIPT ALONE" in done.stderr) == (status == 3)
    if not status:
        assert done.stdout == python(str(script), str(step), folder=tmp_path).stdout
