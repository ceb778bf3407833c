"""The gain contract: its terms, when it is void, and what a breach does to a real run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.cli.run import without_options
from hasten.core.machine import read_machine
from hasten.core.optimization import cleared_environment
from hasten.core.plan import Plan
from hasten.monitor.alerts.deliver import read_alerts
from hasten.monitor.alerts.live import EXIT_ALERT, LiveAlerts
from hasten.monitor.contract import MARGIN, Contract, contract_rule, why_void
from hasten.optimizations import catalogue
from hasten.report.evidence import QualityResult
from hasten.tune.proof.terms import contract_terms
from tests.monitor.test_alerts import window
from tests.tune.test_compare import sample

PROVED: dict[str, Any] = {
    "state": "proved",
    "update_s": 0.1,
    "update_low_s": 0.095,
    "update_high_s": 0.105,
    "phase_data_s": 0.01,
    "phase_forward_s": 0.09,
}


def plan_with(**proved: Any) -> Plan:
    return replace(Plan.from_dict({"zero_grad_to_none": {}}, catalogue()), proved={**PROVED, **proved})


# The terms.


def test_the_terms_are_an_interval_for_one_more_process() -> None:
    tuned = [
        replace(sample("B", pair, 1.0), seconds=seconds, updates=10, peak_bytes=pair)
        for pair, seconds in enumerate((1.0, 1.1, 0.9, 1.0, 1.0))
    ]
    quality = QualityResult(metric="loss", baseline=1.0, tuned=1.0, margin=0.1, verdict="not_worse")
    terms = contract_terms(tuned, {"data": 0.2, "forward": 0.2, "validation": 0.6}, quality)
    assert terms["update_s"] == 0.1
    assert 0.0 < terms["update_low_s"] < 0.09  # type: ignore[operator]
    assert terms["update_high_s"] > 0.11  # type: ignore[operator]
    assert terms["phase_data_s"] == terms["phase_forward_s"] == 0.05
    assert (terms["peak_bytes"], terms["quality_metric"], terms["quality_margin"]) == (4, "loss", 0.1)
    assert contract_terms(tuned[:1], {}, None) == {}


# When it holds.


def test_a_plan_without_a_proved_update_time_has_no_contract() -> None:
    assert contract_rule({**PROVED, "state": "not proved"}, "warn") is None
    assert contract_rule({"state": "proved", "epoch_ratio": 1.2}, "warn") is None


def test_a_changed_machine_job_or_dataset_makes_it_void() -> None:
    machine = read_machine()
    here = {"machine_fingerprint": machine.fingerprint(), "job_fingerprint": "a", "samples": 100}
    contract = Contract(plan=plan_with(**here), job="a")
    assert why_void(contract, machine, 100) == ""
    assert "the dataset had 100 samples then, and has 90 now" in why_void(contract, machine, 90)
    assert "the job's code changed" in why_void(replace(contract, job="b"), machine, 100)
    assert "torch 1.0" in why_void(contract, replace(machine, torch_version="1.0"), 100)


def test_a_void_contract_is_said_once_and_raises_no_alarm(tmp_path: Path) -> None:
    said: list[str] = []
    contract = Contract(plan=plan_with(samples=100), action="stop")
    live = LiveAlerts((), [], say=said.append, contract=contract)
    live.begin("run-1", tmp_path, 1, samples=90)
    for number in range(20):
        live.on_window(window(number, 0.5))
    assert live.failed is None
    assert len(said) == 1
    assert said[0].startswith("contract void: the dataset had 100 samples")


def test_a_breach_names_the_phase_and_the_first_window(tmp_path: Path) -> None:
    said: list[str] = []
    stops: list[bool] = []
    contract = Contract(plan=plan_with(), action="stop")
    live = LiveAlerts((), [], say=said.append, stop=lambda: stops.append(True), contract=contract)
    live.begin("run-1", tmp_path, 1)
    within = 0.105 * (1 + MARGIN) - 0.001
    for number in range(10):
        live.on_window(window(number, within))
    assert said == []
    for number in range(10, 14):
        live.on_window(window(number, 0.15, phases={"data": 1.2, "forward": 1.8}))
    live.close()
    assert stops == [True]
    assert said[0].startswith("alert contract, since step 200: a step takes 0.15 s, and the plan was proved to take 0.10 s")
    assert "The phase `data` takes 50 ms more per step" in said[0]


# After a breach.


def test_options_and_variables_of_the_plan_are_removed_and_the_users_stay() -> None:
    words = ["-m", "hasten", "run", "job.py:Job", "--plan", "hasten.toml", "--on-breach=fallback", "--out", "run"]
    assert without_options(words, ("--plan", "--on-breach")) == ["-m", "hasten", "run", "job.py:Job", "--out", "run"]
    environ = {"LD_PRELOAD": "/ours.so:/theirs.so", "OMP_NUM_THREADS": "2", "HOME": "/root"}
    required = {"LD_PRELOAD": "/ours.so", "OMP_NUM_THREADS": "2"}
    assert cleared_environment(required, environ) == {"LD_PRELOAD": "/theirs.so", "HOME": "/root"}


JOB = """
import sys, time, torch
from torch import nn
import hasten

class Slow(hasten.Job):
    batch_size = 4
    num_updates = 800

    def model(self):
        return nn.Linear(4, 1)

    def train_data(self):
        return torch.utils.data.TensorDataset(torch.randn(3200, 4, generator=torch.Generator().manual_seed(0)))

    def loss(self, model, batch):
        time.sleep(0.02 if "--plan" in sys.argv else 0.0)
        return model(batch[0]).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)
"""


def run_breached(folder: Path, on_breach: str) -> subprocess.CompletedProcess[str]:
    """Run a job under a plan that was proved to be far faster than the job can be."""
    (folder / "job.py").write_text(JOB)
    terms = {"update_s": 0.001, "update_low_s": 0.001, "update_high_s": 0.001}
    plan_with(**terms, samples=3200).save(folder / "hasten.toml")
    command = [sys.executable, "-m", "hasten", "run", "job.py:Slow", "--plan", "hasten.toml", "--out", "run"]
    return subprocess.run(
        [*command, "--on-breach", on_breach], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.long
def test_after_a_breach_the_run_goes_on_from_its_checkpoint_without_the_plan(tmp_path: Path) -> None:
    done = run_breached(tmp_path, "fallback")
    assert done.returncode == 0, done.stderr
    assert "alert contract, since step" in done.stderr
    assert "continuing from the checkpoint without the plan" in done.stderr
    assert [alert.rule for alert in read_alerts(tmp_path / "run") if alert.state == "firing"] == ["contract"]
    lines = [json.loads(line) for line in (tmp_path / "run/windows.jsonl").read_text().splitlines() if line]
    _, again = (line for line in lines if line["kind"] == "start")
    assert 0 < again["step"] < 800
    assert lines[-1]["to_step"] == 800
    assert "zero_grad_to_none" not in (tmp_path / "run/hasten.toml").read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_breach_can_stop_the_run_with_a_status_of_its_own(tmp_path: Path) -> None:
    done = run_breached(tmp_path, "stop")
    assert done.returncode == EXIT_ALERT, done.stderr
    assert (tmp_path / "run/checkpoints").is_dir()
