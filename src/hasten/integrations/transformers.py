"""Watch what a Trainer of Transformers trains, and train it under a plan.

    from hasten.integrations.transformers import HastenCallback

    watch = HastenCallback(json="profile.json")
    Trainer(model=model, args=args, train_dataset=data, callbacks=[watch]).train()
    print(watch.summary())

A Trainer tells its callbacks nothing of a training that fails. The watch therefore looks at the methods that a failure
passes through (`PASSED`), for as long as it is open.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
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
"""Methods of the Trainer that nearly all of a training is done in."""
PASSED_IN_PARTS = ("get_batch_samples", "training_step", "_maybe_log_save_evaluate")
"""The same of a Trainer whose epochs are no method of their own."""


class HastenCallback(WatchingCallback, TrainerCallback):  # type: ignore[misc]  # its class is known where it is installed only
    """Opens the watch when training begins, and closes it when it ends, or when an error leaves it.

    Args:
        plan: A plan, or the file of one. What the Trainer does itself (precision, accumulation, checkpointed activations)
            is left to it, with a warning that says which of its arguments to set.
        json: Where rank 0 writes the profile at the end.
        log: Add the share of each phase to what the Trainer logs of the training, as `hasten/data`, ...

    Raises:
        PlanError: The plan file is missing or wrong.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | Plan | None = None,
        json: str | os.PathLike[str] | None = None,
        *,
        log: bool = False,
    ) -> None:
        super().__init__(plan, json, log=log)
        self._patches = Patches()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """Begin to watch; once more where the Trainer begins anew with a smaller batch."""
        self._end()
        self._watching.open("transformers", args, leads=state.is_world_process_zero)
        for name in PASSED if hasattr(Trainer, "_run_epoch") else PASSED_IN_PARTS:
            self._patches.put(Trainer, name, self._passed)
        if self._log:
            self._patches.put(Trainer, "log", self._logging)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """Everything is trained and saved: end the watch."""
        self._end()

    def close(self) -> None:
        """End the watch now; nothing where it has ended."""
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        self._watching.close(error)
        self._patches.restore()

    def _passed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Close the watch where an error passes."""

        @functools.wraps(original)
        def passed(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise

        return passed

    def _logging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Add the phases to what is logged of the training."""

        @functools.wraps(original)
        def log(trainer: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
            more = self._watching.metrics() if self._watching.is_open and "loss" in logs else {}
            return original(trainer, {**logs, **more}, *args, **kwargs)

        return log
