"""Plans as patches of the user's source: real tools apply them, and the patched scripts have the changes active."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from hasten.optimizations import allocator
from hasten.script.patch import Patch, suggest
from hasten.script.patch.suggest import FAILED
from tests.script.patch_samples import PLAIN, SAMPLES, SETTINGS, apply, made, plan, swapped, write

ROOT = Path(__file__).parents[2]
GROUND_TRUTH, OWN = ROOT / "benchmarks/groundtruth/scripts", ROOT / "tests/script/scripts"
OTHERS = sorted(GROUND_TRUTH.glob("*.py")) + sorted(OWN.rglob("*.py"))
DRIVER = """
import os, runpy, sys, torch._dynamo
for folder, script in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.path[0], sys.argv = folder, [script]
        for number, name in ((1, "out.txt"), (2, "err.txt")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Runs scripts one after another, each in a fork of a process that has loaded torch."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Patch, dict[str, Any], str]]:
    """Return, for each sample, its patch, the output of the patched script, and its errors."""
    found: dict[str, tuple[Patch, Path]] = {}
    for number, (name, files) in enumerate(SAMPLES.items()):
        folder = tmp_path_factory.mktemp("sample")
        with pytest.MonkeyPatch.context() as monkeypatch:
            patch = made(monkeypatch, folder, files)
        apply(folder, patch.diff, ("patch", "git")[number % 2])
        found[name] = patch, folder
    scripts = [str(part) for name, (_, folder) in found.items() for part in (folder, next(iter(SAMPLES[name])))]
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", DRIVER, *scripts], env=environment, check=True, timeout=100)
    return {name: (patch, *_printed(folder)) for name, (patch, folder) in found.items()}


def _printed(folder: Path) -> tuple[dict[str, Any], str]:
    lines, errors = (folder / "out.txt").read_text().splitlines(), (folder / "err.txt").read_text()
    return json.loads(lines[-1]) if lines and "Traceback" not in errors else {}, errors


ALL = {
    "workers": 1, "persistent": False, "prefetch": 3, "pinned": True, "fused": True, "threads": 2,
    "frozen": True, "zero": True, "dtype": "torch.bfloat16", "weights": True, "input": True, "kernels": [True, False],
}  # fmt: skip
FREED = {"gradients": 0, "compiled": True}
OTHERWISE: dict[str, dict[str, Any]] = {
    "plain": FREED,
    "module_level": {**FREED, "foreach": False},
    "no_last_newline": {"foreach": False},
    "helper": {"compiled": True, "input": False},
    "two_loaders": {"workers": 0, "persistent": False, "prefetch": None, "pinned": False},
    "nested": {"compiled": True, "input": False},
    "generator": {"input": False},
}
"""Expected output of a sample that differs from `ALL` or is additional."""
NO_ZEROS = {"zero_grad_to_none"}
LEFT = {
    "helper": NO_ZEROS,
    "amp": {"precision"},
    "two_loaders": {"loader_workers", "pinned_memory"} | NO_ZEROS,
    "ddp": NO_ZEROS,
    "nested": NO_ZEROS,
    "generator": NO_ZEROS,
}
"""Techniques that a sample does not write; none by default."""


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_patched_script_has_every_change_in_force(ran: dict[str, Any], sample: str) -> None:
    patch, seen, errors = ran[sample]
    assert seen, f"{errors}\n{patch.diff}"
    wanted = ALL | OTHERWISE.get(sample, {})
    assert {name: seen.get(name) for name in wanted} == wanted, patch.diff
    assert set(patch.left) == LEFT.get(sample, set())
    assert set(patch.left) | set(patch.written) == set(SETTINGS)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_script_that_has_it_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sample: str) -> None:
    patch = made(monkeypatch, tmp_path, SAMPLES[sample])
    apply(tmp_path, patch.diff, "git")
    again = suggest(plan(), Path(next(iter(SAMPLES[sample]))))
    assert not again.diff
    assert not again.written


