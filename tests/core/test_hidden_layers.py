"""Which hidden layers are proved, from structure alone, to have no other reader."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.nn.utils import parametrizations

from hasten.core.modules import hidden_layers


def widths(model: nn.Module) -> list[int]:
    return [layer.width for layer in hidden_layers(model)]


def linear(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), *between, nn.Linear(8, 2))


def convolutions(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *between, nn.Conv2d(8, 2, 3))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (linear(nn.ReLU()), [8]),
        (linear(nn.GELU(), nn.Dropout(0.1)), [8]),
        (linear(), [8]),
        (convolutions(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), [8]),
        (nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)), [8, 6]),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 3)), [4]),
        (nn.ModuleDict({"deep": nn.ModuleList([linear(nn.Tanh())])}), [8]),
    ],
)
def test_units_between_two_layers_are_found(model: nn.Module, expected: list[int]) -> None:
    assert widths(model) == expected


@pytest.mark.parametrize(
    "between",
    [
        nn.Softmax(dim=-1),  # each number hangs on the others
        nn.LayerNorm(8),
        nn.PReLU(8),  # a weight for each unit
        nn.BatchNorm1d(8),  # of rows or of features, as the input is
        nn.Flatten(),
        nn.Sequential(nn.ReLU()),
        nn.MaxPool1d(2),  # would mix the features of linear layers
    ],
)
def test_what_mixes_units_or_has_weights_stops_it(between: nn.Module) -> None:
    assert widths(linear(between)) == []


def test_layers_that_do_not_match_are_no_pair() -> None:
    assert widths(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))) == []
    assert widths(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(4, 2))) == []
    assert widths(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2))) == []
    assert widths(convolutions(nn.BatchNorm2d(8), nn.BatchNorm2d(8))) == []
    assert widths(nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 2))) == []


def test_one_activation_may_serve_several_layers() -> None:
    act = nn.ReLU()
    assert widths(nn.Sequential(nn.Linear(3, 8), act, nn.Linear(8, 6), act, nn.Linear(6, 1))) == [8, 6]


def test_weights_with_another_owner_are_left_alone() -> None:
    tied = nn.ModuleDict({"net": linear(nn.ReLU()), "other": nn.Linear(3, 8)})
    net: Any = tied["net"]
    tied["other"].weight = net[0].weight
    assert widths(tied) == []
    twice = linear(nn.ReLU())
    assert widths(nn.ModuleList([twice, twice])) == []
    layer = nn.Linear(8, 8)
    assert widths(nn.Sequential(layer, nn.ReLU(), layer)) == []


def test_weights_that_are_not_trained_are_left_alone() -> None:
    model = linear(nn.ReLU())
    model[0].bias.requires_grad = False
    assert widths(model) == []


@pytest.mark.parametrize("place", [0, 1, 2, None])
def test_who_looks_in_stops_it(place: int | None) -> None:
    model = linear(nn.ReLU())
    (model if place is None else model[place]).register_forward_hook(lambda *_: None)
    assert widths(model) == []


def test_a_forward_of_ones_own_stops_it() -> None:
    class Tapped(nn.Sequential):
        """Reads the units inside."""

        def forward(self, x: Any) -> Any:
            hidden = self[0](x)
            return self[2](self[1](hidden)) + hidden.mean()

    class Named(nn.Sequential):
        """Has another name only."""

    class Own(nn.Linear):
        """May do anything."""

    parts = (nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    assert widths(Tapped(*parts)) == []
    assert widths(Named(*parts)) == [8]
    assert widths(nn.Sequential(Own(3, 8), nn.ReLU(), nn.Linear(8, 2))) == []
    assert widths(nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 8)), nn.ReLU(), nn.Linear(8, 2))) == []
