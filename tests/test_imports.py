"""No two modules import each other, directly or through others, not even for type annotations alone."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

KNOWN = ("hasten.recipes.ocr.", "hasten.tune.search.")
"""Packages that still have a circle within themselves; one that has none any more must leave this list."""


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """The groups of modules that import each other."""
    upstream = {module: graph.find_upstream_modules(module) for module in graph.modules}
    together = {module: {other for other in others if module in upstream[other]} for module, others in upstream.items()}
    return {frozenset({module, *others}) for module, others in together.items() if others}


def test_no_modules_import_each_other() -> None:
    found = circles(grimp.build_graph("hasten", cache_dir=None))
    known = {circle: package for circle in found for package in KNOWN if all(name.startswith(package) for name in circle)}
    assert found - known.keys() == set()
    assert set(known.values()) == set(KNOWN), "a circle is broken: take its package out of KNOWN"


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
