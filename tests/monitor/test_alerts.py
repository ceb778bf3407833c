"""Alerts: rules that fire when they should, and only then."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import nan
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from hasten.core.errors import DataError
from hasten.monitor.alerts.deliver import ALERTS, Command, deliveries_of, queued, read_alerts, webhook_at
from hasten.monitor.alerts.engine import Alert, Alerts
from hasten.monitor.alerts.live import LiveAlerts, read_options
from hasten.monitor.alerts.rule import Rule, load_rules
from hasten.monitor.catalogue import samplers
from hasten.monitor.metric import units
from hasten.monitor.window import Mark, Start, Window
from hasten.monitor.windows_file import WindowsFile

START = Start(run="run-1", units={"process.memory.private": "By"})


def window(number: int, step_s: float = 0.1, *, start: Start = START, steps: int = 20, **more: Any) -> Window:
    """Return a window of steps that spend a tenth of their time on data."""
    seconds = step_s * steps if steps else 30.0
    given = {"phases": {"data": 0.1 * seconds, "forward": 0.9 * seconds} if steps else {}, "values": {}, **more}
    return Window(
        start=start, number=number, from_step=20 * number, to_step=20 * number + steps, at=2.0 * number, seconds=seconds,
        **given,
    )  # fmt: skip


def noisy(count: int, *, change: Callable[[int], float] = lambda _: 1.0, noise: float = 0.02, seed: int = 0) -> list[Window]:
    """Return windows whose step time has relative noise."""
    draw = random.Random(seed)
    return [window(number, 0.1 * change(number) * (1 + draw.gauss(0, noise))) for number in range(count)]


def changes(windows: Sequence[Window], rules: Sequence[Rule] | None = None) -> list[Alert]:
    """Return all changes of state that fire or resolve."""
    alerts = Alerts(load_rules()[0] if rules is None else rules)
    return [alert for one in windows for alert in alert_of(alerts, one)]


def alert_of(alerts: Alerts, one: Window) -> list[Alert]:
    return [alert for alert in alerts.judge(one) if alert.state != "pending"]


def rule(name: str) -> Rule:
    return next(rule for rule in load_rules()[0] if rule.name == name)


def test_steps_that_take_15_percent_longer_are_found_within_four_windows() -> None:
    delays = []
    for seed in range(200):
        found = changes(noisy(60, change=lambda number: 1.15 if number >= 40 else 1.0, seed=seed), [rule("slower")])
        delays += [alert.step // 20 - 40 for alert in found if alert.state == "firing" and alert.step > 800]
    assert len(delays) >= 195
    assert sorted(delays)[int(0.95 * len(delays))] <= 4


def test_noise_alone_rarely_fires() -> None:
    fired = [alert for seed in range(20) for alert in changes(noisy(500, seed=seed)) if alert.state == "firing"]
    assert len(fired) / (20 * 500) <= 0.002


def test_a_slow_phase_is_named_with_the_first_slow_step() -> None:
    windows = [window(number) for number in range(20)]
    slow = [
        window(number, 0.15, phases={"data": 1.2, "forward": 1.8}, values={"system.cpu.others": 1.7})
        for number in range(20, 30)
    ]
    (alert,) = changes([*windows, *slow], [rule("slower")])
    assert (alert.since_step, alert.state) == (400, "firing")
    assert "a step takes 0.15 s, 50% longer than the 0.10 s" in alert.words
    assert "`data` takes 50 ms more per step" in alert.cause
    assert "Other processes use 1.7 cores" in alert.cause
    assert "hasten profile" in alert.text()


def test_computing_that_is_slower_for_no_visible_reason_is_said_to_be() -> None:
    windows = [window(number) for number in range(20)]
    slow = [window(number, 0.12, values={"system.cpu.others": 0.0}) for number in range(20, 30)]
    (alert,) = changes([*windows, *slow], [rule("slower")])
    assert alert.cause.startswith("The phase `forward` takes 18 ms more per step. No other process here explains it")
    on_gpu = [window(number, 0.12, values={"system.cpu.others": 0.0, "gpu.utilization": 0.9}) for number in range(20, 30)]
    (alert,) = changes([*windows, *on_gpu], [rule("slower")])
    assert alert.cause == "The phase `forward` takes 18 ms more per step"


def test_an_alert_is_resolved_once_and_does_not_flap() -> None:
    windows = noisy(30) + [window(number, 0.2 if number % 3 else 0.105) for number in range(30, 60)]
    windows += [window(number) for number in range(60, 80)]
    assert [alert.state for alert in changes(windows, [rule("slower")])] == ["firing", "resolved"]


def test_a_single_slow_window_is_only_pending() -> None:
    windows = [window(number, 0.3 if number == 30 else 0.1) for number in range(50)]
    alerts = Alerts([rule("slower")])
    assert [alert.state for one in windows for alert in alerts.judge(one)] == ["pending"]


def test_validation_and_checkpoints_do_not_count_as_slow_steps() -> None:
    windows = [window(number) for number in range(20)]
    pauses = {"data": 0.2, "forward": 1.8, "validation": 3.0, "checkpoint": 1.0}
    windows += [
        Window(start=START, number=n, from_step=20 * n, to_step=20 * n + 20, at=2.0 * n, seconds=6.0, phases=pauses)
        for n in range(20, 40)
    ]
    assert changes(windows) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "says"),
    [
        ("memory_growth", {"process.memory.private": 2**30}, {"process.memory.private": 1.3 * 2**30}, "1,331 MiB, 30% more"),
        (
            "worker_died",
            {"loader.workers": 2, "loader.workers_alive": 2},
            {"loader.workers": 2, "loader.workers_alive": 1},
            "1",
        ),
        ("loss_not_finite", {"training.loss": 1.0}, {"training.loss": float("nan")}, "the loss is nan"),
        ("loss_spike", {"training.loss": 1.0}, {"training.loss": 5.0}, "the loss is 5; usual is 1"),
        ("memory_low", {"system.memory.headroom": 2**33}, {"system.memory.headroom": 2**27}, "only 128 MiB"),
        ("disk_filling", {"system.disk.free": 2**33}, {"system.disk.free": 2**29}, "only 512 MiB"),
        ("throttled_by_heat", {"gpu.throttled.thermal": 0}, {"gpu.throttled.thermal": 1}, "too hot"),
        ("gpu_starving", {"gpu.utilization": 0.9}, {"gpu.utilization": 0.5}, "works"),
    ],
)
def test_values_that_leave_their_range_are_told(name: str, before: Any, after: Any, says: str) -> None:
    start = Start(run="run-1", units={**dict.fromkeys(("system.memory.headroom", "system.disk.free"), "By"), **START.units})
    windows = [window(number, start=start, values=before if number < 30 else after) for number in range(45)]
    alert, *later = changes(windows)
    assert (alert.rule, alert.state) == (name, "firing")
    assert says in alert.words
    assert all(alert.rule == name for alert in later)


def test_new_graphs_after_the_warm_up_are_told() -> None:
    graphs = [min(number, 3) if number < 30 else number for number in range(45)]
    windows = [window(number, values={"python.compiled_graphs": count}) for number, count in enumerate(graphs)]
    assert [alert.rule for alert in changes(windows)] == ["recompiles"]


def test_a_run_without_steps_is_stalled_until_a_step_ends() -> None:
    windows = [window(0), window(1, steps=0), window(2, steps=0), window(3)]
    windows += [window(number, steps=0) for number in range(4, 8)]  # no longer than thrice the first pause: a validation
    windows.append(window(8))
    assert [(alert.rule, alert.state) for alert in changes(windows)] == [("stalled", "firing"), ("stalled", "resolved")]


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    def of(rank: int, number: int, work_s: float) -> Window:
        phases = {"forward": 20 * work_s, "sync": 20 * (0.1 - work_s)}
        return window(number, start=starts[rank], phases=phases)

    starts = [Start(run="run-1", rank=rank, world=3) for rank in range(3)]
    windows = [of(rank, number, 0.09 if rank == 2 else 0.06) for number in range(10) for rank in range(3)]
    (alert,) = changes(windows)
    assert (alert.rule, alert.rank) == ("slow_rank", 2)


def test_a_resumed_run_is_compared_with_its_own_first_windows() -> None:
    windows = noisy(30)
    again = Start(run="run-1", step=600)
    windows += [window(number, 0.2, start=again) for number in range(30, 60)]
    assert changes(windows) == []


def test_every_built_in_rule_and_symptom_reads_a_metric_that_exists() -> None:
    from hasten.monitor.alerts.judge import STEP, WORKERS_DEAD
    from hasten.monitor.alerts.rule import symptoms

    metrics = {*units(samplers()), STEP, WORKERS_DEAD, "", "share.data"}
    rules = [rule for rule in load_rules()[0] if rule.kind != "incident"]
    assert {rule.metric for rule in rules} | {symptom.metric for symptom in symptoms()} <= metrics


# What is usual around the steps of a run.


def one_with(number: int, phases: dict[str, float], **more: Any) -> Window:
    """Return a window of 20 steps that take 0.1 s, and of phases between them."""
    seconds = 2.0 + sum(phases.values())
    return replace(window(number, **more), seconds=seconds, phases={"data": 0.2, "forward": 1.8, **phases})


def test_new_graphs_of_a_validation_are_not_told() -> None:
    windows = [
        one_with(number, {"validation": 1.0} if number % 5 == 0 else {}, values={"python.compiled_graphs": 1 + number // 5})
        for number in range(40)
    ]
    assert changes(windows) == []


def test_a_gpu_that_rests_during_validations_and_pauses_is_not_starving() -> None:
    windows = [window(number, values={"gpu.utilization": 0.9}) for number in range(20)]
    windows += [window(number, steps=0, values={"gpu.utilization": 0.1}) for number in range(20, 23)]
    windows += [one_with(number, {"validation": 90.0}, values={"gpu.utilization": 0.1}) for number in range(23, 27)]
    assert changes(windows, [rule("gpu_starving")]) == []
    fired = changes([window(number, values={"gpu.utilization": 0.9 - 0.4 * (number > 15)}) for number in range(25)])
    assert [alert.rule for alert in fired] == ["gpu_starving"]


def test_a_rollback_is_neither_a_slow_step_nor_a_pause() -> None:
    windows = [window(number) for number in range(20)]
    back = [replace(one_with(number, {"rollback": 0.1}), to_step=20 * number + number % 2) for number in range(20, 28)]
    assert changes([*windows, *back]) == []


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_loaders_that_start_again_at_each_epoch_are_not_told(every: int) -> None:
    def restarts(number: int) -> float:
        return 1.0 if number % every else 1.5

    windows = [
        window(number, 0.1 * restarts(number), phases={"data": 0.2 + 2.0 * (restarts(number) - 1), "forward": 1.8})
        for number in range(12, 80)
    ]
    assert changes(windows, [rule("slower"), rule("data_wait")]) == []


def test_the_contract_is_not_broken_by_the_warm_up() -> None:
    from hasten.monitor.contract import contract_rule

    held = contract_rule({"state": "proved", "update_s": 0.1, "update_high_s": 0.11}, "stop")
    assert held is not None
    slow = [window(number, 0.5 if number < 3 or number > 20 else 0.1) for number in range(24)]
    assert [(alert.rule, alert.since_step) for alert in changes(slow, [held])] == [("contract", 420)]


# Incidents of the guards.


def with_incident(number: int, kind: str, words: str, times: int = 1, **more: Any) -> Window:
    mark = Mark(name=kind, step=20 * number, at=2.0 * number, words=words)
    return replace(window(number, **more), marks=(mark,) * times)


def test_incidents_reach_alerts_in_their_own_words_and_the_log_only_once(tmp_path: Path) -> None:
    said: list[str] = []
    live = LiveAlerts(*read_options(None, []), say=said.append)
    live.leave_to_guards()
    live.begin("run-1", tmp_path, 1)
    live.on_window(
        with_incident(0, "not finite", "the loss is nan; the update is skipped", 3, values={"training.loss": nan})
    )
    live.on_window(with_incident(1, "standstill", "no validation has ended for 900 s; the run continues", steps=0))
    live.on_window(window(2, steps=0))  # it still hangs
    assert [name for name, _ in live.firing] == ["loss_not_finite", "stalled"]
    live.on_window(window(3))
    live.on_window(with_incident(4, "out of memory", "memory ran out; the update is repeated in smaller parts"))
    live.close()
    told = [(alert.rule, alert.state, alert.words) for alert in read_alerts(tmp_path)]
    nan_words = "the loss is nan; the update is skipped (3 times in this window)"
    assert told[:2] == [
        ("loss_not_finite", "firing", nan_words),
        ("stalled", "firing", "no validation has ended for 900 s; the run continues"),
    ]
    assert ("loss_not_finite", "resolved", nan_words) in told
    fired = [rule for rule, state, _ in told if state == "firing"]
    assert fired == ["loss_not_finite", "stalled", "out_of_memory"]
    assert said == []


def test_memory_that_grows_is_told_with_the_tensors_that_became_more(tmp_path: Path) -> None:
    said: list[str] = []
    live = LiveAlerts(*read_options(None, []), say=said.append)
    live.leave_to_guards()
    live.begin("run-1", tmp_path, 1)
    held: list[torch.Tensor] = []
    for number in range(30):
        live.on_window(window(number, values={"process.memory.private": 2**30 * (1.5 if number >= 12 else 1.0)}))
        if number >= 12:
            held.append(torch.zeros(7, 311))
    live.close()
    assert len(said) == 1
    assert "the training process uses 1,536 MiB, 50% more than the 1,024 MiB" in said[0]
    assert "more float32 [7, 311]" in said[0]


def test_a_rule_of_incidents_can_stop_a_run_or_judge_windows_again(tmp_path: Path) -> None:
    path = user_file(tmp_path, '[[rule]]\nname="stalled"\naction="stop"\n[[rule]]\nname="loss_not_finite"\nguard=""')
    stops: list[bool] = []
    live = LiveAlerts(*read_options(path, []), say=lambda _: None, stop=lambda: stops.append(True))
    live.leave_to_guards()
    live.begin("run-1", tmp_path, 1)
    live.on_window(with_incident(0, "standstill", "no update has ended for 60 s", steps=0))
    live.on_window(window(1, values={"training.loss": nan}))
    live.close()
    assert stops == [True]
    assert list(live.firing) == [("loss_not_finite", 0)]


# Rules of a user.


def user_file(folder: Path, text: str) -> Path:
    path = folder / "alerts.toml"
    path.write_text(text)
    return path


def test_a_user_changes_switches_off_and_adds_rules(tmp_path: Path) -> None:
    path = user_file(
        tmp_path,
        '[[rule]]\nname="slower"\nchange=0.3\n[[rule]]\nname="loss_spike"\nenabled=false\n'
        '[[rule]]\nname="hot"\nkind="above"\nmetric="gpu.temperature"\nlimit=85\naction="stop"\n',
    )
    rules, tables = load_rules(path)
    named = {rule.name: rule for rule in rules}
    assert named["slower"].change == 0.3
    assert "loss_spike" not in named
    assert named["hot"].limit == 85.0
    assert named["hot"].bad == 3
    assert tables == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[rule]]\nkind='above'", "has no name"),
        ("[[rule]]\nname='x'", "needs a kind: above_start"),
        ("[[rule]]\nname='x'\nkind='above'", "needs a metric"),
        ("[[rule]]\nname='x'\nkind='about'\nmetric='y'", "kind = 'about' is not valid"),
        ("[[rule]]\nname='slower'\nof=0", "a number from 1 to 1000"),
        ("[[rule]]\nname='slower'\nbad=9", "can never fire"),
        ("[[rule]]\nname='slower'\nsince=3", "unknown key `since`"),
        ("[rule]\nname='slower'", "written as [[rule]]"),
        ("[[rules]]\nname='slower'", "unknown table `rules`"),
        ("rule = [", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError) as raised:
        load_rules(user_file(tmp_path, text))
    assert says in str(raised.value)


# Deliveries.


class Received(HTTPServer):
    """A web server that keeps what it is sent."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.bodies = status, list[Any]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/SECRET"


