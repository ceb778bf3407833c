"""`hasten.attach` and `hasten.step` watch a loop from inside, and leave nothing behind."""

from __future__ import annotations

import builtins
import gc
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, Dataset

import hasten
from hasten.core.errors import HastenError, PlanError, TrialError
from hasten.core.plan import Plan
from hasten.optimizations.allocator import Allocator
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone
from hasten.script import steps
from hasten.script.attach import Watched
from hasten.script.watch.seams import Seams

PLAN = Plan(optimizations=(FusedOptimizer(),))


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, wait_s: float = 0.0) -> None:
        self.x = torch.randn(48, 8, generator=torch.Generator().manual_seed(1))
        self.wait_s = wait_s

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.wait_s)
        return self.x[index], (self.x[index].sum() > 0).long()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(
    wait_s: float = 0.0, *, epochs: int = 2, each: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda *_: None
) -> str:
    """Train for a few steps and return the fingerprint of the weights."""
    model, optimizer = make()
    for _ in range(epochs):
        for x, y in DataLoader(Rows(wait_s), batch_size=8, shuffle=True):
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            each(model, optimizer)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()


def broken_on_purpose(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("broken on purpose")


def entries() -> list[Any]:
    """Return every attribute that a seam may replace."""
    hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return [
        nn.Module.__call__, torch.Tensor.item, torch.Tensor.to, torch.Tensor.backward, torch.autograd.backward, torch.save,
        torch.compile, torch.optim.Optimizer.zero_grad, torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        builtins.print, sys.excepthook, len(steps._LISTENERS), *(list(hook.values()) for hook in hooks),
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = entries()
    yield
    assert entries() == before


def test_a_loop_is_profiled_and_named(tmp_path: Path) -> None:
    hook = sys.excepthook
    with hasten.attach(json=tmp_path / "profile.json") as watched:
        assert sys.excepthook is hook
        assert watched.phases() == {}
        train(0.002)
        assert sum(watched.phases().values()) == pytest.approx(1.0)
    found = watched.profile()
    assert found["bottleneck"]["name"] == "input"
    assert found["steps"] == 9  # of 12: the first one has no beginning, and two are warm-up
    assert found["ceilings"] == {}
    assert sum(found["phases"].values()) == pytest.approx(1.0)
    assert (found["where"][0]["what"], Path(found["where"][0]["file"])) == ("dataset", Path(__file__))
    assert "plan" not in found
    assert json.loads((tmp_path / "profile.json").read_text()) == found
    words = watched.summary()
    assert found["bottleneck"]["words"] in words
    assert "measured over 9 steps" in words
    assert f"dataset  {__file__}" in words


def test_a_watched_loop_trains_as_without_us() -> None:
    alone = train()
    state = torch.random.get_rng_state()
    with hasten.attach():
        watched = train()
    assert watched == alone
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_error_passes_and_shows_no_frame_of_ours(tmp_path: Path) -> None:
    class Breaks(nn.Module):
        def forward(self, _x: torch.Tensor) -> torch.Tensor:
            raise ValueError("in the middle")

    steps: list[nn.Module] = []

    def breaks(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        steps.append(model)
        if len(steps) == 8:
            model.append(Breaks())  # type: ignore[operator]

    watched = hasten.attach(json=tmp_path / "p.json")
    with pytest.raises(ValueError, match="in the middle") as caught, watched:
        train(each=breaks)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not [file for file in files if f"{os.sep}hasten{os.sep}script" in file]
    assert watched.profile()["steps"] == json.loads((tmp_path / "p.json").read_text())["steps"] == 5


def test_one_block_at_a_time() -> None:
    with hasten.attach() as watched:
        with pytest.raises(HastenError, match="already open"), hasten.attach():
            pass
        with pytest.raises(HastenError, match="already open"), watched:
            pass
        train()
    assert watched.profile()["steps"] == 9
    with pytest.raises(HastenError, match="already used"), watched:
        pass
    with hasten.attach() as later:
        train()
    assert later.profile()["steps"] == 9


def test_a_profile_is_there_after_the_block_only() -> None:
    watched = hasten.attach()
    with pytest.raises(HastenError, match="only available after the block"):
        watched.profile()
    with watched, pytest.raises(HastenError, match="only available after the block"):
        watched.summary()
    with pytest.raises(TrialError, match=r"call hasten\.step\(\)"):
        watched.profile()


def by_hand(steps: int) -> None:
    model, _ = make()
    for at in range(steps):
        x, y = Rows()[at]
        nn.functional.cross_entropy(model(x)[None], y[None]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.01)  # type: ignore[arg-type]
                parameter.grad = None
        hasten.step()


def test_steps_without_an_optimizer_are_marked() -> None:
    hasten.step()  # no one is watching
    with hasten.attach() as watched:
        by_hand(4)
    found = watched.profile()
    assert found["steps"] == 3
    assert {name for name, share in found["phases"].items() if share} >= {"forward", "backward", "optimizer"}


@pytest.mark.long
def test_a_long_watch_rests_and_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> tuple[float, dict[str, float], dict[str, int], int]:
        steps, rested, ends = 0, 0, list[float]()

        def each(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
            nonlocal steps, rested
            steps += 1
            ends.append(time.perf_counter())
            rested += watched._recorder.light
            if steps % 20 == 0:
                with torch.no_grad():
                    model.eval()(torch.zeros(4096, 8))
                model.train()

        with hasten.attach() as watched:
            train(0.002, epochs=40, each=each)
        times = {place[0]: count for place, (count, _) in watched._recorder.places.items()}
        whole = sum(map(sum, watched._recorder.steps))
        assert whole == pytest.approx(ends[-1] - ends[0], rel=0.05)
        return whole, watched.phases(), times, rested

    _, rests, times, rested = seen()
    monkeypatch.setattr("hasten.script.watch.record.RESTS_FROM", 10**9)
    _, full, all_times, never = seen()
    assert never == 0
    assert rested > 100
    assert times["validation"] == all_times["validation"] == 12
    assert full["data"] > 0.7
    assert rests == pytest.approx(full, abs=0.1)
    assert times["dataset"] == pytest.approx(all_times["dataset"], rel=0.25)


def test_marks_stand_above_the_steps_of_optimizers() -> None:
    calls = iter(range(100))
    with hasten.attach() as watched:
        train(each=lambda *_: hasten.step() if next(calls) % 3 == 2 else None)
    assert watched.profile()["steps"] == 3  # 12 updates, but 4 marks


def test_importing_us_and_marking_steps_imports_no_torch() -> None:
    code = "import sys, hasten; hasten.step(); hasten.step(); print([n for n in ('torch', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_forked_process_is_not_watched(tmp_path: Path) -> None:
    target = tmp_path / "profile.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking in a multi-threaded process
        with hasten.attach(json=target) as watched:
            train()
            child = os.fork()
            if child == 0:  # the child leaves the block too; its exit code tells what it saw
                seen = nn.Module.__call__.__name__ == "_wrapped_call_impl" and not steps._LISTENERS
                watched.__exit__(None, None, None)
                os._exit(0 if seen and not target.exists() else 7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            train()
    assert (
        json.loads(target.read_text())["steps"] == 13
    )  # the second training counts from the point where its optimizer takes the lead


def test_what_of_ours_fails_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seams, "install", broken_on_purpose)
    alone = train()
    with pytest.warns(UserWarning, match="broken on purpose"), hasten.attach() as watched:
        assert train() == alone
    with pytest.raises(TrialError, match="broken on purpose"):
        watched.profile()


def test_what_cannot_be_kept_or_written_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("report", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(f"hasten.script.attach.{name}", broken_on_purpose)
            watched = hasten.attach(json=tmp_path / "profile.json")
            with pytest.warns(UserWarning, match="broken on purpose"), watched:
                train()
            with pytest.raises(KeyError, match="in the loop"), hasten.attach():
                raise KeyError("in the loop")
        assert "RuntimeError: broken on purpose" in watched.failures["watching"]
    assert watched.profile()["steps"] == 9


@pytest.mark.parametrize("plan", [None, PLAN])
def test_an_error_inside_a_seam_is_told_and_does_not_end_the_training(
    plan: Plan | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train()
    fault = "hasten.script.watch.trained.Trained.kind" if plan is None else "hasten.script.plan.host.Host._open"
    monkeypatch.setattr(fault, None)  # a function of this file would pass as the script's own
    with pytest.warns(UserWarning, match="failed in part: TypeError: 'NoneType' object"), hasten.attach(plan) as watched:
        assert train() == alone
    assert ("watching" if plan is None else "plan") in watched.failures
    assert watched.profile()["steps"] > 1


def test_where_warnings_are_errors_nothing_is_left_on() -> None:
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(UserWarning, match="microbatch"),
        hasten.attach(Plan(optimizations=(Microbatch(),))),
    ):
        train()
    with hasten.attach():
        pass


def test_a_graph_that_was_compiled_before_is_left_as_it_is() -> None:
    model, optimizer = make()
    model.eval()
    fast = torch.compile(model, backend="eager", fullgraph=True)
    x, y = Rows().x[:8], torch.zeros(8, dtype=torch.long)
    item = torch.Tensor.item

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(fast(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    try:
        step()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with hasten.attach() as watched:
            assert torch.Tensor.item is item
            for _ in range(4):
                step()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
        assert watched.profile()["steps"] == 3
    finally:
        torch._dynamo.reset()


def test_another_thread_may_not_open_a_second_one() -> None:
    met: list[BaseException] = []

    def second() -> None:
        try:
            hasten.attach().__enter__()
        except HastenError as error:
            met.append(error)

    with hasten.attach():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(met) == 1


def plan_of(tmp_path: Path, *items: Any) -> Path:
    path = tmp_path / "hasten.toml"
    Plan(optimizations=items).save(path)
    return path


def test_a_plan_is_in_force_inside_the_block_and_nowhere_else(tmp_path: Path) -> None:
    seen: list[tuple[bool | None, bool]] = []

    def look(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=False)
        seen.append((optimizer.param_groups[0]["fused"], next(model.parameters()).grad is None))

    with hasten.attach(plan_of(tmp_path, FusedOptimizer(), ZeroGradToNone())) as watched:
        train(each=look)
    assert seen == [(True, True)] * 12
    assert set(watched.applied) == {"fused_optimizer", "zero_grad_to_none"}
    assert watched.failures == {}
    assert watched.profile()["plan"] == {"applied": list(watched.applied), "failures": {}}
    assert "Applied: fused_optimizer, zero_grad_to_none." in watched.summary()
    seen.clear()
    train(each=look)
    assert seen == [(None, False)] * 12


def test_a_block_that_has_ended_keeps_no_model() -> None:
    kept: list[weakref.ref[nn.Module]] = []
    with hasten.attach(PLAN) as watched:
        train(each=lambda model, _: kept.append(weakref.ref(model)))
    gc.collect()
    assert watched.applied == ("fused_optimizer",)
    assert [ref() for ref in kept] == [None] * 12


def watch_under(plan: Plan) -> Watched:
    with hasten.attach(plan) as watched:
        train()
    return watched


def test_what_cannot_act_here_is_said_at_once(tmp_path: Path) -> None:
    plan = Plan(optimizations=(Microbatch(), Allocator(), ZeroGradToNone()))
    with pytest.warns(UserWarning, match="hasten continues without") as caught:
        watched = watch_under(plan)
    assert len(caught) == 1
    assert "GLIBC_TUNABLES=" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert watched.applied == ("zero_grad_to_none",)
    assert "accumulate the gradients" in watched.failures["microbatch"]
    assert "Not applied: `allocator`" in watched.summary()


def test_a_plan_that_never_took_hold_is_told_at_the_end(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="`fused_optimizer`: the block ended"), hasten.attach(PLAN):
        pass


def test_wrong_files_are_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="Cannot read the plan"):
        hasten.attach(tmp_path / "none.toml")
    with pytest.raises(HastenError, match="does not exist"):
        hasten.attach(json=tmp_path / "none" / "profile.json")


def test_only_the_first_rank_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with hasten.attach(json=tmp_path / "profile.json") as watched:
        train()
    assert watched.profile()["steps"] == 9
    assert list(tmp_path.iterdir()) == []
