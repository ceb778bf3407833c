"""No technique ends a script: what fails under a plan is repeated without it, and the script trains on as it would alone."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import math
import os
import pkgutil
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import _tensor_str as texts
from torch import nn
from torch.optim import adam
from torch.utils.data import DataLoader, TensorDataset

import hasten.optimizations
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.core.seams import Seam
from hasten.optimizations import catalogue
from hasten.script.plan.host import Host

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
STEPS, LATER = 6, 3
IN_SCRIPTS = sorted(
    name for name, kind in catalogue().items() if kind.card.in_scripts and kind.card.seam is not Seam.ENVIRONMENT
)
SETTINGS: dict[str, dict[str, Any]] = {"allocator": {"kind": "glibc_tuned"}}
NOT_HERE = {"cuda_graphs", "cudnn_benchmark"}
"""Refuse to be applied without a GPU."""
OF_THE_PROCESS = {"flush_denormals"}
"""A fault while it is undone changes the process for good, so it is tested in a process of its own."""
OWN_PROCESS = "HASTEN_TEST_OWN_PROCESS"


class Net(nn.Module):
    """A model with everything that techniques act on, which may raise an error at a step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.convolve = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2)) for _ in range(3)])
        self.last = nn.Linear(8, 1)
        self.raises: Callable[[], None] = lambda: None

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        found = self.table(items).unsqueeze(1)
        found = self.convolve(found).mean(1)
        found = nn.functional.scaled_dot_product_attention(found, found, found)
        self.raises()
        noise = random.random() + float(np.random.rand())  # noqa: NPY002 - as user code does
        for block in self.blocks:
            found = block(found)
        result: torch.Tensor = self.last(found).mean(1) + 1e-3 * noise
        return result


@dataclass
class Run:
    """A training run, and what it was at the beginning of a step."""

    losses: list[float] = field(default_factory=list)
    saved: Any = None


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - as above


