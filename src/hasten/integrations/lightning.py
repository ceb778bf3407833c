"""Watch what a Lightning Trainer fits, and train it under a plan.

    from hasten.integrations.lightning import HastenCallback

    watch = HastenCallback(json="profile.json")
    Trainer(callbacks=[watch]).fit(model, loader)
    print(watch.summary())

For `lightning.pytorch` and for `pytorch_lightning`, whichever is imported; of neither, whichever is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.integrations.watching import Reported, Watching

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_MIXED = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
_OWNED = {
    "background_checkpoint": "Trainer(plugins=[AsyncCheckpointIO()])",
    "gradient_buckets": "Trainer(strategy=DDPStrategy(bucket_cap_mb=...))",
    "gradient_compression": "Trainer(strategy=DDPStrategy(ddp_comm_hook=...))",
    "merged_microbatches": "a larger batch_size of the loader, and Trainer(accumulate_grad_batches=...) smaller by as much",
    "metric_reading": "Trainer(log_every_n_steps=...)",
    "one_cycle": "return the schedule from configure_optimizers",
    "optimizer_batch": "Trainer(accumulate_grad_batches=...)",
    "sharding": 'Trainer(strategy="fsdp")',
    "warmup_cosine": "return the schedule from configure_optimizers",
}
"""Techniques that Lightning has itself -> what it must be told."""


def owned(plan: Plan, trainer: Any) -> dict[str, str]:
    """What of a plan a Lightning Trainer does itself -> which argument to set; empty words where it is set already."""
    return {item.card.name: words for item in plan.optimizations if (words := _argument(item, trainer)) is not None}


def _argument(item: Optimization, trainer: Any) -> str | None:
    name, settings = item.card.name, item.settings()
    if name == "precision":
        mixed = _MIXED[settings["dtype"]]
        return "" if trainer.precision == mixed else f'set Trainer(precision="{mixed}").'
    if name == "microbatch":
        parts = settings["parts"]
        wanted = trainer.accumulate_grad_batches * parts
        return f"divide the batch_size of the loader by {parts}, and set Trainer(accumulate_grad_batches={wanted})."
    return f"set {_OWNED[name]}." if name in _OWNED else None


def _callback_classes() -> tuple[type[Any], ...]:
    """The class `Callback` of each Lightning that is imported, or of the first that is installed."""
    loaded = [kind for name in PACKAGES if (kind := getattr(sys.modules.get(name), "Callback", None)) is not None]
    if loaded:
        return tuple(dict.fromkeys(loaded))
    for name in PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return (importlib.import_module(name).Callback,)
    raise ImportError("Lightning is not installed. Install it with: pip install 'hasten[frameworks]'", name="lightning")


class HastenCallback(Reported, *_callback_classes()):  # type: ignore[misc]  # which Lightning it is, is known here only
    """Opens the watch when a fit begins, and closes it when it ends, however it ends.

    Args:
        plan: A plan, or the file of one. What Lightning does itself (precision, accumulation, strategies) is left to it,
            with a warning that says which argument of the Trainer to set.
        json: Where rank 0 writes the profile at the end.
        log: After each training epoch, give the share of each phase to the loggers of the Trainer, as `hasten/data`, ...

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
        super().__init__()
        self._watching = Watching(plan, json)
        self._log = log

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._watching.open(owned(self._watching.plan, trainer), leads=trainer.is_global_zero)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the phases so far."""
        found: Mapping[str, float] = self._watching.metrics() if self._log else {}
        for logger in trainer.loggers if found else ():
            logger.log_metrics(dict(found), step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The last checkpoint is written: end the watch."""
        self._watching.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The fit failed or was interrupted: end the watch."""
        self._watching.close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the watch where neither of the two was called."""
        self._watching.close()
