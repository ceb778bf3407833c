"""Profile the training of a Lightning Trainer, and train under a plan.

    from hasten.integrations.lightning import HastenCallback

    watch = HastenCallback(json="profile.json")
    Trainer(callbacks=[watch]).fit(model, loader)
    print(watch.summary())

Works with `lightning.pytorch` and `pytorch_lightning`: with the package that is imported, or else the one that is installed.
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
    """Return the class `Callback` of each Lightning package that is imported, or of the first one that is installed."""
    loaded = [kind for name in PACKAGES if (kind := getattr(sys.modules.get(name), "Callback", None)) is not None]
    if loaded:
        return tuple(dict.fromkeys(loaded))
    for name in PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return (importlib.import_module(name).Callback,)
    raise ImportError("Lightning is not installed. Install it with: pip install 'hasten[frameworks]'", name="lightning")


class HastenCallback(WatchingCallback, *_callback_classes()):  # type: ignore[misc]  # the base class is known at run time only
    """Starts profiling when a fit begins, and stops when it ends, also after an error.

    Args:
        plan: A plan, or the path of a plan file. Optimizations that Lightning implements itself (precision, accumulation,
            strategies) are left to it, with a warning that names the argument of the Trainer to set.
        json: Path where rank 0 writes the profile at the end.
        log: Whether to log the share of each phase to the Trainer's loggers after each training epoch, as `hasten/data`, ...
        out: Folder for `windows.jsonl`, as for `hasten.attach`; none by default.
        log_to: Further places for metrics, as for `hasten.attach`.

    Raises:
        PlanError: The plan file is missing or invalid.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start profiling."""
        self._watching.open("lightning", trainer, leads=trainer.is_global_zero)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the shares of the phases so far."""
        shares: Mapping[str, float] = self._watching.metrics() if self._log else {}
        for logger in trainer.loggers if shares else ():
            logger.log_metrics(dict(shares), step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop profiling after the last checkpoint."""
        self._watching.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop profiling if the fit failed or was interrupted."""
        self._watching.close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop profiling if neither of the two methods above was called."""
        self._watching.close()
