"""The benchmark of alerts: its faults, and how recorded windows are judged."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import hasten
from benchmarks.alerts import EXPECTED, judged, of_limit, summarize
from benchmarks.jobs.faulty import FAULTS, Fault, LoaderBoundJob, faulty
from hasten.monitor.alerts.rule import load_rules
from hasten.monitor.window import Mark
from tests.monitor.test_alerts import window


def row(fault: str, factor: float, *, at: int = 600, slow_before: int = 0) -> dict[str, Any]:
    """Return a run of 40 windows whose steps take longer from window 30 on."""

    def step_s(number: int) -> float:
        return 0.1 * (factor if number >= 30 or 15 <= number < 15 + slow_before else 1.0)

    windows = [window(number, step_s(number)).to_dict() for number in range(40)]
    return {"job": "text", "fault": fault, "number": 0, "at": at, "exit_status": 0, "units": {}, "windows": windows}


def test_delays_misses_and_false_alarms_are_counted() -> None:
    found = judged(row("sleep_15", 1.15))
    assert (found["delay_windows"], found["false_alarms"], found["undisturbed_windows"]) == (3, [], 20)
    assert judged(row("sleep_15", 1.02))["delay_windows"] is None
    assert judged(row("none", 1.2, slow_before=5))["false_alarms"] == ["slower", "slower"]
    already = row("sleep_15", 1.15, slow_before=15)
    assert (judged(already)["delay_windows"], judged(already)["masked"]) == (None, True)
    result = summarize([row("sleep_15", 1.15), row("sleep_15", 1.02), row("none", 1.2)])
    outcomes = result["faults"]["text_sleep_15"]
    assert (outcomes["missed"], outcomes["masked"], outcomes["harmless"]) == (0, 0, 1)  # 2 % longer is below the rule's 10 %
    ended = row("sleep_15", 1.15)
    ended["windows"] = ended["windows"][:30]
    assert summarize([ended])["faults"]["text_sleep_15"]["missed"] == 1
    hung = row("hang", 1.0)
    mark = Mark(name="standstill", step=600, at=0.0, seconds=0.0, words="no step ends")
    hung["windows"][30:] = [window(30, steps=0).to_dict(), window(30, steps=0, marks=(mark,)).to_dict()]
    assert (judged(hung)["false_alarms"], judged(hung)["delay_windows"]) == ([], 2)
    result = summarize([row("sleep_15", 1.15), row("leak", 1.0), row("none", 1.2)])
    assert result["faults"]["text_leak"]["missed"] == 1
    assert result["faults"]["text_sleep_15"]["median_delay_windows"] == 3
    assert result["undisturbed_windows"] == 20 + 20 + 30
    assert result["false_alarms_per_1000"] == pytest.approx(1000 / 70)
    limits = {limit["limit"]: limit for limit in result["limits"]}
    assert (limits[0.06]["delays_windows"], limits[0.14]["delays_windows"]) == ([3], [3])
    low, high = (of_limit([row("sleep_15", 1.15), row("none", 1.07, slow_before=5)], limit) for limit in (0.06, 0.2))
    assert (low["false_alarms_per_1000"], low["delays_windows"]) == (pytest.approx(1000 * 2 / 50), [3])
    assert (high["false_alarms_per_1000"], high["delays_windows"]) == (0.0, [None])


def test_every_fault_has_rules_that_must_find_it() -> None:
    rules = {rule.name for rule in load_rules()[0]}
    assert set(EXPECTED) == set(FAULTS) - {"none"}
    assert all(rules >= set(expected) for expected in EXPECTED.values())


def test_a_fault_disturbs_only_from_its_step_on() -> None:
    fault = Fault("nan", 1)
    job = faulty(LoaderBoundJob, fault)
    model, data = job.model(), job.train_data()
    batch = [torch.stack([data[0][0]] * 2), torch.tensor([0, 1])]
    with torch.no_grad():
        losses = [float(job.loss(model, batch)) for _ in range(3)]  # type: ignore[arg-type]
    assert [math.isnan(loss) for loss in losses] == [False, True, False]
    slow = Fault("sleep_50", 2)
    slept: Any = slow.data([1, 2])
    delays = []
    for _ in range(3):
        slow.on_step(batch_size=2)
        delays.append(slept.seconds.value > 0.0)
    assert delays == [False, False, True]
    spiked = Fault("spike", 0)
    spiked.on_step(1)
    loss = spiked.loss(hasten.Loss(torch.tensor(1.0), 2))
    assert isinstance(loss, hasten.Loss)
    assert float(loss.total) == 41.0
