"""Read the structure of a model without running it, and protect its buffers while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The largest group of modules of one class with parameters in one ModuleList or Sequential; empty below two."""
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
    """Class name -> how many modules of it the model holds."""
    return dict(Counter(type(module).__name__ for module in model.modules()))


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Put the buffers of a module (BatchNorm's running statistics) back to where they were."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # `data`: autograd, which may have saved the buffer, needs not know
