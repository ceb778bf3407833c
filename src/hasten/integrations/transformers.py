"""Profile the training of a Transformers Trainer, and train under a plan.

    from hasten.integrations.transformers import HastenCallback

    watch = HastenCallback(json="profile.json")
    Trainer(model=model, args=args, train_dataset=data, callbacks=[watch]).train()
    print(watch.summary())

A Trainer does not notify its callbacks when training fails. While profiling, the callback therefore wraps the methods of the
Trainer that an exception passes through (`PASSED`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from hasten.core.plan import Plan
from hasten.integrations.watching import WatchingCallback
from hasten.script.patches import Patches

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as error:
    raise ImportError(
        "Transformers is not installed. Install it with: pip install 'hasten[frameworks]'", name="transformers"
    ) from error

PASSED = ("_run_epoch", "_evaluate", "_finalize_training")
"""Methods of the Trainer in which almost all of training runs."""
PASSED_IN_PARTS = ("get_batch_samples", "training_step", "_maybe_log_save_evaluate")
"""The same for Trainers without a method for an epoch."""


class HastenCallback(WatchingCallback, TrainerCallback):  # type: ignore[misc]  # the base class is known at run time only
    """Starts profiling when training begins, and stops when it ends or fails.

    Args:
        plan: A plan, or the path of a plan file. Optimizations that the Trainer implements itself (precision, accumulation,
            activation checkpointing) are left to it, with a warning that names the argument to set.
        json: Path where rank 0 writes the profile at the end.
        log: Whether to add the share of each phase to the Trainer's training logs, as `hasten/data`, ...
        out: Folder for `windows.jsonl`, as for `hasten.attach`; none by default.
        log_to: Further places for metrics, as for `hasten.attach`.

    Raises:
        PlanError: The plan file is missing or invalid.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | Plan | None = None,
        json: str | os.PathLike[str] | None = None,
        *,
        log: bool = False,
        out: str | os.PathLike[str] | None = None,
        log_to: Sequence[str] = (),
    ) -> None:
        super().__init__(plan, json, log=log, out=out, log_to=log_to)
        self._patches = Patches()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """Start profiling. Start again if the Trainer restarts with a smaller batch."""
        self._end()
        self._watching.open("transformers", args, leads=state.is_world_process_zero)
        for name in PASSED if hasattr(Trainer, "_run_epoch") else PASSED_IN_PARTS:
            self._patches.put(Trainer, name, self._passed)
        if self._log:
            self._patches.put(Trainer, "log", self._logging)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """Stop profiling after everything is trained and saved."""
        self._end()

    def close(self) -> None:
        """Stop profiling now. Does nothing if it has already stopped."""
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        self._watching.close(error)
        self._patches.restore()

    def _passed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method to stop profiling when an exception leaves it."""

        @functools.wraps(original)
        def passed(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise

        return passed

    def _logging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the log method to add the shares of the phases to training logs."""

        @functools.wraps(original)
        def log(trainer: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
            more = self._watching.metrics() if self._watching.is_open and "loss" in logs else {}
            return original(trainer, {**logs, **more}, *args, **kwargs)

        return log
