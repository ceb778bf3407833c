"""The lines that a patch writes, and the reasons for what it cannot write."""

from __future__ import annotations

import ast
import multiprocessing
import re
from pathlib import Path

import pytest

from hasten.optimizations import catalogue
from tests.script.patch_samples import DDP, LOADER, MODULE_LEVEL, PLAIN, TWO_LOADERS, added, at, made, patched, swapped

WORKERS = "num_workers=1, prefetch_factor=3"
MODEL = "    model = Net()\n"


def test_comments_and_layout_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch = made(monkeypatch, tmp_path, MODULE_LEVEL, "loader_workers", "precision", "fused_optimizer")
    assert added(patch) == [
        "shuffle=True,  # a new order",
        "num_workers=1,",
        "prefetch_factor=3",
        "optimizer = torch.optim.SGD(params=model.parameters(), lr=0.1, foreach=False, fused=True)",
        'with torch.autocast("cpu", dtype=torch.bfloat16):',
        "loss = nn.functional.cross_entropy(",
        "model(x), y",
        ")",
        "loss.backward()",
    ]


def test_the_block_under_autocast_is_that_of_the_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch = made(monkeypatch, tmp_path, PLAIN, "precision")
    first, last = at(PLAIN, "out = model(x)"), at(PLAIN, "loss = nn.")
    assert patch.written == {"precision": f"the forward pass and the loss at {first} to {last} under autocast in bfloat16"}
    step = """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)  # the forward pass

            # and the loss
            loss = nn.functional.cross_entropy(
                out,
                y,
            )
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
"""
    assert step in patched(tmp_path, patch)


def test_strings_over_several_lines_keep_their_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = '        name = f"""{\n            x.shape}\n  two"""\n        assert name.endswith("\\n  two")\n'
    text = swapped(PLAIN, ("        # and the loss\n", lines), ("out,\n", "out if name else x,\n"))
    changed = patched(tmp_path, made(monkeypatch, tmp_path, text, "precision"))
    assert '            name = f"""{\n            x.shape}\n  two"""\n            assert name' in changed


def test_a_loss_that_another_function_differentiates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(
        PLAIN,
        ("        loss.backward()\n", "        update(loss / 2)\n"),
        ("def main():\n", "def update(value):\n    value.backward()\n\n\ndef main():\n"),
    )
    changed = patched(tmp_path, made(monkeypatch, tmp_path, text, "precision"))
    assert "            out = model(x)  # the forward pass\n" in changed
    assert "\n        update(loss / 2)\n" in changed


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("DataLoader(rows(), 8, True, None, None, 0)",
         "DataLoader(rows(), 8, True, None, None, 1, prefetch_factor=3)"),
        ("DataLoader(rows(), batch_size=8, num_workers=2 + 2,)",
         "DataLoader(rows(), batch_size=8, num_workers=1, prefetch_factor=3)"),
        ('DataLoader(rows(), **{"batch_size": 8, "num_workers": 0})',
         'DataLoader(rows(), **{"batch_size": 8, "num_workers": 1, "prefetch_factor": 3})'),
        ("DataLoader(rows(), **(extra or {}))",
         'DataLoader(rows(), **({**(extra or {}), "num_workers": 1, "prefetch_factor": 3}))'),
        ("DataLoader(rows(), **extra, num_workers=7)",
         'DataLoader(rows(), **{**extra, "prefetch_factor": 3}, num_workers=1)'),
    ],
)  # fmt: skip
def test_the_loaders_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, line: str) -> None:
    patch = made(monkeypatch, tmp_path, swapped(PLAIN, (LOADER, call)), "loader_workers")
    seen = re.sub(r",\s*\n\s*", ", ", patched(tmp_path, patch))
    assert f"loader = {line}\n" in seen


def test_long_calls_go_on_below_their_first_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(PLAIN, ("shuffle=True)", "shuffle=True, worker_init_fn=None, timeout=0)"))
    changed = patched(tmp_path, made(monkeypatch, tmp_path, text, "loader_workers", "pinned_memory"))
    first = "(rows(), batch_size=8, shuffle=True, worker_init_fn=None, timeout=0,"
    assert f"{first}\n                        {WORKERS}, pin_memory=True)\n" in changed


