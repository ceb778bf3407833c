"""`hasten data`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.data import Store
from tests.report.browser import open_page

SCREEN = CliRunner()


def run(*words: object) -> tuple[int, str]:
    found = SCREEN.invoke(app, ["data", *map(str, words)])
    return found.exit_code, found.output + (str(found.exception) if found.exception else "")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": f"SECRET{n} " * (n % 50 + 1)}) + "\n" for n in range(300)))
    return path


def test_convert_then_info_then_verify(source: Path, tmp_path: Path) -> None:
    code, said = run("convert", source, tmp_path / "s")
    assert code == 0, said
    assert "300 rows" in said
    assert f"version 1 of {tmp_path / 's'}" in said
    code, said = run("info", tmp_path / "s")
    assert code == 0
    assert "large_string" in said or "string" in said
    assert "median" in said
    assert "SECRET" not in said
    code, said = run("info", tmp_path / "s", "--rows", 1)
    assert "SECRET0" in said
    code, said = run("verify", tmp_path / "s")
    assert (code, "intact: 300 rows" in said) == (0, True)


def test_what_was_made_as_json(source: Path, tmp_path: Path) -> None:
    code, said = run("convert", source, tmp_path / "s", "--json")
    made = json.loads(said)
    assert (code, made["num_rows"], made["num_bad"], made["version"], made["quarantine"]) == (0, 300, 0, 1, None)
    code, said = run("convert", source, tmp_path / "s", "--append", "--json", "--columns", "id,text")
    assert json.loads(said)["num_rows"] == 600
    code, said = run("info", tmp_path / "s", "--json", "-")
    facts = json.loads(said)
    assert [column["name"] for column in facts["columns"]] == ["id", "text"]
    assert sum(facts["lengths"]["text"]["counts"]) == 600
    assert facts["provenance"]["source"] == "talks.jsonl"


def test_damage_is_named_and_the_exit_code_tells(source: Path, tmp_path: Path) -> None:
    run("convert", source, tmp_path / "s")
    shard = Store(tmp_path / "s").manifest.shards[0]
    path = tmp_path / "s" / shard.files[0].path
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    code, said = run("verify", tmp_path / "s")
    assert code == 1
    assert f"corrupt shard {shard.name} (rows 0 to 299)" in said
    assert "restore them from a copy" in said


def test_tokens_are_made_on_the_way(source: Path, tmp_path: Path) -> None:
    code, said = run("convert", source, tmp_path / "s", "--tokenizer", "bytes", "--flat")
    assert code == 0, said
    assert Store(tmp_path / "s").take([0, 8])["tokens"].tolist() == [ord("S"), 256]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--append", "--replace"), "exclude each other"),
        (("--flat",), "give a --tokenizer too"),
        (("--size", "3"), "write WIDTHxHEIGHT"),
        (("--tokenizer", "nothing.json"), "the tokenizer file nothing.json does not exist"),
        (("--format", "xml"), "unknown format 'xml'"),
        (("--columns", "words"), "no record has a field 'words'; the fields are id, text"),
        (("--max-bad", "2"), "must be between 0 and 1"),
    ],
)
def test_wrong_options_are_told(source: Path, tmp_path: Path, words: Any, told: str) -> None:
    code, said = run("convert", source, tmp_path / "s", *words)
    assert code == 1
    assert told in said
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_the_page_shows_its_plots(source: Path, tmp_path: Path) -> None:
    run("convert", source, tmp_path / "s")
    code, said = run("info", tmp_path / "s", "--html", tmp_path / "info.html")
    assert code == 0, said
    page = open_page(tmp_path / "info.html")
    assert page.error is None
    assert (page.plots, page.svgs >= 1) == (1, True)
    assert "SECRET" not in (tmp_path / "info.html").read_text()


def test_a_cache_is_filled_and_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "things.py").write_text("def make():\n    return [{'x': n} for n in range(100)]\n")
    monkeypatch.chdir(tmp_path)
    for place in ("cache", "other"):
        code, said = run("cache", place, "--dataset", "things:make", "--version", "1", "--json")
        assert code == 0, said
        made = json.loads(said)
        assert (made["num_values"], made["puts"]) == (100, 100)
        code, said = run("cache", place, "--json")
        assert json.loads(said)["num_values"] == 100
        run("cache", place, "--clear")
        assert json.loads(run("cache", place, "--json")[1])["num_values"] == 0
    code, said = run("cache", "nowhere")
    assert (code, "there is no cache nowhere. Fill one" in said) == (1, True)
    code, said = run("cache", "cache", "--dataset", "things")
    assert "write package.module:function" in said


@pytest.mark.slow
def test_importing_the_package_for_another_verb_loads_no_arrow(tmp_path: Path) -> None:
    code = "import sys, hasten.cli.main; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_raw_columns_are_described(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((10, 3, 4), np.uint8))
    run("convert", tmp_path / "a.npy", tmp_path / "s")
    code, said = run("info", tmp_path / "s", "--rows", 1)
    assert code == 0
    assert "uint8[3, 4]" in said
