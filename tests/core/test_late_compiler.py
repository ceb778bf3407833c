"""The compiler is loaded by who compiles, and is then what it is without us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import sys
from types import ModuleType
from hasten.core import late_compiler

late_compiler.install()
assert sys.meta_path[0].find_spec("torch._dynamo.config") is None, "asked before the package was imported"
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())

def step():
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

step()
waiting = torch._dynamo
assert "torch._dynamo.utils" not in sys.modules, "an optimizer loaded the compiler"
with late_compiler.uncompiled():
    assert "torch._dynamo.utils" not in sys.modules
asked = torch.optim.Optimizer.zero_grad.__wrapped__
assert getattr(asked, "__dynamo_disable") is asked
"""
END = """
assert type(waiting) is ModuleType and torch._dynamo is waiting is sys.modules["torch._dynamo"]
step()
assert getattr(asked, "__dynamo_disable") is not asked, "the compiler does not know what to leave alone"
graphs = []

def keep(graph, inputs):
    graphs.append(graph)
    return graph.forward

compiled = torch.compile(lambda x: x.sin() + 1, backend=keep)
x = torch.ones(3)
assert torch.equal(compiled(x), x.sin() + 1) and len(graphs) == 1
with late_compiler.uncompiled():
    compiled(torch.ones(5, 2))
assert len(graphs) == 1
assert step() < 10
print("ended")
"""
WAYS = {
    "an attribute": "torch._dynamo.config.suppress_errors",
    "a submodule": """
import torch._dynamo.config as config
assert config is torch._dynamo.config and config.__spec__.loader is config.__loader__""",
    "a submodule that the compiler does not load": "import torch._dynamo.tensor_version_op",
    "a name": "from torch._dynamo import reset; reset()",
    "a function of its utilities": """
from torch._dynamo.utils import is_compile_supported
assert type(waiting) is not ModuleType, "torchvision, which imports this, would load the compiler"
assert is_compile_supported("cpu") == torch._dynamo.utils.is_compile_supported("cpu")""",
    "its utilities": """
import torch._dynamo.utils as utils
assert type(waiting) is not ModuleType
assert utils.counters is torch._dynamo.utils.counters and type(utils) is ModuleType""",
    "other names of its utilities": """
from torch._dynamo.utils import counters, is_compile_supported
assert is_compile_supported.__module__ == "torch._dynamo.utils" and type(waiting) is ModuleType""",
    "its utilities before it": """
import torch._dynamo.utils as utils
torch._dynamo.reset()
assert type(utils) is ModuleType and utils is sys.modules["torch._dynamo.utils"]""",
    "compile": "assert torch.compile(model, backend='eager')(torch.ones(2, 4)).shape == (2, 4)",
    "a function to leave alone": "assert torch._dynamo.disable(step) is not step",
    "another thread": """
import threading
values = []
threads = [threading.Thread(target=lambda: values.append(torch._dynamo.optimize)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(values) == 4""",
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_training_alone_does_not_load_it() -> None:
    done = python(BEGIN + "print('ended')")
    assert done.stdout == "ended\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.long if at % 2 else ()) for at, way in enumerate(WAYS)])
def test_it_is_loaded_and_whole_when_it_is_used(way: str) -> None:
    done = python(BEGIN + WAYS[way] + END)
    assert done.stdout == "ended\n", done.stderr


@pytest.mark.slow
def test_what_fails_while_it_is_loaded_is_told_each_time(tmp_path: Path) -> None:
    (tmp_path / "torch" / "_dynamo").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_dynamo" / "__init__.py").write_text("first = 1\nraise RuntimeError('broken')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from hasten.core import late_compiler
late_compiler.install()
import torch._dynamo
torch._dynamo.graph_break()
for _ in range(2):
    try:
        torch._dynamo.optimize
    except RuntimeError as error:
        print(error)
"""
    done = python(code)
    assert done.stdout == "broken\nbroken\n", done.stderr


SCRIPT = """
import atexit
import sys
from types import ModuleType

atexit.register(lambda: print("loaded", type(sys.modules["torch._dynamo"]) is ModuleType))  # called last
import torch
from torch._dynamo.utils import is_compile_supported

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_run_under_a_plan_ends_without_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plan.toml").write_text("schema = 1\n")
    command = [sys.executable, "-m", "hasten", "run", "--plan", "plan.toml", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "loaded False\n", done.stderr