def test_workers_are_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(PLAIN, ("shuffle=True)", "shuffle=True, num_workers=4, persistent_workers=True)"))
    patch = made(monkeypatch, tmp_path, text, loader_workers={"num_workers": 0})
    assert added(patch) == [f"loader = {LOADER[:-1]}, num_workers=0, persistent_workers=False)"]


def test_workers_that_would_train_again_are_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    left = made(monkeypatch, tmp_path, MODULE_LEVEL, "loader_workers").left["loader_workers"]
    assert f"so {at(MODULE_LEVEL, 'for x, y in loader')} would start training again" in left
    assert made(monkeypatch, tmp_path, PLAIN, "loader_workers").diff


def test_copies_to_the_device_do_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(TWO_LOADERS, ("    train(model, optimizer, hard, device)\n", ""))
    lines = added(made(monkeypatch, tmp_path, text, "pinned_memory"))
    assert "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)" in lines
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("made_on", "device"),
    [
        ('    device = torch.device("cuda" if 1 else "cpu")\n    model = Net().to(device)\n', "device.type"),
        ('    device = "cuda" if 1 else "cpu"\n    model = Net().to(device)\n', "device"),
        ('    device = "cuda:0"\n    model = Net().to(device)\n', "next(model.parameters()).device.type"),
        ("    model = Net().cuda()\n", "next(model.parameters()).device.type"),
        (MODEL, '"cpu"'),
    ],
)
def test_the_device_of_autocast_is_the_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made_on: str, device: str
) -> None:
    patch = made(monkeypatch, tmp_path, swapped(PLAIN, (MODEL, made_on)), "precision")
    assert f"with torch.autocast({device}, dtype=torch.bfloat16):" in added(patch)


def test_settings_come_below_the_imports_in_one_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = '"""Train."""\n\nfrom helper import main\n\nmain()\n'
    names = ("cpu_threads", "flush_denormals", "cudnn_benchmark")
    patch = made(monkeypatch, tmp_path, text, *names, matmul_precision={"kind": "bf16"})
    settings = """
from helper import main
import torch

torch.set_num_threads(2)
torch.set_flush_denormal(True)
torch.backends.cudnn.benchmark = True
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
torch.backends.mkldnn.conv.fp32_precision = "bf16"
torch.backends.mkldnn.rnn.fp32_precision = "bf16"

main()
"""
    assert settings in patched(tmp_path, patch)


@pytest.mark.parametrize(
    "head", ['"""Train."""\n', "from __future__ import annotations\n", "# a comment\n", "import os\nimport sys\n", ""]
)
def test_an_import_finds_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, head: str) -> None:
    text = f"{head}print(1)\n"
    changed = patched(tmp_path, made(monkeypatch, tmp_path, text, "cpu_threads"))
    seen: dict[str, object] = {}
    exec(changed, seen)  # noqa: S102 - the script of this test
    assert changed.startswith(head)
    assert re.search(r"import torch\n\ntorch.set_num_threads\(2\)\n\nprint\(1\)\n$", changed)


def test_what_the_script_sets_itself_is_changed_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(PLAIN, (MODEL, f"    torch.set_num_threads(16)\n{MODEL}"))
    patch = made(monkeypatch, tmp_path, text, "cpu_threads")
    assert added(patch) == ["torch.set_num_threads(2)"]
    assert patch.written["cpu_threads"] == f"torch.set_num_threads: 2 (was 16) at {at(text, 'torch.set_num')}"


def test_the_collector_runs_once_an_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = patched(tmp_path, made(monkeypatch, tmp_path, DDP, garbage_collection={"mode": "epoch"}))
    assert "    gc.disable()\n    for epoch in range(1):\n" in changed
    assert "        gc.collect()\n        for _ in range(2):\n" in changed


