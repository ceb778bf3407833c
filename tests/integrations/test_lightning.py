"""Test the Lightning callback with real Trainers of both packages."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hasten
from hasten.core.errors import HastenError, PlanError
from hasten.core.plan import Plan
from hasten.monitor.windows_file import read_windows, windows_path
from hasten.optimizations.cudnn_benchmark import CudnnBenchmark
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.precision import Precision

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the frameworks themselves emit warnings
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(request.param)


@pytest.fixture
def callback(pl: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class, created again for the package that is loaded."""
    monkeypatch.delitem(sys.modules, "hasten.integrations.lightning", raising=False)
    made = importlib.import_module("hasten.integrations.lightning").HastenCallback
    assert issubclass(made, pl.Callback)
    return made


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = (nn.Module.__call__, torch.Tensor.item, torch.save, sys.excepthook)
    yield
    assert (nn.Module.__call__, torch.Tensor.item, torch.save, sys.excepthook) == before


def model_of(pl: Any, *, breaks: bool = False, slow: str = "") -> Any:
    class Classifier(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(8, 2)
            self.seen: list[Any] = []

        def training_step(self, batch: Any, at: int) -> torch.Tensor:
            if breaks and at == 4:
                raise ValueError("in the middle")
            if slow == "step":
                time.sleep(0.005)
            self.seen.append(self.optimizers().param_groups[0]["fused"])
            loss: torch.Tensor = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, _at: int) -> None:
            if slow == "valid":
                time.sleep(0.1)  # long compared to the framework's own work around steps
            self.net(batch[0])

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if slow == "saves":
                time.sleep(0.05)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Classifier()


def fit(pl: Any, callbacks: list[Any], folder: Path, model: Any = None, **more: Any) -> Any:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x.sum(1) > 0).long())
    settings: dict[str, Any] = {
        "accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "default_root_dir": folder, **more,
    }  # fmt: skip
    trainer = pl.Trainer(callbacks=callbacks, **settings)
    trainer.fit(model or model_of(pl), DataLoader(data, batch_size=8), DataLoader(data, batch_size=32))
    return trainer


def test_a_fit_is_profiled(pl: Any, callback: Any, tmp_path: Path) -> None:
    watch = callback(json=tmp_path / "profile.json")
    with pytest.raises(HastenError, match="There is no profile yet"):
        watch.profile()
    fit(pl, [watch], tmp_path)
    found = watch.profile()
    assert found["steps"] == 13  # of 16: the first has no start time, and two are warm-up
    assert json.loads((tmp_path / "profile.json").read_text()) == found
    assert "A step takes" in watch.summary()
    fit(pl, [watch], tmp_path, max_epochs=1)  # once more, with the same callback
    assert watch.profile()["steps"] == 5


@pytest.mark.parametrize(("slow", "name"), [("valid", "validation"), ("saves", "checkpoint")])
def test_work_around_the_steps_is_measured_separately(pl: Any, callback: Any, tmp_path: Path, slow: str, name: str) -> None:
    watch = callback()
    saves = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=2)
    fit(pl, [watch, saves], tmp_path, model_of(pl, slow=slow), enable_checkpointing=True)
    assert watch.profile()["bottleneck"]["name"] == name


def test_a_fit_has_windows(pl: Any, callback: Any, tmp_path: Path) -> None:
    fit(pl, [callback(out=tmp_path / "run")], tmp_path)
    windows = read_windows(windows_path(tmp_path / "run"))
    assert windows[-1].to_step == 16
    assert windows[-1].values["training.loss"] > 0


def test_the_closure_of_lightning_is_not_the_optimizers_time(pl: Any, callback: Any, tmp_path: Path) -> None:
    watch = callback()
    fit(pl, [watch], tmp_path, model_of(pl, slow="step"))
    phases = watch.profile()["phases"]
    assert phases["optimizer"] < 0.5 < phases["forward"] + phases["other"]


def test_a_fit_that_fails_closes_the_watch(pl: Any, callback: Any, tmp_path: Path) -> None:
    watch = callback()
    with pytest.raises(ValueError, match="in the middle"):
        fit(pl, [watch], tmp_path, model_of(pl, breaks=True))
    assert watch.profile()["steps"] == 3
    with hasten.attach():
        pass


def test_the_phases_are_logged_if_asked(pl: Any, callback: Any, tmp_path: Path) -> None:
    for log in (True, False):
        logger = pl.loggers.CSVLogger(tmp_path, name=str(log))
        fit(pl, [callback(log=log)], tmp_path, logger=logger, log_every_n_steps=4)
        text = (Path(logger.log_dir) / "metrics.csv").read_text()
        assert ("hasten/forward" in text) == log


def test_what_lightning_owns_is_left_to_it(pl: Any, callback: Any, tmp_path: Path) -> None:
    plan = Plan(optimizations=(FusedOptimizer(), Precision(), Microbatch(parts=4)))
    watch, model = callback(plan), model_of(pl)
    with pytest.warns(UserWarning, match="hasten does not apply") as caught:
        fit(pl, [watch], tmp_path, model, accumulate_grad_batches=2)
    words = [str(item.message) for item in caught if "hasten" in str(item.message)]
    assert len(words) == 2
    assert any('set Trainer(precision="bf16-mixed")' in line for line in words)
    assert any(
        "divide the batch_size of the loader by 4, and set Trainer(accumulate_grad_batches=8)" in line for line in words
    )
    assert watch.profile()["plan"] == {"applied": ["fused_optimizer"], "failures": {}}
    assert model.seen[-1] is True
    assert model.optimizers() is not None


def test_settings_that_lightning_has_cause_no_warning(pl: Any, callback: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(pl, [callback(Plan(optimizations=(Precision(),)))], tmp_path, precision="bf16-mixed")
    assert not [item for item in caught if "hasten" in str(item.message)]


def test_only_these_optimizations_are_left_to_the_trainer() -> None:
    trainer = SimpleNamespace(precision="32-true", accumulate_grad_batches=1)
    settings = [item.framework_setting("lightning", trainer) for item in (FusedOptimizer(), CudnnBenchmark(), Precision())]
    assert settings == [None, None, 'set Trainer(precision="bf16-mixed").']


def test_a_wrong_plan_is_refused_when_the_callback_is_made(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="Cannot read the plan"):
        callback(tmp_path / "none.toml")


def test_without_lightning_it_says_what_to_install() -> None:
    code = (
        "import sys, importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if 'lightning' in name and 'hasten' not in name else real(name, *rest)\n"
        "import hasten.integrations.lightning\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: Lightning is not installed. Install it with: pip install 'hasten[frameworks]'" in done.stderr
