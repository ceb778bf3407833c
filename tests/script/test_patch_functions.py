"""Techniques that add a function to a script do there what they do under a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  the usual name

from hasten.core.plan import Plan
from hasten.optimizations import catalogue, precision
from hasten.optimizations.dropout_masks import DropoutMasks
from hasten.optimizations.parts.kept_memory import pays_on_this_machine
from hasten.script.patch import suggest
from hasten.train.build import build
from tests.optimizations.cases.dropout_masks import Wide
from tests.script.patch_samples import PLAIN, added, at, made, patched, plan, swapped, write

MASKS = """'''A docstring.'''
import json

from torch import manual_seed, nn, ones
manual_seed(0)
dropped = [nn.functional.dropout(ones(*size), 0.3) for size in ((70, 70), (9,))]
print(json.dumps([each.tolist() for each in dropped]))
"""
RECORDER = """import torch

ATTENDED, attend = [], torch.nn.functional.scaled_dot_product_attention


def attend_and_record(query, *args, **kwargs):
    ATTENDED.append(str(query.dtype))
    return attend(query, *args, **kwargs)


torch.nn.functional.scaled_dot_product_attention = attend_and_record
"""
ATTENTION = """import json
from recorder import ATTENDED
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, mask=None):
        mixed = self.inner(x)
        out = F.scaled_dot_product_attention(mixed, mixed, mixed, mask, is_causal=mask is None)
        SEEN.append([str(mixed.dtype), str(out.dtype), out.float().tolist()])
        return out


SEEN = []
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(2, 4, 8)
for mask in None, torch.zeros(4, 4):
    loss = model(x, mask).float().sum()
    loss.backward()
    optimizer.step()
mixed = x.to(torch.bfloat16)
print(json.dumps([SEEN, F.scaled_dot_product_attention(mixed, mixed, mixed).float().tolist(), ATTENDED]))
"""
KEPT = """import json
import torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
from hasten.optimizations.allocator import Allocator
print(json.dumps([check.passed for check in Allocator().evidence(None, None)]))
"""


def printed(folder: Path, text: str, *arguments: str, warns: str = "error") -> Any:
    """Run a script in which every warning is an error; return what it prints as JSON."""
    (folder / "run.py").write_text(text)
    command = [sys.executable, "-W", warns, "run.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_dropout_masks_are_those_of_the_technique(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch = made(monkeypatch, tmp_path, MASKS, "dropout_masks")
    assert patch.written == {"dropout_masks": "a kernel that draws dropout masks below the imports of train.py"}
    found = printed(tmp_path, patched(tmp_path, patch))
    live = build(Wide(), Plan(optimizations=(DropoutMasks(),)))
    torch.manual_seed(0)
    drawn = [F.dropout(torch.ones(*size), 0.3).tolist() for size in ((70, 70), (9,))]
    live.undo_all()
    torch.manual_seed(0)
    assert found == drawn
    assert found[0] != F.dropout(torch.ones(70, 70), 0.3).tolist()


def test_attention_stays_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "recorder.py").write_text(RECORDER)
    plain = printed(tmp_path, ATTENTION)
    patch = made(monkeypatch, tmp_path, ATTENTION, precision={"attention": "float32"})
    seen, outside, attended = printed(tmp_path, patched(tmp_path, patch))
    for (before, _, exact), (inside, output, found) in zip(plain[0], seen, strict=True):
        assert (before, inside, output) == ("torch.float32", "torch.bfloat16", "torch.bfloat16")
        torch.testing.assert_close(torch.tensor(found), torch.tensor(exact), rtol=0.05, atol=0.05)
    assert outside == plain[1]
    assert attended == ["torch.float32", "torch.float32", "torch.bfloat16"]  # the last outside of autocast
    again = suggest(Plan.from_dict({"precision": {"attention": "float32"}}, catalogue()), Path("train.py"))
    assert not again.diff
    assert "already uses autocast" in again.left["precision"]


@pytest.mark.parametrize("names", [("precision",), ("allocator",), ("precision", "allocator"), ("allocator", "precision")])
def test_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...]) -> None:
    assert printed(tmp_path, KEPT) == [False, False]
    monkeypatch.chdir(write(tmp_path, {"train.py": KEPT}).parent)
    monkeypatch.setattr(precision, "pays_on_this_machine", lambda: True)
    patch = suggest(plan(*names), Path("train.py"))
    assert all("freed memory is kept below the imports of train.py" in patch.written[name] for name in names)
    assert patch.diff.count("def _keep_freed_memory") == 1
    assert printed(tmp_path, patched(tmp_path, patch)) == [True, True]
    assert suggest(plan("allocator"), tmp_path / "train.py").diff == ""


def test_memory_is_the_c_librarys_without_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
    for there in (False, True):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda there=there: there)
        assert pays_on_this_machine() is not there
    monkeypatch.setattr(os, "confstr", lambda _: None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert not pays_on_this_machine()


def test_autocast_that_a_switch_of_the_script_turned_off_is_turned_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = "        with torch.autocast('cpu', enabled=amp):\n            out = model(x)  # the forward pass\n"
    text = swapped(
        PLAIN, ("        out = model(x)  # the forward pass\n", lines), ("def main():\n", "def main(amp=False):\n")
    )
    patch = made(monkeypatch, tmp_path, text, "precision")
    assert added(patch) == ["with torch.autocast('cpu', enabled=True, dtype=torch.bfloat16):"]
    assert patch.written["precision"].endswith(f"at {at(text, 'with torch.autocast')}")
    assert "gradient scaler" in made(monkeypatch, tmp_path, text, precision={"dtype": "float16"}).left["precision"]
    for fixed in ("True", "False"):
        text = swapped(text, (f"enabled={'amp' if fixed == 'True' else 'True'}", f"enabled={fixed}"))
        patch = made(monkeypatch, tmp_path, text, "precision")
        assert ("already uses autocast" in patch.left.get("precision", "")) == (fixed == "True")


def test_autocast_that_another_context_replaced_is_put_around_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = "torch.amp.autocast('cuda', dtype=torch.float16)"
    pairs = [
        ("        out = model(x)  # the forward pass\n", "        with ctx:\n            out = model(x)\n"),
        ("def main():\n", f"def main():\n    ctx = {own} if torch.cuda.is_available() else nullcontext()\n"),
        ("import json\n", "import json\nfrom contextlib import nullcontext\n"),
    ]
    patch = made(monkeypatch, tmp_path, swapped(PLAIN, *pairs), "precision")
    assert "with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):" in added(patch)
    always = swapped(PLAIN, *pairs[:1], ("def main():\n", f"def main():\n    ctx = {own}\n"))
    assert "already uses autocast" in made(monkeypatch, tmp_path, always, "precision").left["precision"]


ROWS = """import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    scale, reads, name = 1.0, 0, "rows"

    def __len__(self):
        return 64

    def __getitem__(self, index):
        Rows.reads += 1
        return {"x": torch.full((3,), self.scale * index), "y": [index, "row"]}


loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
torch.manual_seed(0)
sums = []
for epoch in range(4):
    Rows.scale = 2.0 if epoch == 1 and "change" in sys.argv else Rows.scale
    sums.append(0.0)
    for batch in loader:
        sums[-1] += batch["x"].sum().item() + batch["y"][0].sum().item()
        loss = model(batch["x"]).mean()
        loss.backward()
        optimizer.step()
print(json.dumps([sums, Rows.reads, loader.dataset.name]))
"""


def test_samples_are_kept_until_one_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = ROWS.replace("WORKERS", "0")
    patch = made(monkeypatch, tmp_path, script, "sample_cache")
    assert added(patch)[-1] == "loader = DataLoader(_KeptSamples(Rows()), batch_size=8, shuffle=True, num_workers=0)"
    text = patched(tmp_path, patch)
    plain, kept = (printed(tmp_path, each) for each in (script, text))
    assert plain[0] == kept[0]
    assert plain[2] == kept[2] == "rows"
    assert plain[1] == 4 * 64
    assert 64 < kept[1] <= 64 + 3 * 64 / 17 + 1
    changed = [printed(tmp_path, each, "change", warns="default") for each in (script, text)]
    assert changed[0][0][2:] == changed[1][0][2:]  # noticed within the epoch, and read ever since
    assert 3 * 64 < changed[1][1] < 4 * 64
    again = suggest(plan("sample_cache"), Path("train.py"))
    assert not again.diff
    assert "already keeps samples" in again.left["sample_cache"]


def test_workers_do_not_keep_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch = made(monkeypatch, tmp_path, ROWS.replace("WORKERS", "2"), "sample_cache")
    assert "has workers" in patch.left["sample_cache"]
    script = ROWS.replace("num_workers=WORKERS", "**dict(num_workers=1)")
    text = patched(tmp_path, made(monkeypatch, tmp_path, script, "sample_cache"))
    plain, kept = (printed(tmp_path, each, "change") for each in (script, text))
    assert plain == kept


@pytest.mark.parametrize("taken", ["def _draw_mask():\n    pass\n", "_masks = 1\n"])
def test_names_that_the_script_uses_are_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: str) -> None:
    patch = made(monkeypatch, tmp_path, MASKS + taken, "dropout_masks")
    assert not patch.diff
    assert "means something else in train.py" in patch.left["dropout_masks"]
