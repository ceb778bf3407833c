"""An error in any of Hasten's functions that a seam calls does not change the loop's results, and is reported."""

from __future__ import annotations

import gc
import importlib
import inspect
import pkgutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Self

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hasten.script
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.patches import guarded, harmless, let_pass
from hasten.script.plan.host import Host
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.padding import Padding
from hasten.script.watch.record import Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

ACTING = ("hasten.script.watch", "hasten.script.plan", "hasten.script.data", "hasten.script.output",
          "hasten.script.entry.overlay", "hasten.script.source_lines")  # fmt: skip
"""Modules whose functions are called by seams."""

IN_THE_BACKGROUND = {
    *(f"FileWriter.{name}" for name in ("_serve", "_due", "_pause_s", "_finish")),
    *("hasten.script.output.file_writer._flush", "hasten.script.output.zip_snapshot._write"),
    *("ZipSnapshot.write", "ZipSnapshot.release"),
}
"""These run in the writer thread, which reports all its errors, including full disks (`test_background_save.py`)."""

STAND_INS = {
    *(f"ScriptIterator.{name}" for name in ("_next_index", "_next_data", "_begin", "_from_workers", "stop")),
    *("PureLoad._get", "PureLoad._from_cache", "PureLoad.batch", "Reads.unnoted", "_Fetcher.__init__", "_Fetcher.fetch"),
}
"""The functions that replace the script's iterator and dataset themselves. Everything that they call is guarded."""


class Fault:
    """Replaces a function of Hasten by one that records its call or raises an error. Its code counts as Hasten's."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.where = owner, name, f"{owner.__name__}.{name}"
        self.own = vars(owner)[name]
        self.called = self.armed = False
        space: dict[str, Any] = {"fault": self, "own": self.own}
        exec(compile(FAULTY, hasten.script.__file__, "exec"), space)  # noqa: S102 - code that appears to be Hasten's
        self.faulty = space["faulty"]

    def __enter__(self) -> Self:
        setattr(self.owner, self.name, self.faulty)
        return self

    def __exit__(self, *_: object) -> None:
        self.armed = False
        setattr(self.owner, self.name, self.own)


FAULTY = """
def faulty(*args, **kwargs):
    fault.called = True
    if fault.armed:
        raise ArithmeticError(fault.where)
    return own(*args, **kwargs)
