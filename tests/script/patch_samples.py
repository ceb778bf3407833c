"""Tiny training scripts in many forms. Each trains one epoch of two steps and prints its observations as JSON."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hasten.core.plan import Plan
from hasten.optimizations import catalogue, precision
from hasten.script.patch import Patch, suggest


def swapped(text: str, *pairs: tuple[str, str]) -> str:
    """Return a text with the first occurrence of each old part replaced. Each part must exist."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        SEEN["input"] = x.is_contiguous(memory_format=LAST)
        out = self.conv(x)
        SEEN["dtype"] = str(out.dtype)
        SEEN["weights"] = self.conv.weight.is_contiguous(memory_format=LAST)
        SEEN["kernels"] = torch._C._get_flash_sdp_enabled(), torch._C._get_mem_efficient_sdp_enabled()
        return self.head(out.mean(dim=(2, 3)))


def rows():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(16, 3, 8, 8), torch.randint(0, 2, (16,)))


def report(loader, optimizer, model=None):
    SEEN["workers"], SEEN["persistent"] = loader.num_workers, loader.persistent_workers
    SEEN["prefetch"], SEEN["pinned"] = loader.prefetch_factor, loader.pin_memory
    SEEN["fused"], SEEN["foreach"] = optimizer.defaults["fused"], optimizer.defaults["foreach"]
    SEEN["threads"] = torch.get_num_threads()
    SEEN["gradients"] = sum(p.grad is not None for group in optimizer.param_groups for p in group["params"])
    SEEN["frozen"] = gc.get_freeze_count() > 0
    SEEN["compiled"] = getattr(model, "_compiled_call_impl", None) is not None
    SEEN["zero"] = float(torch.full((1,), 1e-45) * 2) == 0
    print(json.dumps(SEEN))
"""

IMPORTS = """import gc
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEEN = {}
LAST = getattr(torch, "channels_last")  # not named as the technique names it
"""

PLAIN = f'''"""A plain loop in a function."""

from __future__ import annotations

{IMPORTS}
{NET}

@torch.no_grad()
def evaluate(model, loader):
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def main():
    loader = DataLoader(rows(), batch_size=8, shuffle=True)
    held_out = DataLoader(rows(), batch_size=8)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loader:
        evaluate(model, held_out)
        out = model(x)  # the forward pass

        # and the loss
        loss = nn.functional.cross_entropy(
            out,
            y,
        )
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False,)
    assert held_out.num_workers == 0
    report(loader, optimizer, model)


if __name__ == "__main__":
    main()
'''

MODULE_LEVEL = f'''{IMPORTS}{NET}

loader = DataLoader(
    rows(),
    batch_size=8,  # small
    shuffle=True  # a new order
)
model = Net()
optimizer = torch.optim.SGD(params=model.parameters(), lr=0.1, foreach=True)
for x, y in loader:
    text = """a string
of two lines"""; assert text.splitlines()[1] == "of two lines"
    nn.functional.cross_entropy(
        model(x), y
    ).backward()
    optimizer.step()
    optimizer.zero_grad(False)
report(loader, optimizer, model)
'''

HELPER_MAIN = '''"""The loader, the model and the step come from other files."""

import json

from parts import data as parts_data
from parts.model import Net, SEEN
from training import Trainer

loaders = parts_data.loaders(batch=8)
trainer = Trainer(Net(), loaders["train"])
trainer.fit()
'''
HELPER_DATA = f"""{IMPORTS}{NET}

def loaders(batch):
    kinds = {{"valid": DataLoader(rows(), batch_size=batch)}}
    kinds["train"] = DataLoader(rows(), batch, True)
    return kinds
"""
HELPER_MODEL = """from .data import Net, SEEN
"""
HELPER_TRAINING = """from torch import optim
from torch.nn import functional as F

from parts.data import report


class Trainer:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader
        self.optimizer = optim.Adam([{"params": self.model.conv.parameters()}, {"params": self.model.head.parameters()}])

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def fit(self):
        for batch in self.loader:
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            self.update(loss)
        report(self.loader, self.optimizer, self.model)

    def update(self, value):
        value.backward()
        self.optimizer.step()
"""

LOADER = "DataLoader(rows(), batch_size=8, shuffle=True)"
AMP = swapped(
    PLAIN,
    ("        out = model(x)  # the forward pass\n",
     '        with torch.autocast("cpu", dtype=torch.bfloat16):\n            out = model(x)\n'),
    (LOADER, "DataLoader(rows(), batch_size=8, shuffle=True, num_workers=0, pin_memory=False)"),
)  # fmt: skip

TWO_LOADERS = f"""{IMPORTS}{NET}

def train(model, optimizer, loader, device):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def main():
    device = torch.device("cuda" if False else "cpu")
    easy, hard = DataLoader(rows(), batch_size=8, shuffle=True), DataLoader(rows(), batch_size=8, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, easy, device)
    train(model, optimizer, hard, device)
    report(easy, optimizer, model)


main()
"""

UNPACKED = """    options = {"batch_size": 8, "num_workers": 0}
    options.update({"shuffle": True})
    loader = DataLoader(rows(), **options)