class _Handler(BaseHTTPRequestHandler):
    server: Received

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Received]:
    with Received() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ALERT = Alert(rule="slower", state="firing", rank=0, at=9.0, step=500, since_at=8.0, since_step=400, value=0.2, words="slow")


@pytest.mark.parametrize(("form", "key"), [("slack", "text"), ("discord", "content"), ("json", "text")])
def test_a_webhook_gets_the_alert_in_its_format(server: Received, form: str, key: str) -> None:
    webhook_at(server.url, "here", form)(ALERT, "run-1")
    (body,) = server.bodies
    assert body[key] == "[run-1] slower since step 400: slow."


def test_a_failed_delivery_is_told_once_without_its_secret_and_the_others_go_on(server: Received, tmp_path: Path) -> None:
    said: list[str] = []
    server.status = 500
    command = Command(words=("sh", "-c", f"cat >> {tmp_path}/mail; echo {{rule}} of {{run}} >> {tmp_path}/mail"))
    queues = [queued(delivery, "run-1", said.append) for delivery in (webhook_at(server.url, "here"), command)]
    for queue in queues:
        queue.put(ALERT)
        queue.put(ALERT)
        queue.end()
        queue.wait(monotonic() + 20)
    assert said == ["alerts do not reach the webhook at 127.0.0.1: it answered 500. The training goes on."]
    assert [queue.dropped for queue in queues] == [2, 0]
    assert (tmp_path / "mail").read_text().count("slower of run-1\n") == 4
    server.server_close()
    with pytest.raises(DataError, match="cannot be reached") as raised:
        webhook_at(server.url, "here")(ALERT, "run-1")
    assert "SECRET" not in str(raised.value)


