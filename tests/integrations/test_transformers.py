"""Test the Transformers callback with real Trainers."""

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
from torch.utils.data import Dataset

import hasten
from hasten.core.errors import HastenError, PlanError
from hasten.core.plan import Plan
from hasten.monitor.windows_file import read_windows, windows_path
from hasten.optimizations import catalogue
from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.precision import Precision
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the framework itself emits warnings


@pytest.fixture(scope="module")
def hf() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("transformers")
        assert module.Trainer  # imported lazily
    return module


@pytest.fixture
def callback(hf: Any) -> Any:
    return importlib.import_module("hasten.integrations.transformers").HastenCallback


@pytest.fixture(autouse=True)
def _nothing_is_left(hf: Any) -> Iterator[None]:
    def entries() -> list[Any]:
        trainer = {name: value for name, value in vars(hf.Trainer).items() if callable(value)}
        return [nn.Module.__call__, torch.Tensor.item, torch.save, sys.excepthook, trainer]

    before = entries()
    yield
    assert entries() == before


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, breaks_at: int | None = None) -> None:
        self.x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        self.breaks_at, self.read = breaks_at, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.read += 1
        if self.read == self.breaks_at:
            raise ValueError("in the middle")
        return {"x": self.x[index], "labels": (self.x[index].sum() > 0).long()}


