"""Read the structure of a model without running it, and restore its buffers after it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the largest group of modules of one class in one ModuleList or Sequential. Empty below two modules.

    Only modules with children of their own count.
    """
    best: list[nn.Module] = []
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        groups: dict[type[nn.Module], list[nn.Module]] = {}
        for child in module:
            if any(True for _ in child.children()):
                groups.setdefault(type(child), []).append(child)
        best = max([best, *groups.values()], key=len)
    return best if len(best) > 1 else []


def module_counts(model: nn.Module) -> dict[str, int]:
    """Return class name -> number of modules in the model."""
    return dict(Counter(type(module).__name__ for module in model.modules()))


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers of a module (BatchNorm's running statistics) at the end of the block."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # `data`: hide the change from autograd, which may have saved the buffer
