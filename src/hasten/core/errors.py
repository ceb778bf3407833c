"""Every error Hasten raises, drawn as one tree.

    HastenError
    ├── JobError          the user's job cannot be trained as written
    │   ├── TargetError   the command line names a job that cannot be found or loaded
    │   └── LossError     the loss cannot be used: no gradient, not a scalar, NaN or infinite
    ├── PlanError         a plan file or setting is wrong
    ├── MachineError      this machine lacks a required feature
    ├── DataError         a store, its source or a cache cannot be used
    │   ├── CorruptError  bytes are missing, truncated or modified
    │   ├── BrokenFileError  one file of a source cannot be read
    │   └── GoneError     a remote store does not answer
    ├── UnwritableError   an optimization cannot be written into a script (`core/source_edits.py`)
    └── TrialError        a trial process crashed, hung, ran out of memory or produced NaN

Each message says what happened, the value seen, and the next step. A refusal (an optimization that does not fit) is not an
error but a value with a reason. See `hasten.core.optimization.Fit`.
"""

from __future__ import annotations

from typing import Literal

FailureKind = Literal["raised", "killed", "hung", "out_of_memory", "nan", "evidence"]


class HastenError(Exception):
    """Base class of all errors that Hasten raises."""


class JobError(HastenError):
    """The user's job cannot be trained as written."""


class TargetError(JobError):
    """The command line names a job that cannot be found or loaded."""


class LossError(JobError):
    """The loss cannot be used: no gradient, not a scalar, NaN or infinite.

    Args:
        message: What happened and what to change.
        update: Index of the update; 0 is the first.
        value: The NaN or infinite value, if that was the cause.
    """

    def __init__(self, message: str, *, update: int, value: float | None = None) -> None:
        super().__init__(message)
        self.update = update
        self.value = value


class PlanError(HastenError):
    """A plan file or one of its settings is wrong."""


class MachineError(HastenError):
    """This machine lacks a required feature."""


class DataError(HastenError):
    """A store, its source or a cache cannot be used."""


class CorruptError(DataError):
    """The data is corrupt: bytes are missing, truncated or modified."""


class BrokenFileError(DataError):
    """One file of a source cannot be read. A conversion leaves it out and continues.

    Args:
        path: The file.
        reason: What is wrong with it, to follow its name; without content.
    """

    def __init__(self, path: str, reason: str) -> None:
        words = " ".join(reason.split())
        is_sentence = words.startswith(":")
        super().__init__(f"{path}{words}" if is_sentence else f"{path} {words}")
        self.reason = words.lstrip(": ") if is_sentence else f"the file {words}"


class GoneError(DataError):
    """A remote store did not answer within the time limit."""


class TrialError(HastenError):
    """A trial process ended without a result. `kind` says how.

    Args:
        message: What happened.
        kind: One of `raised`, `killed`, `hung`, `out_of_memory`, `nan`, `evidence`.
        details: The traceback of the trial process, shown by `--traceback`.
    """

    def __init__(self, message: str, *, kind: FailureKind, details: str = "") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.details = details
