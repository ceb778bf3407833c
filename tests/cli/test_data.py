"""`hasten data`, as a user runs it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.cli.say import say
from hasten.data import Store
from tests.cli.called import called
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


def test_bad_records_are_summarised_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.jsonl").write_text('{"x": 1}\n' * 200)
    (tmp_path / "in" / ".hidden").write_text("")
    (tmp_path / "in" / "b.jsonl").write_text('{"x": 1}\n' * 200 + "SECRET\n" * 2 + '{"x": "SECRET"}\n')
    code, said = run("convert", tmp_path / "in", tmp_path / "s", "--processes", 1)
    assert code == 0, said
    assert "3 bad records were left out." in said
    assert "       2  invalid JSON: Expecting value at character 0 of the record\n" in said
    assert "       1  field 'x' is not of type int64\n" in said
    assert "skipped hidden or system files and folders: 1" in said
    assert "SECRET" not in said
    made = json.loads(run("convert", tmp_path / "in", tmp_path / "t", "--processes", 1, "--json")[1])
    assert list(made["reasons"].values()) == [2, 1]
    assert made["remarks"] == ["skipped hidden or system files and folders: 1"]
    code, said = run("convert", tmp_path / "in", tmp_path / "u", "--processes", 1, "--max-bad", 0)
    assert code == 1
    assert "3 of 603 records are bad, more than 0.00%: 2 x invalid JSON" in said


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.npy", "a.npz", "a.png", "a.wav", "a.tar"])
@pytest.mark.parametrize("data", [b"", b"\0" * 1_000, b"text", "Füße".encode("latin-1"), b"[" * 10_000, b"PK\3\4\x1f\x8b"])
def test_no_file_prints_a_traceback(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    ended = called("data", "convert", str(tmp_path / name), str(tmp_path / "s"), "--processes", "1")
    assert ended.returncode == 1
    assert (ended.stderr.count("\n"), ended.stderr[:8]) == (1, "hasten: ")


def test_a_full_disk_prints_a_line(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hasten.data.convert.job.publish_written", full)
    ended = called("data", "convert", str(source), str(tmp_path / "s"), "--processes", "1")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "the conversion failed: [Errno 28] No space left on device" in ended.stderr


def test_names_that_are_not_utf8_are_printed(tmp_path: Path) -> None:
    (tmp_path / "\udcff.jsonl").write_text('{"x": 1}\n' * 3)
    ended = called("data", "convert", str(tmp_path / "\udcff.jsonl"), str(tmp_path / "\udcfe"), "--processes", "1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "3 rows" in ended.stdout
    assert called("data", "verify", str(tmp_path / "\udcfe")).returncode == 0
    ended = called("data", "info", str(tmp_path / "\udcfe"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.encode()
    paper = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    for words in ("a\udcff", Text.assemble(("b", "bold"), "\udcff")):
        say(words, to=Console(file=paper))
    paper.seek(0)
    assert paper.read() == "a\\udcff\nb\\udcff\n"
