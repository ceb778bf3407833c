"""`hasten batch`: what it prints, what it writes, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hasten.cli import batch
from hasten.cli.main import app
from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.tune.batch.search import Finding, search_batch
from tests.cli.called import called, printed
from tests.tune.jobs import write_job
from tests.tune.test_batch_search import Played

SMALL = """
class J(Good):
    batch_size = 2
    accumulation = 2

class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from Rows(8)

class Streamed(J):
    num_updates = 4
    def train_data(self):
        return Endless()
"""


def shown(found: Finding, width: int = 120) -> str:
    with printed(width) as paper:
        batch.show(found)
    return paper.getvalue()


def test_the_table_marks_the_chosen_one_and_says_why_others_do_not_fit() -> None:
    text = shown(search_batch(Played(fails={16: "out_of_memory"}, speeds={8: 150.0})))
    rows = {line.split()[0]: line for line in text.splitlines() if line.split() and line.split()[0].isdigit()}
    assert set(rows) == {"1", "2", "4", "8", "16"}
    assert [size for size, line in rows.items() if "chosen" in line] == ["8"]
    assert [size for size, line in rows.items() if "current" in line] == ["4"]
    assert "out of memory" in rows["16"]
    assert "150.0  150.0 to 150.0" in rows["8"]


def test_what_it_says_to_put_into_the_plan_is_a_plan() -> None:
    for speeds, names in (({8: 150.0}, ("merged_microbatches",)), ({2: 150.0}, ("microbatch",)), ({4: 150.0}, ())):
        text = shown(search_batch(Played(speeds=speeds)))
        advice = text[text.index("Compute ") :]
        lines = [line.strip() for line in advice.splitlines() if line.startswith("    ")]
        plan = Plan.from_toml("schema = 1\n" + "\n".join(lines), catalogue())
        assert plan.names == names
        assert "The optimizer batch stays 16 (batch_size 4 x accumulation 4)" in " ".join(text.split())
        assert "`hasten tune` judges that by the time to a target" in " ".join(text.split())


def test_where_nothing_fits_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = search_batch(Played(fails=dict.fromkeys((1, 2, 4), "out_of_memory")))
    monkeypatch.setattr("hasten.tune.batch.search.search_batch", lambda *_, **__: found)
    path = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["batch", "x.py:J", "--json", str(path)])
    assert done.exit_code == 1
    assert isinstance(done.exception, HastenError)
    assert str(done.exception).startswith("No size fits: even 1 at once (out of memory). Lower --head-room")
    assert json.loads(path.read_text())["chosen"] is None


@pytest.mark.parametrize("value", ["1", "-0.1", "10", "nan"])
def test_a_head_room_that_is_no_share_is_refused(value: str) -> None:
    done = CliRunner().invoke(app, ["batch", "x.py:J", "--head-room", value])
    assert done.exit_code == 1
    assert "is not a share" in str(done.exception)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hasten", "batch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize(
    ("job", "more", "words"),
    [
        pytest.param("Streamed", (), "has an iterable dataset", marks=pytest.mark.long),
        ("Nothing", (), "has no `Nothing`"),
        ("J", ("--budget", "soon"), "is not a duration"),
        ("J", ("--plan", "no.toml"), "Cannot read the plan no.toml"),
    ],
)
def test_an_error_is_one_line_and_a_bad_exit(tmp_path: Path, job: str, more: tuple[str, ...], words: str) -> None:
    target = write_job(tmp_path, SMALL).replace(":J", f":{job}")
    done = called("batch", target, *more)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("hasten: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_real_search_without_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    target = write_job(tmp_path, SMALL)
    before = sorted(tmp_path.rglob("*"))
    done = run(target, "--budget", "1s", "--json", str(path), "--head-room", "0.2")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    assert (found["batch_size"], found["optimizer_batch"], found["head_room_frac"]) == (2, 4, 0.2)
    assert [item["size"] for item in found["candidates"]] == [1, 2, 4]
    assert found["candidates"][1]["fits"]
    assert found["candidates"][1]["samples_per_s"] > 0
    assert found["chosen"] in (1, 2, 4)
    assert 0 < found["candidates"][1]["peak_bytes"] < 0.8 * found["limit_bytes"]
    assert "The optimizer batch stays 4" in done.stdout
    assert [item for item in sorted(tmp_path.rglob("*")) if item not in before] == [path]
