"""Test one contract for all optimizations. A new one fails here until it has a case in `cases/`."""

from __future__ import annotations

import copy
import gc
import importlib
import re
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

from hasten.core.card import Numerics
from hasten.core.errors import PlanError
from hasten.core.live import LiveJob, LoaderSettings
from hasten.core.openmp import count_denormals_kept
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations import catalogue, load_entry_points
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from tests.optimizations.cases import CASES, GROUPED, STARTED
from tests.optimizations.contract import make_loop, run, undone

UPDATES = 9
"""Number of updates: more than two epochs of each job."""

NAMES = sorted(catalogue())
HEAVY = pytest.mark.slow
HEAVY_NAMES = ("compile", "eight_bit_states", "loader_workers", "validation_compile")
HERE = [name for name in NAMES if name not in (*STARTED, *GROUPED)]
MARKED = [pytest.param(name, marks=HEAVY if name in HEAVY_NAMES else ()) for name in HERE]
LONG_IF_COMPILED = [pytest.param(name, marks=pytest.mark.long if name == "compile" else ()) for name in HERE]


def failed(optimization: Optimization, loop: Loop) -> list[str]:
    """Return the names of the checks that fail on a new trace."""
    trace = trace_step(loop)
    checks = optimization.evidence(loop.live, trace)
    assert checks
    assert all(check.name and check.seen for check in checks)
    return [check.name for check in checks if not check.passed]


def test_every_optimization_has_a_case() -> None:
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_complete(name: str) -> None:
    kind = catalogue()[name]
    card = kind.card
    assert card.name == name == kind.__module__.rsplit(".", 1)[-1]
    assert len(card.summary) > 20
    assert not card.summary.endswith(".")
    assert ". " not in card.summary
    assert len(card.source) > 10
    assert 0.0 <= card.prior <= 1.0
    assert card.setup_s >= 0.0
    for other in (*card.after, *card.conflicts, *card.pays_with):
        assert other in NAMES
    for line in ("Relieves:", "Numerics:", "Limits:"):
        assert re.search(rf"^{line}", importlib.import_module(kind.__module__).__doc__ or "", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_settings_survive_a_plan_file(name: str) -> None:
    fit = CASES[name].facts
    for optimization in (catalogue()[name](), CASES[name].make(), *catalogue()[name].fit(fit).settings):
        plan = Plan(optimizations=(optimization,))
        assert Plan.from_toml(plan.to_toml(), catalogue()).optimizations == (optimization,)
        assert Plan.from_dict(plan.to_dict(), catalogue()).optimizations == (optimization,)


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_where_it_should(name: str) -> None:
    kind, given = catalogue()[name], CASES[name].facts
    before = copy.deepcopy(given)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    fit = kind.fit(given)
    assert fit.fits, fit.reason
    assert not fit.reason
    assert fit.settings
    assert len(set(fit.settings)) == len(fit.settings)
    assert all(type(setting) is kind for setting in fit.settings)
    assert fit.max_gain >= 1.0
    assert 0.0 <= fit.max_gain_frac < 1.0
    assert kind.fit(given) == fit
    assert given == before
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_without_measurements_there_is_no_gain_and_no_error(name: str) -> None:
    given = CASES[name].facts
    none: dict[str, Any] = {"phase_frac": {}, "ceilings": {}, "op_frac": {}, "form_gains": {}}
    bare = replace(given, **none, collecting_frac=0.0, load_frac=0.0, epoch_s=0.0)
    assert catalogue()[name].fit(bare).max_gain == 1.0


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name in NAMES for number in range(len(CASES[name].refused if name in CASES else ()))],
)
def test_it_refuses_with_a_reason(name: str, number: int) -> None:
    given, reason = CASES[name].refused[number]
    fit = catalogue()[name].fit(given)
    assert not fit.fits
    assert re.search(reason, fit.reason), fit.reason
    assert fit.settings == ()
    assert fit.max_gain == 1.0


@pytest.mark.parametrize("name", MARKED)
def test_evidence_is_absent_present_and_gone(name: str) -> None:
    case = CASES[name]
    optimization = case.make()
    plain = make_loop(case.job(), device=case.device)
    assert failed(optimization, plain), "the negative control detected the mechanism in a plain run"
    loop = make_loop(case.job(), optimization, device=case.device)
    assert failed(optimization, loop) == []
    assert failed(optimization, undone(loop)), "the mechanism is still active after the undo"


