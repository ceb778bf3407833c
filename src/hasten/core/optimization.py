"""The contract of an optimization: one technique, one file.

An optimization is a frozen dataclass whose fields are its settings. It carries a `card`, judges from measured facts alone
whether it fits (`fit`, a pure function), changes a live job (`apply`, which hands back the undo), and proves from a traced
step that its mechanism really fired (`evidence`). Found by folder or entry point never means enabled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from hasten.core.card import Card, Check, Numerics, StepTrace
from hasten.core.errors import PlanError
from hasten.core.live import LiveJob
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError

if TYPE_CHECKING:
    from hasten.core.facts import Facts

JOINED_VARIABLES = {"GLIBC_TUNABLES": ":", "LD_PRELOAD": ":", "MALLOC_CONF": ","}
"""Variables that hold several entries, and what stands between them; any other variable holds one value."""
_NAMED_BY = {"GLIBC_TUNABLES": "=", "MALLOC_CONF": ":"}
"""What ends the name of an entry; one of another variable is its own name."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether an optimization fits, from facts alone: `Fit.yes(...)` or `Fit.no(reason)`.

    Attributes:
        fits: The answer.
        reason: Why not; empty for yes.
        max_gain_frac: Share of the step's time it could save at most, from 0 up to but not including 1; of an epoch's time
            where the card names an event.
        settings: The candidates to try, best guess first.
        prior: How likely it pays, where the facts say more of that than the card's `prior` does; None leaves it to the card.
    """

    fits: bool
    reason: str = ""
    max_gain_frac: float = 0.0
    settings: tuple[Optimization, ...] = ()
    prior: float | None = None

    @classmethod
    def no(cls, reason: str) -> Fit:
        """Refuse, with the reason a user will read."""
        return cls(fits=False, reason=reason)

    @classmethod
    def yes(cls, *, max_gain_frac: float, settings: Sequence[Optimization], prior: float | None = None) -> Fit:
        """Offer one or more settings to try."""
        return cls(fits=True, max_gain_frac=min(max(max_gain_frac, 0.0), 0.99), settings=tuple(settings), prior=prior)

    @property
    def max_gain(self) -> float:
        """The largest possible speed-up as a ratio, at least 1."""
        return 1.0 / (1.0 - self.max_gain_frac)


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """One technique. Subclasses are frozen dataclasses whose fields are the settings, each with a default."""

    card: ClassVar[Card]

    @property
    def numerics(self) -> Numerics:
        """The numerics class of this very setting: that of the card, unless a setting does more."""
        return self.card.numerics

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Judge from measured facts alone whether this could help, and with which settings."""
        raise NotImplementedError

    @property
    def samples_factor(self) -> float:
        """Samples of one optimizer update under it, as a multiple of the samples without it; 1 for most."""
        return 1.0

    def environment(self) -> dict[str, str]:
        """Variables that work only where they are set before the process starts; none for most.

        Whoever starts the process sets them, so they end with it and `apply` has nothing to undo. May raise MachineError
        where this machine lacks what a variable must name.
        """
        return {}

    def apply(self, live: LiveJob) -> Undo:
        """Change the live job, and return how to put everything back."""
        raise NotImplementedError

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Prove from a traced step that the mechanism fired, whatever the clock says."""
        raise NotImplementedError

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """What to set in a framework whose trainer does the same itself; empty where it is set, None where it does not.

        Args:
            framework: `lightning` or `transformers`.
            given: Its Trainer, or its TrainingArguments.
        """
        words = self.card.left_to.get(framework)
        return None if words is None else f"set {words}."

    @classmethod
    def computing(cls, *, parts: int = 1, merge: int = 1) -> Optimization | None:
        """The setting under which a job computes each micro-batch in `parts`, or `merge` of them at once; None for most."""
        return None

    def write_patch(self, script: SourceEdits) -> str:
        """Write it into the source of a user's script, and return one line that says what changes.

        >>> def write_patch(self, script):
        ...     return script.loader().set({"pin_memory": "True"})  # "pin_memory=True at train.py:12"

        Raises:
            UnwritableError: It cannot be written there. By default none can: the error says how to train under the plan.
        """
        raise UnwritableError(
            f"it takes more than a change of lines; `hasten run --plan hasten.toml {script.script}` trains under it"
        )

    def by_hand(self) -> tuple[str, ...]:
        """The lines to write by hand where `write_patch` finds no place for them; none by default."""
        return ()

    def framework_arguments(self) -> dict[str, str]:
        """What does the same in a framework that runs the training: full name of a class -> the argument to give it.

        Shown where the patch does not have the optimization, beside what `Card.left_to` says:
        `{"lightning.Trainer": 'precision="bf16-mixed"'}`.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        """The settings as they stand in a plan."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def ordered(optimizations: Sequence[Optimization]) -> list[Optimization]:
    """Order a plan by seam, then by `after`; otherwise as given. Raises ValueError on a circle."""
    seams = list(Seam)
    rest = sorted(optimizations, key=lambda item: seams.index(item.card.seam))
    done: list[Optimization] = []
    while rest:
        waiting = {item.card.name for item in rest}
        ready = next((item for item in rest if not waiting & set(item.card.after)), None)
        if ready is None:
            raise ValueError(f"these optimizations wait for one another: {', '.join(sorted(waiting))}")
        rest.remove(ready)
        done.append(ready)
    return done


def clash(first: Optimization, second: Optimization) -> str:
    """Why two optimizations cannot be in one plan; empty when they can."""
    one, two = first.card, second.card
    if one.name == two.name:
        return f"`{one.name}` is in the plan already"
    if two.name in one.conflicts or one.name in two.conflicts:
        return f"`{one.name}` and `{two.name}` exclude each other"
    shared = one.claims & two.claims
    if shared:
        return f"`{one.name}` and `{two.name}` both claim {', '.join(sorted(shared))}"
    return ""


def required_environment(optimizations: Sequence[Optimization]) -> dict[str, str]:
    """The variables a process must be started with for these optimizations together.

    Raises:
        PlanError: Two of them want one variable, or one entry of a joined variable, to be two things.
    """
    merged: dict[str, dict[str, str]] = {}
    owners: dict[tuple[str, str], str] = {}
    for item in optimizations:
        for variable, value in item.environment().items():
            for entry, text in _entries(variable, value).items():
                owner = owners.setdefault((variable, entry), item.card.name)
                if merged.setdefault(variable, {}).setdefault(entry, text) != text:
                    seen = f"{merged[variable][entry]!r} and {text!r}"
                    raise PlanError(
                        f"`{owner}` and `{item.card.name}` need {variable} to be {seen}. Take one of them out of the plan."
                    )
    return {variable: _joined(variable, entries) for variable, entries in merged.items()}


def missing_environment(required: Mapping[str, str], started: Mapping[str, str]) -> dict[str, str]:
    """Those of the required variables that a process started with `started` lacks, whole or in part."""
    return {
        variable: value
        for variable, value in required.items()
        if not _entries(variable, value).items() <= _entries(variable, started.get(variable, "")).items()
    }


def joined_environment(required: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the required variables: entries of joined variables beside the user's own, others in their place."""
    joined = dict(environ)
    for variable, value in required.items():
        theirs = _entries(variable, environ.get(variable, "")) if variable in JOINED_VARIABLES else {}
        ours = _entries(variable, value)
        # Of two preloaded libraries with one function the first wins; of two values of one tunable, ours must stand alone.
        joined[variable] = _joined(variable, {**ours, **theirs} if variable == "LD_PRELOAD" else {**theirs, **ours})
    return joined


def _joined(variable: str, entries: Mapping[str, str]) -> str:
    return JOINED_VARIABLES.get(variable, ":").join(entries.values())


def _entries(variable: str, value: str) -> dict[str, str]:
    """What a variable holds, by the name of the entry; one nameless entry where it is not a joined variable."""
    if variable not in JOINED_VARIABLES:
        return {"": value}
    parts = (value.replace(" ", ":") if variable == "LD_PRELOAD" else value).split(JOINED_VARIABLES[variable])
    return {part.partition(_NAMED_BY[variable])[0] if variable in _NAMED_BY else part: part for part in parts if part}
