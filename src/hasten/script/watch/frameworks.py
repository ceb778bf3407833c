"""Time the evaluations, checkpoints and logging of training frameworks by wrapping their methods once they are loaded.

A framework's evaluation need not look like one from outside (gradients may be enabled while it fetches), and its
checkpoints need not pass through `torch.save`. Nothing is imported here: only frameworks that the script loads are wrapped.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from hasten.script.patches import Patches
from hasten.script.source_lines import users_line
from hasten.script.watch.record import CHECKPOINT, LOGGING, VALIDATION, Recorder

_LIGHTNING = (
    ("trainer.trainer", "Trainer", "save_checkpoint", CHECKPOINT),
    ("loops.evaluation_loop", "_EvaluationLoop", "run", VALIDATION),
    ("trainer.connectors.logger_connector.logger_connector", "_LoggerConnector", "log_metrics", LOGGING),
)
METHODS: tuple[tuple[str, str, str, int], ...] = (
    *((f"lightning.pytorch.{module}", kind, name, phase) for module, kind, name, phase in _LIGHTNING),
    *((f"pytorch_lightning.{module}", kind, name, phase) for module, kind, name, phase in _LIGHTNING),
    ("transformers.trainer", "Trainer", "evaluate", VALIDATION),
    ("transformers.trainer", "Trainer", "_save_checkpoint", CHECKPOINT),
    ("transformers.trainer", "Trainer", "log", LOGGING),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", CHECKPOINT),
    ("accelerate.accelerator", "Accelerator", "save_state", CHECKPOINT),
    ("accelerate.accelerator", "Accelerator", "save_model", CHECKPOINT),
    ("accelerate.accelerator", "Accelerator", "log", LOGGING),
)
"""Module, class, method, and the phase of its time."""


class Frameworks:
    """The seams of frameworks in one process.

    Args:
        recorder: Receives the phases.
        patches: Installs and removes the wrappers.
    """

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder, self._patches = recorder, patches
        self._done: set[tuple[str, str, str]] = set()

    def install(self) -> None:
        """Wrap all methods that have been loaded since the last call."""
        for module, kind, name, phase in METHODS:
            key = (module, kind, name)
            owner = getattr(sys.modules.get(module), kind, None)
            if owner is None or key in self._done or name not in vars(owner):
                continue
            self._done.add(key)
            self._patches.put(owner, name, functools.partial(_phase, self._recorder, phase, f"{kind}.{name}"))


def names_of(phase: int) -> tuple[str, ...]:
    """Return the names of a phase's framework methods, as recorded places use them."""
    return tuple(dict.fromkeys(f"{kind}.{name}" for _, kind, name, its in METHODS if its == phase))


def _phase(recorder: Recorder, phase: int, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Attribute a method's time to one phase, except for parts that are attributed to another phase inside it."""

    @functools.wraps(original)
    def framework_seam(*args: Any, **kwargs: Any) -> Any:
        if not recorder.here():
            return original(*args, **kwargs)
        started = perf_counter()
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()
            line = users_line()
            if line is not None:
                recorder.note(what, *line, perf_counter() - started)

    return framework_seam