def visible(live: LiveJob) -> dict[str, Any]:
    """Return everything in a live job that an optimization may change."""
    return {
        "job": type(live.job),
        "threads": torch.get_num_threads(),
        "denormals": count_denormals_kept(1),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "switches": (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision),
        "load": type(live.pipeline.load),
        "load_many": live.pipeline.load_many,
        "collate": type(live.pipeline.collate),
        "adjust": list(live.pipeline.adjust),
        "order": None if live.order is None else live.order(1),
        "loader": live.loader,
        "batch_transforms": list(live.batch_transforms),
        "forward_contexts": list(live.forward_contexts),
        "batch_contexts": list(live.batch_contexts),
        "scaler": live.scaler,
        "sync": live.sync,
        "kinds": [type(module) for module in live.model.modules()],
        "micro_parts": live.micro_parts,
        "merge": live.merge,
        "zero_grad_to_none": live.zero_grad_to_none,
        "read_every": live.read_every,
        "around": {name: list(value) if isinstance(value, list) else value for name, value in vars(live.around).items()},
        "prime": list(live.prime),
        "applied": list(live.applied),
        "optimizer": [(group.get("fused"), group.get("foreach"), group["lr"]) for group in live.optimizer.param_groups],
        "scheduler": type(live.scheduler),
        "layout": [p.stride() for p in live.model.parameters()],
        "forwards": [name for name, module in live.model.named_modules() if "forward" in vars(module)],
        "compiled": live.model._compiled_call_impl,
        "keys": list(live.model.state_dict()),
    }


@pytest.mark.parametrize("name", MARKED)
def test_undo_restores(name: str) -> None:
    case = CASES[name]
    plain = visible(build(case.job(), device=case.device))
    assert plain["loader"] == LoaderSettings()
    loop = make_loop(case.job(), case.make(), device=case.device)
    assert visible(loop.live) != plain
    loop.run(3)
    again = undone(loop)
    assert visible(again.live) == plain
    again.run(UPDATES)
    assert again.losses == run(case.job(), UPDATES, device=case.device)


@pytest.mark.parametrize("name", MARKED)
def test_rewind_after_undo_is_the_plain_run_too(name: str) -> None:
    case = CASES[name]
    expected, plain = run(case.job(), UPDATES, device=case.device), visible(build(case.job(), device=case.device))
    loop = make_loop(case.job(), case.make(), device=case.device)
    loop.run(2)
    loop.live.undo_all()
    loop.rewind()
    assert visible(loop.live) == plain
    loop.run(UPDATES)
    assert loop.losses == expected or (case.other_weights and len(loop.losses) == UPDATES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "compile" else name for name in HERE]
)
def test_the_numerics_class_holds(name: str) -> None:
    case = CASES[name]
    optimization = case.make()
    plain = run(case.job(), UPDATES, device=case.device)
    changed = run(case.job(), UPDATES, optimization, device=case.device)
    assert len(changed) == UPDATES
    match optimization.card.numerics:
        case Numerics.EXACT:
            assert changed == plain
        case Numerics.ROUNDING:
            assert changed == pytest.approx(plain, rel=2e-2)
        case Numerics.TRAINING:
            assert changed != plain
            live = build(case.job(), Plan(optimizations=(optimization,)), device=case.device)
            assert live.order is not None
            assert live.num_samples is not None
            for epoch in range(3):
                visited = [index for batch in live.order(epoch) for index in batch]
                assert len(visited) == len(set(visited)) == live.num_samples - case.leaves_out
                assert set(visited) <= set(range(live.num_samples))


@pytest.mark.parametrize("name", LONG_IF_COMPILED)
def test_a_rewound_run_under_it_is_bit_equal(name: str) -> None:
    case = CASES[name]
    loop = make_loop(case.job(), case.make(), device=case.device)
    loop.run(5)
    first = list(loop.losses)
    loop.rewind()
    loop.run(5)
    loop.close()
    loop.live.undo_all()
    if name == "compile":  # a graph for any shape replaced the first one, and sums in another order
        assert loop.losses == pytest.approx(first, rel=1e-5)
    else:
        assert loop.losses == first


# Optimizations that packages register.


def _point(value: str, name: str = "mine") -> EntryPoint:
    return EntryPoint(name=name, value=value, group="hasten.optimizations")


def test_a_registered_optimization_is_loaded() -> None:
    point = _point("hasten.optimizations.precision:Precision")
    assert load_entry_points([point]) == [(point, catalogue()["precision"])]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere.at_all:Thing", "mine = nowhere.at_all:Thing` cannot be loaded: ModuleNotFoundError: No module named"),
        ("hasten.optimizations.precision:Missing", "cannot be loaded: AttributeError"),
        ("not a value", "cannot be loaded: AttributeError"),
        ("tests.optimizations.broken_module:Thing", "cannot be loaded: ZeroDivisionError"),
        ("hasten.core.plan:Plan", "mine = hasten.core.plan:Plan` is not an Optimization with a card"),
        ("hasten.core.optimization:Optimization", "is not an Optimization with a card"),
        ("hasten.optimizations.precision:MIN_MATMUL_GAIN", "is not an Optimization with a card"),
    ],
)
def test_an_entry_point_that_is_wrong_is_named(value: str, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        load_entry_points([_point(value)])


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = _point("hasten.optimizations.precision:Precision")
    monkeypatch.setattr("hasten.optimizations.entry_points", lambda **_: [point])
    with pytest.raises(PlanError, match="`mine` uses the name `precision`"):
        catalogue.__wrapped__()
