"""Several batches of an evaluation loop in one call of the model, while the loop goes on as it was written.

The loop takes a batch from its loader and calls the model with it, gradients off. At that call the next batches are taken
from the loader too, and the model is called once with all of them; the loop's next calls are given their rows of the result.
A result is given only to a call with that very batch, unchanged, in the same mode and with the same weights;
everything else is computed as ever. The first groups, and some later ones, are held against the plain call: a model whose
result for a sample depends on the samples beside it is found out, and left alone from then on.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from hasten.core.batch import iter_tensors
from hasten.core.errors import JobError
from hasten.core.live import LiveJob
from hasten.script.calls import ApartError, difference, filled, slots_of, tensors_of, used
from hasten.script.data.guard import Turns
from hasten.script.evaluation.groups import alike, joined, marks_of, parted, rows_of
from hasten.script.evaluation.guards import Weights, objection_to
from hasten.script.patches import Patches

FIRST_GROUPS, LATER_ONE_IN = 3, 64
MAX_GROUP_BYTES = 64 << 20
COUNTER = "validation_large_batches"

Original = Callable[..., Any]


@dataclass(slots=True, kw_only=True)
class Ready:
    """What the model gave for a batch ahead of its turn, and the call it was computed for.

    Attributes:
        args: Positional arguments, the model first.
        slots: The structure of all arguments.
        marks: Of the batch's tensors; None where changes leave no mark.
        inputs: Copies of those that the model takes, where there are no marks.
        state: Of the model.
        result: What it gave.
    """

    args: tuple[Any, ...]
    slots: Any
    marks: list[int] | None
    inputs: list[torch.Tensor]
    state: Any
    result: Any


class Taken:
    """A batch that was taken from the loader, or the error that came instead; `ready` once it was computed."""

    __slots__ = ("batch", "error", "ready", "tensors")

    def __init__(self, batch: Any, tensors: list[torch.Tensor], error: BaseException | None = None) -> None:
        self.batch, self.tensors, self.error = batch, tensors, error
        self.ready: Ready | None = None


class Loop:
    """The iterator of an evaluation loop: the loader's own, with batches that were taken ahead given first."""

    def __init__(self, inner: Iterator[Any], loader: DataLoader[Any], now: Callable[[Loop], None]) -> None:
        self._inner, self._now = inner, now
        self.loader = loader
        self.ahead: deque[Taken] = deque()
        self.current: Taken | None = None

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        self._now(self)
        self.current = taken = self.ahead.popleft() if self.ahead else self.take()
        if taken.error is not None:
            self.current = None
            raise taken.error
        return taken.batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # torch's iterators have it

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # before it is there
            raise AttributeError(name)
        return getattr(self._inner, name)

    def take(self) -> Taken:
        """The next batch of the loader, or what it raises."""
        try:
            batch = next(self._inner)
        except Exception as error:  # noqa: BLE001 - the end of the data, or what reading raised: the loop meets it in its turn
            return Taken(None, [], error)
        return Taken(batch, tensors_of(batch))