def test_a_dead_webhook_does_not_hold_up_the_run() -> None:
    def hangs(_alert: Alert, _run: str) -> None:
        threading.Event().wait(30)

    hangs.name = "it"  # type: ignore[attr-defined]
    queue = queued(hangs, "run-1", print)  # type: ignore[arg-type]
    for _ in range(1000):
        queue.put(ALERT)
    queue.end()
    queue.wait(monotonic() + 0.1)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "needs either `webhook` or `command`"),
        ({"webhook": "x", "command": ["y"]}, "needs either"),
        ({"webhook": "file:///etc/passwd"}, "http or https"),
        ({"webhook": "env:HASTEN_NO_SUCH"}, "HASTEN_NO_SUCH is not set"),
        ({"webhook": "https://example.org/x", "format": "teams"}, "'teams' is unknown"),
        ({"command": "mail me"}, "must be a list of words"),
        ({"mail": "me"}, "unknown key `mail`"),
    ],
)
def test_a_wrong_delivery_is_refused(table: Any, says: str) -> None:
    with pytest.raises(DataError) as raised:
        deliveries_of([table], "alerts.toml")
    assert says in str(raised.value)
    assert "example.org/x" not in str(raised.value)


def test_an_address_in_a_variable_is_recognized_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://hooks.slack.com/services/T/B/x")
    hook = webhook_at("env:HOOK", "here")
    assert (hook.form, hook.name) == ("slack", "the webhook at hooks.slack.com")


