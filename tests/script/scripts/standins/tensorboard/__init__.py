"""A stand-in for TensorBoard, sufficient for `torch.utils.tensorboard`. Its protocol buffers are loose objects."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "2.99"
REAL = {"tensorboard.summary", "tensorboard.summary.writer", "tensorboard.summary.writer.event_file_writer"}


class LooseKind(type):
    def __getattr__(cls, name: str) -> Any:
        return Loose


class Loose(metaclass=LooseKind):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vars(self).update(kwargs)


class LooseModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Loose


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in {"tensorboard", "google"} and name not in REAL:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LooseModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


sys.meta_path.insert(0, Finder())
