"""Time belongs to the one who spends it: measured shares against what a loop knows that it spent."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, _DatasetKind

from hasten.script.patches import Patches
from hasten.script.watch.elsewhere import _ready
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.operators import Trace, Tracer, analyze, moved
from hasten.script.watch.profile import make_profile
from hasten.script.watch.record import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    GAP,
    LOGGING,
    OPTIMIZER,
    OTHER,
    PHASES,
    Recorder,
    report,
)
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

MS = 1_000_000
"""Nanoseconds in a millisecond."""
SLEEP_S = 0.02


def watched(loop: Callable[[], None], folder: Path | None = None) -> tuple[Recorder, Tracer]:
    """Run a loop under the seams. With a tracer, the loop ends when it likes; the trace may end before."""
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained(), folder=folder))
    errors: list[int] = []
    seams.on_failure = lambda: errors.append(1)
    tracer = Tracer(recorder)
    if folder is not None:
        recorder.on_slot = None
    seams.install(excepthook=False)
    try:
        loop()
    finally:
        seams.remove()
        tracer.finish()
    assert not errors
    return recorder, tracer


def train(
    forward: Callable[[torch.Tensor], torch.Tensor], between: Callable[[], object] = lambda: None, size: int = 8
) -> None:
    """Train for two thirds of a second."""
    model = nn.Linear(size, size)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(size, size)
    end = time.perf_counter() + 0.7
    while time.perf_counter() < end:
        optimizer.zero_grad()
        loss = forward(model(x)).mean()
        between()
        loss.backward()
        optimizer.step()


def environment() -> float:
    """Compute in pure Python for a few milliseconds, like a simulated world."""
    total = 0.0
    for number in range(40_000):
        total += number * 0.5
    return total


def test_python_between_the_passes_is_no_arithmetic_and_has_its_line() -> None:
    _, tracer = watched(lambda: train(torch.tanh, environment))
    found = tracer.found
    assert found is not None
    assert found["python"]["forward"] > 0.5
    file, line, share = found["lines"][0]
    first = environment.__code__.co_firstlineno
    assert file == __file__
    assert first < line < first + 6
    assert share > 0.4
    phases = moved({"forward": 0.9, "backward": 0.05, "optimizer": 0.03, "other": 0.02}, found)
    assert phases["other"] > 0.4 > phases["backward"]
    assert sum(phases.values()) == pytest.approx(1.0)


def test_many_tiny_operators_are_call_overhead() -> None:
    def tiny(y: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            y = y * 1.01
        return y

    _, tracer = watched(lambda: train(tiny))
    found = tracer.found
    assert found is not None
    assert found["calls"] > 400
    assert found["overhead_frac"] > found["arithmetic_frac"]


def test_large_operators_are_arithmetic() -> None:
    def large(y: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            y = y @ y * 1e-3
        return y

    _, tracer = watched(lambda: train(large, size=512))
    found = tracer.found
    assert found is not None
    assert found["arithmetic_frac"] > 3 * found["overhead_frac"]


def trace_of(ops: list[tuple[int, int]], slots: list[tuple[int, int]], **more: Any) -> dict[str, Any]:
    found = analyze(Trace(slots=[(at * MS, slot) for at, slot in slots], ops=[(a * MS, b * MS) for a, b in ops], **more))
    assert found is not None
    return found


def test_each_stretch_without_operators_is_found() -> None:
    slots = [
        (0, FORWARD),
        (10, BACKWARD),
        (20, GAP),
        (24, OPTIMIZER),
        (30, OTHER),
        (40, DATA),
        (50, FORWARD),
        (60, OTHER),
        (61, OTHER),
    ]
    ops = [(0, 4), (1, 2), (8, 20), (24, 25), (50, 60)]
    found = trace_of(ops, slots, samples=[(5 * MS, ("a.py", 1)), (22 * MS, ("b.py", 2)), (45 * MS, ("c.py", 3))])
    assert found["python"] == {"forward": 4 / 20, "backward": 0, "optimizer": 4 / 10, "other": 1.0}
    assert {line[0] for line in found["lines"]} == {"a.py", "b.py"}  # what waits for data is the loader's


def test_an_operator_within_another_is_counted_once() -> None:
    found = trace_of([(0, 10), (2, 6)], [(0, FORWARD), (10, OTHER), (11, OTHER)], call_ns=0.1 * MS)
    assert found["calls"] == 2
    assert found["arithmetic_frac"] == pytest.approx((10 - 4 - 0.1 + 4 - 0.1) / 10)
    assert found["overhead_frac"] == pytest.approx(0.02)


def test_a_small_operator_is_overhead_as_a_whole() -> None:
    found = trace_of([(0, 4), (4, 10)], [(0, FORWARD), (10, OTHER), (11, OTHER)], call_ns=0.6 * MS)
    assert found["arithmetic_frac"] == pytest.approx((6 - 0.6) / 10)
    assert found["overhead_frac"] == pytest.approx(0.46)


def test_nothing_is_said_without_a_trace() -> None:
    assert analyze(Trace(slots=[], ops=[])) is None
    assert moved({"forward": 0.5}, None) == {"forward": 0.5}


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEEP_S / 8)
        return torch.randn(8)


def start_slowly(_worker: int) -> None:
    time.sleep(8 * SLEEP_S)


def by_phase(recorder: Recorder) -> dict[str, float]:
    return {name: sum(step[at] for step in recorder.steps) for at, name in enumerate(PHASES)}


@pytest.mark.slow
def test_waiting_for_workers_to_start_is_not_the_datasets(tmp_path: Path) -> None:
    epochs = 4

    def loop() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(epochs):
            for x in DataLoader(Rows(), batch_size=8, num_workers=1, worker_init_fn=start_slowly):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()

    patches = Patches()
    patches.put(_DatasetKind, "create_fetcher", functools.partial(_ready, tmp_path))
    try:
        recorder, _ = watched(loop, tmp_path)
    finally:
        patches.restore()
    seconds = {
        what: sum(s for (name, _, _), (_, s) in recorder.places.items() if name == what)
        for what in ("start of workers", "dataset")
    }
    spent = (epochs - 1) * 8 * SLEEP_S  # the first epoch is warm-up
    assert spent * 0.9 < seconds["start of workers"] < spent + 2.0
    assert seconds["dataset"] < spent / 2 + 2.0
    found = make_profile(report(recorder, ended=True, device="cpu", padding_frac=0.0, rank=0))
    assert found["bottleneck"]["name"] == "input"
    assert found["where"][0]["what"] == "start of workers"
    assert "Worker processes were started" in found["bottleneck"]["words"]


def test_what_is_done_with_a_saved_file_is_checkpointing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(original: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(SLEEP_S)
            return original(*args, **kwargs)

        return slow

    for owner, name in ((os, "replace"), (os, "fsync"), (shutil, "copyfile")):
        monkeypatch.setattr(owner, name, slowly(getattr(owner, name)))
    part, whole, best = tmp_path / "part.pt", tmp_path / "last.pt", tmp_path / "best.pt"
    for path in (tmp_path / "log.part", tmp_path / "log"):
        path.write_text("log")

    def loop() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.step()
        with part.open("wb") as file:
            torch.save(model.state_dict(), file)
            time.sleep(SLEEP_S)  # flushing, for example
            file.flush()
            os.fsync(file.fileno())
        logging.getLogger(__name__).warning("saved")
        os.replace(part, whole)  # noqa: PTH105 - as scripts do
        shutil.copyfile(whole, best)
        optimizer.step()
        os.replace(tmp_path / "log.part", tmp_path / "log")  # noqa: PTH105 - as above
        with (tmp_path / "log").open("a") as file_of_log:
            os.fsync(file_of_log.fileno())
        optimizer.step()

    recorder, _ = watched(loop)
    saving, other = list(recorder.steps)[-2:]
    assert 4 * SLEEP_S <= saving[CHECKPOINT] < sum(saving)
    assert saving[LOGGING] < SLEEP_S
    assert other[CHECKPOINT] == 0
    assert other[LOGGING] >= SLEEP_S
    assert other[OTHER] >= SLEEP_S
    assert best.exists()
    assert {"os.replace", "shutil.copyfile", "os.fsync after torch.save"} <= {what for what, _, _ in recorder.places}


def act_and_train(*, passes: int, reads: bool, updates: int = 6) -> None:
    """Call the model without gradients, as a rollout, a sampler or a metric does, before each update."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(updates):
        for _ in range(passes):
            with torch.no_grad():
                y = model(torch.ones(1, 8))
            if reads:
                y.item()
        time.sleep(SLEEP_S)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("passes", "reads", "phase"), [(4, False, "other"), (1, True, "other"), (1, False, "forward")], ids=str
)
def test_acting_between_updates_is_not_the_forward_pass(passes: int, reads: bool, phase: str) -> None:
    recorder, _ = watched(lambda: act_and_train(passes=passes, reads=reads))
    seconds = by_phase(recorder)
    assert seconds[phase] >= len(recorder.steps) * SLEEP_S
    assert max(seconds, key=lambda name: seconds[name]) == phase
    found = make_profile(report(recorder, ended=True, device="cpu", padding_frac=0.0, rank=0))
    acted = [line for line in found["where"] if line["what"] == "without gradients"]
    assert bool(acted) == (phase == "other")
    if acted:
        assert Path(acted[0]["file"]) == Path(__file__)
        assert "without gradients on" in found["bottleneck"]["words"]


def test_every_line_of_other_code_counts_also_inside_operators() -> None:
    slots = [(0, OTHER), (20, FORWARD), (40, OTHER), (41, OTHER)]
    samples = [(5 * MS, ("a.py", 1)), (6 * MS, None), (25 * MS, ("model.py", 1))]
    found = trace_of([(0, 20), (20, 40)], slots, samples=samples, within_torch=[(6 * MS, ("b.py", 2))])
    assert {line[0] for line in found["lines"]} == {"a.py", "b.py"}


def test_a_ceiling_needs_a_rest() -> None:
    recorder, _ = watched(lambda: train(lambda y: y, size=64))
    found = make_profile(report(recorder, ended=True, device="cpu", padding_frac=0.0, rank=0))
    assert "compute" not in found["ceilings"]
    assert max(found["ceilings"].values()) < 100
