"""The changes that an optimization can make to the source of a user's script.

An optimization writes itself into a script with `Optimization.write_patch`. It sees the script only through these protocols:
as calls, loops, a model and a forward pass, not as a syntax tree. `hasten.script.patch` implements them.

Places are strings such as `train.py:12`. Added lines of code may name library objects in braces. For
`"with {torch.autocast}('cpu'):"` the file gets the name under which it imports the object, such as `torch.autocast` or
`amp.autocast`, and an import if it has none. Literal braces are doubled, as in `str.format`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hasten.core.errors import HastenError


class UnwritableError(HastenError):
    """An optimization cannot be written into a script.

    Args:
        reason: Why not, without a full stop.
        lines: The lines to write by hand, if not those of `Optimization.by_hand`.
    """

    def __init__(self, reason: str, *lines: str) -> None:
        super().__init__(reason)
        self.reason, self.lines = reason, lines


class NothingToWriteError(UnwritableError):
    """The script already has the optimization, or can never have it, so there is nothing to write by hand either."""


class BeforeStartError(UnwritableError):
    """It is set before Python starts, so no line of the script can set it: see `Optimization.environment`."""


class SourceCall(Protocol):
    """A call in the script."""

    @property
    def place(self) -> str:
        """The place of the call."""
        ...

    @property
    def name(self) -> str:
        """The last part of the called object's full name, such as `AdamW`; empty for methods."""
        ...

    @property
    def given(self) -> Mapping[str, str]:
        """Argument name -> source text of its value; only arguments that the call itself lists."""
        ...

    def set(self, values: Mapping[str, str], where_given: Mapping[str, str] | None = None) -> str:
        """Set keyword arguments, and return the change and its place: `num_workers=2 (was 0) at train.py:12`.

        Args:
            values: Argument name -> source text of its value; or one library object, in braces.
            where_given: The same, but only for arguments that the call already has.

        Raises:
            UnwritableError: The arguments cannot be read, as in `DataLoader(*arguments)`.
            NothingToWriteError: The call already has all of them.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove an argument that the call has."""
        ...


class SourceModel(Protocol):
    """The variable that holds the model whose parameters the optimizer trains."""

    @property
    def name(self) -> str:
        """The variable's name where the model is created: `model`, `self.model`."""
        ...

    @property
    def is_torchs_own(self) -> bool:
        """Whether its class is defined by torch, such as `nn.Sequential`."""
        ...

    @property
    def is_parallel(self) -> bool:
        """Whether it is wrapped for several processes, for example in DistributedDataParallel."""
        ...

    def calls(self, *methods: str) -> Sequence[str]:
        """Return the places where one of these methods of the model is called."""
        ...

    def add(self, line: str, *, wrapped: bool) -> str:
        """Add a line after the model is created, or with `wrapped` after the last statement that wraps it.

        Returns:
            The place: `after train.py:12`.
        """
        ...


class SourceForward(Protocol):
    """The statements of a training step from the first call of the model to the loss."""

    @property
    def place(self) -> str:
        """The place of the statements: `train.py:12`, or `train.py:12 to train.py:14`."""
        ...

    @property
    def library(self) -> str:
        """The package that runs the backward pass (`accelerate`); empty if the script does."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """The variables that the model is called with, if they may be reassigned."""
        ...

    @property
    def device_type(self) -> str:
        """An expression for the type of the training device: `device.type`, `"cpu"`.

        Raises:
            UnwritableError: No variable of the device or the model can be used there.
        """
        ...

    def wrap(self, header: str) -> None:
        """Indent the statements under a `with` line."""
        ...

    def before(self, *lines: str) -> str:
        """Add lines before the statements, and return their place."""
        ...

    def context(self, names: Sequence[str], *parameters: str) -> SourceCall | None:
        """Return the call of one of these functions, by full name, whose `with` the statements are in or contain.

        `parameters` names its positional parameters. None if there is no such call, or if it may be another.
        """
        ...


class SourceLoop(Protocol):
    """A loop of the training."""

    @property
    def place(self) -> str:
        """The place where the loop begins."""
        ...

    def before(self, *lines: str) -> None:
        """Add lines before the loop."""
        ...


class SourceEdits(Protocol):
    """A script and the files that it imports from its own folder, while one optimization is written into it.

    Searches that find no match, or more than one, raise an UnwritableError that says so.
    """

    @property
    def script(self) -> str:
        """The name of the script: `train.py`."""
        ...

    # Searches.

    def calls(self, *names: str) -> Sequence[SourceCall]:
        """Return the calls of library functions and classes, by full name: `torch.save`."""
        ...

    def method_calls(self, method: str, *parameters: str) -> Sequence[SourceCall]:
        """Return the calls of a method of any object. `parameters` names its positional parameters."""
        ...

    def mentions(self, name: str) -> Sequence[str]:
        """Return the places where a full name is used: `torch.channels_last`."""
        ...

    def assignments(self, name: str) -> Sequence[tuple[str, str]]:
        """Return place and value text of each assignment to a library attribute: `torch.backends.cudnn.benchmark`."""
        ...

    def loader(self) -> SourceCall:
        """Return the call that creates the training DataLoader."""
        ...

    def optimizer(self) -> SourceCall:
        """Return the call that creates the optimizer."""
        ...

    def model(self) -> SourceModel:
        """Return the model that the optimizer trains."""
        ...

    def forward(self) -> SourceForward:
        """Return the forward pass of the training step, including the loss."""
        ...

    def training_loops(self) -> Sequence[SourceLoop]:
        """Return the loops around the training step, innermost first."""
        ...

    def copies_to_device(self) -> Sequence[SourceCall]:
        """Return the copies of a batch to a device, such as `x.to(device)`, that do not set `non_blocking`."""
        ...

    def trains_on_import(self) -> str:
        """Return where the script trains when a worker process imports it; empty if it does not."""
        ...

    # Changes.

    def call_once(self, name: str, value: str) -> str:
        """Call a library function with one argument at the start. An existing call gets the new value.

        Returns:
            The change and its place.
        """
        ...

    def assign_once(self, values: Mapping[str, str]) -> str:
        """Assign library attributes, by full name, at the start. Existing assignments get the new values.

        Returns:
            The change and its place.
        """
        ...

    def at_the_start(self, *lines: str, said: str) -> str:
        """Add lines below the imports of the script, unless it has the same lines already.

        Returns:
            `said`, and the place.
        """
        ...
