"""Shared code of the framework callbacks, which start profiling when training begins and stop when it ends."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.attach import Watched, attach


class Watching:
    """Opens and closes `hasten.attach` for a callback.

    Args:
        plan: A plan, or the path of a plan file. Optimizations that the framework implements itself are left to it.
        json: Path where the profile is written at the end.
        out: Folder for `windows.jsonl`, as for `hasten.attach`.
        log_to: Further places for metrics, as for `hasten.attach`.

    Attributes:
        plan: The complete plan; empty if none was given.
        is_open: Whether training is being profiled now.

    Raises:
        PlanError: The plan file is missing or invalid.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | Plan | None,
        json: str | os.PathLike[str] | None,
        out: str | os.PathLike[str] | None,
        log_to: Sequence[str],
    ) -> None:
        self.plan = plan if isinstance(plan, Plan) else Plan() if plan is None else Plan.load(Path(plan), catalogue())
        self.is_open = False
        self._json, self._out, self._log_to = json, out, tuple(log_to)
        self._watched: Watched | None = None

    def open(self, framework: str, given: Any, *, leads: bool) -> None:
        """Start profiling, under the plan without the optimizations that the framework implements itself.

        Args:
            framework: `lightning` or `transformers`.
            given: The framework's Trainer or arguments, see `Optimization.framework_setting`.
            leads: Whether this rank writes the profile.

        Raises:
            HastenError: Training is already being profiled, or the folder of the profile does not exist.
        """
        self.close()
        plan = self.plan
        for item in self.plan.optimizations:
            setting = item.framework_setting(framework, given)
            if setting is None:
                continue
            plan = plan.minus(item.card.name)
            if setting:
                reason = f"hasten does not apply `{item.card.name}` of the plan, because the Trainer implements it"
                warnings.warn(f"{reason}: {setting}", stacklevel=2)
        self._watched = attach(plan, self._json if leads else None, self._out, self._log_to)
        self._watched.__enter__()
        self.is_open = True

    def close(self, error: BaseException | None = None) -> None:
        """Stop profiling if it is active. The profile is available afterwards."""
        if self._watched is not None and self.is_open:
            self.is_open = False
            self._watched.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    @property
    def watched(self) -> Watched:
        """The current observation, or the last one.

        Raises:
            HastenError: There was none yet.
        """
        if self._watched is None:
            raise HastenError("There is no profile yet. Pass the callback to the Trainer and train first.")
        return self._watched

    def metrics(self) -> dict[str, float]:
        """Return the shares of the phases so far, for a logger, as `hasten/data`, ...; empty before the second step."""
        return {} if self._watched is None else {f"hasten/{name}": share for name, share in self._watched.phases().items()}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the running observation. A Trainer may send it to another process."""
        return {**vars(self), "_watched": None, "is_open": False}


class WatchingCallback:
    """Base class of the callbacks of all frameworks.

    Args:
        plan: A plan, or the path of a plan file.
        json: Path where rank 0 writes the profile at the end.
        log: Whether to log the share of each phase to the framework's loggers.
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
        super().__init__()
        self._watching = Watching(plan, json, out, log_to)
        self._log = log

    def profile(self) -> dict[str, Any]:
        """Return the profile after training, in the format of `hasten profile --json`. Raises like `Watched.profile`."""
        return self._watching.watched.profile()

    def summary(self) -> str:
        """Return the profile as text."""
        return self._watching.watched.summary()

    def close(self) -> None:
        """Stop profiling now. Does nothing if it has already stopped."""
        self._watching.close()