class Classifier(nn.Module):
    def __init__(self, *, slow: str = "", breaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(8, 2)
        self.slow, self.breaks, self.calls = slow, breaks, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.breaks and self.calls == 5:
            raise ValueError("in the middle")
        if self.slow == "valid" and not self.training:
            time.sleep(0.02)
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train(hf: Any, callbacks: list[Any], folder: Path, model: Any = None, rows: Any = None, **more: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(folder), "num_train_epochs": 2, "per_device_train_batch_size": 8, "report_to": "none",
        "use_cpu": True, "save_strategy": "no", "logging_steps": 4, "disable_tqdm": True, **more,
    }  # fmt: skip
    trainer = hf.Trainer(
        model=model or Classifier(), args=hf.TrainingArguments(**settings), train_dataset=rows or Rows(),
        eval_dataset=Rows(), callbacks=callbacks,
    )  # fmt: skip
    trainer.remove_callback(hf.PrinterCallback)
    trainer.train()
    return trainer


def test_a_training_is_profiled(hf: Any, callback: Any, tmp_path: Path) -> None:
    watch = callback(json=tmp_path / "profile.json")
    with pytest.raises(HastenError, match="There is no profile yet"):
        watch.summary()
    train(hf, [watch], tmp_path)
    found = watch.profile()
    assert found["steps"] == 13
    assert json.loads((tmp_path / "profile.json").read_text()) == found
    assert "A step takes" in watch.summary()
    train(hf, [watch], tmp_path, num_train_epochs=1)
    assert watch.profile()["steps"] == 5


def test_a_training_has_windows(hf: Any, callback: Any, tmp_path: Path) -> None:
    train(hf, [callback(out=tmp_path / "run")], tmp_path)
    windows = read_windows(windows_path(tmp_path / "run"))
    assert windows[-1].to_step == 16
    assert windows[-1].values["training.gradient_norm"] > 0


def test_validation_is_measured_separately(hf: Any, callback: Any, tmp_path: Path) -> None:
    watch = callback()
    train(hf, [watch], tmp_path, Classifier(slow="valid"), eval_strategy="epoch")
    assert watch.profile()["bottleneck"]["name"] == "validation"


def test_checkpoints_are_measured_separately(
    hf: Any, callback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = hf.Trainer._save

    def slowly(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.1)
        save(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(hf.Trainer, "_save", slowly)
        watch = callback()
        train(hf, [watch], tmp_path, save_strategy="steps", save_steps=2, save_total_limit=1)
    found = watch.profile()
    assert found["bottleneck"]["name"] == "checkpoint"
    assert Path(__file__).name in found["bottleneck"]["words"]


@pytest.mark.parametrize("where", ["model", "data", "callback"])
def test_a_training_that_fails_closes_the_watch(hf: Any, callback: Any, tmp_path: Path, where: str) -> None:
    class Stops(hf.TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_args: Any, **_kwargs: Any) -> None:
            raise ValueError("in the middle")

    watch = callback()
    parts = {"model": Classifier(breaks=where == "model"), "rows": Rows(40 if where == "data" else None)}
    with pytest.raises(ValueError, match="in the middle"):
        train(hf, [watch, Stops()] if where == "callback" else [watch], tmp_path, **parts)
    assert watch.profile()["steps"] >= 2
    with hasten.attach():
        pass


def test_a_missed_error_is_closed_by_hand_or_by_the_next_training(hf: Any, callback: Any, tmp_path: Path) -> None:
    class Stops(hf.TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            if state.global_step == 8:
                raise ValueError("in the middle")

    watch = callback()
    for _ in range(2):
        with pytest.raises(ValueError, match="in the middle"):
            train(hf, [watch, Stops()], tmp_path)
    watch.close()
    watch.close()
    assert watch.profile()["steps"] == 5


def test_the_phases_are_logged_if_asked(hf: Any, callback: Any, tmp_path: Path) -> None:
    for log in (True, False):
        trainer = train(hf, [callback(log=log)], tmp_path)
        logged = [entry for entry in trainer.state.log_history if "hasten/forward" in entry]
        assert len(logged) == (4 if log else 0)
        assert all("loss" in entry for entry in logged)


def test_what_the_trainer_owns_is_left_to_it(hf: Any, callback: Any, tmp_path: Path) -> None:
    plan = Plan(optimizations=(ZeroGradToNone(), Precision(), Microbatch(parts=4)))
    watch = callback(plan)
    with pytest.warns(UserWarning, match="hasten does not apply") as caught:
        train(hf, [watch], tmp_path, gradient_accumulation_steps=2)
    words = [str(item.message) for item in caught if "hasten" in str(item.message)]
    assert len(words) == 2
    assert any("set TrainingArguments(bf16=True)." in line for line in words)
    assert any("per_device_train_batch_size=2, gradient_accumulation_steps=8" in line for line in words)
    assert watch.profile()["plan"] == {"applied": ["zero_grad_to_none"], "failures": {}}


def test_settings_that_the_trainer_has_cause_no_warning(hf: Any, callback: Any) -> None:
    items = (FusedOptimizer(), Precision(), ActivationCheckpointing())
    told = SimpleNamespace(bf16=True, gradient_checkpointing=True)
    assert [item.framework_setting("transformers", told) for item in items] == [None, "", ""]
    untold = SimpleNamespace(bf16=False, gradient_checkpointing=False)
    assert [item.framework_setting("transformers", untold) for item in items] == [
        None,
        "set TrainingArguments(bf16=True).",
        "set TrainingArguments(gradient_checkpointing=True).",
    ]


def test_the_arguments_that_are_named_exist(hf: Any, callback: Any) -> None:
    module: Any = sys.modules["hasten.integrations.transformers"]
    told = [kind.card.left_to["transformers"] for kind in catalogue().values() if "transformers" in kind.card.left_to]
    assert len(told) > 10
    named = {words.partition("(")[2].partition("=")[0] for words in told}
    assert named <= set(hf.TrainingArguments.__dataclass_fields__)
    assert all(hasattr(hf.Trainer, name) for name in (*module.PASSED, *module.PASSED_IN_PARTS))


def test_a_wrong_plan_is_refused_when_the_callback_is_made(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="Cannot read the plan"):
        callback(tmp_path / "none.toml")


def test_without_transformers_it_says_what_to_install() -> None:
    code = "import sys\nsys.modules['transformers'] = None\nimport hasten.integrations.transformers\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: Transformers is not installed. Install it with: pip install 'hasten[frameworks]'" in done.stderr
