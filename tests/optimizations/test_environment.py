"""Test optimizations that set environment variables, in real processes that are started with them."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.core.card import Numerics
from hasten.core.errors import PlanError
from hasten.core.facts import Facts, JobFacts
from hasten.core.machine import read_machine
from hasten.core.optimization import Optimization, missing_environment, required_environment
from hasten.core.plan import Plan
from hasten.core.system import started_with
from hasten.optimizations import catalogue
from hasten.train.build import build
from hasten.train.run import STARTED_AGAIN
from hasten.train.trace import trace_step
from hasten.tune.trials.trial import Trial, TrialSetting, trial_environment
from tests.optimizations.cases import CASES, STARTED
from tests.optimizations.contract import facts, make_loop
from tests.tune.jobs import write_job

UPDATES = 9


def target_of(name: str) -> str:
    job = CASES[name].job
    return f"{inspect.getfile(job)}:{job.__name__}"


def skip_where_it_does_not_fit(item: Optimization) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    measured = facts()
    given = Facts(
        **{part.name: getattr(measured, part.name) for part in fields(Facts) if part.name not in ("machine", "job")},
        machine=read_machine(),
        job=JobFacts(),
    )
    fit = type(item).fit(given)
    if item not in fit.settings:
        assert item.card.name != "allocator" or os.environ.get("HASTEN_CI") != "1", "CI must have the allocators installed"
        pytest.skip(fit.reason or f"not offered on this machine: {item}")


@functools.cache
def plain_losses(target: str, folder: Path) -> tuple[float, ...]:
    with Trial(TrialSetting(target=target, folder=folder), Plan()) as trial:
        return tuple(trial.call("run", updates=UPDATES)["losses"])


def variants() -> list[Any]:
    made = [CASES[name].make() for name in STARTED]
    kinds = [catalogue()["allocator"](kind=kind) for kind in ("tcmalloc", "jemalloc")]  # type: ignore[call-arg]
    return [
        *(pytest.param(item, id=f"{item.card.name} {item.settings()}") for item in made),
        *(pytest.param(item, id=f"{item.card.name} {item.settings()}", marks=pytest.mark.long) for item in kinds),
    ]


def is_detected_without(item: Optimization) -> bool:
    """Return whether the evidence of an optimization holds in a process without it."""
    if getattr(item, "kind", "") == "glibc_tuned":  # earlier tests may have left free memory here that fits its large block
        code = "from hasten.optimizations.allocator import _glibc_checks as f; print(all(check.passed for check in f()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip() == "True"
    plain = make_loop(CASES[item.card.name].job())
    return all(check.passed for check in item.evidence(plain.live, trace_step(plain)))


@pytest.mark.slow
@pytest.mark.parametrize("item", variants())
def test_it_is_proved_in_a_process_of_its_own(item: Optimization, tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_where_it_does_not_fit(item)
    name = item.card.name
    folder = tmp_path_factory.mktemp(name)
    assert item.environment() == required_environment([item])
    assert not is_detected_without(item), "the negative control detected the mechanism in a plain process"
    with Trial(TrialSetting(target=target_of(name), folder=folder), Plan(optimizations=(item,))) as trial:
        evidence = trial.call("trace")["evidence"]
        losses = trial.call("run", updates=UPDATES)["losses"]
    assert list(evidence) == [name]
    assert [check for check in evidence[name] if not check["passed"]] == []
    assert item.card.numerics is Numerics.EXACT
    assert tuple(losses) == plain_losses(target_of(name), folder)


@pytest.mark.parametrize("name", STARTED)
def test_a_process_without_the_variables_refuses_the_plan_and_says_how(name: str) -> None:
    item = CASES[name].make()
    needed = item.environment()
    assert missing_environment(needed, started_with()) == needed
    with pytest.raises(PlanError) as caught:
        build(CASES[name].job(), Plan(optimizations=(item,)))
    for variable, value in needed.items():
        assert f"{variable}={value}" in str(caught.value)
    assert name in str(caught.value)
    assert "hasten run" in str(caught.value)


def test_a_variable_set_after_the_start_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    item = CASES["allocator"].make()
    for variable, value in item.environment().items():
        monkeypatch.setenv(variable, value)
    if started_with() is os.environ:
        pytest.skip("this system does not show the initial environment of a process")
    with pytest.raises(PlanError, match="GLIBC_TUNABLES"):
        build(CASES["allocator"].job(), Plan(optimizations=(item,)))


def test_a_trial_gets_the_variables_of_its_plan_and_of_the_user(tmp_path: Path) -> None:
    plan = Plan(optimizations=(CASES["allocator"].make(),))
    theirs = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=9:glibc.malloc.perturb=1", "HOME": "/home/me"}
    made = trial_environment(tmp_path, theirs, plan=plan)
    assert made["GLIBC_TUNABLES"].split(":")[:2] == ["glibc.malloc.mmap_max=0", "glibc.malloc.perturb=1"]
    assert made["HOME"] == "/home/me"
    assert trial_environment(tmp_path, theirs)["GLIBC_TUNABLES"] == theirs["GLIBC_TUNABLES"]


# `hasten run` restarts itself.

NOTED = """
import json
with (HERE / "loaded").open("a") as file:
    print(json.dumps({"pid": os.getpid(), "environ": dict(os.environ)}), file=file)

