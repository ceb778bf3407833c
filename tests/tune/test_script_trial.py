"""A trial of a script is a run of the script itself, paused between its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import pytest
import torch

from hasten.core.errors import TrialError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.entry.apart import PREFIX, SCRATCH
from hasten.tune.scripts.processes import ScriptProcesses
from hasten.tune.search.screening import Screen
from hasten.tune.trials.trial import Trial, TrialSetting
from tests.tune.jobs import children

pytestmark = pytest.mark.slow

LOOP = str(Path(__file__).parent / "scripts" / "loop.py")


def plan_of(**settings: dict[str, object]) -> Plan:
    return Plan.from_dict(settings, catalogue())


def setting_of(folder: Path, *arguments: str) -> TrialSetting:
    return TrialSetting(target="loop.py", folder=folder / "trials", hang_s=60.0, command=(LOOP, *arguments))


@contextmanager
def trial_of(folder: Path, *arguments: str, plan: Plan | None = None, seed: int | None = 0) -> Iterator[Trial]:
    before = children()
    with Trial(setting_of(folder, *arguments), plan or Plan(), seed=seed) as trial:
        yield trial
    assert children() == before, "a process of the trial is left"
    assert not list((folder / "trials").glob("script-*")), "the private folder of the trial is left"


@pytest.mark.long
def test_the_same_seed_gives_the_same_losses_and_another_seed_others(tmp_path: Path) -> None:
    losses = []
    for seed in (0, 0, 1):
        with trial_of(tmp_path, "--seed", "5", "--noise", seed=seed) as trial:
            trial.call("warm", updates=3)
            answer = trial.call("run", updates=10)
            losses.append(answer["losses"])
            assert len(answer["times"]) == 10
            assert min(answer["times"]) > 0
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert len(set(losses[0])) == 10


def test_its_first_steps_are_sampled(tmp_path: Path) -> None:
    path = tmp_path / "trials" / "gradients.npy"  # files that a trial writes elsewhere are deleted with it
    with trial_of(tmp_path) as trial:
        told = trial.call("sample", steps=3, path=str(path))["updates"]
    rows = np.load(path)
    num_params = 16 * 32 + 32 + 32 * 2 + 2
    assert rows.shape == (3, num_params)
    assert np.abs(rows).sum(axis=1).min() > 0
    assert not np.array_equal(rows[0], rows[1])
    assert told["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(step > 0 for steps in told["moved"] for step in steps)
    assert told["settings"][0][0]["lr"] == 1e-2


def test_techniques_prove_that_they_fired(tmp_path: Path) -> None:
    plan = plan_of(fused_optimizer={}, zero_grad_to_none={}, cpu_threads={"num_threads": 1}, flush_denormals={})
    with trial_of(tmp_path, plan=plan) as trial:
        found = trial.call("trace")["evidence"]
    assert set(found) == set(plan.names)
    assert {check["name"]: check for checks in found.values() for check in checks if not check["passed"]} == {}


@pytest.mark.parametrize("name", ["sample_cache", pytest.param("sample_store", marks=pytest.mark.long)])
def test_a_cache_proves_its_effect_in_its_first_epoch(tmp_path: Path, name: str) -> None:
    with trial_of(tmp_path, plan=plan_of(**{name: {}})) as trial:
        (check,) = trial.call("trace")["evidence"][name]
    assert check["passed"], check["seen"]
    assert check["seen"].startswith("16 hits in 16 reads")


@pytest.mark.long
def test_techniques_at_process_start_prove_their_effect_too(tmp_path: Path) -> None:
    with trial_of(tmp_path, plan=plan_of(allocator={"kind": "glibc_tuned"})) as trial:
        trial.call("warm", updates=2)
        checks = trial.call("trace")["evidence"]["allocator"]
    assert checks
    assert all(check["passed"] for check in checks), checks


def test_without_the_plan_its_techniques_have_no_effect(tmp_path: Path) -> None:
    with trial_of(tmp_path) as trial:
        assert trial.call("trace")["evidence"] == {}
        profile = trial.call("profile", slice_s=0.05, quick=False)
    assert profile["profile"]["job"]["zero_grad_to_none"] is False
    assert profile["profile"]["job"]["optimizer_class"] == "AdamW"
    assert profile["profile"]["job"]["optimizer_fused"] is False


def test_a_slow_data_set_is_the_bottleneck_and_its_ceiling_is_measured(tmp_path: Path) -> None:
    with trial_of(tmp_path, "--wait", "0.02") as trial:
        answer = trial.call("profile", slice_s=0.2, quick=False)
    profile, facts = answer["profile"], answer["facts"]
    assert profile["bottleneck"]["name"] == "input"
    assert facts["ceilings"]["input"] > 1.5
    assert facts["input_wait_frac"] > 0.5
    assert profile["job"]["batch_size"] == 8
    assert profile["job"]["num_samples"] == 64
    assert profile["job"]["has_deterministic_transform"] is True
    assert any(line["file"] == LOOP for line in profile["where"])


@pytest.mark.long
def test_a_script_that_ends_after_its_plain_profile_is_profiled(tmp_path: Path) -> None:
    with trial_of(tmp_path, "--wait", "0.02", "--epochs", "3") as trial:
        answer = trial.call("profile", slice_s=0.001, quick=False)  # 12 of its 24 steps, and 8 more to record batches
    assert answer["profile"]["bottleneck"]["name"] == "input"
    assert answer["facts"]["ceilings"]["input"] > 1.5
    assert answer["facts"]["op_counts"] == {}


def test_the_end_of_the_script_is_reported_with_its_steps(tmp_path: Path) -> None:
    with trial_of(tmp_path, "--epochs", "2") as trial, pytest.raises(TrialError, match="ended after 16 steps"):
        trial.call("run", updates=30)


def test_the_remaining_steps_can_be_counted(tmp_path: Path) -> None:
    with trial_of(tmp_path, "--epochs", "2") as trial:
        trial.call("warm", updates=3)
        answer = trial.call("run", updates=300, or_fewer=True)
    assert len(answer["losses"]) == len(answer["times"]) == len(answer["items"]) == 16 - 1 - 3


def test_an_error_of_the_script_is_quoted(tmp_path: Path) -> None:
    with trial_of(tmp_path, "--raise-at", "5") as trial, pytest.raises(TrialError, match="ValueError: in the middle"):
        trial.call("run", updates=30)


def test_a_technique_that_cannot_be_applied_is_a_failed_trial(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="pinned_memory"):
        Trial(setting_of(tmp_path), plan_of(pinned_memory={}), seed=0)


def test_files_saved_by_a_trial_are_complete_and_deleted_with_it(tmp_path: Path) -> None:
    with trial_of(tmp_path, "--save", str(tmp_path / "model.pt")) as trial:
        trial.call("run", updates=20)
        folders = (*(tmp_path / "trials").glob("script-*"), *SCRATCH.glob(f"{PREFIX}*"))
        saved = [path for folder in folders for path in folder.rglob("*") if path.is_file() and is_zipfile(path)]
        assert saved
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.long
def test_a_screening_compares_both_arms_at_the_same_steps(tmp_path: Path) -> None:
    fused = plan_of(fused_optimizer={})
    with trial_of(tmp_path, seed=1) as trial:
        trial.call("warm", updates=13)
        others = [trial.call("run", updates=60)["losses"]]
    processes = ScriptProcesses(setting=setting_of(tmp_path), seed=0, draws=False)
    screen = Screen(processes, Plan(), uneven=False, others=others)
    try:
        found = screen.screen(fused.optimizations[0], fused, 10)
        assert screen.challenger is not None
        base, challenger = screen.base.losses, screen.challenger.losses
    finally:
        screen.close()
    assert found.fired
    assert found.gate is not None
    assert found.gate.verdict == "passed", found.gate.why
    assert len(base) == len(challenger)
    assert torch.allclose(torch.tensor(base), torch.tensor(challenger), rtol=1e-3)
    assert base != challenger or found.gate.why.startswith("gradient error 0")


def test_other_masks_of_a_functional_dropout_pass_the_gate(tmp_path: Path) -> None:
    masks = plan_of(dropout_masks={})
    setting = replace(setting_of(tmp_path), command=(str(Path(LOOP).with_name("dropout.py")),))
    with Trial(setting, Plan(), seed=1) as trial:
        trial.call("warm", updates=13)
        others = [trial.call("run", updates=60)["losses"]]
    screen = Screen(ScriptProcesses(setting=setting, seed=0, draws=False), Plan(), uneven=False, others=others)
    try:
        found = screen.screen(masks.optimizations[0], masks, 10)
        assert screen.challenger is not None
        assert screen.base.losses != screen.challenger.losses
    finally:
        screen.close()
    assert found.fired
    assert found.gate is not None
    assert found.gate.verdict == "passed", found.gate.why
    assert found.gate.why.startswith("dropout draws other random numbers: the loss moved")


@pytest.mark.long
def test_a_short_script_has_shorter_turns_and_too_short_a_one_is_refused(tmp_path: Path) -> None:
    processes = ScriptProcesses(setting=setting_of(tmp_path, "--epochs", "6"), seed=0, draws=False)
    screen = Screen(processes, Plan(), uneven=False, others=[[]])
    try:
        found = screen.screen(None, Plan(), 100)
        assert processes.most_steps == 48
        assert {sample.updates for sample in found.comparison.samples} == {2}
        processes.setting = setting_of(tmp_path, "--epochs", "2")
        processes.most_steps = 16
        with pytest.raises(TrialError, match="Give the script more data or more epochs"):
            screen.screen(None, Plan(), 100)
    finally:
        screen.close()
