"""The documentation follows the program: its notebook and its examples run, its tables and its commands are generated."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.tables.summary import readme_table
from benchmarks.tuning import results
from hasten.monitor.catalogue import samplers
from hasten.monitor.metric import units as units_of
from hasten.monitor.sampler import Host
from hasten.monitor.sink import parse_sink
from hasten.monitor.sinks.prometheus import prometheus_name
from hasten.monitor.window import Start, Window

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GALLERY = ROOT / "examples" / "gallery"
MARKER = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)


def hook(name: str) -> ModuleType:
    """Import a part of the site's generator by its path."""
    spec = importlib.util.spec_from_file_location(f"hasten_docs_{name}", DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_cells(path: Path) -> list[str]:
    """Run the code of a notebook in one namespace; return what each cell printed."""
    space: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), space)  # noqa: S102
            printed.append(output.getvalue())
    return printed


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_cells(DOCS / "quickstart.ipynb")
    without, under_the_plan = (re.findall(r"loss (\S+),", text) for text in printed if "epoch 0" in text)
    assert under_the_plan[: len(without)] == without
    assert "sample_cache" in printed[-1]


def test_each_marker_of_a_page_has_a_table_and_each_table_a_page() -> None:
    marked = {name for page in DOCS.rglob("*.md") for name in MARKER.findall(page.read_text(encoding="utf-8"))}
    assert marked == set(tables.TABLES)


@pytest.mark.parametrize("name", tables.TABLES)
def test_a_table_has_as_many_cells_in_each_row(name: str) -> None:
    text = tables.TABLES[name](results())
    assert text.strip()
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({row.count("|") for row in block.splitlines()}) == 1


def test_readme_shows_the_recorded_results() -> None:
    """Outdated? Run `make docs`, or `python -m benchmarks.tables`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_table(results()) in text


def test_the_command_reference_names_every_option() -> None:
    text = hook("cli_reference").page()
    for words in ("## `hasten tune`", "--max-slowdown", "## `hasten runs compare`", "## `hasten data convert`"):
        assert words in text


def test_the_dashboard_for_grafana_asks_for_metrics_that_prometheus_gets() -> None:
    made = json.loads(hook("grafana").dashboard())
    variables = {item["name"] for item in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(made["panels"])))
    assert used <= variables
    units = units_of(samplers()) | {"phase.data": "s", "phase.sync": "s"}
    asked = {target["expr"].partition("{")[0] for panel in made["panels"] for target in panel["targets"]}
    assert {prometheus_name(name, unit) for name, unit in units.items()} <= asked
    assert made["schemaVersion"] >= 36
    places = [panel["gridPos"] for panel in made["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert (
        len({(place["x"], place["y"]) for place in places}) == len({panel["id"] for panel in made["panels"]}) == len(places)
    )
    for panel in made["panels"]:
        assert panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_the_sampler_and_the_place_in_the_guide_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "monitor.md").read_text(encoding="utf-8"), re.DOTALL):
        exec(block, space)  # noqa: S102 - the code of the page
    sampler = space["Disk"](Host())
    sampler.folder = str(tmp_path)
    values = sampler.sample()
    assert set(values) == {metric.name for metric in space["Disk"].card.metrics}
    request = parse_sink("printed:>", {"printed": space["Printed"]})
    place = request.kind(Start(run="r"), tmp_path, **request.options)
    place.write(Window(start=Start(run="r"), number=0, from_step=0, to_step=2, at=0.0, seconds=1.0, values=values))
    place.close()
    assert capsys.readouterr().out.startswith("> 2 {'scratch.free': ")


def test_the_notebook_becomes_a_page_with_its_code_and_output() -> None:
    text = hook("notebook").page(DOCS / "quickstart.ipynb")
    assert "with hasten.attach() as watched:" in text
    assert re.search(r'```text title="Output"\n(?s:.*?)epoch 0', text)


def run_example(arguments: list[str]) -> str:
    """Run an example as a person does; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=GALLERY, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_plain_loop_trains() -> None:
    assert "epoch 0: loss" in run_example(["plain_loop.py", "1"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["lightning_trainer", "transformers_trainer"])
def test_a_trainer_is_watched(name: str) -> None:
    assert "data" in run_example([f"{name}.py", "80"])


@pytest.mark.slow
@pytest.mark.long
def test_a_loop_of_accelerate_is_watched() -> None:
    assert "data" in run_example(["accelerate_loop.py", "1"])


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_train() -> None:
    out = run_example(["-m", "torch.distributed.run", "--nproc-per-node", "2", "two_ranks.py", "1"])
    assert "rank 0, epoch 0" in out
    assert "rank 1, epoch 0" in out
