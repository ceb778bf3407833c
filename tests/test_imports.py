"""Floors and circles: what may import what, as the contract, the guide and the code have it."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

from hasten.optimizations import catalogue
from tests.optimizations.contract import facts

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """The groups of modules that import each other."""
    upstream = {module: graph.find_upstream_modules(module) for module in graph.modules}
    together = {module: {other for other in others if module in upstream[other]} for module, others in upstream.items()}
    return {frozenset({module, *others}) for module, others in together.items() if others}


def test_no_modules_import_each_other() -> None:
    assert circles(grimp.build_graph("hasten", cache_dir=None)) == set()


def test_a_circle_through_annotations_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "circle_of_two"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from circle_of_two import two")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circle_of_two.one import One"
    )
    (package / "three.py").write_text("from circle_of_two import one, two")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert circles(grimp.build_graph("circle_of_two", cache_dir=None)) == {
        frozenset({"circle_of_two.one", "circle_of_two.two"})
    }


def test_the_guide_draws_the_floors_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    floors = [set(re.findall(r"\w+", layer)) for layer in contracts[0]["layers"]]
    picture = GUIDE.split("```text\n")[1].split("```")[0]
    drawn = [set(re.split(r" {4,}", line, maxsplit=1)[0].split()) for line in picture.splitlines()]
    assert drawn == floors[1:]  # `__main__` is one file


def test_the_guide_names_files_that_exist() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", GUIDE)
    assert len(named) > 15
    assert [path for path in named if not any((ROOT / top / path).exists() for top in ("", "src/hasten"))] == []


def test_the_optimization_in_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unit_of_the_guide.py").write_text(GUIDE.split("```python\n")[1].split("```")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind: Any = importlib.import_module("unit_of_the_guide").ForeachOptimizer
    assert kind.card == catalogue()["foreach_optimizer"].card
    assert kind.fit(facts(job={"num_param_tensors": 9})).fits