"""


def functions() -> Iterator[tuple[Any, str]]:
    """Yield owner and name of every function of Hasten that a seam may call."""
    for found in pkgutil.walk_packages(hasten.script.__path__, "hasten.script."):
        if not found.name.startswith(ACTING) or found.ispkg:
            continue
        module = importlib.import_module(found.name)
        for name, item in vars(module).items():
            if isinstance(item, FunctionType):
                yield module, name  # includes imported functions, because each is looked up where it is used
            elif inspect.isclass(item) and item.__module__ == module.__name__:
                for method, inner in vars(item).items():
                    if isinstance(inner, FunctionType) and (not method.startswith("__") or method == "__init__"):
                        yield item, method


def train(folder: Path) -> tuple[list[float], torch.Tensor]:
    """Run a loop that passes all seams. Return losses and final weights."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randn(12, 1)), batch_size=4, shuffle=True)
    losses = []
    for _ in range(2):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(net(inputs.to(torch.float32)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            net.eval()
            losses.append(sum(float(net(inputs).sum()) for inputs, _ in loader))
            net.train()
        torch.save(net.state_dict(), folder / "model.pt")
        losses.append(sum(float(value.sum()) for value in torch.load(folder / "model.pt").values()))
        print(f"{losses[-1]:.6f}")  # noqa: T201 - passes a seam too
    return losses, torch.cat([value.flatten() for value in net.state_dict().values()])


def watching(failed: Callable[[], None]) -> Callable[[], None]:
    """Install all observing seams. Return a function that removes them."""
    recorder = Recorder(updates=0, seconds=0.0, rests=False)
    seams = Seams(recorder, Fetch(recorder, Trained(), None, Padding()))
    seams.on_failure = failed
    seams.install()
    return seams.remove


def acting(failed: Callable[[], None]) -> Callable[[], None]:
    """Install all acting seams. Return a function that removes them."""
    host = Host(Plan.from_dict({"background_checkpoint": {}, "sample_cache": {}}, catalogue()))
    host.on_failure = failed
    host.begin()
    return host.end


@pytest.mark.parametrize("put_on", [watching, acting])
def test_a_fault_in_whatever_a_seam_calls_changes_nothing(
    put_on: Callable[[Callable[[], None]], Callable[[], None]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hasten.script.watch.record.LOOK_S", 0.0)  # otherwise lines are only searched now and then
    expected, weights = train(tmp_path)
    printed, told = capsys.readouterr().out, list[str]()

    def trained_with(*faults: Fault) -> None:
        take_off = put_on(lambda: told.append("a fault"))
        for fault in faults:
            fault.called, fault.armed = False, len(faults) == 1
        losses, found = train(tmp_path)
        for fault in faults:
            fault.armed = False
        take_off()
        assert losses == expected, faults[0].where
        assert torch.equal(found, weights), faults[0].where
        assert capsys.readouterr().out == printed, faults[0].where

    with ExitStack() as stack:
        faults = [stack.enter_context(Fault(*found)) for found in functions()]
        trained_with(*faults)
    called = [fault for fault in faults if fault.called and fault.where not in IN_THE_BACKGROUND | STAND_INS]
    assert len(called) > 15
    assert not told
    for fault in called:
        with fault:
            trained_with(fault)
    assert len(told) > 8


def ours(body: str) -> Callable[[Any], Any]:
    """Return a builder for a seam of Hasten with this body."""
    space: dict[str, Any] = {"let_pass": let_pass}
    text = f"def make(original):\n  def seam(value):\n    {body}\n  return seam"
    exec(compile(text, hasten.script.__file__, "exec"), space)  # noqa: S102 - as above
    made: Callable[[Any], Any] = space["make"]
    return made


@pytest.mark.parametrize(
    "body",
    ["1 / 0", "found = original(value); 1 / 0", "raise KeyError from None", "original(value); raise OSError"],
)  # fmt: skip
def test_the_script_gets_what_the_function_gives_once(body: str) -> None:
    given, told = list[int](), list[Exception]()

    def theirs(value: int) -> str:
        given.append(value)
        return f"got {value}"

    guard = guarded(ours(body), theirs, told.append)
    assert (guard(1), guard(2)) == ("got 1", "got 2")
    assert given == [1, 2]
    assert len(told) == 2
    assert guard.__name__ == "theirs"


@pytest.mark.parametrize(
    "body",
    ["return original(value)", "try:\n      original(value)\n    finally:\n      1 / 0", "[original(value)]"],
)  # fmt: skip
def test_what_the_function_raises_is_what_the_script_gets(body: str) -> None:
    def theirs(value: str) -> None:
        raise LookupError(value)

    with pytest.raises(LookupError, match="mine"):
        guarded(ours(body), theirs, lambda _: None)("mine")


@pytest.mark.parametrize("body", ["return original(value)", "try:\n      original(value)\n    finally:\n      1 / 0"])
def test_an_error_that_passes_keeps_nothing_alive(body: str) -> None:
    """Otherwise an iterator would stay alive after its end, and forked workers would complain about its own workers."""

    def theirs(value: object) -> None:
        raise StopIteration

    def call() -> weakref.ref[set[int]]:
        held = set[int]()
        with suppress(StopIteration):
            guarded(ours(body), theirs, lambda _: None)(held)
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()


def test_errors_of_the_users_code_and_ends_of_loaders_pass() -> None:
    def users() -> None:
        raise ZeroDivisionError  # a signal handler may raise an error anywhere

    for body, kind in (
        ("original(value); value()", ZeroDivisionError),
        ("raise StopIteration", StopIteration),
        ("raise let_pass(OSError())", OSError),
    ):
        with pytest.raises(kind):
            guarded(ours(body), lambda _: None, lambda error: pytest.fail(str(error)))(users)


def test_a_hook_gives_nothing_where_it_fails_and_so_may_whoever_is_told() -> None:
    def failed(_: Exception) -> None:
        raise OSError

    assert harmless(ours("1 / 0")(None), failed)(1) is None
    assert harmless(ours("return value")(None), failed)(1) == 1
