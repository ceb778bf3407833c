"""What an optimization can change in the source of a user's script.

An optimization writes itself into a script with `Optimization.write_patch`. It sees the script through these protocols
alone: as calls, loops, a model and a forward pass, not as a syntax tree. `hasten.script.patch` implements them.

Places are texts such as `train.py:12`. A line of code that is added may name things of libraries in braces: for
`"with {torch.autocast}('cpu'):"` the file gets `torch.autocast`, `amp.autocast` or whatever it is imported as there, and an
import where there is none. A brace that is meant is doubled, as in `str.format`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hasten.core.errors import HastenError


class UnwritableError(HastenError):
    """An optimization cannot be written into a script.

    Args:
        reason: Why not, without a full stop.
        lines: What to write by hand, where `Optimization.by_hand` does not say it.
    """

    def __init__(self, reason: str, *lines: str) -> None:
        super().__init__(reason)
        self.reason, self.lines = reason, lines


class NothingToWriteError(UnwritableError):
    """The script has it already, or cannot have it at all: there is nothing to write by hand either."""


class SourceCall(Protocol):
    """A call in the script."""

    @property
    def place(self) -> str:
        """Where it is."""
        ...

    @property
    def name(self) -> str:
        """The last part of the full name of what is called, as `AdamW`; empty for methods."""
        ...

    @property
    def given(self) -> Mapping[str, str]:
        """Argument name -> the text of its value; only arguments that can be read from the call itself."""
        ...

    def set(self, values: Mapping[str, str], where_given: Mapping[str, str] | None = None) -> str:
        """Set keyword arguments, and return what changes and where: `num_workers=2 (was 0) at train.py:12`.

        Args:
            values: Argument name -> the text of its value.
            where_given: The same, only for arguments that the call gives already.

        Raises:
            UnwritableError: The arguments cannot be read, as in `DataLoader(*arguments)`.
            NothingToWriteError: The call has all of them.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove an argument that is given."""
        ...


class SourceModel(Protocol):
    """The variable that holds the model whose parameters the optimizer is given."""

    @property
    def name(self) -> str:
        """How it is written where the model is made: `model`, `self.model`."""
        ...

    @property
    def is_torchs_own(self) -> bool:
        """Whether its class is one of torch's own, as `nn.Sequential`."""
        ...

    @property
    def is_parallel(self) -> bool:
        """Whether it is wrapped for several processes, as in DistributedDataParallel."""
        ...

    def calls(self, *methods: str) -> Sequence[str]:
        """Where one of these methods of the model is called."""
        ...

    def add(self, line: str, *, wrapped: bool) -> str:
        """Add a line after the model is made, or `wrapped` after the last statement that wraps it.

        Returns:
            Where: `after train.py:12`.
        """
        ...


class SourceForward(Protocol):
    """The statements of a training step from the first call of the model to the loss."""

    @property
    def place(self) -> str:
        """`train.py:12`, or `train.py:12 to train.py:14`."""
        ...

    @property
    def library(self) -> str:
        """The package that runs the backward pass (`accelerate`); empty where the script does."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """The variables that the model is called with, where they may be assigned anew."""
        ...

    @property
    def device_type(self) -> str:
        """An expression for the type of the device that is trained on: `device.type`, `"cpu"`.

        Raises:
            UnwritableError: No name of the device or of the model can be used there.
        """
        ...

    def wrap(self, header: str) -> None:
        """Put the statements under a `with` line."""
        ...

    def before(self, *lines: str) -> str:
        """Add lines before the statements, and return where."""
        ...


class SourceLoop(Protocol):
    """A loop of the training."""

    @property
    def place(self) -> str:
        """Where it begins."""
        ...

    def before(self, *lines: str) -> None:
        """Add lines before it."""
        ...


class SourceEdits(Protocol):
    """A script, with the files that it imports from its own folder, while one optimization is written into it.

    Whatever is looked for and not found, or found more than once, raises an UnwritableError that says so.
    """

    @property
    def script(self) -> str:
        """The name of the script: `train.py`."""
        ...

    # Look.

    def calls(self, *names: str) -> Sequence[SourceCall]:
        """The calls of functions and classes of libraries, by their full names: `torch.save`."""
        ...

    def method_calls(self, method: str, *parameters: str) -> Sequence[SourceCall]:
        """The calls of a method of any object, with the names of its positional parameters."""
        ...

    def mentions(self, name: str) -> Sequence[str]:
        """Where a full name stands: `torch.channels_last`."""
        ...

    def assignments(self, name: str) -> Sequence[tuple[str, str]]:
        """Where an attribute of a library is assigned, and the text of the value: `torch.backends.cudnn.benchmark`."""
        ...

    def loader(self) -> SourceCall:
        """The call that makes the DataLoader of the training."""
        ...

    def optimizer(self) -> SourceCall:
        """The call that makes the optimizer."""
        ...

    def model(self) -> SourceModel:
        """The model that the optimizer trains."""
        ...

    def forward(self) -> SourceForward:
        """The forward pass of the training step, with the loss."""
        ...

    def training_loops(self) -> Sequence[SourceLoop]:
        """The loops around the training step, innermost first."""
        ...

    def copies_to_device(self) -> Sequence[SourceCall]:
        """The copies of a batch to a device, as `x.to(device)`, that do not say whether to wait."""
        ...

    def trains_on_import(self) -> str:
        """Where the script trains when a worker process imports it; empty where it does not."""
        ...

    # Change.

    def call_once(self, name: str, value: str) -> str:
        """Call a function of a library with one argument, at the start; an existing call gets the value.

        Returns:
            What changes and where.
        """
        ...

    def assign_once(self, values: Mapping[str, str]) -> str:
        """Assign attributes of a library, by their full names, at the start; existing assignments get the values.

        Returns:
            What changes and where.
        """
        ...
