"""Read the structure of a model without running it, and protect its buffers while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

_CONVOLUTIONS: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    nn.Conv1d: (nn.BatchNorm1d, nn.MaxPool1d, nn.AvgPool1d, nn.Dropout1d),
    nn.Conv2d: (nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.Dropout2d),
    nn.Conv3d: (nn.BatchNorm3d, nn.MaxPool3d, nn.AvgPool3d, nn.Dropout3d),
}
"""Convolutions, each with what treats its channels one by one; batch normalisation comes first."""

_POINTWISE: frozenset[type[nn.Module]] = frozenset(
    {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh}
    | {nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity, nn.Dropout}
)
"""What treats each number by itself, without weights of its own."""


@dataclass(frozen=True)
class HiddenLayer:
    """Units that one layer makes and one other layer alone reads, so that some of them can be left out.

    Attributes:
        first: The layer that makes them; each is a row of its weight.
        norm: The batch normalisation between the two, where there is one.
        second: The layer that reads them; each is a column of its weight.
    """

    first: nn.Module
    norm: nn.Module | None
    second: nn.Module

    @property
    def width(self) -> int:
        """How many units there are."""
        return _widths(self.first)[1]


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


def hidden_layers(model: nn.Module) -> list[HiddenLayer]:
    """The hidden layers that can be proved, from structure alone, to lie between two layers of one kind.

    Both layers (Linear, or convolutions of one group) stand in one plain nn.Sequential with nothing but batch normalisation
    and functions of single numbers or channels between them; their parameters are trained, shared with nobody, and nobody
    has hooked in. What a forward pass written by hand does with a layer cannot be seen, so those are left alone.
    """
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))

    def alone(layer: nn.Module) -> bool:
        trained = all(p.requires_grad and owners[id(p)] == 1 for p in layer.parameters())
        return trained and uses[id(layer)] == 1 and not _hooked(layer)

    found: list[HiddenLayer] = []
    for module in model.modules():
        plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
        if plain and uses[id(module)] == 1 and not _hooked(module):
            found += _between(list(module.children()), [alone(layer) for layer in module.children()])
    return [layer for layer in found if layer.width > 1]


def _between(layers: list[nn.Module], alone: list[bool]) -> list[HiddenLayer]:
    """The hidden layers of a sequence of layers. `alone`: whether each is used once, unshared and unhooked."""
    found: list[HiddenLayer] = []
    first: nn.Module | None = None
    norm: nn.Module | None = None
    for layer, free in zip(layers, alone, strict=True):
        if _mixes(layer):
            if first is not None and free and type(layer) is type(first) and _widths(layer)[0] == _widths(first)[1]:
                found.append(HiddenLayer(first, norm, layer))
            first, norm = (layer, None) if free else (None, None)
        elif first is not None and free and norm is None and _normalises(layer, first):
            norm = layer
        elif first is None or _hooked(layer) or type(layer) not in _POINTWISE.union(_CONVOLUTIONS.get(type(first), ())[1:]):
            first, norm = None, None
    return found


def _mixes(layer: nn.Module) -> bool:
    """Whether each of its outputs is a sum over all its inputs."""
    kind, numbers = type(layer), vars(layer)
    return kind is nn.Linear or (kind in _CONVOLUTIONS and numbers["groups"] == 1)


def _normalises(layer: nn.Module, first: nn.Module) -> bool:
    norms = _CONVOLUTIONS.get(type(first), ())[:1]
    return type(layer) in norms and vars(layer)["num_features"] == _widths(first)[1]


def _widths(layer: Any) -> tuple[int, int]:
    """How many units a layer reads and how many it makes."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def _hooked(module: nn.Module) -> bool:
    """Whether somebody looks at what goes in or out, or has replaced the forward pass."""
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return "forward" in vars(module) or any(vars(module).get(name) for name in hooks)


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Put the buffers of a module (BatchNorm's running statistics) back to where they were."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # `data`: autograd, which may have saved the buffer, needs not know
