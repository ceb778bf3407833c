"""Every error Hasten raises, drawn as one tree.

    HastenError
    ├── JobError          the user's job cannot be trained as it is written
    │   ├── TargetError   the command line names a job that cannot be found or loaded
    │   └── LossError     the loss is no loss: no gradient, not a scalar, NaN or infinite
    ├── PlanError         a plan file or setting is wrong
    ├── MachineError      this machine lacks something that was asked for
    ├── DataError         a store, its source or a cache cannot be used as it is
    │   ├── CorruptError  bytes are not what was written
    │   └── GoneError     a remote store does not answer
    ├── UnwritableError   an optimization cannot be written into a script (`core/source_edits.py`)
    └── TrialError        a trial process crashed, hung, ran out of memory or produced NaN

Each message says what happened, what was seen, and what to do next. A refusal (an optimization that does not fit)
is no error: it is a value with a reason, see `hasten.core.optimization.Fit`.
"""

from __future__ import annotations

from typing import Literal

FailureKind = Literal["raised", "killed", "hung", "out_of_memory", "nan", "evidence"]


class HastenError(Exception):
    """The root of all errors that Hasten raises on purpose."""


class JobError(HastenError):
    """The user's job cannot be trained as it is written."""


class TargetError(JobError):
    """The command line names a job that cannot be found or loaded."""


class LossError(JobError):
    """The loss is no loss: no gradient, not a scalar, NaN or infinite.

    Args:
        message: What happened and what to change.
        update: When; 0 is the first update.
        value: The NaN or infinity, where that is what happened.
    """

    def __init__(self, message: str, *, update: int, value: float | None = None) -> None:
        super().__init__(message)
        self.update = update
        self.value = value


class PlanError(HastenError):
    """A plan file or one of its settings is wrong."""


class MachineError(HastenError):
    """This machine lacks something that was asked for."""


class DataError(HastenError):
    """A store, its source or a cache cannot be used as it is."""


class CorruptError(DataError):
    """Bytes of a store are not what was written: missing, cut or changed."""


class GoneError(DataError):
    """A remote store does not answer, and did not for as long as was allowed."""


class TrialError(HastenError):
    """A trial process ended without a result; `kind` says how.

    Args:
        message: What happened, in words.
        kind: One of `raised`, `killed`, `hung`, `out_of_memory`, `nan`, `evidence`.
    """

    def __init__(self, message: str, *, kind: FailureKind) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