def train(at: int = -1, fault: Callable[[Any, Any], None] | None = None, start: Any = None, *, steps: int = STEPS) -> Run:
    """Train. `fault` is called with model and optimizer before step `at`; `start` continues a saved run."""
    run = Run()
    seed()
    made = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randint(16, (24, 8), generator=made), torch.rand(24, 1, generator=made))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    first = 0
    if start is not None:
        first, weights, state, generators = start
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    loader = DataLoader(data, batch_size=4)
    batches = [batch for _ in range(-(-steps // len(loader))) for batch in loader][:steps]
    if start is not None:
        put_generators(generators)
    for step, (items, targets) in enumerate(batches):
        if step < first:
            continue
        if step == at:
            run.saved = copy.deepcopy((step, model.state_dict(), optimizer.state_dict(), get_generators()))
            if fault is not None:
                fault(model, optimizer)
        loss = nn.functional.mse_loss(model(items), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        run.losses.append(float(model(batches[0][0]).sum()))
    return run


def get_generators() -> Any:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - as above


def put_generators(states: Any) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002 - as above


@contextmanager
def under(*names: str) -> Iterator[Host]:
    host = Host(Plan.from_dict({name: SETTINGS.get(name, {}) for name in names}, catalogue()))
    host.begin()
    try:
        yield host
    finally:
        host.end()


def raising_once(error: Exception | type[Exception], times: int = 1) -> Callable[[], None]:
    left = [error] * times

    def raises() -> None:
        if left:
            raise left.pop()

    disabled: Callable[[], None] = torch.compiler.disable(raises)
    return disabled


def plain_from(run: Run) -> list[float]:
    """Return the losses of a run without a plan that continues a saved one."""
    return train(start=run.saved).losses


CALLED = [name for name in IN_SCRIPTS if catalogue()[name].card.seam in (Seam.FORWARD, Seam.BATCH) and name not in NOT_HERE]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without a C++ compiler, which is faster."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_: compiled(call, backend="eager"))


@pytest.mark.parametrize("at", [0, LATER])
@pytest.mark.parametrize("name", CALLED)
def test_a_call_that_fails_under_a_technique_is_repeated_without_it(name: str, at: int) -> None:
    def fault(model: Net, _: Any) -> None:
        model.raises = raising_once(RuntimeError("caused by the plan"))

    with under(name) as host:
        run = train(at + 1, fault)  # the plan acts from the second step on
    assert host.stopped == [name]
    assert "caused by the plan" in host.failures[name]
    assert host.applied == []
    assert run.losses[at + 1 :] == plain_from(run)


@pytest.mark.parametrize("name", ["precision", "channels_last"])
def test_an_error_of_the_script_itself_reaches_it_and_the_plan_stays(name: str) -> None:
    caught = list[BaseException]()

    class Mine(Exception):  # noqa: N818 - of a script
        pass

    def fault(model: Net, _: Any) -> None:
        def raises() -> None:
            calls.append(1)
            raise Mine("of the script")

        calls = list[int]()
        for tries in (2, 3):
            model.raises = raises
            with pytest.raises(Mine, match="of the script") as raised:
                model(torch.zeros(2, 8, dtype=torch.long))
            caught.append(raised.value)
            assert len(calls) == tries  # repeated without the plan once, and never again for this line
        model.raises = lambda: None

    with under(name) as host:
        train(LATER, fault)
        assert host.applied == [name]
        assert host.stopped == []
    assert all(error.__context__ is None and error.__cause__ is None for error in caught)


@pytest.mark.parametrize("grads", [True, False])
def test_calls_in_evaluation_are_repeated_too(grads: bool) -> None:
    found = list[torch.Tensor]()

    def fault(model: Net, _: Any) -> None:
        items = torch.arange(16).reshape(2, 8)
        model.eval()
        with torch.set_grad_enabled(grads):
            model.raises = raising_once(RuntimeError("view size is not compatible"))
            for _ in range(2):
                random.seed(1)
                np.random.seed(1)  # noqa: NPY002 - as above
                found.append(model(items))
        model.train()

    with under("channels_last", "precision") as host:
        train(LATER, fault)
    assert torch.equal(*found)
    assert host.stopped == ["channels_last", "precision"]
    assert "one of channels_last, precision failed" in host.failures["precision"]


def faulty(module: str) -> Callable[..., None]:
    """Return a function that raises an error, with code that appears to belong to a module of Hasten."""
    space: dict[str, Any] = {"__name__": module}
    exec(compile("def fails(*_):\n    raise ArithmeticError('injected')", hasten.__file__, "exec"), space)  # noqa: S102 - as above
    fails: Callable[..., None] = space["fails"]
    return fails


@pytest.mark.parametrize("accumulated", [False, True])
def test_a_failed_backward_pass_of_a_technique_costs_its_gradients_alone(accumulated: bool) -> None:
    def fault(model: Net, _: Any) -> None:
        def once(_: Any, __: Any, output: torch.Tensor) -> None:
            handle.remove()
            output.register_hook(faulty("hasten.optimizations.precision"))

        handle = model.convolve.register_forward_hook(once)
        if accumulated:
            model(torch.zeros(4, 8, dtype=torch.long)).sum().backward()

    with under("precision") as host:
        run = train(LATER, fault)
    assert host.stopped == ["precision"]
    assert "gradients of this backward pass were dropped" in host.failures["precision"]
    assert len(run.losses) == STEPS + 1
    assert all(map(math.isfinite, run.losses))


def test_an_error_of_the_scripts_own_backward_pass_reaches_it() -> None:
    def fault(model: Net, _: Any) -> None:
        loss = model(torch.zeros(4, 8, dtype=torch.long)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    with under("precision") as host:
        train(LATER, fault)
        assert host.applied == ["precision"]


@pytest.mark.parametrize(("name", "flag"), [("fused_optimizer", "fused"), ("foreach_optimizer", "foreach")])
def test_a_step_that_fails_in_another_implementation_is_done_by_the_scripts_own(
    name: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each parameter is updated once: the first group succeeds before the second one fails."""

    def fault(_: Any, optimizer: torch.optim.Optimizer) -> None:
        assert optimizer.param_groups[0][flag]
        optimizer.param_groups[0]["params"], more = (
            optimizer.param_groups[0]["params"][:3],
            optimizer.param_groups[0]["params"][3:],
        )
        optimizer.add_param_group({"params": more})
        own, calls = adam.adam, list[int]()

        def fails_at_second(*args: Any, **kwargs: Any) -> None:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("not supported")
            own(*args, **kwargs)

        monkeypatch.setattr(adam, "adam", fails_at_second)

    with under(name) as host:
        run = train(LATER, fault)
    assert host.stopped == [name]
    assert "not supported" in host.failures[name]
    assert run.losses[LATER:] == pytest.approx(plain_from(run), rel=1e-4)


def test_sparse_gradients_under_a_fused_optimizer() -> None:
    """PyTorch's fused kernels refuse them at the first step."""
    losses = []
    for names in ((), ("fused_optimizer",)):
        torch.manual_seed(0)
        table = nn.EmbeddingBag(16, 4, sparse=True)
        with under(*names) as host:
            optimizer = torch.optim.SGD(table.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                loss = table(torch.tensor([[1, 2], [3, 4]])).pow(2).sum()
                loss.backward()
                optimizer.step()
            assert not optimizer.param_groups[0]["fused"]
            assert host.stopped == list(names)
        losses.append(loss.item())
    assert losses[0] == losses[1]


def called_functions() -> Iterator[tuple[Any, str]]:
    """Yield owner and name of every function of the techniques."""
    for found in pkgutil.walk_packages(hasten.optimizations.__path__, "hasten.optimizations."):
        module = importlib.import_module(found.name)
        for name, item in vars(module).items():
            if isinstance(item, FunctionType) and item.__module__.startswith("hasten."):
                yield module, name
            elif inspect.isclass(item) and item.__module__ == module.__name__:
                yield from ((item, method) for method, inner in vars(item).items() if isinstance(inner, FunctionType))
    yield from ((LiveJob, name) for name in ("apply", "count", "contexts", "compute_loss", "to_device", "rebuild_schedule"))


FAULTY = """
def faulty(*args, **kwargs):
    fault.called = True
    if fault.armed:
        fault.armed -= 1
        raise ArithmeticError("injected")
    return own(*args, **kwargs)
"""


class Fault:
    """Replaces a function by one that notes its calls, and raises an error at one of them if it is armed."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.own = owner, name, vars(owner)[name]
        self.called, self.armed = False, 0
        space: dict[str, Any] = {"fault": self, "own": self.own, "__name__": getattr(owner, "__module__", owner.__name__)}
        exec(compile(FAULTY, hasten.__file__, "exec"), space)  # noqa: S102 - as above
        self.replaced = torch.compiler.disable(functools.wraps(self.own)(space["faulty"]))

    def __enter__(self) -> Self:
        setattr(self.owner, self.name, self.replaced)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.own)


SLOWER = {"compile", "sample_store"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in SLOWER else name
        for name in IN_SCRIPTS
        if name not in NOT_HERE and (name in OF_THE_PROCESS) == (OWN_PROCESS in os.environ)
    ],
)
def test_a_fault_in_any_function_of_a_technique_does_not_reach_the_script(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_Formatter", texts._Formatter)  # a fault in the undo leaves it replaced
    expected = train().losses
    with ExitStack() as stack:
        faults = [stack.enter_context(Fault(*found)) for found in called_functions()]

        def forget() -> None:
            for fault in faults:
                fault.called = False

        with under(name):
            forget()
            train()
        early = [fault for fault in faults if fault.called]
        forget()
        with under(name):
            train(LATER, lambda *_: forget())
        later = [fault for fault in faults if fault.called]
    assert early
    for fault in early:
        with fault, under(name) as host:
            fault.armed = 1
            train()
        fault.armed = 0
        if name in host.failures and name not in host.stopped:  # it was not applied
            with fault, under(name):
                fault.armed = 1
                assert train().losses == expected, fault.name
            fault.armed = 0
    for fault in later:
        with fault, under(name) as host:
            run = train(LATER, lambda *_, fault=fault: setattr(fault, "armed", 1))
        fault.armed = 0
        if host.stopped and "were dropped" not in host.failures[name]:  # a backward pass cannot be repeated
            assert run.losses[LATER:] == plain_from(run), fault.name


@pytest.mark.slow
@pytest.mark.long
def test_a_fault_in_techniques_of_the_process_does_not_reach_the_script() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "fault_in_any_function"]
    done = subprocess.run(command, env={**os.environ, OWN_PROCESS: "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(OF_THE_PROCESS)} passed" in done.stdout
