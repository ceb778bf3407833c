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
import sys
from collections.abc import Mapping
from typing import Any

from hasten.integrations.watching import WatchingCallback

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_classes() -> tuple[type[Any], ...]:
    """The class `Callback` of each Lightning that is imported, or of the first that is installed."""
    loaded = [kind for name in PACKAGES if (kind := getattr(sys.modules.get(name), "Callback", None)) is not None]
    if loaded:
        return tuple(dict.fromkeys(loaded))
    for name in PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return (importlib.import_module(name).Callback,)
    raise ImportError("Lightning is not installed. Install it with: pip install 'hasten[frameworks]'", name="lightning")


class HastenCallback(WatchingCallback, *_callback_classes()):  # type: ignore[misc]  # which Lightning it is, is known here only
    """Opens the watch when a fit begins, and closes it when it ends, however it ends.

    Args:
        plan: A plan, or the file of one. What Lightning does itself (precision, accumulation, strategies) is left to it,
            with a warning that says which argument of the Trainer to set.
        json: Where rank 0 writes the profile at the end.
        log: After each training epoch, give the share of each phase to the loggers of the Trainer, as `hasten/data`, ...

    Raises:
        PlanError: The plan file is missing or wrong.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._watching.open("lightning", trainer, leads=trainer.is_global_zero)

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
