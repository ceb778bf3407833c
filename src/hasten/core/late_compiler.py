"""Load torch's compiler when something is compiled, not when the first optimizer is made.

`torch.optim` imports `torch._dynamo` in every process that makes an optimizer, to tell the compiler which functions to leave
alone. A process that compiles nothing loads it without need, and frees it at its end; `python -m benchmarks run-start` shows
what that costs. `install` puts a module in its place that answers `torch.optim` alone, and that becomes the real one when
anything else is asked of it.

What `torch.optim` asks is in `torch/_compile.py` and `torch/optim/optimizer.py`. torchvision asks for one function of
`torch._dynamo.utils` when it is imported (`torchvision/ops/roi_align.py`), so that module waits in the same way.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
UTILITIES = f"{NAME}.utils"
_LOCK = threading.RLock()
_UNCHANGED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that torch calls as they are until the compiler is loaded."""


def install() -> None:
    """Load the compiler late from now on in this process, unless it is already loaded."""
    if NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def uncompiled() -> AbstractContextManager[None]:
    """Run compiled functions as they were written. Does not load the compiler, without which there are none."""
    if type(sys.modules.get(NAME)) is not ModuleType:
        return nullcontext()
    stance: AbstractContextManager[None] = sys.modules["torch"].compiler.set_stance("force_eager")
    return stance


class _Waiting(ModuleType):
    """`torch._dynamo` until it is loaded. The same object is an ordinary module afterwards."""

    def graph_break(self, msg: str = "") -> None:
        """Do nothing, like the real one where nothing is being compiled."""

    def disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        """Return torch's own functions as they are; torch stores the answer. Any other call loads the compiler."""
        if options != {"wrapping": False}:
            return self.__getattr__("disable")(fn, *args, **options)
        _UNCHANGED.add(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        _load(self)
        return getattr(self, name)


class _WaitingUtilities(ModuleType):
    """`torch._dynamo.utils` until it is loaded. The same object is an ordinary module afterwards."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # `from` asks each module whether it is a package
            raise AttributeError(name)
        if name == "is_compile_supported":
            return lambda device_type: _loaded_utilities(self).is_compile_supported(device_type)
        return getattr(_loaded_utilities(self), name)


def _loaded_utilities(module: Any) -> Any:
    """Load the compiler, which itself imports its utilities, and return them."""
    with _LOCK:
        _load(sys.modules[NAME])
        if type(module) is _WaitingUtilities:
            _execute(module, _WaitingUtilities, ModuleType)
    return module


def _wait_too(module: ModuleType) -> None:
    module.__class__ = _WaitingUtilities


def _wait(module: ModuleType) -> None:
    """Leave the module unloaded, but end the process with the status that its exit handler would have led to."""
    module.__class__ = _Waiting
    atexit.register(_forget_interrupt)


def _forget_interrupt() -> None:
    """Evaluate code if the compiler's exit handler would: Python then ends an interrupted script with 1, not by SIGINT."""
    if find_spec("tabulate") is not None:
        eval("None")  # noqa: S307


class _Loading(ModuleType):
    """`torch._dynamo` while its own code runs. Other threads wait."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            if type(self) is _Loading:
                raise AttributeError(f"module {NAME!r} has no attribute {name!r} yet", name=name, obj=self)
        return getattr(self, name)


def _load(module: ModuleType, *, wait: bool = True) -> None:
    """Load the compiler unless it is loaded, or another thread is loading it and this one need not `wait`."""
    if not _LOCK.acquire(blocking=wait):
        return
    try:
        kind: type[ModuleType] = type(module)
        if kind is _Waiting:
            while _UNCHANGED:
                vars(_UNCHANGED.pop()).pop("__dynamo_disable", None)  # torch asks again
            _execute(module, _Waiting, _Loading)
            module.__class__ = ModuleType
    finally:
        _LOCK.release()


def _execute(module: ModuleType, waiting: type[ModuleType], loading: type[ModuleType]) -> None:
    """Execute the code of a module that waits. If it fails, the module waits again."""
    loader: Any = module.__loader__
    vars(loader).pop("exec_module", None)
    module.__class__ = loading
    try:
        loader.exec_module(module)
    except BaseException:
        module.__class__ = waiting
        raise


class _Finder:
    """Leaves the compiler unloaded when it is imported, and loads it before one of its submodules."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the compiler or of its submodule; None for any other module."""
        if name == NAME:
            return _found(name, path, target, _wait)
        if not name.startswith(f"{NAME}.") or (package := sys.modules.get(NAME)) is None:
            return None
        if name == UTILITIES and type(package) is _Waiting:
            return _found(name, path, target, _wait_too)
        _load(package, wait=False)  # the thread that loads it may be waiting for this module
        return spec_from_loader(name, _Loaded(sys.modules[name])) if name in sys.modules else None


def _found(
    name: str, path: Sequence[str] | None, target: ModuleType | None, execute: Callable[[ModuleType], None]
) -> ModuleSpec | None:
    """Return the spec of a module that is executed in another way for now."""
    spec = PathFinder.find_spec(name, path, target)
    if spec is not None:
        loader: Any = spec.loader
        loader.exec_module = execute
    return spec


class _Loaded(Loader):
    """A loader for a submodule that the compiler itself has loaded in the meantime."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""
        module.__spec__ = self.spec
