"""Measure the gain of other implementations of single parts of an update, and the time of garbage collector and kernel."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter
from typing import Any, Self

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from hasten.core.live import LiveJob
from hasten.core.openmp import count_denormals_kept, take_denormals_for_zero

Form = Callable[[], AbstractContextManager[bool]]

MAX_COPIED_BYTES = 1 << 25
"""Maximum bytes of parameters to copy. Of a larger model this part represents the rest. All forms together use 12x this."""
ROUNDS, ENOUGH_S = 15, 0.3
"""Maximum number of timed runs, and seconds after which no further run starts."""
FORM_WORDS = {
    "flushed": "what if denormal numbers were flushed to zero",
    "threads": "what if there were as many threads as cores",
    "attention": "what if attention used a fused kernel",
}
FORMS = {"fused": {"fused": True, "foreach": False}, "foreach": {"foreach": True}}


class Overhead:
    """Measures the time of Python's garbage collector and of the kernel within this context, which may be entered again.

    Attributes:
        collecting_s: Seconds of the garbage collector.
        user_s: Processor seconds of all threads of this process in programs.
        kernel_s: Their processor seconds in the kernel: page faults, reads.
    """

    def __init__(self) -> None:
        self.collecting_s = self.user_s = self.kernel_s = 0.0
        self._since: float | None = None
        self._before = getrusage(RUSAGE_SELF)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        self._before = getrusage(RUSAGE_SELF)
        return self

    def __exit__(self, *_: object) -> None:
        used = getrusage(RUSAGE_SELF)
        self.user_s += used.ru_utime - self._before.ru_utime
        self.kernel_s += used.ru_stime - self._before.ru_stime
        gc.callbacks.remove(self._note)

    @property
    def kernel_frac(self) -> float:
        """Share of the process's processor time that it spent in the kernel."""
        return self.kernel_s / max(self.user_s + self.kernel_s, 1e-9)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._since = perf_counter()
        elif self._since is not None:
            self.collecting_s += perf_counter() - self._since
            self._since = None


def process_forms(device: str, cores: int, op_counts: Mapping[str, int]) -> dict[str, Form]:
    """Return other process states worth measuring. Each is a context that yields whether the state could be set.

    On a CPU these are `flushed`, and `threads` if the number of threads differs from that of cores. If attention uses the
    plain formula, `attention` enables the fused kernels.
    """
    forms: dict[str, Form] = {}
    if device == "cpu":
        forms["flushed"] = denormals_as_zero
        if torch.get_num_threads() != cores:
            forms["threads"] = lambda: threads_for(cores)
    if any("scaled_dot_product_attention_math" in op for op in op_counts):
        forms["attention"] = fused_attention
    return forms


@contextmanager
def fused_attention() -> Iterator[bool]:
    """Allow fused attention kernels within this context."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        yield True


@contextmanager
def threads_for(cores: int) -> Iterator[bool]:
    """Use one operator thread per core within this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        yield True
    finally:
        torch.set_num_threads(before)


@contextmanager
def denormals_as_zero() -> Iterator[bool]:
    """Flush denormal numbers to zero within this context; yields False if this processor cannot."""
    before = count_denormals_kept(1) == 0
    can = take_denormals_for_zero(on=True)
    try:
        yield can
    finally:
        take_denormals_for_zero(on=before)


def optimizer_gains(live: LiveJob, present_s: float) -> dict[str, float]:
    """Return how much faster the optimizer's step would be in each available implementation: `fused`, `foreach`.

    Each implementation steps copies of the parameters with synthetic gradients, so the job is not affected. The present one
    is not timed this way: it creates temporary tensors, whose cost depends on the job's other allocations. Empty for an
    optimizer that is not PyTorch's, and for one without such implementations.

    Args:
        live: The job.
        present_s: Observed seconds of its present step.
    """
    kind: Any = type(live.optimizer)
    accepted = inspect.signature(kind).parameters
    if not kind.__module__.startswith("torch.optim.") or not set(FORMS) <= accepted.keys():
        return {}
    gains = {}
    for name, flags in FORMS.items():
        optimizer = _copy(live.optimizer, flags)
        step = _stepping(optimizer) if optimizer is not None else None
        if optimizer is not None and step is not None:
            scale = _num_bytes(live.optimizer) / max(_num_bytes(optimizer), 1)
            gains[name] = present_s / (typical_s(step, live.device) * scale)
    return gains


def typical_s(act: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a few runs of `act`."""
    started, taken = perf_counter(), list[float]()
    while len(taken) < ROUNDS and perf_counter() - started < ENOUGH_S:
        before = perf_counter()
        act()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        taken.append(perf_counter() - before)
    return max(median(taken), 1e-9)


def _copy(old: Optimizer, flags: dict[str, bool]) -> Optimizer | None:
    """Return an optimizer like `old` over copies of its parameters; None if that fails, for instance for lack of memory."""
    kind: Any = type(old)
    accepted = inspect.signature(kind).parameters
    defaults = {name: value for name, value in old.defaults.items() if name in accepted}
    groups, left = [], MAX_COPIED_BYTES
    try:
        for group in old.param_groups:
            copies = []
            for param in group["params"]:
                if not param.requires_grad or param.layout is not torch.strided or left <= 0:
                    continue
                fits = max(left // param.element_size(), 1)
                part = param.detach() if param.numel() <= fits else param.detach().flatten()[:fits]
                copies.append(part.clone().requires_grad_())
                copies[-1].grad = torch.full_like(copies[-1], 1e-3)
                left -= part.numel() * part.element_size()
            if copies:
                groups.append({**group, "params": copies, **flags})
        optimizer: Optimizer = kind(groups, **{**defaults, **flags})
    except (RuntimeError, TypeError, ValueError):  # no parameters, no memory, or an unsupported form
        return None
    return optimizer


def _stepping(optimizer: Optimizer) -> Callable[[], object] | None:
    """Return its step without the hooks on all optimizers; None if it fails."""
    plain = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)

    def step() -> object:
        return plain(optimizer)

    try:
        step()  # creates its state
    except RuntimeError:
        return None
    return step


def _num_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of the parameters that it trains."""
    params = (param for group in optimizer.param_groups for param in group["params"] if param.requires_grad)
    return sum(param.numel() * param.element_size() for param in params)
