"""The interface of an optimization: one technique, one file.

An optimization is a frozen dataclass whose fields are its settings. It has a `card`, decides from measured facts alone
whether it fits (`fit`, a pure function), changes a live job (`apply`, which returns the undo function), and proves from a
traced step that its mechanism fired (`evidence`). Being discovered by folder or entry point does not enable it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from hasten.core.card import Card, Check, Numerics, StepTrace
from hasten.core.errors import PlanError
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import BeforeStartError, SourceEdits, UnwritableError

if TYPE_CHECKING:
    from hasten.core.facts import Facts
    from hasten.core.live import LiveJob

JOINED_VARIABLES = {"GLIBC_TUNABLES": ":", "LD_PRELOAD": ":", "MALLOC_CONF": ","}
"""Variables that hold several entries, with the separator. Any other variable holds one value."""
_NAMED_BY = {"GLIBC_TUNABLES": "=", "MALLOC_CONF": ":"}
"""The separator between an entry's name and its value. Entries of other variables are their own names."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether an optimization fits, from facts alone: `Fit.yes(...)` or `Fit.no(reason)`.

    Attributes:
        fits: Whether it fits.
        reason: Why it does not fit; empty if it does.
        max_gain_frac: Largest share of the step's time it could save, 0 <= share < 1. If the card names an event, the share
            of an epoch's time.
        settings: The candidates to try, best guess first.
        prior: Replaces the card's `prior` if the facts allow a better estimate; None keeps it.
    """

    fits: bool
    reason: str = ""
    max_gain_frac: float = 0.0
    settings: tuple[Optimization, ...] = ()
    prior: float | None = None

    @classmethod
    def no(cls, reason: str) -> Fit:
        """Refuse, with the reason shown to the user."""
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
    """One technique. Subclasses are frozen dataclasses whose fields are the settings. Each setting has a default."""

    card: ClassVar[Card]

    @property
    def numerics(self) -> Numerics:
        """The numerics class with these settings: that of the card, unless a setting changes more."""
        return self.card.numerics

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Decide from measured facts alone whether this could help, and with which settings."""
        raise NotImplementedError

    @property
    def samples_factor(self) -> float:
        """Samples per optimizer update with it, as a multiple of the samples without it; 1 for most."""
        return 1.0

    def environment(self) -> dict[str, str]:
        """Return environment variables that must be set before the process starts; empty for most.

        The parent process sets them, so they end with the process and `apply` has nothing to undo.

        Raises:
            MachineError: This machine lacks a file that a variable must name.
        """
        return {}

    def apply(self, live: LiveJob) -> Undo:
        """Change the live job, and return a function that restores it."""
        raise NotImplementedError

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Prove from a traced step that the mechanism fired, independent of timings."""
        raise NotImplementedError

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Return what to set in a framework whose trainer offers the same. Empty if set, None if it does not offer it.

        Args:
            framework: `lightning` or `transformers`.
            given: Its Trainer, or its TrainingArguments.
        """
        setting = self.card.left_to.get(framework)
        return None if setting is None else f"set {setting}."

    @classmethod
    def computing(cls, *, parts: int = 1, merge: int = 1) -> Optimization | None:
        """Return the setting that computes each micro-batch in `parts`, or `merge` micro-batches at once; None for most."""
        return None

    def write_patch(self, script: SourceEdits) -> str:
        """Write it into the source of a user's script, and return one line that describes the change.

        >>> def write_patch(self, script):
        ...     return script.loader().set({"pin_memory": "True"})  # "pin_memory=True at train.py:12"

        Raises:
            UnwritableError: It cannot be written there. This is the default. The error says how to train under the plan.
        """
        if type(self).environment is not Optimization.environment:
            raise BeforeStartError("it is read before Python starts, so set it in the command")
        raise UnwritableError(
            f"it cannot be written as a few changed lines; train with `hasten run --plan hasten.toml {script.script}`"
        )

    def by_hand(self) -> tuple[str, ...]:
        """Return the lines to write by hand if `write_patch` finds no place for them; none by default."""
        return ()

    def framework_arguments(self) -> dict[str, str]:
        """Return the equivalent in a framework that runs the training: full class name -> argument.

        Shown if the patch does not include the optimization, together with `Card.left_to`:
        `{"lightning.Trainer": 'precision="bf16-mixed"'}`.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as written in a plan."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def ordered(optimizations: Sequence[Optimization]) -> list[Optimization]:
    """Order optimizations by seam, then by `after`; otherwise as given. Raises ValueError on a cycle."""
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
    """Return why two optimizations cannot be in one plan; empty if they can."""
    one, two = first.card, second.card
    if one.name == two.name:
        return f"`{one.name}` is already in the plan"
    if two.name in one.conflicts or one.name in two.conflicts:
        return f"`{one.name}` and `{two.name}` exclude each other"
    shared = one.claims & two.claims
    if shared:
        return f"`{one.name}` and `{two.name}` both claim {', '.join(sorted(shared))}"
    return ""


def required_environment(optimizations: Sequence[Optimization]) -> dict[str, str]:
    """Return the environment variables that a process needs at its start for these optimizations together.

    Raises:
        PlanError: Two of them require different values of a variable, or of an entry of a joined variable.
    """
    merged: dict[str, dict[str, str]] = {}
    owners: dict[tuple[str, str], str] = {}
    for item in optimizations:
        for variable, value in item.environment().items():
            for entry, text in _entries(variable, value).items():
                owner = owners.setdefault((variable, entry), item.card.name)
                if merged.setdefault(variable, {}).setdefault(entry, text) != text:
                    values = f"{merged[variable][entry]!r} and {text!r}"
                    raise PlanError(
                        f"`{owner}` and `{item.card.name}` need {variable} to be {values}. Remove one of them from the plan."
                    )
    return {variable: _joined(variable, entries) for variable, entries in merged.items()}


def missing_environment(required: Mapping[str, str], started: Mapping[str, str]) -> dict[str, str]:
    """Return the required variables that are missing, wholly or in part, from the environment `started`."""
    return {
        variable: value
        for variable, value in required.items()
        if not _entries(variable, value).items() <= _entries(variable, started.get(variable, "")).items()
    }


def joined_environment(required: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the required variables. Joined variables keep the user's entries; others are replaced."""
    joined = dict(environ)
    for variable, value in required.items():
        theirs = _entries(variable, environ.get(variable, "")) if variable in JOINED_VARIABLES else {}
        ours = _entries(variable, value)
        # If two preloaded libraries define a function, the first wins. A tunable must have one value only: ours.
        joined[variable] = _joined(variable, {**ours, **theirs} if variable == "LD_PRELOAD" else {**theirs, **ours})
    return joined


def cleared_environment(required: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the required variables. Joined variables keep the user's entries."""
    cleared = dict(environ)
    for variable, value in required.items():
        entries = _entries(variable, environ.get(variable, ""))
        theirs = {name: text for name, text in entries.items() if text and name not in _entries(variable, value)}
        cleared.pop(variable, None)
        if theirs:
            cleared[variable] = _joined(variable, theirs)
    return cleared


def _joined(variable: str, entries: Mapping[str, str]) -> str:
    return JOINED_VARIABLES.get(variable, ":").join(entries.values())


def _entries(variable: str, value: str) -> dict[str, str]:
    """Return the entries of a variable by name; one entry with an empty name if it is not a joined variable."""
    if variable not in JOINED_VARIABLES:
        return {"": value}
    parts = (value.replace(" ", ":") if variable == "LD_PRELOAD" else value).split(JOINED_VARIABLES[variable])
    return {part.partition(_NAMED_BY[variable])[0] if variable in _NAMED_BY else part: part for part in parts if part}
