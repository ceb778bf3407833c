"""Real tunings for memory and for cost: real processes, real peaks, a real compiler. No test asserts a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report import schema
from hasten.report.evidence import Candidate, Evidence, load
from hasten.tune import budget
from hasten.tune import subject as module
from hasten.tune.objective import MEMORY_PROVED_FRAC, Goal, Objective, run_cost
from hasten.tune.request import TuneRequest
from hasten.tune.search.candidate import NOT_TRIED
from hasten.tune.session import Session
from tests.tune.jobs import children, write_job

pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(300)]

BUDGET_S = 200.0
"""Estimated time of the candidates and the proof, even on a busy machine; the sessions end far earlier."""
PROOF_UPDATES = 12
"""Updates of each process of the proof, which would fill the budget otherwise."""

HUNGRY = """
from time import sleep


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        x = self.inward(x)
        for _ in range(64):
            x = torch.relu(x)  # each result is kept for the backward pass: 4 MiB at 32 samples
        return self.outward(x.mean(dim=1))


class J(Good):
    batch_size = 32
    num_updates = 200
    quality = None
    wait_s = 0.0

    def model(self):
        return Deep()

    def train_data(self):
        x = torch.randn(64, 1024, 8, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.mean(dim=(1, 2))[:, None])

    def valid_data(self):
        return None

    def loss(self, model, batch):
        sleep(self.wait_s)
        return super().loss(model, batch)
"""

SLOW_IN_PARTS = HUNGRY.replace("wait_s = 0.0", "wait_s = 0.02")
"""A part costs as much time as a whole: computing a batch in parts takes far longer than allowed."""


def tuned(folder: Path, body: str, names: tuple[str, ...], wanted: Objective, patch: pytest.MonkeyPatch) -> Evidence:
    """Tune a real job with a few candidates. Returns the evidence as written to disk."""
    patch.setattr(module, "catalogue", lambda: {name: catalogue()[name] for name in names})
    patch.setattr(budget, "MAX_FINAL_UPDATES", PROOF_UPDATES)
    before, out = children(), folder / "out"
    request = TuneRequest(target=write_job(folder, body), out=out, budget_s=BUDGET_S, objective=wanted)
    Session(request).run()
    assert children() <= before
    evidence = load(out / "evidence.json")
    assert evidence.finished
    assert set(Plan.load(out / "hasten.toml", catalogue()).names) == applied(evidence)
    return evidence


def applied(evidence: Evidence) -> set[str]:
    """Return the names of the plan's techniques."""
    return {rung.name for rung in evidence.applied}


def rungs(evidence: Evidence, name: str) -> list[Candidate]:
    """Return every candidate of a technique."""
    found = [rung for rung in evidence.rungs if rung.name == name]
    assert found
    if all(rung.reason.startswith(NOT_TRIED) for rung in found):
        pytest.skip(f"this machine is too slow for this budget: {found[0].reason}")
    return found


def test_a_plan_for_memory_saves_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Objective(goal=Goal.MEMORY, max_slowdown=4.0)
    evidence = tuned(tmp_path, HUNGRY, ("microbatch", "cpu_threads"), wanted, monkeypatch)
    assert schema.write(evidence.objective) == wanted.to_dict()
    (threads,) = rungs(evidence, "cpu_threads")
    assert threads.outcome == "refused"
    assert "does not lower peak memory" in threads.reason
    parts = rungs(evidence, "microbatch")[0]
    assert (parts.memory_ratio or 1.0) < 1.0 - MEMORY_PROVED_FRAC
    assert parts.evidence
    assert parts.evidence[0].passed
    assert parts.numerics is not None
    assert parts.numerics.verdict == "passed"
    memory, final = evidence.memory, evidence.final
    if applied(evidence):
        assert applied(evidence) == {"microbatch"}
        assert memory is not None
        assert (memory.tuned_peak_bytes or 0) <= (1.0 - MEMORY_PROVED_FRAC) * (memory.baseline_peak_bytes or 0)
        assert final is not None
        assert wanted.allows(final.low or 0.0)
    else:  # only a machine that is too busy for an interval, or on which parts are four times slower, may reject it
        assert parts.outcome in ("undecided", "refused")
        assert final is None or final.low is None or not wanted.allows(final.low)


def test_a_too_slow_technique_is_refused_despite_its_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Objective(goal=Goal.MEMORY, max_slowdown=1.05)
    evidence = tuned(tmp_path, SLOW_IN_PARTS, ("microbatch",), wanted, monkeypatch)
    assert applied(evidence) == set()
    assert evidence.final is None
    for rung in rungs(evidence, "microbatch"):
        assert rung.outcome in ("refused", "undecided")
        if rung.comparison:
            assert (rung.memory_ratio or 1.0) < 1.0 - MEMORY_PROVED_FRAC
            assert "the limit is 1.05 times" in rung.reason


SLOW_TO_COMPILE = """
class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        x = self.inward(x)
        for _ in range(40):
            x = torch.sin(x) * 1.01 + 0.01
        return self.outward(x)


class J(Good):
    num_updates = 300
    quality = None

    def model(self):
        return Chain()

    def deterministic_transform(self, sample):
        time.sleep(0.001)
        return sample
"""


def test_a_short_run_does_not_pay_for_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if read_machine().cxx_compiler.value is None:
        pytest.skip("torch.compile needs a C++ compiler")
    wanted = Objective(goal=Goal.COST, price_per_hour=2.5)
    evidence = tuned(tmp_path, SLOW_TO_COMPILE, ("sample_cache", "compile"), wanted, monkeypatch)
    assert schema.write(evidence.objective).items() >= wanted.to_dict().items()
    (compiled,) = rungs(evidence, "compile")
    assert compiled.outcome != "applied"
    if compiled.comparison and compiled.comparison.verdict == "faster":
        assert compiled.outcome == "refused"
        assert f"its set-up of {compiled.setup_seconds:.0f} s pays off after" in compiled.reason
        assert "the run has 300" in compiled.reason
        assert (compiled.break_even_updates or 0) > 300
    if evidence.final is not None:
        step_ms, objective = schema.write(evidence.step_ms), schema.write(evidence.objective)
        setup_s = sum(rung.setup_seconds or 0.0 for rung in evidence.applied)
        for arm, setup in (("baseline", 0.0), ("tuned", setup_s)):
            assert objective[f"{arm}_cost"] == pytest.approx(run_cost(step_ms[arm], setup, 300, 2.5))
