"""The monitor: windows, and samplers and sinks that fail, block or fill the disk."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from hasten.core.errors import DataError, HastenError, MachineError
from hasten.core.plan import Plan
from hasten.data.cache import CachedDataset, MemoryCache
from hasten.monitor import catalogue
from hasten.monitor import monitor as monitor_module
from hasten.monitor import sampler as sampler_module
from hasten.monitor import sink as sink_module
from hasten.monitor.alerts.deliver import read_alerts
from hasten.monitor.alerts.live import LiveAlerts, read_options
from hasten.monitor.metric import Card, Metric
from hasten.monitor.monitor import Monitor, Pace, Progress
from hasten.monitor.of_loop import follow_loop
from hasten.monitor.peak import peak_of
from hasten.monitor.sampler import Host, Samplers
from hasten.monitor.sink import QueuedSink, SinkCard, parse_sink
from hasten.monitor.sinks.parquet import Parquet
from hasten.monitor.window import Mark, Start, Window
from hasten.monitor.windows_file import WindowsFile, WindowsReader, read_windows, windows_files, windows_path
from hasten.train.guards.non_finite import NonFinitePolicy
from hasten.train.run import RunOptions, train
from tests.train.jobs import Plain
from tests.train.test_non_finite import Badly

ROOT = Path(__file__).parents[2]
QUICK = Pace(steps=2, least_s=0.0, most_s=30.0, cost_frac=1e9)


class Training:
    """Stands for a training: two phases, one sample a step."""

    def __init__(self) -> None:
        self.step = 0
        self.seconds = {"data": 0.0, "forward": 0.0}
        self.values: dict[str, Any] = {}

    def __call__(self) -> Progress:
        counts = {"training.samples": float(self.step)}
        return Progress(step=self.step, phases=dict(self.seconds), counts=counts, values=dict(self.values))

    def run(self, monitor: Monitor, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            self.seconds["data"] += 0.25
            self.seconds["forward"] += 0.5
            monitor.after_step()


class Kept:
    """A sink that keeps windows."""

    card: ClassVar[SinkCard] = SinkCard(name="kept", summary="memory")

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.closed = False

    def write(self, window: Window) -> None:
        self.windows.append(window)

    def close(self) -> None:
        self.closed = True


def followed(
    training: Training,
    steps: int,
    sink: Any = None,
    kinds: Mapping[str, Callable[[Host], Any]] | None = None,
    **settings: Any,
) -> tuple[list[Window], list[str]]:
    """Follow some steps, two a window, and return the windows and the messages."""
    kept, said = Kept(), list[str]()
    sinks = [QueuedSink("kept", lambda: kept, said.append)]
    if sink is not None:
        sinks.append(QueuedSink("tried", lambda: sink, said.append))
    samplers = Samplers({}, Host(), said.append)
    with Monitor(Start(run="r"), training, samplers, sinks, pace=QUICK, say=said.append, **settings) as monitor:
        for _ in range(steps // 2):
            number = monitor.windows
            training.run(monitor, 2)
            _until(partial(_is_above, monitor, number))
        training.run(monitor, steps % 2)
    assert kept.closed
    return kept.windows, said


def _is_above(monitor: Monitor, number: int) -> bool:
    return monitor.windows > number


def _until(done: Callable[[], bool]) -> None:
    end = monotonic() + 20
    while not done() and monotonic() < end:
        sleep(0.001)
    assert done()


def a_card(*names: str) -> Card:
    return Card(
        name=names[0], source="a test", metrics=tuple(Metric(name=name, unit="1", help="A number.") for name in names)
    )


def test_a_window_has_its_steps_phases_rates_and_values() -> None:
    training = Training()
    training.values = {"training.loss": torch.tensor(1.5)}
    windows, said = followed(training, 5)
    assert said == []
    assert [(window.from_step, window.to_step) for window in windows] == [(0, 2), (2, 4), (4, 5)]
    second = windows[1]
    assert second.number == 1
    assert second.phases == {"data": 0.5, "forward": 1.0}
    assert second.values["training.loss"] == 1.5
    assert second.values["training.step_time"] == pytest.approx(second.seconds / 2)
    assert second.values["training.samples"] == pytest.approx(2 / second.seconds)
    assert second.metrics()["phase.data"] == 0.25
    assert second.unit("phase.data") == "s"


def test_a_window_ends_by_seconds_if_steps_are_long_and_not_before_its_least_seconds() -> None:
    training, said = Training(), list[str]()
    empty = Samplers({}, Host(), said.append)
    with Monitor(Start(run="r"), training, empty, pace=Pace(steps=2, least_s=1e9, most_s=1e9)) as monitor:
        training.run(monitor, 50)
        sleep(0.05)
        assert monitor.windows == 0
    kept: list[Window] = []
    pace = Pace(steps=1000, least_s=0.0, most_s=0.0, cost_frac=1e9)
    with Monitor(Start(run="r"), training, empty, pace=pace, on_window=kept.append) as monitor:
        training.run(monitor, 1)
        _until(lambda: bool(kept) and kept[-1].to_step == 51)


def test_a_training_that_stands_still_gets_windows_without_steps() -> None:
    kept: list[Window] = []
    pace = Pace(steps=1, least_s=0.0, most_s=0.02)
    with Monitor(Start(run="r"), Training(), Samplers({}, Host(), print), pace=pace, on_window=kept.append):
        _until(lambda: len(kept) >= 2)
    assert all(window.steps == 0 and window.values["training.samples"] == 0 for window in kept)


def test_a_rollback_gives_a_window_without_steps() -> None:
    training, kept = Training(), list[Window]()
    with Monitor(Start(run="r"), training, Samplers({}, Host(), print), pace=QUICK, on_window=kept.append) as monitor:
        training.run(monitor, 2)
        _until(lambda: monitor.windows == 1)
        training.step = 0
        training.run(monitor, 1)
    assert [(window.from_step, window.to_step) for window in kept] == [(0, 2), (1, 1)]


def test_marks_belong_to_the_window_in_which_they_were_set() -> None:
    training, kept = Training(), list[Window]()
    with Monitor(Start(run="r"), training, Samplers({}, Host(), print), pace=QUICK, on_window=kept.append) as monitor:
        training.run(monitor, 1)
        monitor.mark("checkpoint", seconds=0.5, words="kept")
        training.run(monitor, 1)
        _until(lambda: monitor.windows == 1)
        monitor.mark("validation")
    assert [[(mark.name, mark.step, mark.words) for mark in window.marks] for window in kept] == [
        [("checkpoint", 1, "kept")],
        [("validation", 2, "")],
    ]


def test_an_error_of_the_progress_or_of_an_alert_never_reaches_the_training() -> None:
    training = Training()
    training.values = {"training.loss": "no number"}
    windows, said = followed(Training(), 4, on_window=lambda _: 1 / 0)
    assert len(windows) == 2
    assert [message for message in said if "ZeroDivisionError" in message] == said
    said.clear()

    def broken() -> Progress:
        raise KeyError("gone")

    with Monitor(Start(run="r"), broken, Samplers({}, Host(), print), pace=QUICK, say=said.append) as monitor:
        for _ in range(6):
            monitor.after_step()
    assert len(said) == 1
    assert "KeyError" in said[0]


class Fine:
    card: ClassVar[Card] = a_card("fine.value")

    def __init__(self, host: Host) -> None:
        self.reads = 0

    def sample(self) -> Mapping[str, float]:
        self.reads += 1
        return {"fine.value": self.reads}


class Failing:
    card: ClassVar[Card] = a_card("failing.value")

    def __init__(self, host: Host) -> None:
        self.reads = 0

    def sample(self) -> Mapping[str, float]:
        self.reads += 1
        raise OSError("no such device")


class Lacking:
    card: ClassVar[Card] = a_card("lacking.value")

    def __init__(self, host: Host) -> None:
        raise MachineError("There is no GPU.")

    def sample(self) -> Mapping[str, float]:
        return {"lacking.value": 1.0}


class Hanging:
    card: ClassVar[Card] = a_card("hanging.value")
    released = threading.Event()

    def __init__(self, host: Host) -> None:
        pass

    def sample(self) -> Mapping[str, float]:
        self.released.wait(60)
        return {"hanging.value": 1.0}


def test_a_sampler_that_fails_is_switched_off_with_one_warning_and_the_others_go_on() -> None:
    said: list[str] = []
    samplers = Samplers({"failing": Failing, "lacking": Lacking, "fine": Fine}, Host(), said.append)
    assert [samplers.read() for _ in range(6)] == [{"fine.value": number} for number in range(1, 7)]
    assert samplers.failures == sampler_module.TRIES
    assert len(said) == 1
    assert "`failing` is switched off" in said[0]
    assert "no such device" in said[0]
    assert samplers.missing["lacking"] == "There is no GPU."


def test_a_sampler_that_never_returns_is_switched_off_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "PATIENCE_S", 0.1)
    said: list[str] = []
    samplers = Samplers({"fine": Fine, "hanging": Hanging}, Host(), said.append)
    assert samplers.read() == {"fine.value": 1}
    assert samplers.read() == {"fine.value": 2}
    assert ["`hanging` is switched off" in message for message in said] == [True]
    Hanging.released.set()


class Raising(Kept):
    def write(self, window: Window) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class Blocking(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, window: Window) -> None:
        self.released.wait(60)


def test_a_sink_that_raises_loses_its_windows_with_one_warning_and_a_count() -> None:
    windows, said = followed(Training(), 6, Raising())
    assert len(windows) == 3
    assert len(said) == 1
    assert "the sink `tried` loses windows: OSError: [Errno 28] No space left on device" in said[0]
    assert windows[-1].values["monitor.dropped"] >= 1


def test_a_sink_that_blocks_for_ever_neither_slows_nor_keeps_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "MOST_WAITING", 3)
    monkeypatch.setattr(monitor_module, "CLOSE_S", 0.2)
    sink = Blocking()
    windows, said = followed(Training(), 20, sink)
    assert len(windows) == 10
    assert len(said) == 1
    assert "it is too slow" in said[0]
    assert windows[-1].values["monitor.dropped"] >= 5
    sink.released.set()


def test_a_sink_that_cannot_be_created_is_tried_again() -> None:
    said, kept, tries = list[str](), Kept(), list[int]()

    def make() -> Kept:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("refused")
        return kept

    queue = QueuedSink("late", make, said.append)
    for number in range(3):
        queue.put(Window(start=Start(run="r"), number=number, from_step=0, to_step=1, at=0.0, seconds=1.0))
    queue.end()
    queue.wait(monotonic() + 20)
    assert [window.number for window in kept.windows] == [1, 2]
    assert queue.dropped == 1
    assert kept.closed


def window(number: int, start: Start, to_step: int) -> Window:
    return Window(
        start=start, number=number, from_step=to_step - 2, to_step=to_step, at=1.0, seconds=0.5, phases={"data": 0.25},
        values={"training.loss": float("nan"), "system.load": 1.5}, marks=(Mark(name="epoch", step=1, at=1.0),),
    )  # fmt: skip


def test_the_file_gives_back_what_was_written_and_repeated_windows_are_left_out(tmp_path: Path) -> None:
    for step in (0, 4):  # the second part is resumed from step 4
        start = Start(run="r", host="h", at=1.0, step=step, units={"system.load": "1"})
        sink = WindowsFile(start, tmp_path)
        for number in range(3):
            sink.write(window(number, start, step + 2 * (number + 1)))
        sink.close()
    windows = read_windows(windows_path(tmp_path))
    assert [item.to_step for item in windows] == [2, 4, 6, 8, 10]
    first = windows[0]
    assert first.start == Start(run="r", host="h", at=1.0, units={"system.load": "1"})
    assert str(first.values.pop("training.loss")) == "nan"  # type: ignore[attr-defined]  # a dict
    assert (first.values, first.phases) == ({"system.load": 1.5}, {"data": 0.25})
    assert first.marks == (Mark(name="epoch", step=1, at=1.0),)


def test_a_reader_follows_a_growing_file_and_passes_over_torn_lines(tmp_path: Path) -> None:
    path = windows_path(tmp_path, 1)
    reader = WindowsReader(path)
    assert list(reader.new()) == []
    start = Start(run="r", rank=1)
    sink = WindowsFile(start, tmp_path)
    sink.write(window(0, start, 2))
    sink.close()
    assert [item.number for item in reader.new()] == [0]
    with path.open("a") as file:
        file.write('{"kind":"window","num')
    assert list(reader.new()) == []
    sink = WindowsFile(start, tmp_path)  # the run was killed within a line, and is resumed
    sink.write(window(7, start, 2))
    sink.close()
    assert [item.number for item in reader.new()] == [7]
    assert windows_files(tmp_path) == [path]


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = windows_path(tmp_path)
    path.write_text(json.dumps({**Start(run="r").to_dict(), "schema": 99}) + "\n")
    with pytest.raises(DataError, match="newer version"):
        read_windows(path)


def test_a_sink_is_chosen_by_its_name_and_options() -> None:
    class Chosen(Kept):
        card = SinkCard(name="chosen", summary="a test")

        def __init__(self, start: Start, folder: Path, url: str = "", project: str = "") -> None:
            super().__init__()

    class Absent(Chosen):
        card = SinkCard(name="absent", summary="a test", module="no_such_package", extra="tracking")

    known = {"chosen": Chosen, "absent": Absent}
    assert parse_sink("chosen", known).options == {}
    assert parse_sink("chosen:http://localhost:1", known).options == {"url": "http://localhost:1"}
    assert parse_sink("chosen:url=a=b,project=p", known).options == {"url": "a=b", "project": "p"}
    for text, words in (
        ("other", "There is no sink `other`. Choose from: absent, chosen"),
        ("chosen:colour=red", "no option `colour`. Its options: url, project"),
        ("absent", r"needs no_such_package: pip install 'hasten\[tracking\]'"),
    ):
        with pytest.raises(HastenError, match=words):
            parse_sink(text, known)


def test_a_run_of_a_job_has_windows_in_its_folder(tmp_path: Path) -> None:
    said: list[str] = []
    options = RunOptions(say=said.append, observe=follow_loop(tmp_path, say=said.append, pace=QUICK))
    result = train(Plain(), Plan(), tmp_path, options=options)
    windows = read_windows(windows_path(tmp_path))
    assert windows[0].from_step == 0
    assert windows[-1].to_step == result.updates
    assert all(before.to_step == after.from_step for before, after in pairwise(windows))
    phases = {name for item in windows for name in item.phases}
    assert {"data", "forward", "backward", "optimizer", "validation"} <= phases
    assert {mark.name for item in windows for mark in item.marks} >= {"validation"}
    assert all(item.values["training.loss"] > 0 for item in windows if item.steps)
    assert windows[0].start.units["training.samples"] == "{sample}/s"


def test_incidents_of_the_guards_are_marks_and_alerts_but_not_told_twice(tmp_path: Path) -> None:
    said: list[str] = []
    alerts = LiveAlerts(*read_options(None, []), say=said.append)
    options = RunOptions(
        say=said.append,
        observe=follow_loop(tmp_path, say=said.append, pace=QUICK, alerts=alerts),
        non_finite=NonFinitePolicy(policy="skip"),
    )
    train(Badly(), Plan(), tmp_path, options=options)
    (mark,) = [mark for item in read_windows(windows_path(tmp_path)) for mark in item.marks if mark.name == "not finite"]
    assert mark.words.startswith("the loss is nan (samples ")
    assert mark.words.endswith("; the update is skipped")
    (alert,) = [alert for alert in read_alerts(tmp_path) if alert.state == "firing"]
    assert (alert.rule, alert.words) == ("loss_not_finite", mark.words)
    assert sum("nan" in words for words in said) == 1


def test_operations_are_known_if_the_job_says_so(tmp_path: Path) -> None:
    class Counted(Plain):
        flops_per_sample = 1e6

    train(Counted(), Plan(), tmp_path, options=RunOptions(say=print, observe=follow_loop(tmp_path, pace=QUICK)))
    values = [item.values for item in read_windows(windows_path(tmp_path)) if item.steps]
    assert all(value["training.flops"] == pytest.approx(1e6 * value["training.samples"]) for value in values)
    assert not any("training.flop_utilization" in value for value in values)  # no peak of a CPU is known
    assert (peak_of("NVIDIA H100 PCIe"), peak_of("NVIDIA H100 80GB HBM3"), peak_of("GeForce")) == (756e12, 989e12, None)


def test_the_hits_of_a_cache_of_the_data_layer_are_counted(tmp_path: Path) -> None:
    class Cached(Plain):
        def train_data(self) -> Any:
            return CachedDataset(super().train_data(), MemoryCache(max_bytes=2**20), version="1")

    train(Cached(), Plan(), tmp_path, options=RunOptions(say=print, observe=follow_loop(tmp_path, pace=QUICK)))
    rates = [
        item.values["cache.hit_rate"] for item in read_windows(windows_path(tmp_path)) if "cache.hit_rate" in item.values
    ]
    assert rates[-1] == 1.0  # the second epoch


class Point(NamedTuple):
    """Stands for an entry point of another package."""

    name: str
    value: str
    kind: Any

    def load(self) -> Any:
        if self.kind is None:
            raise ImportError("no such module")
        return self.kind


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Any], None]]:
    """Register classes as other packages would."""

    def register(group: str, kind: Any) -> None:
        points = {group: [Point("theirs", "package:Kind", kind)]}
        monkeypatch.setattr(catalogue, "entry_points", lambda group: points.get(group, []))
        catalogue.samplers.cache_clear()
        catalogue.sinks.cache_clear()

    yield register
    monkeypatch.undo()
    catalogue.samplers.cache_clear()
    catalogue.sinks.cache_clear()


def test_samplers_and_sinks_of_other_packages_are_found(registered: Callable[[str, Any], None]) -> None:
    registered("hasten.samplers", Fine)
    assert catalogue.samplers()["fine.value"] is Fine
    registered("hasten.sinks", Kept)
    assert catalogue.sinks()["kept"] is Kept


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (None, "`theirs = package:Kind` of hasten.sinks cannot be loaded: ImportError: no such module"),
        (Training, "has no `card` of type SinkCard, or no method `write`"),
        (Parquet, "uses the name `parquet`, which already exists"),
    ],
)
def test_a_class_of_another_package_that_cannot_be_used_is_named(
    registered: Callable[[str, Any], None], kind: Any, words: str
) -> None:
    registered("hasten.sinks", kind)
    with pytest.raises(HastenError, match=re.escape(words)):
        catalogue.sinks()


def test_a_job_runs_on_without_samplers_if_one_of_another_package_is_broken(
    tmp_path: Path, registered: Callable[[str, Any], None]
) -> None:
    registered("hasten.samplers", None)
    said: list[str] = []
    train(
        Plain(), Plan(), tmp_path, options=RunOptions(say=print, observe=follow_loop(tmp_path, say=said.append, pace=QUICK))
    )
    assert [message for message in said if "no samplers are read" in message] == said[:1]
    assert read_windows(windows_path(tmp_path))[0].values["training.loss"] > 0


@pytest.mark.slow
def test_each_rank_of_a_job_has_its_windows_with_the_time_it_waits_for_the_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hasten", "run", "tests/train/jobs.py:Plain", "--ranks", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--log-to", "parquet"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = [read_windows(windows_path(tmp_path, rank)) for rank in (0, 1)]
    for rank, windows in enumerate(ranks):
        start = windows[0].start
        assert (start.rank, start.world, start.run) == (rank, 2, ranks[0][0].start.run)
        assert sum(item.phases.get("sync", 0.0) for item in windows) > 0
        assert windows[-1].to_step == ranks[0][-1].to_step
    assert {path.name for path in tmp_path.glob("*.parquet")} == {"windows.parquet", "windows-1.parquet"}
