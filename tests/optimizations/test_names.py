"""Test that a new optimization changes only its file and its test: no other module of the package names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hasten
from hasten.core.facts import Facts
from hasten.optimizations import catalogue
from tests.optimizations.contract import facts

SOURCE = Path(hasten.__file__).parent
OTHER_MEANINGS = {
    ("recipes/detection/evaluate.py", "precision"): "the metric",
    ("recipes/ocr/metrics.py", "precision"): "the metric",
    ("script/watch/seams.py", "compile"): "the function of torch",
    ("size/memory.py", "precision"): "a setting of the size calculation",
    ("size/memory.py", "sharding"): "a setting of the size calculation",
    ("tune/batch/search.py", "optimizer_batch"): "a key of the result, in samples",
}
"""(File, word) -> the meaning of the word in that file, if it is not the name of an optimization."""


def named(text: str, names: set[str]) -> Iterator[str]:
    """Yield the names in strings outside docstrings and comments: alone, in backticks, or with `_` in them."""
    tree = ast.parse(text)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            words = set(re.findall(r"(?<![\w.])\w+_\w+(?![\w=])", node.value)) | set(re.findall(r"`(\w+)`", node.value))
            yield from sorted({node.value, *words} & names)


def test_no_module_names_an_optimization() -> None:
    names = {name for name, kind in catalogue().items() if kind.__module__.startswith("hasten.")}
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(SOURCE / "optimizations")
        for name in named(path.read_text(encoding="utf-8"), names)
    }
    assert found - OTHER_MEANINGS.keys() == set()
    assert OTHER_MEANINGS.keys() - found == set(), "remove entries that no file has any more"


def test_a_name_is_found_anywhere_in_a_string() -> None:
    module = '''
"""A docstring may say fast_math."""
A = "fast_math"
B = f"put fast_math into the plan, {A}, or `compile`"
C = "compile it"  # fast_math
'''
    assert sorted(named(module, {"fast_math", "compile"})) == ["compile", "fast_math", "fast_math"]


OF_JOBS = re.compile(r"implement |declare|job does not|job defines|Job\b|deterministic_transform")


def test_refusals_on_scripts_do_not_speak_of_methods_of_a_job() -> None:
    good = facts(job={"in_script": True, "has_deterministic_transform": False, "samples_vary": "they differ"})
    refusals = dict[str, set[str]]()
    for name, kind in catalogue().items():
        if kind.card.in_scripts:
            for one in _variants(good):
                refusals.setdefault(name, set()).add(kind.fit(one).reason)
    assert sum(len(found) for found in refusals.values()) > 40
    for name, found in refusals.items():
        for words in found:
            assert not OF_JOBS.search(words), (name, words)


def _variants(good: Facts) -> Iterator[Facts]:
    """Yield facts that differ from `good` in one fact each."""
    yield good
    for owner in (good, good.job):
        for name in owner.__dataclass_fields__:
            value = getattr(owner, name)
            others: list[Any] = []
            if isinstance(value, bool):
                others = [not value]
            elif isinstance(value, int | float) or value is None:
                others = [0, 1, 10**9]
            elif isinstance(value, Mapping):
                others = [{}]
            for other in others:
                if name != "in_script":
                    changed: Any = replace(owner, **{name: other})
                    yield changed if owner is good else replace(good, job=changed)
