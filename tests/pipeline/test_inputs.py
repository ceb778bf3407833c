"""What a stage depends on is hashed by content, and what changed is named."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hasten.pipeline.description import Pipeline
from hasten.pipeline.inputs import FileHashes, changes, inputs_of, key_of
from tests.pipeline.described import command, described

TEXT = command("data") + '[stages.train]\njob = "stages.py:Stage"\nneeds = ["data"]\nupdates = 5\n'


def inputs(pipeline: Pipeline, name: str = "train", digest: str = "d") -> dict[str, str]:
    hashes = FileHashes(pipeline.root / "hashes.json")
    return inputs_of(pipeline, pipeline.stages[name], {"data": {"text.txt": digest}}, hashes)


def test_code_settings_data_and_upstream_outputs_are_inputs(tmp_path: Path) -> None:
    pipeline = described(tmp_path, TEXT)
    before = inputs(pipeline)
    assert changes(before, inputs(pipeline)) == []
    assert changes(before, inputs(pipeline, digest="e")) == ["data/text.txt changed"]
    (tmp_path / "stages.py").write_text("import helper\n", encoding="utf-8")
    (tmp_path / "helper.py").write_text("", encoding="utf-8")
    assert changes(before, inputs(pipeline)) == ["code helper.py is new", "code stages.py changed"]
    more = described(tmp_path, TEXT.replace("updates = 5", "updates = 6"))
    assert "setting updates changed" in changes(before, inputs(more))
    data = inputs(pipeline, "data")
    (tmp_path / "source.txt").write_text("other\n", encoding="utf-8")
    assert changes(data, inputs(pipeline, "data")) == ["data source.txt changed"]


def test_what_a_stage_leases_is_not_an_input(tmp_path: Path) -> None:
    before = inputs(described(tmp_path, TEXT))
    now = inputs(described(tmp_path, TEXT + 'cores = 1\nmemory = "1 GiB"\nretries = 2\n'))
    assert key_of(before) == key_of(now)


def test_imports_are_followed_through_packages(tmp_path: Path) -> None:
    pipeline = described(tmp_path, TEXT)
    package = tmp_path / "parts"
    package.mkdir()
    for name, text in (("__init__", ""), ("one", "from . import two"), ("two", "x = 1")):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "stages.py").write_text("from parts.one import x\nimport torch\n", encoding="utf-8")
    code = {name for name in inputs(pipeline) if name.startswith("code")}
    assert code == {"code stages.py", "code parts/__init__.py", "code parts/one.py", "code parts/two.py"}


def test_hashes_are_kept_and_noticed_when_a_file_changes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("1")
    hashes = FileHashes(tmp_path / "hashes.json")
    before = hashes.of(data)
    hashes.save()
    assert FileHashes(tmp_path / "hashes.json").of(data) == before
    facts = (data / "a").stat()
    (data / "a").write_text("2")
    os.utime(data / "a", ns=(facts.st_atime_ns, facts.st_mtime_ns))  # of the same size and time
    assert FileHashes(tmp_path / "hashes.json").of(data) != before
    (tmp_path / "hashes.json").write_text("{")
    assert FileHashes(tmp_path / "hashes.json").of(data) == hashes.of(data)


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_keys_differ_where_inputs_differ(one: dict[str, str], two: dict[str, str]) -> None:
    assert (key_of(one) == key_of(two)) == (one == two) == (not changes(one, two))
