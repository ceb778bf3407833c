"""Screening by an event: the parts of an epoch, the answers of a turn, and real processes that take turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.core.errors import TrialError
from hasten.core.facts import Facts
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.optimizations.async_logging import AsyncLogging
from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from hasten.optimizations.metric_reading import MetricReading
from hasten.optimizations.sample_cache import SampleCache
from hasten.optimizations.validation_batch import ValidationBatch
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.tune.scripts.profiling import NOT_IN_QUICK
from hasten.tune.search.event_design import EventDesign, design_event, judge_metrics, kept_event_facts
from hasten.tune.search.event_screening import EventScreening, screen_event
from hasten.tune.search.job_processes import JobProcesses
from hasten.tune.search.screening import FUTILE_TURNS, Screen
from hasten.tune.search.search import updated_facts, updated_phases
from hasten.tune.search.state import Adopted
from hasten.tune.trials.event_turns import EventTurns, digest
from hasten.tune.trials.trial import TrialSetting
from tests.optimizations.contract import facts
from tests.train.jobs import CPU, Stormy
from tests.tune.jobs import children, write_job

MEASURED: dict[str, Any] = {
    "step_ms": 100.0, "epoch_s": 9.5, "checkpoint_s": 3.0, "validation_s": 3.0, "validation_batches": 10, "report_s": 0.05,
    "reports_per_epoch": 20.0,
}  # fmt: skip
JOB = {"updates_per_epoch": 25, "num_samples": 100}


def design(optimization: Any, **changes: Any) -> EventDesign:
    return design_event(optimization, facts(**{**MEASURED, **changes}, job=JOB))


def test_updates_during_a_checkpoint_last_longer_than_it() -> None:
    found = design(BackgroundCheckpoint(), checkpoint_s=0.4)
    assert (found.event, found.updates, found.repeats, found.per_epoch) == ("checkpoint", 7, 1, 1.0)
    assert design(BackgroundCheckpoint()).updates == 25  # limited to the updates of an epoch
    assert design(BackgroundCheckpoint()).rest_s == pytest.approx(9.5 - 2.5 - 3.0)


def test_short_events_are_measured_together() -> None:
    found = design(BackgroundCheckpoint(), checkpoint_s=0.012, step_ms=10.0)
    assert (found.updates, found.repeats) == (36, 18)  # 2 updates during each, 0.032 s together
    assert design(ValidationBatch(), validation_s=0.11).repeats == 5
    assert design(ValidationBatch(), validation_s=1e-9).repeats <= 200


def test_reports_are_spread_over_the_updates() -> None:
    found = design(AsyncLogging(), step_ms=110.0)
    assert (found.updates, found.repeats, found.per_epoch) == (7, 7, 20.0)
    assert found.rest_s == pytest.approx(9.5 - 25 * 0.11 - 1.0)


def test_a_long_validation_is_measured_in_part() -> None:
    whole = design(ValidationBatch())
    assert (whole.updates, whole.repeats, whole.max_batches, whole.scale) == (0, 1, None, 1.0)
    part = design(ValidationBatch(), validation_s=20.0, epoch_s=30.0)
    assert (part.max_batches, part.scale) == (2, 5.0)


def test_an_epoch_is_updates_and_events_and_the_rest() -> None:
    found = design(AsyncLogging(), step_ms=110.0)
    answer = {"seconds": 1.15, "quiet_seconds": 0.8}
    assert found.lost_s(answer) == pytest.approx(0.05)
    assert found.epoch_s(answer, 0.1) == pytest.approx(2.5 + found.rest_s + 20 * 0.05)


@pytest.mark.parametrize(("optimization", "changes"), [(MetricReading(), {}), (BackgroundCheckpoint(), {"epoch_s": 0.0})])
def test_screening_by_event_needs_an_event_and_an_epoch(optimization: Any, changes: Any) -> None:
    with pytest.raises(TrialError, match="cannot be measured by an event, or the length of an epoch is unknown"):
        design(optimization, **changes)


def test_facts_that_a_quick_profile_of_a_script_skips_are_kept() -> None:
    of_script = {"in_script": True, "planned_updates": 1 << 30, "kept_compared_frac": 0.1}
    old = facts(
        job={**JOB, **of_script}, step_ms=10.0, epoch_s=10.0, validation_s=3.0, checkpoint_s=0.0, tensor_texts_s=1.0,
        sample_bytes=10, load_frac=0.9, phase_frac={"data": 0.5}, ceilings={"input": 2.0}, memory_limit_bytes=2**30,
    )  # fmt: skip
    quick = Facts(
        machine=old.machine, job=old.job, step_ms=5.0, epoch_s=1.0, phase_frac={"data": 0.5}, ceilings={"input": 2.0}
    )
    sent = {name: getattr(quick, name) for name in quick.__dataclass_fields__ if name not in ("machine", "job")}
    profile = {"job": {**asdict(old.job), "has_deterministic_transform": False, "samples_vary": "no sample was read"}}
    answer = {"profile": profile, "facts": {**sent, "memory_limit_bytes": 2**30}, "skipped": NOT_IN_QUICK}
    new = updated_facts(old, answer, Adopted(name=""))
    assert SampleCache.fit(new).reason == SampleCache.fit(old).reason == ""
    assert new.validation_s == pytest.approx(3.0 * 200 / 700)  # 200 steps of 5 ms, instead of 700 of 10 ms
    assert new.epoch_s == pytest.approx(1.0 + new.validation_s)
    assert new.tensor_texts_s == pytest.approx(200 / 700)
    phases = updated_phases(new, {"data": 0.6, "forward": 0.4, "validation": 0.0})
    assert phases["validation"] == pytest.approx(new.validation_s / new.epoch_s)
    assert sum(phases.values()) == pytest.approx(1.0)
    seen = updated_facts(old, {**answer, "facts": {**answer["facts"], "validation_s": 0.5}}, Adopted(name=""))
    assert (seen.validation_s, seen.epoch_s) == (0.5, 1.0)
    assert "validation" not in updated_phases(facts(job=JOB), {"data": 0.6, "forward": 0.4, "validation": 0.0})


def test_event_facts_outlive_a_quick_profile() -> None:
    old = facts(**MEASURED, job=JOB)
    kept = kept_event_facts(old, 50.0)
    assert kept["epoch_s"] == pytest.approx(25 * 0.05 + 1.0 + 3.0 + 3.0)
    after = kept_event_facts(old, 50.0, event="checkpoint", lost_s=0.25)
    assert (after["checkpoint_s"], after["validation_s"]) == (0.25, 3.0)
    assert after["epoch_s"] == pytest.approx(kept["epoch_s"] - 2.75)
    assert BackgroundCheckpoint.fit(facts(**{**MEASURED, **after})).max_gain_frac == pytest.approx(0.25 / after["epoch_s"])


@pytest.mark.parametrize(
    ("candidate", "passes"),
    [({"loss": 1.0, "hits": 30.0}, True), ({"loss": 1.0009, "hits": 30.0}, True), ({"loss": 1.002, "hits": 30.0}, False),
     ({"loss": 1.0, "hits": 31.0}, False), ({"loss": 1.0}, False), ({"loss": float("nan"), "hits": 30.0}, False)],
)  # fmt: skip
def test_a_metric_may_change_by_rounding(candidate: Any, passes: bool) -> None:
    base = {"loss": 1.0, "hits": 30.0}
    later = {"loss": 0.9, "hits": 30.0}
    assert judge_metrics(base, base, candidate, later)[0] is passes


def test_a_metric_that_is_not_reproducible_is_ignored() -> None:
    base, again = {"loss": 1.0, "took_ms": 3.1}, {"loss": 1.0, "took_ms": 3.4}
    passed, words = judge_metrics(base, again, {"loss": 1.0, "took_ms": 1.0}, base)
    assert passed
    assert (
        "1 held-out metrics equal up to rounding (ignored because two passes over the same weights differ: took_ms" in words
    )
    assert not judge_metrics(base, base, {"loss": 1.0, "took_ms": 1.0}, base)[0]


def test_the_loss_is_always_judged() -> None:
    base, again = {"loss": 1.0}, {"loss": 1.5}
    assert not judge_metrics(base, again, {"loss": 1.4}, base)[0]


def test_a_metric_that_is_always_nan_is_not_ignored() -> None:
    never = {"loss": 1.0, "hits": float("nan")}
    assert not judge_metrics(never, never, {"loss": 1.0, "hits": 30.0}, never)[0]


# One process.


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[EventTurns]:
    found = EventTurns(Loop(build(Stormy(), device=CPU)), tmp_path)
    yield found
    found.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("quiet_first", [True, False])
@pytest.mark.parametrize("event", ["report", "checkpoint"])
def test_a_turn_is_a_quiet_part_and_one_with_the_event(turns: EventTurns, event: Any, quiet_first: bool) -> None:
    answer = turns.turn(event=event, updates=3, repeats=3, quiet_first=quiet_first, check=True)
    assert len(answer["losses"]) == 6
    assert answer["faithful"] is True
    assert answer["seconds"] >= answer["stall_s"] > 0.0
    assert answer["quiet_seconds"] > 0.0


def test_events_change_no_loss(turns: EventTurns) -> None:
    plain = Loop(build(Stormy(), device=CPU))
    plain.run(16)
    losses = []
    turns._loop.rewind()  # randomness belongs to the process
    for event in ("report", "checkpoint"):
        losses += turns.turn(event=event, updates=4, repeats=2)["losses"]
    assert losses == plain.losses


def test_a_validation_turn_trains_nothing(turns: EventTurns) -> None:
    answer = turns.turn(event="validation", updates=0)
    assert answer["losses"] == []
    assert set(answer["metrics"]) == {"loss"}
    assert answer["quiet_seconds"] == 0.0


def test_a_file_that_differs_from_the_weights_is_not_faithful(turns: EventTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    take = turns._loop.live.model.state_dict
    other = {name: value + 1 for name, value in take().items()}
    monkeypatch.setattr(turns._work.checkpoint, "save", lambda _: torch.save(other, turns._work.checkpoint.path))
    assert turns.turn(event="checkpoint", updates=1, check=True)["faithful"] is False


def test_a_digest_covers_names_types_shapes_and_bytes() -> None:
    state = {"a": torch.arange(4.0)}
    assert digest(state) == digest({"a": torch.arange(8.0)[:4]})
    for other in ({"b": torch.arange(4.0)}, {"a": torch.arange(4)}, {"a": torch.arange(4.0)[None]}, {"a": torch.ones(4)}):
        assert digest(other) != digest(state)


# Real processes.


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    folder: Path = tmp_path_factory.mktemp("events")
    before = children()
    setting = TrialSetting(target=write_job(folder), folder=folder / "trials", hang_s=60.0)
    found = Screen(JobProcesses(setting=setting), Plan(), uneven=False, others=[])
    yield found
    found.close()
    assert children() <= before


SCREENED = {**MEASURED, "step_ms": 2.0, "checkpoint_s": 0.01, "validation_s": 0.01, "report_s": 1e-4, "epoch_s": 0.09}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("background_checkpoint", "the written data is correct", marks=pytest.mark.long),
        ("validation_batch", "equal up to rounding"),
    ],
)
def test_a_technique_is_screened_by_its_event(screen: Screen, name: str, words: str) -> None:
    item = catalogue()[name]()
    found = screen_event(screen, item, Plan(optimizations=(item,)), facts(**SCREENED, job={"updates_per_epoch": 32}))
    assert isinstance(found, EventScreening)
    assert found.fired
    assert found.gate is not None
    assert found.gate.verdict == "passed", found.gate.why
    assert words in found.gate.why
    assert set(found.peak_bytes) == {"A", "B"}
    turns = len(found.comparison.samples) // 2
    assert turns >= FUTILE_TURNS
    if found.comparison.interval is not None:
        assert set(found.lost_s) == set(found.epoch_s) == set(found.stall_s) == {"A", "B"}
        assert min(found.epoch_s.values()) > 0.0
    assert not list(Path(screen.setting.folder).glob("events-*"))
    rival = screen.challenger
    assert rival is not None
    assert rival.trial.alive


@pytest.mark.slow
def test_a_metric_that_depends_on_the_batch_fails_the_gate(tmp_path: Path) -> None:
    """BatchNorm without running statistics normalizes by the batch in evaluation as well."""
    body = """
class J(Good):
    def model(self):
        norm = nn.BatchNorm1d(16, track_running_stats=False)
        return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 1))
"""
    setting = TrialSetting(target=write_job(tmp_path, body), folder=tmp_path / "trials", hang_s=60.0)
    found = Screen(JobProcesses(setting=setting), Plan(), uneven=False, others=[])
    try:
        item = ValidationBatch(times=4)
        given = facts(**SCREENED, job={"updates_per_epoch": 32})
        screening = screen_event(found, item, Plan(optimizations=(item,)), given, most_turns=FUTILE_TURNS)
    finally:
        found.close()
    assert screening.gate is not None
    assert screening.gate.verdict == "failed"
    assert "the metric 'loss' changes by" in screening.gate.why
