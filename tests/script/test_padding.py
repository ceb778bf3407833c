"""Padding is detected from outside, trimmed in a separate run, and reported as the bottleneck."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.core.batch import kept_length
from hasten.script.watch.padding import LOOKED_AT, Padding, cut_padding
from hasten.script.watch.profile import make_profile, wants_cut
from hasten.script.watch.record import PHASES


def padded(*lengths: int, width: int = 32, pad: int = 0) -> torch.Tensor:
    rows = torch.full((len(lengths), width), pad)
    for row, length in enumerate(lengths):
        rows[row, :length] = torch.arange(1, length + 1)
    return rows


def test_the_longest_row_says_what_is_kept() -> None:
    assert kept_length(padded(3, 20, 7)) == (20, 32)
    assert kept_length(padded(3, 20, 7, pad=-100)) == (20, 32)
    assert kept_length({"ids": padded(3, 7), "mask": padded(3, 9).bool()}) == (9, 32)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(4, 32),  # not integers
        torch.zeros(4, 32, dtype=torch.long),  # only padding
        padded(3, width=32),  # a single row
        padded(3, 7, width=8),  # too short for a sequence
        torch.zeros(4, 32, 2, dtype=torch.long),
        ["a", "b"],
        None,
    ],
)
def test_what_is_no_padded_sequence_is_left_alone(batch: object) -> None:
    assert kept_length(batch) is None
    assert cut_padding(batch) is batch


def test_a_full_row_leaves_nothing_to_cut() -> None:
    batch = padded(3, 32)
    assert kept_length(batch) == (32, 32)
    assert cut_padding(batch) is batch


def test_every_tensor_of_that_length_is_cut_and_nothing_else() -> None:
    labels = torch.tensor([1, 2])
    batch: dict[str, Any] = {"ids": padded(3, 20), "weights": torch.rand(2, 32, 5), "labels": labels, "name": "x"}
    cut = cut_padding(batch)
    assert torch.equal(cut["ids"], batch["ids"][:, :20])
    assert torch.equal(cut["weights"], batch["weights"][:, :20])
    assert cut["ids"].is_contiguous()
    assert cut["labels"] is labels
    assert cut["name"] == "x"


def test_the_share_is_of_the_first_batches_that_have_rows() -> None:
    padding = Padding()
    padding.look(torch.rand(4, 3))
    padding.look(padded(8, 16))
    assert padding.frac == pytest.approx(0.5)
    for _ in range(2 * LOOKED_AT):
        padding.look(padded(8, 24))
    assert padding.frac == pytest.approx(1 - (16 + 24 * (LOOKED_AT - 2)) / (32 * (LOOKED_AT - 1)))
    assert Padding().frac == 0.0


def found(forward: float) -> dict[str, Any]:
    seconds = [[forward if name == "forward" else 0.0 for name in PHASES]] * 10
    return {
        "phases": list(PHASES), "seconds": seconds, "tail": [0.0] * len(PHASES), "ended": False, "fetch_wait_frac": 0.0,
        "places": [["collate", "train.py", 9, 10, 1e-6]], "own_cost_frac": 0.0, "device": "cpu", "padding_frac": 0.8,
    }  # fmt: skip


def test_padding_is_named_with_what_it_costs_and_where_it_is_made() -> None:
    assert wants_cut(found(4.0))
    assert not wants_cut({**found(4.0), "padding_frac": 0.05})
    told = make_profile(found(4.0), cut=found(1.0))
    assert told["ceilings"]["padding"] == pytest.approx(4.0)
    assert told["bottleneck"]["name"] == "padding"
    assert told["bottleneck"]["share"] == pytest.approx(0.75)
    assert "These batches are made at train.py:9 (collate)." in told["bottleneck"]["words"]
    assert make_profile(found(4.0), cut=found(3.9))["bottleneck"]["name"] == "compute"
    assert "padding" not in make_profile(found(4.0))["ceilings"]


SCRIPT = """
import torch
from torch.utils.data import DataLoader

WIDTH = 512
data = [torch.arange(1, 9 + i % 24) for i in range(256)]

def collate(rows):
    out = torch.zeros(len(rows), WIDTH, dtype=torch.long)
    for row, ids in zip(out, rows):
        row[: len(ids)] = ids
    return out

FIXED
model = torch.nn.Sequential(torch.nn.Embedding(64, 64), torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    for ids in DataLoader(data, 16, collate_fn=collate):
        optimizer.zero_grad()
        check(ids)
        model(ids).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.long
@pytest.mark.parametrize("fixed", [False, True])
def test_padding_is_measured_by_a_run_without_it_where_the_script_can_do_without(tmp_path: Path, fixed: bool) -> None:
    check = "def check(ids):\n    assert ids.shape[1] == WIDTH" if fixed else "def check(ids):\n    pass"
    (tmp_path / "train.py").write_text(SCRIPT.replace("FIXED", check))
    command = [sys.executable, "-m", "hasten", "profile", "train.py", "--seconds", "0.2", "--json", "found.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "found.json").read_text()
    assert ('"padding":' in text) is not fixed