PLANS = {
    "usual": plan(),
    "other": plan(
        "foreach_optimizer", "drop_last", "cudnn_benchmark", "matmul_precision", "allocator", "background_checkpoint",
        garbage_collection={"mode": "epoch"}, precision={"dtype": "float16"}, compile={"mode": "reduce-overhead"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, id=path.stem, marks=pytest.mark.long if number % 3 else ()) for number, path in enumerate(OTHERS)],
)
@pytest.mark.parametrize("which", ["usual", pytest.param("other", marks=pytest.mark.long)])
def test_any_script_gives_a_patch_that_applies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: Path, which: str
) -> None:
    before = script.read_bytes()
    monkeypatch.chdir(script.parent)
    patch = suggest(PLANS[which], script)
    assert script.read_bytes() == before
    assert patch.folder == script.parent
    assert not any(reason.startswith(FAILED) for reason in patch.left.values()), patch.left
    texts = []
    for tool in ("patch", "git"):
        folder = tmp_path / tool
        shutil.copytree(script.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
        if patch.diff:
            apply(folder, patch.diff, tool)
        texts.append({path.name: path.read_bytes() for path in folder.rglob("*.py")})
    assert texts[0] == texts[1]
    for text in texts[0].values():
        ast.parse(text)
    monkeypatch.chdir(tmp_path / "git")
    assert not suggest(PLANS[which], Path(script.name)).diff


def test_most_of_the_ground_truth_can_be_written() -> None:
    patches = [suggest(plan("precision", "fused_optimizer", "compile"), path) for path in sorted(GROUND_TRUTH.glob("*.py"))]
    left = [reason for patch in patches for reason in patch.left.values()]
    assert all(
        "already" in reason or "has no fused implementation" in reason or "renames the keys" in reason for reason in left
    ), left


def test_a_file_that_cannot_be_read_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("for\n")
    (tmp_path / "latin.py").write_bytes("# Größe\n".encode("latin-1"))
    (tmp_path / "old.py").write_bytes(b"import torch\rprint()\r")
    reasons = {"broken": "cannot be read as Python", "latin": "UTF-8", "old": "carriage return", "none": "No such file"}
    for name, reason in reasons.items():
        patch = suggest(plan("cpu_threads"), Path(f"{name}.py"))
        assert not patch.diff
        assert reason in patch.left["cpu_threads"]


def test_a_file_that_libcst_cannot_take_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = PLAIN.replace("def main():\n", f"def main():\n    x = {'1 + ' * 600}1\n")
    assert "nested too deeply" in made(monkeypatch, tmp_path, {"train.py": deep}, "precision").left["precision"]

    def refuse(text: str) -> cst.Module:
        raise cst.ParserSyntaxError("no such syntax", lines=text.splitlines(), raw_line=1, raw_column=1)

    monkeypatch.setattr(cst, "parse_module", refuse)
    patch = made(monkeypatch, tmp_path, {"train.py": PLAIN}, "precision")
    assert not patch.diff
    assert patch.left["precision"].startswith("libcst cannot parse train.py: ")


def test_files_outside_of_the_present_folder_name_theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = write(tmp_path / "code", {"train.py": PLAIN})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    patch = suggest(plan("cpu_threads"), script)
    assert patch.folder == tmp_path / "code"
    assert patch.diff.startswith("--- a/train.py\n+++ b/train.py\n")
    monkeypatch.chdir(tmp_path)
    assert suggest(plan("cpu_threads"), script).diff.startswith("--- a/code/train.py\n+++ b/code/train.py\n")


def test_a_package_above_the_script_is_changed_if_python_searches_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = "from engine.loop import main\n\nmain()\n"
    write(tmp_path, {"engine/__init__.py": "", "engine/loop.py": PLAIN, "tools/train.py": script})
    monkeypatch.chdir(tmp_path / "tools")
    nothing = suggest(plan("fused_optimizer"), Path("train.py"))
    assert "no call of an optimizer" in nothing.left["fused_optimizer"]
    for folder in (tmp_path / "elsewhere", tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend("first")
    patch = suggest(plan("fused_optimizer"), Path("train.py"))
    assert patch.folder == tmp_path
    assert patch.diff.startswith("--- a/engine/loop.py\n+++ b/engine/loop.py\n")
    apply(tmp_path, patch.diff, "git")
    assert "fused=True" in (tmp_path / "engine" / "loop.py").read_text(encoding="utf-8")


def test_installed_packages_are_not_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    write(installed, {"engine/loop.py": PLAIN, "tool/train.py": "from engine.loop import main\n\nmain()\n"})
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend("first")
    assert not suggest(plan("fused_optimizer"), installed / "tool" / "train.py").diff


@pytest.mark.parametrize("loss", ["nn.functional.binary_cross_entropy", "nn.BCELoss()"])
def test_a_loss_that_gpus_refuse_under_autocast_is_not_put_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loss: str
) -> None:
    text = swapped(PLAIN, ("nn.functional.cross_entropy", loss))
    assert "precision" in made(monkeypatch, tmp_path, text, "precision").written  # nothing in it can run on a GPU
    text = swapped(text, ("model = Net()", "model = Net().to('cuda' if torch.cuda.is_available() else 'cpu')"))
    patch = made(monkeypatch, tmp_path, text, "precision")
    assert not patch.diff
    assert "fails under autocast on GPUs" in patch.left["precision"]
    assert patch.left["precision"].endswith("loss = ...  # of output.float()")


@pytest.mark.parametrize(
    ("paths", "seen"),
    [
        (("/opt/lib/libtcmalloc_minimal.so.4",), "\n    LD_PRELOAD=/opt/lib/libtcmalloc_minimal.so.4 .* python train.py$"),
        ((), "\n    tcmalloc is not installed"),
    ],
)
def test_an_allocator_that_is_loaded_before_python_is_set_in_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paths: tuple[str, ...], seen: str
) -> None:
    monkeypatch.setattr(allocator, "read_allocators", lambda _: (paths, "searched nowhere"))
    patch = made(monkeypatch, tmp_path, PLAIN, allocator={"kind": "tcmalloc"})
    assert not patch.diff
    assert not patch.written
    assert re.search(f"^it is read before Python starts, so set it in the command.{seen}", patch.left["allocator"])
