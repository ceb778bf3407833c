"""What a framework that runs the training itself has a setting for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hasten.core.optimization import Optimization
from hasten.script.patch.project import Project

Settings = Mapping[str, Callable[[Any], str]]

_SHORT: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16"}
_MIXED: Mapping[str, str] = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
_TRAINER: Settings = {
    "cudnn_benchmark": lambda _: "benchmark=True",
    "precision": lambda item: f'precision="{_MIXED[item.dtype]}"',
}
_ARGUMENTS: Settings = {
    "compile": lambda _: "torch_compile=True",
    "drop_last": lambda _: "dataloader_drop_last=True",
    "fused_optimizer": lambda _: 'optim="adamw_torch_fused"',
    "loader_workers": lambda item: (
        f"dataloader_num_workers={item.num_workers}, dataloader_prefetch_factor={item.prefetch_factor}, "
        f"dataloader_persistent_workers={item.persistent}"
    ),
    "pinned_memory": lambda _: "dataloader_pin_memory=True",
    "precision": lambda item: f"{_SHORT[item.dtype]}=True",
}
_SETTINGS: Mapping[str, Settings] = {
    "accelerate.Accelerator": {"precision": lambda item: f'mixed_precision="{_SHORT[item.dtype]}"'},
    "lightning.Fabric": {"precision": _TRAINER["precision"]},
    "lightning.fabric.Fabric": {"precision": _TRAINER["precision"]},
    "lightning.Trainer": _TRAINER,
    "lightning.pytorch.Trainer": _TRAINER,
    "pytorch_lightning.Trainer": _TRAINER,
    "transformers.TrainingArguments": _ARGUMENTS,
}


def framework_hints(project: Project) -> Callable[[Optimization], list[str]]:
    """A function that tells, for an optimization that was not written, what the project's framework has for it."""
    used = [name for name in _SETTINGS if project.calls_of(name)]

    def hints(item: Optimization) -> list[str]:
        name = item.card.name
        found = [(kind, _SETTINGS[kind][name]) for kind in used if name in _SETTINGS[kind]]
        return [f"{kind.rpartition('.')[2]}(..., {setting(item)})" for kind, setting in found]

    return hints
