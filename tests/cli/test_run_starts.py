"""What `hasten run SCRIPT` loads before the script starts, and how it refuses a plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.optimizations import catalogue, catalogue_of, may_set_environment

PLAN = """schema = 1
[optimizations.zero_grad_to_none]
[optimizations.loader_workers]
num_workers = 1
[optimizations.allocator]
kind = "glibc_tuned"
"""
SCRIPT = """
import sys
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("trained")
if "calls" in sys.argv:
    print(torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl)
"""
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "plotly", "jinja2", "PIL"}
"""Packages that take long to import, and that the process which starts a script does not need."""
STARTS = f"""
import sys
from hasten.cli.main import main
from hasten.script.entry import launch
def run_under(*args, env, **kwargs):
    assert "glibc.malloc.mmap_max=0" in env["GLIBC_TUNABLES"]
    return launch.Ran(code=0)
launch.run_under = run_under
sys.argv = ["hasten", "run", "--plan", "plan.toml", "train.py"]
try:
    main()
except SystemExit:
    print(sorted({HEAVY} & set(sys.modules)))
"""


def python(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plan.toml").write_text(PLAN) if not (folder / "plan.toml").exists() else None
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_the_process_that_starts_a_script_loads_nothing_heavy(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", STARTS)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.slow
def test_without_a_plan_the_script_replaces_the_process(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text("import os; print(os.getppid())")
    with subprocess.Popen(
        [sys.executable, "-m", "hasten", "run", "parent.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        said, _ = process.communicate(timeout=120)
    assert int(said) == os.getpid()
    assert process.returncode == 0


@pytest.mark.slow
def test_a_wrong_setting_ends_the_script_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("num_workers", "workers"))
    done = python(tmp_path, "-m", "hasten", "run", "--plan", "plan.toml", "train.py")
    assert done.returncode == 1
    assert "`optimizations.loader_workers` has no setting `workers`" in " ".join(done.stderr.split())
    assert "trained" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "wrapped"), [("schema = 1\n", False), ("schema = 1\n[optimizations.precision]\n", True)])
def test_calls_stay_wrapped_only_if_a_technique_acts_in_them(tmp_path: Path, plan: str, wrapped: bool) -> None:
    (tmp_path / "plan.toml").write_text(plan)
    done = python(tmp_path, "-m", "hasten", "run", "--plan", "plan.toml", "train.py", "--", "calls")
    assert done.stdout == f"trained\n{wrapped}\n", done.stderr


def test_each_optimization_is_found_in_its_own_file() -> None:
    for name, kind in catalogue().items():
        assert catalogue_of([name]) == {name: kind}
        assert may_set_environment(name) == (vars(kind).get("environment") is not None)
    assert catalogue_of(["no such"]) == catalogue()
    assert may_set_environment("no such")