# A live run.


def test_a_rule_that_stops_a_run_is_remembered_and_written(tmp_path: Path) -> None:
    path = user_file(tmp_path, '[[rule]]\nname="loss_not_finite"\naction="stop"')
    said: list[str] = []
    stops: list[bool] = []
    live = LiveAlerts(*read_options(path, []), say=said.append, stop=lambda: stops.append(True))
    live.begin("run-1", tmp_path, 1)
    for loss in (1.0, float("nan"), float("nan")):
        live.on_window(window(0, values={"training.loss": loss}))
    live.close()
    assert stops == [True]
    assert live.failed is not None
    assert said[0].startswith("alert loss_not_finite, since step 0: the loss is nan. Lower the learning rate")
    assert [alert.state for alert in read_alerts(tmp_path)] == ["firing"]
    with (tmp_path / ALERTS).open("a") as file:
        file.write('{"kind": "alert", "ru')
    assert len(read_alerts(tmp_path)) == 1


def test_rank_0_judges_what_other_ranks_have_written(tmp_path: Path) -> None:
    live = LiveAlerts(*read_options(None, []), say=lambda _: None)
    live.begin("run-1", tmp_path, 2)
    other = WindowsFile(Start(run="run-1", rank=1, world=2), tmp_path)
    mine = Start(run="run-1", world=2)
    for number in range(8):
        other.write(window(number, phases={"forward": 1.9}))
        live.on_window(window(number, start=mine, phases={"forward": 1.2, "sync": 0.7}))
    live.close()
    other.close()
    assert list(live.firing) == [("slow_rank", 1)]