def test_the_model_is_compiled_after_the_last_that_wraps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(DDP, ("    dist.destroy", "    model = Net()\n    dist.destroy"))
    changed = patched(tmp_path, made(monkeypatch, tmp_path, text, "compile", "channels_last"))
    assert "    model = Net()\n    model = model.to(memory_format=torch.channels_last)\n    if dist" in changed
    assert "        model = Parallel(model)\n    model.compile(dynamic=False)\n    criterion" in changed


def test_lines_are_those_of_the_file_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch = made(monkeypatch, tmp_path, PLAIN)
    assert patch.written["compile"] == f"model.compile(dynamic=False) after {at(PLAIN, 'model = Net()')}"
    assert patch.written["fused_optimizer"] == f"fused=True at {at(PLAIN, 'optimizer = ')}"
    assert patch.written["garbage_collection"].endswith(f"before the loop at {at(PLAIN, '    for x, y in loader:')}")


ENDLESS = """class Endless:
    def __init__(self, dataset, **more):
        self.loader = DataLoader(dataset, **more)
        self.batches = iter(self.loader)

    def following(self):
        return next(self.batches)


def again(loader):
    while True:
        for batch in loader:
            yield batch


def main():
"""
UNPACKED = '**{**more, "num_workers": 1, "prefetch_factor": 3}'
NOT_TRAINING = "    held_out = DataLoader(rows(), batch_size=8, shuffle=True)\n"


@pytest.mark.parametrize(
    ("loader", "loop", "line"),
    [
        ("    loader = Endless(rows(), batch_size=8)\n", "    for _ in range(2):\n        x, y = loader.following()\n",
         f"self.loader = DataLoader(dataset, {UNPACKED})"),
        ("    held_out, loader = again(held_out), again(DataLoader(rows()))\n",
         "    for _ in range(2):\n        x, y = next(loader)\n",
         f"held_out, loader = again(held_out), again(DataLoader(rows(), {WORKERS}))"),
        ("    loader = DataLoader(rows())\n    kinds = {'a': held_out}\n    kinds['b'] = loader\n",
         "    for x, y in tqdm(enumerate(kinds['b'])):\n", f"loader = DataLoader(rows(), {WORKERS})"),
        ("    loader = DataLoader(rows())\n    loader, held_out = prepare(loader, held_out)\n",
         "    for x, y in loader:\n        with torch.no_grad():\n            next(iter(held_out))\n",
         f"loader = DataLoader(rows(), {WORKERS})"),
    ],
)  # fmt: skip
def test_the_loader_is_that_of_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loader: str, loop: str, line: str
) -> None:
    text = swapped(
        PLAIN,
        ("def main():\n", ENDLESS),
        ("    held_out = DataLoader(rows(), batch_size=8)\n", ""),
        (f"    loader = {LOADER}\n", NOT_TRAINING + loader),
        ("    for x, y in loader:\n", loop),
    )
    seen = [re.sub(r"\s+", " ", item) for item in added(made(monkeypatch, tmp_path, text, "loader_workers"))]
    assert " ".join(seen).rstrip() == line


def test_a_loader_that_only_evaluates_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(PLAIN, ("    held_out = DataLoader(rows(), batch_size=8)\n", NOT_TRAINING), (LOADER, "[rows()[:8]]"))
    left = made(monkeypatch, tmp_path, text, "loader_workers").left["loader_workers"]
    assert left.startswith(f"no DataLoader is known to feed a training loop ({at(text, 'held_out = DataLoader')})")


def test_a_copy_of_a_class_of_the_users_takes_what_it_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(
        TWO_LOADERS,
        ("    train(model, optimizer, hard, device)\n", ""),
        ("def train(", "class Batch:\n    def to(self, device):\n        return self\n\n\ndef train("),
    )
    assert made(monkeypatch, tmp_path, text, "pinned_memory").written["pinned_memory"].count("non_blocking") == 0


