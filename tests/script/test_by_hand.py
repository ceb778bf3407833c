"""Steps that no optimizer of torch.optim makes are seen by the change of the parameters."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention
from torch.utils.data import DataLoader, TensorDataset

from hasten.core.card import Trait
from hasten.core.facts import Facts, JobFacts
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.core.seams import Seam
from hasten.optimizations import catalogue
from hasten.script.plan.host import Host
from hasten.script.watch.by_hand import BY_HAND, NO_OPTIMIZER_WORDS
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.record import FORWARD, OPTIMIZER, VALIDATION, Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained
from hasten.tune.search.ranking import _fit

LR = 0.01


def net(outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs))


def grad(p: torch.Tensor) -> torch.Tensor:
    assert p.grad is not None
    return p.grad


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 8), torch.randint(0, 2, (16,))


def by_data(steps: int) -> None:
    model = net()
    for _ in range(steps):
        x, y = batch()
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data.add_(grad(p), alpha=-LR)


def in_place(steps: int) -> None:
    model = net()
    for x, y in DataLoader(TensorDataset(torch.randn(16 * steps, 8), torch.randint(0, 2, (16 * steps,))), batch_size=16):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        loss.item()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(LR * grad(p))
                p.grad = None


def all_at_once(steps: int) -> None:
    model = net()
    parameters: list[torch.Tensor] = list(model.parameters())
    for _ in range(steps):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            torch._foreach_add_(parameters, [grad(p) for p in parameters], alpha=-LR)
        model.zero_grad()


def new_data(steps: int) -> None:
    model = net()
    for _ in range(steps):
        x, y = batch()
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data = p.data - LR * grad(p)


def own_class(steps: int) -> None:
    class Momentum:
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            self.parameters, self.moments = parameters, [torch.zeros_like(p) for p in parameters]

        def step(self) -> None:
            for p, moment in zip(self.parameters, self.moments, strict=True):
                moment.mul_(0.9).add_(grad(p))
                p.data.sub_(moment, alpha=LR)
                p.grad = None

    model = net()
    optimizer = Momentum(list(model.parameters()))
    for _ in range(steps):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def accumulated(steps: int) -> None:
    """Three backward passes a step, and an average of the weights that changes after each pass."""
    model = net()
    average = copy.deepcopy(model)
    for number in range(3 * steps):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.9).add_(p, alpha=0.1)
            if number % 3 == 2:
                for p in model.parameters():
                    p.add_(grad(p), alpha=-LR)
                    p.grad = None


def no_module(steps: int) -> None:
    weight, bias = torch.zeros(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    for _ in range(steps):
        x, _ = batch()
        (x @ weight + bias - x.sum(1, keepdim=True)).pow(2).mean().backward()
        with torch.no_grad():
            weight -= LR * grad(weight)
            bias -= LR * grad(bias)
            weight.grad = bias.grad = None


def returned_gradients(steps: int) -> None:
    model = net()
    for _ in range(steps):
        x, y = batch()
        parameters = tuple(model.parameters())
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.data.add_(gradient, alpha=-LR)


def two_models(steps: int) -> None:
    """A judge and a maker; the gradient penalty is no pass of its own."""
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)

    def update(model: nn.Module) -> None:
        for p in model.parameters():
            p.data.add_(grad(p), alpha=-LR)
        maker.zero_grad()
        judge.zero_grad()

    for _ in range(steps):
        real, noise = torch.randn(16, 8).requires_grad_(), torch.randn(16, 4)
        score = judge(real)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        (judge(maker(noise).detach()).mean() - score.mean() + slope.pow(2).mean()).backward()
        update(judge)
        (-judge(maker(noise)).mean()).backward()
        update(maker)


def functional(steps: int) -> None:
    model = net()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(model.eval(), (parameters, buffers), (x,))
        return F.cross_entropy(output, y)

    for _ in range(steps):
        gradients = torch.func.grad(loss)(parameters, *batch())
        parameters = {name: p - LR * gradients[name] for name, p in parameters.items()}


def strategy(steps: int) -> None:
    """Evolution: no backward pass at all."""
    model = net().eval()
    center = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(steps):
        with torch.no_grad():
            nn.utils.vector_to_parameters(center + 0.1 * torch.randn_like(center), model.parameters())
            model(batch()[0])


def watched(loop: Callable[[int], None], steps: int = 100) -> Recorder:
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained()))
    errors: list[int] = []
    seams.on_failure = lambda: errors.append(1)
    seams.install(excepthook=False)
    try:
        loop(steps)
    finally:
        seams.remove()
    assert not errors
    return recorder


@pytest.mark.parametrize(
    "loop",
    [by_data, in_place, all_at_once, new_data, own_class, accumulated, no_module, returned_gradients, two_models],
    ids=lambda loop: loop.__name__,
)
def test_steps_are_counted_by_changes_of_the_parameters(loop: Callable[[int], None]) -> None:
    recorder = watched(loop)
    assert recorder.anchor == "parameters"
    assert 97 <= recorder.num_steps <= 100  # the change after the last pass is not seen


def test_steps_that_make_new_parameters_are_counted_by_gradients() -> None:
    recorder = watched(functional)
    assert recorder.anchor == "passes"
    assert 60 <= recorder.num_steps <= 68  # the first 32 show that nothing changes


def test_steps_without_gradients_are_counted_too() -> None:
    recorder = watched(strategy)
    assert recorder.anchor == "parameters"
    assert 60 <= recorder.num_steps <= 68
    assert sum(step[VALIDATION] for step in recorder.steps) == 0
    assert all(step[FORWARD] > 0 for step in recorder.steps)


def test_an_update_by_hand_is_the_optimizers_time() -> None:
    recorder = watched(by_data, 20)
    assert all(0 < step[OPTIMIZER] < sum(step) for step in recorder.steps)


def test_an_optimizer_ends_steps_from_its_first_step_on() -> None:
    def loop(steps: int) -> None:
        by_data(10)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), LR)
        for _ in range(steps):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-1, 1)

    recorder = watched(loop, 50)
    assert recorder.anchor == "optimizer"
    assert recorder.num_steps == 50


def test_a_script_that_only_evaluates_has_no_steps() -> None:
    def loop(steps: int) -> None:
        model = net()
        for _ in range(steps):
            with torch.no_grad():
                model(batch()[0])

    assert watched(loop).num_steps == 0


def hosted(loop: Callable[[int], None], plan: Plan, steps: int = 50) -> tuple[Host, list[float]]:
    host, losses = Host(plan), list[float]()
    errors: list[int] = []
    host.on_failure = lambda: errors.append(1)
    host.on_loss = lambda loss: losses.append(float(loss.detach()))
    host.begin()
    try:
        loop(steps)
    finally:
        host.end(undo=False)
    assert not errors
    return host, losses


@pytest.mark.parametrize("loop", [by_data, own_class, accumulated, two_models], ids=lambda loop: loop.__name__)
def test_a_plan_acts_on_such_a_script_except_on_its_optimizer(loop: Callable[[int], None]) -> None:
    kinds = [kind for kind in catalogue().values() if kind.card.in_scripts]
    precision = next(kind for kind in kinds if Trait.LOWER_PRECISION in kind.card.traits)
    on_optimizer = next(kind for kind in kinds if kind.card.seam is Seam.OPTIMIZER)
    host, losses = hosted(loop, Plan(optimizations=(precision(), on_optimizer())))
    assert host.opened
    assert 48 <= host.steps <= 50
    assert len(losses) >= 50
    assert host.applied == [precision.card.name]
    assert host.failures == {on_optimizer.card.name: NO_OPTIMIZER_WORDS}
    host.live.undo_all()


def test_a_plan_acts_on_a_script_with_new_parameters_in_each_step() -> None:
    host, losses = hosted(functional, Plan(), 60)
    assert 20 <= host.steps <= 28
    assert len(losses) == 60
    assert all(0 < loss < 10 for loss in losses)


def test_a_search_offers_nothing_that_acts_on_the_optimizer() -> None:
    facts = Facts(machine=read_machine(), job=JobFacts(device="cpu", optimizer_class=BY_HAND))
    kinds = [kind for kind in catalogue().values() if kind.card.seam is Seam.OPTIMIZER]
    assert {_fit(kind, facts).reason for kind in kinds} == {NO_OPTIMIZER_WORDS}


def with_optimizer(passes: int, *, clamps: bool) -> None:
    """Accumulate gradients over more passes than show that nothing changes, and clamp the weights before the first step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for number in range(passes):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        if clamps and number == 1:
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.01, 0.01)
        if number % 40 == 39:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("clamps", [False, True])
def test_an_optimizer_that_waits_for_its_gradients_makes_the_steps(clamps: bool) -> None:
    recorder = watched(functools.partial(with_optimizer, clamps=clamps), 160)
    assert (recorder.anchor, recorder.num_steps) == ("optimizer", 4)
    kind = next(kind for kind in catalogue().values() if kind.card.in_scripts and kind.card.seam is Seam.OPTIMIZER)
    host, _ = hosted(functools.partial(with_optimizer, clamps=clamps), Plan(optimizations=(kind(),)), 160)
    assert isinstance(host.live.optimizer, torch.optim.SGD)
    assert host.applied == [kind.card.name]
    assert host.failures == {}