class J(Good):
    epochs = 1
"""


def run_under(folder: Path, plan: Plan, *command: str, **environ: str) -> tuple[subprocess.Popen[str], str]:
    plan.save(folder / "plan.toml")
    arguments = ["run", write_job(folder, NOTED), "--plan", "plan.toml", "--out", "out dir", "--updates", "3"]
    process = subprocess.Popen(
        [*command, *arguments], cwd=folder, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    return process, process.communicate(timeout=110)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, "-m", "hasten"], marks=pytest.mark.long),
        [str(Path(sys.executable).with_name("hasten"))],
    ],
)
def test_run_starts_itself_again_once_with_the_variables(tmp_path: Path, command: list[str]) -> None:
    item = CASES["allocator"].make()
    plan = Plan(optimizations=(item,))
    process, said = run_under(tmp_path, plan, *command, LOCAL_RANK="0", GLIBC_TUNABLES="glibc.malloc.perturb=0")
    assert process.returncode == 0, said
    assert "Trained 3 updates" in said
    assert (tmp_path / "out dir" / "model.pt").exists()
    (noted,) = [json.loads(line) for line in (tmp_path / "loaded").read_text().splitlines()]
    assert noted["pid"] == process.pid, "a launcher must see one process"
    assert noted["environ"]["GLIBC_TUNABLES"].startswith("glibc.malloc.perturb=0:glibc.malloc.mmap_max=0:")
    assert noted["environ"]["LOCAL_RANK"] == "0"
    assert STARTED_AGAIN not in noted["environ"]


@pytest.mark.slow
def test_run_does_not_start_again_and_again(tmp_path: Path) -> None:
    plan = Plan(optimizations=(CASES["allocator"].make(),))
    process, said = run_under(tmp_path, plan, sys.executable, "-m", "hasten", **{STARTED_AGAIN: "yes"})
    assert process.returncode == 1
    assert "restarted itself with GLIBC_TUNABLES, but it is still not set" in " ".join(said.split())
    assert not (tmp_path / "loaded").exists()


@pytest.mark.long
def test_ranks_of_torchrun_each_start_again_and_train(tmp_path: Path) -> None:
    Plan(optimizations=(CASES["allocator"].make(),)).save(tmp_path / "plan.toml")
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    seen = sorted(path.read_text() for path in tmp_path.glob("rank-*"))
    assert seen == ["0 of 2: glibc.malloc.mmap_max=0", "1 of 2: glibc.malloc.mmap_max=0"]


RANK = """
import os
from pathlib import Path
import torch
import torch.distributed as dist
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.train.run import start_under

with Path(f"starts-{os.environ['RANK']}").open("a") as file:
    file.write("x")
start_under(Plan.load(Path("plan.toml"), catalogue()))
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank = dist.get_rank()
assert Path(f"starts-{rank}").read_text() == "xx"
Path(f"rank-{rank}").write_text(f"{rank} of {int(total)}: {os.environ['GLIBC_TUNABLES'].partition(':')[0]}")
dist.destroy_process_group()
"""