"""
KWARGS = swapped(PLAIN, (f"    loader = {LOADER}\n", UNPACKED), ("lr=1e-3)", '**{"lr": 1e-3, "fused": False})'))

ALIASED = swapped(
    PLAIN,
    ("import torch\n", "import torch as T\nimport torch\n"),
    (
        "from torch.utils.data import DataLoader, TensorDataset",
        "import torch.utils.data as tud\nfrom torch.utils.data import *",
    ),
    (f"loader = {LOADER}", f"loader = tud.{LOADER}"),
    ("torch.optim.AdamW(", "Best("),
    ("SEEN = {}\n", "SEEN = {}\nBest = T.optim.AdamW\n"),
)

DDP = f"""import os
import tempfile

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Parallel
{IMPORTS}{NET}

def main():
    dist.init_process_group("gloo", init_method=f"file://{{tempfile.mkdtemp()}}/here", rank=0, world_size=1)
    sampler = torch.utils.data.DistributedSampler(rows())
    loader = DataLoader(rows(), batch_size=8, sampler=sampler)
    model = Net()
    if dist.is_initialized():
        model = Parallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        for _ in range(2):
            x, y = next(batches)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    report(loader, optimizer, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

NESTED = f'''{IMPORTS}{NET}

def timed(function):
    return function


@timed
def main():
    """Trains by closures."""

    def setup():
        loader = DataLoader(rows(), batch_size=8, shuffle=True)
        net = Net()
        return loader, net

    loader, net = setup()
    optimizer = torch.optim.SGD((p for p in net.parameters()), lr=0.1)
    for x, y in loader:

        def closure():
            optimizer.zero_grad()
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            loss.backward()
            return loss

        @timed
        def step():
            optimizer.step(closure)

        step()
    report(loader, optimizer, net)


if __name__ == "__main__": main()
'''

GENERATOR = swapped(NESTED, ("SGD((p for p in net.parameters()), lr=0.1)", "AdamW(p for p in net.parameters())"))

UMLAUTS = swapped(
    PLAIN,
    ('"""A plain loop in a function."""', '"""Übung — 訓練."""'),
    (f"loader = {LOADER}", f'loader = print("größe", "訓練") or {LOADER}'),
)

SAMPLES: dict[str, dict[str, str]] = {
    "plain": {"train.py": PLAIN},
    "module_level": {"train.py": MODULE_LEVEL},
    "helper": {
        "train.py": HELPER_MAIN,
        "training.py": HELPER_TRAINING,
        "parts/__init__.py": "",
        "parts/data.py": HELPER_DATA,
        "parts/model.py": HELPER_MODEL,
    },
    "amp": {"train.py": AMP},
    "two_loaders": {"train.py": TWO_LOADERS},
    "kwargs": {"train.py": KWARGS},
    "aliased": {"train.py": ALIASED},
    "ddp": {"train.py": DDP},
    "nested": {"train.py": NESTED},
    "generator": {"train.py": GENERATOR},
    "umlauts": {"train.py": UMLAUTS},
    "tabs": {"train.py": PLAIN.replace("    ", "\t")},
    "no_last_newline": {"train.py": MODULE_LEVEL.rstrip("\n")},
    "windows": {"train.py": PLAIN.replace("\n", "\r\n")},
    "byte_order_mark": {"train.py": "\ufeff" + PLAIN.replace("\n", "\r\n")},
    "name with blanks": {"train it.py": PLAIN},
}
"""Sample -> its files, the script first."""

SETTINGS: dict[str, dict[str, Any]] = {
    "loader_workers": {"num_workers": 1, "prefetch_factor": 3},
    "pinned_memory": {},
    "fused_optimizer": {},
    "precision": {},
    "channels_last": {},
    "compile": {"dynamic": "no"},
    "zero_grad_to_none": {},
    "attention_backend": {"backend": "flash"},
    "cpu_threads": {"num_threads": 2},
    "flush_denormals": {},
    "garbage_collection": {},
}


def plan(*names: str, **settings: dict[str, Any]) -> Plan:
    """Return a plan of the given techniques, or of all the techniques above."""
    chosen = {name: SETTINGS.get(name, {}) for name in names or ([] if settings else SETTINGS)} | settings
    return Plan.from_dict(chosen, catalogue())


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a sample and return its script."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder / next(iter(files))


def made(
    monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str] | str, *names: str, **settings: dict[str, Any]
) -> Patch:
    """Return the patch of a sample, created in its folder, the same on every machine."""
    script = write(folder, {"train.py": files} if isinstance(files, str) else files)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(precision, "pays_on_this_machine", lambda: False)
    return suggest(plan(*names, **settings), Path(script.name))


def apply(folder: Path, diff: str, tool: str) -> None:
    """Apply a diff with a real tool, `patch` or `git`."""
    (folder / "hasten.patch").write_bytes(diff.encode())
    command = ["patch", "-p1", "-s", "-i", "hasten.patch"] if tool == "patch" else ["git", "apply", "hasten.patch"]
    nowhere = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}  # as in a folder outside of any repository
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=nowhere)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{diff}"
    (folder / "hasten.patch").unlink()


def patched(folder: Path, patch: Patch) -> str:
    """Return the text of `train.py` after applying the patch."""
    apply(folder, patch.diff, "patch")
    return (folder / "train.py").read_text()


def added(patch: Patch) -> list[str]:
    """Return the lines that a patch adds, without indentation."""
    return [line[1:].strip() for line in patch.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]


def at(text: str, part: str) -> str:
    """Return the location of a part's first occurrence, such as `train.py:12`."""
    return f"train.py:{text[: text.index(part)].count(chr(10)) + 1}"