def test_an_optimizer_that_the_model_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    method = "    def optimizer(self):\n        known = [p for _, p in self.named_parameters()]\n"
    text = swapped(
        PLAIN,
        ("    def forward(self, x):\n", f"{method}        return torch.optim.AdamW(known)\n\n    def forward(self, x):\n"),
        ("torch.optim.AdamW(model.parameters(), lr=1e-3)", "model.optimizer()"),
    )
    patch = made(monkeypatch, tmp_path, text, "compile", "fused_optimizer")
    assert added(patch) == ["return torch.optim.AdamW(known, fused=True)", "model.compile(dynamic=False)"]


@pytest.mark.parametrize("kind", ["getattr(torch.optim, NAME)", "schedulefree.AdamWScheduleFree"])
def test_the_model_of_an_optimizer_of_any_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    imported = "import schedulefree\nfrom elsewhere import Net\nclass Own"
    text = swapped(PLAIN, ("torch.optim.AdamW(model", f"{kind}(model"), ("class Net", imported))
    patch = made(monkeypatch, tmp_path, text, "precision", "compile", "fused_optimizer")
    assert set(patch.written) == {"precision", "compile"}
    assert set(patch.left) == {"fused_optimizer"}


def test_torchs_own_modules_are_compiled_inside_of_wrappers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(DDP, ("    model = Net()\n", "    model = nn.Sequential(Net())\n"))
    changed = patched(tmp_path, made(monkeypatch, tmp_path, text, "compile"))
    assert "    model = nn.Sequential(Net())\n    model = torch.compile(model, dynamic=False)\n    if dist" in changed


def test_accelerate_keeps_its_own_autocast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = swapped(
        PLAIN,
        ("import torch\n", "import torch\nfrom accelerate import Accelerator\n"),
        (MODEL, f"    helper = Accelerator(mixed_precision=wish)\n{MODEL}    model = helper.prepare(model)\n"),
        ("        loss.backward()\n", "        helper.backward(loss)\n"),
    )
    patch = made(monkeypatch, tmp_path, text, "precision", "attention_backend")
    assert 'helper = Accelerator(mixed_precision="bf16")' in added(patch)
    assert patch.written["precision"].startswith('mixed_precision="bf16" (was wish) at ')
    assert "attention_backend" in patch.written
    twice = swapped(text, ("    helper = ", "    Accelerator()\n    helper = "))
    patch = made(monkeypatch, tmp_path, twice, "precision")
    assert patch.left["precision"].startswith("accelerate runs the backward pass, and has its own setting")
    assert patch.left["precision"].endswith('\n    Accelerator(..., mixed_precision="bf16")')


@pytest.mark.parametrize("module", ["lightning", "lightning.pytorch", "pytorch_lightning"])
def test_a_trainer_keeps_its_own_autocast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str) -> None:
    text = f"import {module} as pl\n\npl.Trainer(max_epochs=1).fit(Net())\n"
    patch = made(monkeypatch, tmp_path, text, "precision")
    assert added(patch) == ['pl.Trainer(max_epochs=1, precision="bf16-mixed").fit(Net())']


def test_a_large_folder_is_followed_in_little_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rounds = "".join(f"    model = model.part{at} if model else model\n    model = model.part{at}\n" for at in range(40))
    text = swapped(PLAIN, (MODEL, f"{MODEL}    if not model:\n        pass\n{rounds}"))
    patch = made(monkeypatch, tmp_path, text, "precision", "compile", "loader_workers")
    assert "loader_workers" in patch.written


