"""One watch that a framework's callback opens when training begins and closes when it ends."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.attach import Watched, attach


class Watching:
    """Opens and closes `hasten.attach` for a callback.

    Args:
        plan: A plan or its file; what the framework itself must be told is left to it.
        json: Where to write the profile at the end.

    Attributes:
        plan: The plan as it was given, loaded; empty without one.
        is_open: Whether training is being watched now.

    Raises:
        PlanError: The plan file is missing or wrong.
    """

    def __init__(self, plan: str | os.PathLike[str] | Plan | None, json: str | os.PathLike[str] | None) -> None:
        self.plan = plan if isinstance(plan, Plan) else Plan() if plan is None else Plan.load(Path(plan), catalogue())
        self.is_open = False
        self._json = json
        self._watched: Watched | None = None

    def open(self, framework: str, given: Any, *, leads: bool) -> None:
        """Begin to watch, under the plan but for what the framework does itself.

        Args:
            framework: `lightning` or `transformers`.
            given: What its training is set with, see `Optimization.framework_setting`.
            leads: Whether this is the rank that writes the file.

        Raises:
            HastenError: Somebody else watches already, or the folder of the file is not there.
        """
        self.close()
        plan = self.plan
        for item in self.plan.optimizations:
            words = item.framework_setting(framework, given)
            if words is None:
                continue
            plan = plan.minus(item.card.name)
            if words:
                owned = f"hasten leaves `{item.card.name}` of the plan to the Trainer, which owns it"
                warnings.warn(f"{owned}: {words}", stacklevel=2)
        self._watched = attach(plan, self._json if leads else None)
        self._watched.__enter__()
        self.is_open = True

    def close(self, error: BaseException | None = None) -> None:
        """End the watch, if it is open; the profile can be asked for then."""
        if self._watched is not None and self.is_open:
            self.is_open = False
            self._watched.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    @property
    def watched(self) -> Watched:
        """The present watch, or the last one.

        Raises:
            HastenError: There was none.
        """
        if self._watched is None:
            raise HastenError("Nothing was watched yet. Give the callback to the Trainer, train, and ask then.")
        return self._watched

    def metrics(self) -> dict[str, float]:
        """The shares of the phases so far, for a logger: `hasten/data`, ...; empty before the second step."""
        return {} if self._watched is None else {f"hasten/{name}": share for name, share in self._watched.phases().items()}

    def __getstate__(self) -> dict[str, Any]:
        """A Trainer may be sent to another process: the plan goes, the watch stays here."""
        return {**vars(self), "_watched": None, "is_open": False}


class WatchingCallback:
    """What the callbacks of all frameworks have in common: a watch, and what they say of it.

    Args:
        plan: A plan, or the file of one.
        json: Where rank 0 writes the profile at the end.
        log: Give the share of each phase to the loggers of the framework.

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

    def profile(self) -> dict[str, Any]:
        """The profile once training has ended, as `hasten profile --json` writes it. Raises as `Watched.profile` does."""
        return self._watching.watched.profile()

    def summary(self) -> str:
        """The same in words, for a person."""
        return self._watching.watched.summary()

    def close(self) -> None:
        """End the watch now; nothing where it has ended."""
        self._watching.close()
