"""Run a script with its training steps marked for TraceML, as its documentation asks users to do by hand.

`traceml run marked.py --args SCRIPT ARGS`. A step starts where the loop first works on it, with `zero_grad` or the model's
forward pass, and ends with the optimizer's step: "Wrap the work from `zero_grad(...)` through `optimizer.step()`".
"""

from __future__ import annotations

import functools
import importlib
import runpy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class Marks:
    """The open step of the first model that is called with gradients.

    Args:
        trace_step: TraceML's function.
    """

    def __init__(self, trace_step: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._trace_step = trace_step
        self._model: torch.nn.Module | None = None
        self._open: AbstractContextManager[None] | None = None

    def begin(self, model: torch.nn.Module | None = None) -> None:
        """Open a step, unless one is open or the model is not known yet."""
        if self._model is None:
            self._model = model
        if self._open is None and self._model is not None:
            self._open = self._trace_step(self._model)
            self._open.__enter__()

    def end(self, *_: Any) -> None:
        """Close the step after the optimizer's step."""
        if self._open is not None:
            step, self._open = self._open, None
            step.__exit__(None, None, None)


def mark(marks: Marks) -> None:
    """Install the marks."""
    forward, zero_grad = torch.nn.Module.__call__, Optimizer.zero_grad

    @functools.wraps(forward)
    def marked_forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and self.training:
            marks.begin(self)
        return forward(self, *args, **kwargs)

    @functools.wraps(zero_grad)
    def marked_zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        marks.begin()
        return zero_grad(self, *args, **kwargs)

    torch.nn.Module.__call__ = marked_forward  # type: ignore[method-assign]
    Optimizer.zero_grad = marked_zero_grad  # type: ignore[method-assign]
    register_optimizer_step_post_hook(marks.end)


def main() -> None:
    """Run the script named by the first argument, with the remaining arguments."""
    traceml: Any = importlib.import_module("traceml_ai")
    traceml.init(mode="auto")
    mark(Marks(traceml.trace_step))
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
