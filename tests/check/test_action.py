"""The GitHub Action: its script passes every input as one word, and ends as its inputs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ACTION: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text(encoding="utf-8"))
STEP = ACTION["runs"]["steps"][0]
STUB = f"""#!/bin/sh
[ "$1" = -c ] && exec {sys.executable} "$@"
for word in "$@"; do echo "$word" >> "$TOLD"; done
echo '{{"verdict": "undecided"}}' > "$RUNNER_TEMP/hasten-check.json"
exit "$STATUS"
"""


def act(folder: Path, status: int, **inputs: str) -> tuple[int, list[str], str]:
    """Run the step's script; returns its exit status, the words of the command, and its outputs."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python").write_text(STUB)
    (folder / "bin" / "python").chmod(0o755)
    given = {
        "TARGET": "train.py",
        "ARGUMENTS": "",
        "AGAINST": "",
        "BUDGET": "5m",
        "FLOOR": "0.03",
        "UNDECIDED": "pass",
        **inputs,
    }
    own = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(folder), "TOLD": str(folder / "told")}
    output = folder / "output"
    output.write_text("")
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", STEP["run"]]
    done = subprocess.run(
        command,
        env={**os.environ, **own, **given, "STATUS": str(status), "GITHUB_OUTPUT": str(output)},
        cwd=folder,
        check=False,
    )
    return done.returncode, (folder / "told").read_text().splitlines(), output.read_text()


def test_the_command_has_every_input_as_one_word(tmp_path: Path) -> None:
    status, words, outputs = act(
        tmp_path, 0, ARGUMENTS="--epochs 1 --name 'two words'", AGAINST="$(touch x)", TARGET="a b.py"
    )
    assert status == 0
    report = f"{tmp_path}/hasten-check.json"
    assert words == [
        "-m", "hasten", "check", "a b.py", "--budget", "5m", "--floor", "0.03", "--json", report, "--junit",
        f"{tmp_path}/hasten-check.xml", "--against", "$(touch x)", "--", "--epochs", "1", "--name", "two words",
    ]  # fmt: skip
    assert not (tmp_path / "x").exists()
    assert outputs == f"report={report}\nverdict=undecided\n"


@pytest.mark.parametrize(
    ("status", "undecided", "ends"), [(0, "pass", 0), (1, "pass", 1), (2, "pass", 0), (2, "fail", 2), (3, "pass", 3)]
)
def test_it_ends_as_the_verdict_says(tmp_path: Path, status: int, undecided: str, ends: int) -> None:
    found, words, _ = act(tmp_path, status, UNDECIDED=undecided)
    assert found == ends
    assert "--" not in words
    assert "--against" not in words


def test_no_input_is_pasted_into_the_script() -> None:
    assert "${{" not in STEP["run"]
    assert {value.split("inputs.")[1].split(" ")[0] for value in STEP["env"].values()} <= set(ACTION["inputs"])
    assert set(ACTION["outputs"]) == {"verdict", "report"}