# Changes that cannot be written.


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("loader_workers", LOADER, "DataLoader(*arguments)", "positional arguments are unpacked"),
        ("loader_workers", LOADER, "DataLoader(rows(), **one, **two)", "more than one `[*][*]`"),
        ("loader_workers", "import DataLoader,", "import Dataset as DataLoader,", "no call of torch's DataLoader was found"),
        ("fused_optimizer", "torch.optim.AdamW", "getattr(torch.optim, 'AdamW')", "no call of an optimizer"),
        ("fused_optimizer", "AdamW", "RMSprop", "RMSprop .train.py:[0-9]+. has no fused implementation"),
        ("fused_optimizer", "lr=1e-3)", "lr=1e-3, fused=True)", "the optimizer already has this setting"),
        ("precision", "        out = model(x)  #", "        a = 1; out = model(x)  #", "several statements"),
        ("precision", "loss.backward()", "loss.backward()\n        (2 * loss).backward()", "more than one call of .back"),
        ("precision", "        out = model(x)", "        out = x @ x", "no call of the model was found before train.py:"),
        ("precision", "import torch\n", "import torch\ntorch = vars()\n", "`torch` means something else in train.py"),
        ("compile", "model = Net()", "model = torch.compile(Net())", "already compiles the model"),
        ("compile", "model = Net()", "model = nn.Sequential()\n    model.state_dict()", "renames the keys of its"),
        ("channels_last", "model.parameters()", "[*model.parameters(), *main.x.parameters()]", "it is unclear where"),
        ("cudnn_benchmark", "SEEN =", "torch.use_deterministic_algorithms(True)\nSEEN =", "requests deterministic kernels"),
        ("matmul_precision", "SEEN =", "torch.set_float32_matmul_precision('high')\nSEEN =", "does not allow these"),
        ("background_checkpoint", "    report(", "    torch.save({}, 'x')\n    report(", "# train.py:[0-9]+: copy the"),
        ("reused_buffers", "", "", "train with `hasten run --plan hasten.toml train.py`"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, old: str, new: str, reason: str
) -> None:
    place = PLAIN.rindex(old) if old.startswith("    report") else PLAIN.index(old)
    text = PLAIN[:place] + new + PLAIN[place + len(old) :]
    patch = made(monkeypatch, tmp_path, text, name)
    assert not patch.diff
    assert not patch.written
    assert re.search(reason, patch.left[name]), patch.left[name]


@pytest.mark.parametrize("name", [name for name, kind in catalogue().items() if not kind().environment()])
def test_the_lines_to_write_by_hand_are_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    patch = made(monkeypatch, tmp_path, "import torch\nprint(1)\n", name)
    reason, *lines = patch.left.get(name, "none.").splitlines()
    assert reason.endswith(".")
    assert bool(patch.diff) == (name in patch.written) != (name in patch.left)
    ast.parse("\n".join(line.removeprefix("    ") for line in lines))


@pytest.mark.parametrize("name", ["sample_cache", "async_logging", "precision", "loader_workers", "garbage_collection"])
def test_lines_to_write_by_hand_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    assert "\n" in made(monkeypatch, tmp_path, "print(1)\n", name).left[name]


def test_two_loaders_that_both_train_are_left_with_their_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch = made(monkeypatch, tmp_path, TWO_LOADERS, "loader_workers")
    place = at(TWO_LOADERS, "easy, hard")
    assert patch.left["loader_workers"] == (
        f"more than one DataLoader may feed the training ({place}, {place}).\n    DataLoader(..., {WORKERS})"
    )


def test_a_framework_that_trains_by_itself_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = """
from lightning.pytorch import LightningModule, Trainer
from torch import optim
from torch.utils.data import DataLoader


class Net(LightningModule):
    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=1)

    def train_dataloader(self):
        return DataLoader([1])

    def val_dataloader(self):
        return DataLoader([2])


Trainer().fit(Net())
"""
    patch = made(monkeypatch, tmp_path, text, "precision", "loader_workers", "fused_optimizer")
    assert added(patch) == [
        "return optim.SGD(self.parameters(), lr=1, fused=True)",
        f"return DataLoader([1], {WORKERS})",
        'Trainer(precision="bf16-mixed").fit(Net())',
    ]


def test_arguments_of_a_trainer_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "from transformers import TrainingArguments\nTrainingArguments('out')\n"
    left = made(monkeypatch, tmp_path, text, "precision", "compile", "fused_optimizer").left
    assert left["precision"].endswith("\n    TrainingArguments(..., bf16=True)")
    assert left["compile"].endswith("\n    TrainingArguments(torch_compile=True)")
    assert left["fused_optimizer"].endswith('\n    TrainingArguments(..., optim="adamw_torch_fused")')