class EvaluationAhead:
    """Stands between the evaluation loops of a script and its model.

    Args:
        live: The script's live job: `live.around.validation_batches` says how many batches make a call; told the counter.
        on_failure: Told the reason, once, where a model or a loader does not allow it.
    """

    def __init__(self, live: LiveJob, on_failure: Callable[[BaseException], None]) -> None:
        self._live, self._on_failure = live, on_failure
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._loop: Loop | None = None
        self._weights: Weights | None = None
        self._objections: dict[int, tuple[Any, str]] = {}
        self._turns = Turns(FIRST_GROUPS, LATER_ONE_IN)
        self.reason = ""

    def install(self, patches: Patches) -> None:
        """Put the seam on."""
        patches.put(DataLoader, "__iter__", self._iterating)

    @property
    def wanted(self) -> bool:
        """Whether it is in the plan, and was not given up."""
        return not self.reason and self._live.around.validation_batches > 1

    def _iterating(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def iter_seam(loader: Any) -> Any:
            found = original(loader)
            here = os.getpid() == self._pid and threading.get_ident() == self._thread
            if not here or not self.wanted or (torch.is_grad_enabled() and self._live.model.training):
                return found
            return Loop(found, loader, self._now)

        return iter_seam

    def _now(self, loop: Loop) -> None:
        self._loop = loop

    def call(self, original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model with a batch, gradients off: `args[0]` is the model."""
        loop = self._loop
        taken = loop.current if loop is not None else None
        if loop is None or taken is None or not self.wanted:
            return original(*args, **kwargs)
        loop.current = None  # whatever it is called with next was not taken for it
        given: tuple[Any] | None = None
        try:
            if taken.ready is not None:
                given = self._from_ahead(taken.ready, taken, args, kwargs)
            elif not loop.ahead:
                given = self._group(original, loop, taken, args, kwargs)
        except ApartError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - a larger batch may be refused by the model; alone, it is for the script to see
            self._give_up(f"{type(error).__name__}: {error}")
        return original(*args, **kwargs) if given is None else given[0]

    def _from_ahead(self, ready: Ready, taken: Taken, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """The result that was computed for this batch, if it is for this very call."""
        weights = self._weights
        taken.ready = None
        if weights is None or weights.model is not args[0] or not weights.evaluates():
            return None
        plain = not kwargs and len(args) == len(ready.args) and all(map(is_, args, ready.args))
        if not plain and slots_of([list(args[1:]), kwargs], taken.tensors) != ready.slots:
            return None
        if ready.marks is not None:
            unchanged = marks_of(taken.tensors) == ready.marks
        else:
            given = [taken.tensors[number] for number in used(ready.slots)]
            unchanged = all(map(torch.equal, given, ready.inputs))
        return (ready.result,) if unchanged and weights.state() == ready.state else None

    def _group(
        self, original: Original, loop: Loop, first: Taken, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """Take the next batches, call the model with all of them, and keep their results; gives that of the first."""
        model = args[0]
        if self._weights is None or self._weights.model is not model:
            self._weights = Weights(model)
        weights = self._weights
        if weights.objection:
            raise ApartError(weights.objection)
        if not weights.evaluates() or weights.watched():
            return None
        slots = slots_of([list(args[1:]), kwargs], first.tensors)
        numbers = used(slots)
        if not numbers:
            return None
        rows = rows_of(first.tensors, numbers)
        self._check(loop.loader)
        group = self._take(loop, first, numbers)
        if len(group) < 2:
            return None
        inputs = joined([taken.tensors for taken in group], numbers)
        state = weights.state()
        with _nothing_kept(weights, state, closely=(closely := self._turns.due())):
            positional, named = filled(slots, inputs)
            results = parted(original(model, *positional, **named), [rows] * len(group))
            if closely:
                self._hold_against(functools.partial(original, model), slots, group, results)
        self._live.count(COUNTER)
        simple = len(numbers) == len(args) - 1 and all(map(is_, args[1:], (first.tensors[number] for number in numbers)))
        for at, (taken, result) in enumerate(zip(group, results, strict=True)):
            positional = [taken.tensors[number] for number in numbers] if simple else filled(slots, taken.tensors)[0]
            marks = marks_of(taken.tensors)
            copies = [] if marks is not None else [inputs[number][at * rows : (at + 1) * rows] for number in numbers]
            taken.ready = Ready(
                args=(model, *positional), slots=slots, marks=marks, inputs=copies, state=state, result=result
            )
        ready = first.ready
        return None if ready is None else self._from_ahead(ready, first, args, kwargs)

    def _take(self, loop: Loop, first: Taken, numbers: list[int]) -> list[Taken]:
        """The batch, and those behind it that can join it; the one that ends the group waits for its turn like them."""
        group, size = [first], sum(tensor.nbytes for tensor in first.tensors)
        while len(group) < self._live.around.validation_batches and size * (len(group) + 1) <= MAX_GROUP_BYTES:
            taken = loop.take()
            loop.ahead.append(taken)
            if taken.error is not None or not alike(first.tensors, taken.tensors, numbers):
                break
            group.append(taken)
        return group

    def _hold_against(self, plain: Original, slots: Any, group: list[Taken], results: list[Any]) -> None:
        """Compare with the plain call, the first batch and the last: each has other neighbours.

        Raises:
            ApartError: They differ by more than rounding.
        """
        for at in (0, len(group) - 1):
            positional, named = filled(slots, group[at].tensors)
            if found := difference(plain(*positional, **named), results[at]):
                raise ApartError(f"a sample's result depends on the samples beside it: {found}")

    def _check(self, loader: DataLoader[Any]) -> None:
        """Ask once for each data set whether its batches may be fetched ahead.

        Raises:
            ApartError: They may not.
        """
        known = self._objections.get(id(loader.dataset))
        if known is None or known[0] is not loader.dataset:
            known = self._objections[id(loader.dataset)] = (loader.dataset, objection_to(loader))
        if known[1]:
            raise ApartError(known[1])

    def _give_up(self, reason: str) -> None:
        """Call the model as the script does from now on; batches that were taken ahead are still given in their turn."""
        if not self.reason:
            self.reason = f"batches of the evaluation are not computed together: {reason}"
            self._on_failure(JobError(self.reason))

    def rehearse(self, original: Original, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Evaluate a training batch beside itself, so that the counter tells of it; modes are put back.

        Args:
            original: Calls the model.
            model: The model, in any mode.
            args: What the script called it with in training.
            kwargs: As `args`.
        """
        tensors = list(iter_tensors([args, kwargs]))
        loader: DataLoader[int] = DataLoader([0, 1], batch_size=1)  # type: ignore[arg-type]  # a list is a dataset
        self._objections[id(loader.dataset)] = loader.dataset, ""
        modes = [(module, module.training) for module in model.modules()]
        loop = Loop(iter([(args, kwargs)]), loader, self._now)
        loop.current = Taken((args, kwargs), tensors)
        before, self._loop = self._loop, loop
        model.eval()
        try:
            with torch.no_grad():
                self.call(original, (model, *args), kwargs)
        finally:
            for module, mode in modes:
                module.training = mode
            self._loop = before


@contextmanager
def _nothing_kept(weights: Weights, state: Any, *, closely: bool) -> Iterator[None]:
    """Calls that must leave everything as it was; what they change is put back.

    Args:
        weights: Of the model.
        state: Its state before.
        closely: Look at everything that its modules hold.

    Raises:
        ApartError: They drew random numbers, or the model keeps something from call to call.
    """
    held, chance = weights.held() if closely else None, torch.get_rng_state()
    met: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised below, unless what the calls left behind explains it
        met = error
    drawn, kept = not torch.equal(chance, torch.get_rng_state()), held is not None and weights.put_back(held)
    if drawn:
        torch.set_rng_state(chance)
        raise ApartError("the model draws random numbers")
    if kept or weights.state() != state:
        raise ApartError("the model keeps something from call to call")
    if met is not None:
        raise met
