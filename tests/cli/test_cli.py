"""The verbs as a person calls them, with pipes and no terminal; what trains, in real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from hasten.cli.doctor import advise
from hasten.cli.main import app
from hasten.cli.say import Narrator, parse_duration
from hasten.cli.tune import run_session
from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report.evidence import Candidate, Check, parse
from hasten.tune.request import TuneRequest
from hasten.tune.session import Session
from tests.cli.called import called
from tests.optimizations.contract import GIB, machine
from tests.report.sample import bare
from tests.tune.jobs import write_job

VERBS: dict[str, set[str]] = {
    "profile": {"target", "arguments", "-m", "--json", "--seconds", "--ranks"},
    "tune": {
        "target",
        "arguments",
        "-m",
        "--budget",
        "--out",
        "--seed",
        "--resume",
        "--objective",
        "--max-slowdown",
        "--price-per-hour",
        "--only",
        "--without",
        "--ranks",
    },
    "run": {
        "target",
        "arguments",
        "-m",
        "--plan",
        "--out",
        "--updates",
        "--resume",
        "--resume-anyway",
        "--checkpoint-every",
        "--checkpoint-overhead",
        "--keep",
        "--on-nan",
        "--ranks",
        "--ray",
        "--restarts",
    },
    "checkpoints list": {"run", "--json"},
    "checkpoints inspect": {"run", "--update", "--json"},
    "checkpoints verify": {"run"},
    "checkpoints export": {"run", "file", "--update", "--best"},
    "runs list": {"folder", "--json"},
    "runs show": {"run", "--json"},
    "runs compare": {"runs", "--json"},
    "runs export": {"run", "file"},
    "runs clean": {"folder", "--keep-best", "--older-than", "--everything", "--yes", "--json"},
    "data convert": {
        "source",
        "destination",
        "--format",
        "--columns",
        "--tokenizer",
        "--text",
        "--flat",
        "--end-token",
        "--decode",
        "--size",
        "--encoding",
        "--delimiter",
        "--append",
        "--replace",
        "--processes",
        "--max-bad",
        "--ray",
        "--block-rows",
        "--shard-mib",
        "--json",
    },
    "data info": {"store", "--version", "--rows", "--html", "--json"},
    "data verify": {"store", "--version", "--clean"},
    "data cache": {"place", "--dataset", "--version", "--max-gib", "--clear", "--json"},
    "compare": {
        "target",
        "--plan",
        "--json",
        "--updates",
        "--budget",
        "--seed",
        "--quality",
        "--sequential",
        "--ranks",
    },
    "batch": {"target", "--head-room", "--json", "--budget", "--plan"},
    "doctor": {"--json", "--catalogue"},
    "explain": {"name", "--out", "--json"},
    "demo": {"example", "--budget", "--out"},
    "data synth": {"recipe", "folder", "--count", "--seed"},
    "recipes list": set(),
    "recipes new": {"recipe", "name", "--images", "--labels"},
    "recipes look": {"target", "weights", "pictures", "--out"},
    "recipes export": {"target", "weights", "file"},
}


def hasten(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hasten", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=cwd)


def good(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = hasten(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no colours, no cursor where there is no terminal
    return done


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_job(tmp_path)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    Plan.from_dict({"metric_reading": {"every": 5}}, catalogue()).save(path)
    return path


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("1.5m", 90), (" 2s ", 2)]
)
def test_durations(text: str, seconds: Any) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "5 m", "5d", "m", "1e3", "five", "5m30s", "inf", "nan"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(HastenError, match="write 90s, 5m or 1h"):
        parse_duration(text)


def test_the_verbs_and_their_flags_are_these() -> None:
    """Growth is a visible decision."""
    command = typer.main.get_command(app)
    commands: dict[str, Any] = dict(getattr(command, "commands", {}))
    groups = {name: verb.commands for name, verb in commands.items() if hasattr(verb, "commands")}
    for group, verbs in groups.items():
        del commands[group]
        commands |= {f"{group} {name}": verb for name, verb in verbs.items()}
    found = {
        name: {
            option
            for parameter in verb.params
            if parameter.name != "help"
            for option in ([parameter.name] if parameter.param_type_name == "argument" else parameter.opts)
        }
        for name, verb in commands.items()
    }
    assert found == VERBS
    for name, verb in commands.items():
        assert verb.help, name
        for parameter in verb.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert parameter.help, (name, parameter.name)


def test_every_verb_has_help() -> None:
    for verb in VERBS:
        shown = called(*verb.split(), "-h")
        assert shown.returncode == 0, verb
        assert "Usage" in shown.stdout
    done = called("--help")
    for verb in VERBS:
        assert verb.split()[0] in done.stdout


ERRORS = {
    "missing file": (("profile", "nowhere.py:J"), "the file nowhere.py does not exist"),
    "missing module": (("run", "no.such.module:J"), "no module named"),
    "no name": (("run", "job_under_trial"), "does not name a job"),
    "missing class": (("profile", "job_under_trial.py:Nothing"), "has no `Nothing`. Jobs found there: Good"),
    "not a job": (("run", "job_under_trial.py:Rows"), "is not a hasten.Job"),
    "raises on import": (("run", "torn.py:J"), "raised ValueError: first line second line"),
    "bad plan key": (("run", "job_under_trial.py:Good", "--plan", "bad.toml"), "has no setting `evry`"),
    "unknown optimization": (("run", "job_under_trial.py:Good", "--plan", "unknown.toml"), "unknown optimization `magic`"),
    "missing plan": (("run", "job_under_trial.py:Good", "--plan", "no.toml"), "Cannot read the plan no.toml"),
    "one plan": (("compare", "job_under_trial.py:Good", "--plan", "-"), "compare needs --plan twice"),
    "bad budget": (("tune", "job_under_trial.py:Good", "--budget", "soon"), "is no duration"),
    "nothing to resume": (("tune", "job_under_trial.py:Good", "--resume"), "nothing to resume"),
}


@pytest.mark.slow
def test_an_error_of_a_real_process_is_one_line(tmp_path: Path) -> None:
    done = hasten(*ERRORS["missing file"][0], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("hasten: nowhere.py:J: there is no file nowhere.py")


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_on_stderr_and_exit_1(tmp_path: Path, case: str) -> None:
    write_job(tmp_path)
    head = "schema = 1\n"
    (tmp_path / "bad.toml").write_text(head + "[optimizations.metric_reading]\nevry = 3\n")
    (tmp_path / "unknown.toml").write_text(head + "[optimizations.magic]\n")
    (tmp_path / "torn.py").write_text('raise ValueError("first line\\nsecond line")\n')
    arguments, words = ERRORS[case]
    done = called(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("hasten: ")] == lines[-1:], done.stderr
    assert words in lines[-1]
    assert "Traceback" not in done.stderr
    assert len(lines) == 1 or case == "missing class", done.stderr


@pytest.mark.slow
def test_profile_writes_what_it_shows(tmp_path: Path, target: str) -> None:
    path = tmp_path / "profile.json"
    done = good("profile", target, "--json", str(path), "--seconds", "0.1")
    found = json.loads(path.read_text())
    assert set(found["bottleneck"]) == {"name", "share", "words"}
    assert sum(found["phases"].values()) == pytest.approx(1.0)
    assert {"input", "compute"} <= set(found["ceilings"])
    assert {remedy["name"] for remedy in found["remedies"]} == set(catalogue())
    assert found["job"]["batch_size"] == 8
    assert found["bottleneck"]["words"].split(".")[0] in done.stdout


@pytest.mark.slow
def test_compare_writes_the_verdict_and_every_sample(tmp_path: Path, target: str, plan_file: Path) -> None:
    path = tmp_path / "found.json"
    done = good(
        "compare", target, "--plan", "-", "--plan", str(plan_file), "--json", str(path), "--updates", "8",
        "--budget", "2s", "--quality",
    )  # fmt: skip
    found = json.loads(path.read_text())
    assert {"ratio", "low", "high", "pairs", "verdict", "samples"} <= set(found)
    assert found["verdict"] in {"faster", "slower", "same", "undecided"}
    assert {sample["arm"] for sample in found["samples"]} == {"A", "B"}
    assert len(found["samples"]) % 2 == 0
    assert found["quality"]["metric"] == "loss"
    assert found["quality"]["seeds"]["A"] == found["quality"]["seeds"]["B"]  # an exact technique
    assert "[metric_reading] against [empty]" in done.stdout


@pytest.mark.slow
def test_run_trains_and_leaves_metrics_and_weights(tmp_path: Path, target: str, plan_file: Path) -> None:
    out = tmp_path / "run"
    done = good("run", target, "--plan", str(plan_file), "--out", str(out), "--updates", "40")
    assert "Trained 40 updates" in done.stdout
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["update"] == 40
    assert lines[-1]["held_out"]["loss"] > 0.0
    weights = torch.load(out / "model.pt", weights_only=True)
    assert set(weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert Plan.load(out / "hasten.toml", catalogue()).names == ("metric_reading",)


def test_doctor_tells_the_machine_as_json() -> None:
    found = json.loads(called("doctor", "--json").stdout)
    assert found["machine"]["cores"]["value"] >= 1
    assert found["machine"]["cores"]["reason"]
    assert {item["name"] for item in found["optimizations"]} == set(catalogue())
    assert isinstance(found["advice"], list)
    assert found["summary"] in called("doctor").stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": 9, "cores": 4}, "9 threads on 4 cores"),
        ({"cxx_compiler": None}, "torch.compile cannot build"),
        ({"accelerators": ("H200",), "torch_build": "cpu"}, "built for the CPU"),
        ({"shared_memory_bytes": 64 << 20}, "Shared memory has 64 MiB"),
    ],
)
def test_the_doctor_names_what_is_wrong_and_how_to_mend_it(changes: Any, words: Any) -> None:
    assert advise(machine(shared_memory_bytes=GIB)) == []
    (found,) = advise(machine(**changes))
    assert words in found.problem
    assert found.fix


ENDLESS = """
class J(Good):
    epochs = 10**6
    def loss(self, model, batch):
        (HERE / "begun").touch()
        time.sleep(0.005)
        return super().loss(model, batch)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 0, marks=pytest.mark.long),
        pytest.param(signal.SIGUSR1, 0, marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_asked_to_end_saves_and_exits_as_is_usual(tmp_path: Path, number: Any, code: int) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "hasten", "run", write_job(tmp_path, ENDLESS), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    assert torch.load(out / "model.pt", weights_only=True)


def test_details_are_not_said_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(None)
    narrator("profiling [the] job")
    narrator("  real steps")
    said = capsys.readouterr().err
    assert "profiling [the] job" in said
    assert "real steps" not in said


@pytest.mark.parametrize(
    ("ended", "outcomes", "code"),
    [
        ("done", ("refused", "undecided"), 0),
        ("done", ("applied", "failed"), 0),
        ("interrupted", (), 130),
        ("trial failures", ("applied",), 1),
        ("done", ("failed",), 1),
        ("done", (), 1),
    ],
)
def test_a_tuning_that_learnt_nothing_fails(
    ended: str, outcomes: tuple[Any, ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rungs = [Candidate(name="x", settings={}, outcome="refused", reason="it does not fit")]
    rungs += [
        replace(rungs[0], outcome=outcome, evidence=(Check(name="fired", passed=True, seen="1"),)) for outcome in outcomes
    ]
    found = replace(parse(bare()), ended=ended, rungs=tuple(rungs))
    monkeypatch.setattr(Session, "__init__", lambda *_: None)
    monkeypatch.setattr(Session, "run", lambda _: found)
    request = TuneRequest(target="x.py", out=tmp_path, command=(__file__,))
    ended_with = 0
    try:
        run_session(request)
    except typer.Exit as ending:
        ended_with = ending.exit_code
    assert ended_with == code
