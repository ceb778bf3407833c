"""Private data from the command line, as the guide shows it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.called import called

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "private-data.md").read_text(encoding="utf-8")


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Return a folder with conversations of anna, otto, and so many others that a secret key always holds some out."""
    with (tmp_path / "talks.jsonl").open("w") as file:
        for number in range(600):
            messages = [{"role": "user", "content": "call 555-010-9988"}, {"role": "assistant", "content": f"yes {number}"}]
            person = ["anna", "otto", *map(str, range(298))][number % 300]
            file.write(json.dumps({"id": number, "messages": messages, "metadata": {"persona_id": person}}) + "\n")
    return tmp_path


def test_the_guide_runs(talks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```(console|python)\n(.*?)```", GUIDE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["console", "python", "console"]
    for command in blocks[0][1].splitlines():
        done = called(*command.split()[1:], cwd=talks)
        assert done.returncode == 0, done.stderr
    (head,) = re.findall("[0-9a-f]{64}", done.stdout)
    assert "300 persons with a key, 0 erased. Audit log: intact" in done.stdout
    monkeypatch.chdir(talks)
    names: dict[str, Any] = {}
    exec(blocks[1][1], names)  # noqa: S102  our own page
    assert names["texts"]["contents"][7][0].startswith("call [phone:")

    person, command = blocks[2][1].strip().removeprefix("echo ").split(" | ")
    monkeypatch.setattr("sys.stdin", io.StringIO(person + "\n"))
    done = called(*command.split()[1:], "--head", head, cwd=talks)
    assert "299 persons with a key, 1 erased" in done.stdout, done.stderr
    assert [row is None for row in names["plan"].open(names["Store"]("talks"), role="owner").take(range(3))["contents"]] == [
        True, False, False,
    ]  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("no one\n"))
    done = called(*command.split()[1:], cwd=talks)
    assert (done.returncode, "has no key of this person" in done.stderr) == (1, True)
    log = talks / "private" / "audit.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    done = called("data", "private", "private", "--head", head, "--json", "-", cwd=talks)
    assert (done.returncode, "are missing" in done.stderr) == (1, True)


@pytest.mark.parametrize("place", ["publish_written", "_planned"])
def test_a_library_s_message_is_not_printed(place: str, talks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("call 555-010-9988")

    called("data", "private", "private", cwd=talks)
    monkeypatch.setattr(f"hasten.data.convert.job.{place}", fails)
    convert = ("data", "convert", "talks.jsonl", "s", "--format", "conversations", "--processes", "1")
    shown = called(*convert, "--traceback", cwd=talks)
    hidden = called(*convert, "--private", "private", "--traceback", cwd=talks)
    assert "call 555-010-9988" in shown.stderr
    assert (hidden.returncode, "555" in hidden.stdout + hidden.stderr) == (1, False)
    assert "RuntimeError" in hidden.stderr
