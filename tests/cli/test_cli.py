"""The verbs as a user calls them, with pipes and no terminal; training in real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import typer

from hasten.cli.command import common_options, run_names, technique_names, with_destination
from hasten.cli.compare import status_below
from hasten.cli.doctor import advise
from hasten.cli.main import Hasten, app
from hasten.cli.say import Narrator, Voice, duration_words, parse_duration, voice
from hasten.cli.tune import run_session
from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report.evidence import Candidate, Check, parse, save
from hasten.report.words import nothing_learnt_words
from hasten.tune.request import TuneRequest
from hasten.tune.search.candidate import no_time
from hasten.tune.session import Session
from tests.cli.called import called
from tests.optimizations.contract import GIB, machine
from tests.report.sample import bare, full
from tests.tune.jobs import write_job

COMMON = {"--quiet", "-q", "--verbose", "-v", "--traceback"}
"""Options of every verb."""
VERBS: dict[str, set[str]] = {
    "profile": {"target", "arguments", "-m", "--json", "--seconds", "--ranks", "--all"},
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
        "--all",
    },
    "schema": {"file"},
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
        "--log-to",
        "--alerts",
        "--alert-to",
        "--on-breach",
    },
    "watch": {"runs", "--text", "--once", "--port", "--browser"},
    "checkpoints list": {"run", "--json"},
    "checkpoints inspect": {"run", "--update", "--json"},
    "checkpoints verify": {"run"},
    "checkpoints export": {"run", "file", "--update", "--best"},
    "pipeline run": {"file", "--override", "--reason"},
    "pipeline resume": {"file"},
    "pipeline status": {"file", "--json"},
    "pipeline graph": {"file"},
    "pipeline explain": {"file", "--json"},
    "pipeline ui": {"file", "--port"},
    "pipeline queue start": {"folder", "--postgres", "--at-once"},
    "pipeline queue add": {"pipelines", "--owner", "--queue"},
    "pipeline queue status": {"folder", "--json"},
    "pipeline queue stop": {"folder"},
    "release promote": {"folder", "source", "--share", "--metrics", "--mlflow", "--name"},
    "release rollback": {"folder", "--reason", "--mlflow", "--name"},
    "release judge": {"folder", "model", "metrics", "--mlflow", "--name"},
    "release list": {"folder", "--json"},
    "release verify": {"folder"},
    "release backup": {"folder", "url"},
    "release restore": {"url", "folder"},
    "release drill": {"url"},
    "runs list": {"folder", "--json"},
    "runs show": {"run", "--html", "--plots", "--json"},
    "runs compare": {"runs", "--html", "--plots", "--json"},
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
        "--grid",
        "--private",
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
    "data private": {"folder", "--head", "--erase", "--json"},
    "data cache": {"place", "--dataset", "--version", "--max-gib", "--clear", "--json"},
    "size": {
        "target_job",
        "--layers",
        "--hidden",
        "--heads",
        "--kv-heads",
        "--ffn",
        "--vocab",
        "--swiglu",
        "--experts",
        "--active-experts",
        "--tied",
        "--target",
        "--fit",
        "--explain",
        "--growth",
        "--sharding",
        "--ranks",
        "--shards",
        "--precision",
        "--states",
        "--recompute",
        "--plain-attention",
        "--batch",
        "--length",
        "--fragmentation",
        "--tokens",
        "--peak",
        "--utilisation",
        "--html",
        "--json",
    },
    "compare": {
        "target",
        "--plan",
        "--json",
        "--updates",
        "--budget",
        "--seed",
        "--quality",
        "--sequential",
        "--fail-below",
        "--ranks",
    },
    "check run": {
        "target",
        "arguments",
        "-m",
        "--against",
        "--baseline",
        "--budget",
        "--floor",
        "--updates",
        "--seed",
        "--quality",
        "--ranks",
        "--record",
        "--json",
        "--junit",
        "--markdown",
    },
    "check history": {"target", "--file", "--html", "--csv", "--json"},
    "mcp": {"--folder"},
    "batch": {"target", "--head-room", "--json", "--budget", "--plan"},
    "doctor": {"--json", "--catalogue"},
    "explain": {"name", "--out", "--json"},
    "demo": {"example", "--budget", "--out", "--all"},
    "data synth": {"recipe", "folder", "--count", "--seed"},
    "recipes list": set(),
    "recipes evaluate": {"target", "weights", "--out"},
    "recipes new": {
        "recipe",
        "name",
        "--images",
        "--labels",
        "--rows",
        "--encoding",
        "--conversations",
        "--stage",
        "--chat-model",
        "--voices",
        "--private",
    },
    "recipes look": {"target", "weights", "pictures", "--out", "--min-score"},
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


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), ("1.5m", 90), (" 2s ", 2)])
def test_durations(text: str, seconds: Any) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "5 m", "5d", "m", "1e3", "five", "5m30s", "inf", "nan"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(HastenError, match="write 90s, 5m or 1h"):
        parse_duration(text)


def test_a_budget_without_a_unit_or_below_the_minimum_is_explained() -> None:
    with pytest.raises(HastenError, match="5 has no unit: write 5s or 5m"):
        parse_duration("5")
    with pytest.raises(HastenError, match="5s is too short to compare anything: the minimum is 10s"):
        parse_duration("5s", least_s=10)
    assert parse_duration("10s", least_s=10) == 10


@pytest.mark.parametrize("text", ["90s", "5m", "1h", "150s", "2.5s"])
def test_a_duration_is_shown_as_it_is_given(text: str) -> None:
    assert duration_words(parse_duration(text)) == text


def test_the_verbs_and_their_flags_are_these() -> None:
    """Growth is a visible decision."""
    group: Any = typer.main.get_command(app)
    commands: dict[str, Any] = {name: group.get_command(None, name) for name in group.list_commands(None)}
    while groups := {name: verb.commands for name, verb in commands.items() if hasattr(verb, "commands")}:
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
    assert found == {name: options | COMMON for name, options in VERBS.items()}
    assert {option for item in common_options() for option in item.opts} == COMMON
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


@pytest.mark.slow
def test_help_and_completion_import_no_torch() -> None:
    code = (
        "import sys; from hasten.cli.main import app; from hasten.cli.command import technique_names\n"
        "assert technique_names('prec') == ['precision']\n"
        "for words in (['--help'], ['tune', '--help'], ['run', '--help'], ['explain', '--help'], ['runs', '--help']):\n"
        "    try: app(words)\n"
        "    except SystemExit: assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert find_spec("torch")


def test_the_table_of_verbs_names_functions_that_exist() -> None:
    shown = " ".join(called("--help").stdout.replace("│", " ").split())
    for name, (_, words) in Hasten.verbs.items():
        assert f"{name} {words}" in shown


def test_names_of_techniques_and_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert technique_names("") == list(catalogue())
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert run_names("ru") == ["runs/a"]
    assert run_names("x") == []


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--json"], ["--json", "-"]),
        (["a", "--json", "--all"], ["a", "--json", "-", "--all"]),
        (["--json", "-", "a"], ["--json", "-", "a"]),
        (["--json", "x.json"], ["--json", "x.json"]),
        (["train.py", "--", "--json"], ["train.py", "--", "--json"]),
    ],
)
def test_json_takes_a_file_or_standard_output(words: list[str], given: list[str]) -> None:
    assert with_destination(words, {"--json"}) == given


def test_json_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    printed = called("explain", "precision", "--json", "-").stdout
    assert called("explain", "precision", "--json").stdout == printed
    done = called("explain", "precision", "--json", str(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == json.loads(printed)
    assert done.stdout.startswith("precision")


@pytest.mark.parametrize(("high", "status"), [(0.9, 1), (0.95, 0), (1.2, 0), (None, 2)])
def test_fail_below_fails_on_a_certain_slowdown_only(high: float | None, status: int) -> None:
    assert status_below({"high": high}, 0.95) == status


RAISES = """from job_under_trial import *
class J(Good):
    epochs = 1
    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1][:3])
"""
LOADER = """from job_under_trial import *
class J(Good):
    def train_data(self):
        return torch.utils.data.DataLoader(super().train_data(), 4)
"""
ERRORS = {
    "options before --": (("tune", "torn.py", "--lr", "3"), "follow `--`: hasten tune torn.py -- --lr 3"),
    "no verb": (("torn.py:J",), "Try one of `hasten profile torn.py:J`"),
    "jobs as a script": (("tune", "job_under_trial.py"), "Found jobs: Good. Use job_under_trial.py:Good"),
    "a loader": (("run", "loader.py:J"), "train_data() returned a DataLoader: return its dataset"),
    "arguments of a job": (("run", "job_under_trial.py:Good", "--", "--lr", "3"), "jobs take no arguments (--lr 3)"),
    "not Python": (("run", "syntax.py:J"), "raised SyntaxError: invalid syntax (syntax.py:2)"),
    "missing import": (("run", "imports.py:J"), "raised ModuleNotFoundError: No module named 'no_such' (imports.py:3)"),
    "raises in training": (("run", "raises.py:J"), "(raises.py:5) `--traceback` shows all frames."),
    "emoji codes": (("run", "nowhere.py:X:"), "nowhere.py:X:"),
    "near name": (("run", "job_under_trial.py:Good", "--plan", "near.toml"), "Did you mean `precision`?"),
    "near job": (("run", "job_under_trial.py:God"), "Did you mean job_under_trial.py:Good?"),
    "no unit": (("tune", "job_under_trial.py:Good", "--budget", "5"), "5 has no unit"),
    "short budget": (("tune", "job_under_trial.py:Good", "--budget", "5s"), "the minimum is 10s"),
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
    "bad budget": (("tune", "job_under_trial.py:Good", "--budget", "soon"), "is not a duration"),
    "nothing to resume": (("tune", "job_under_trial.py:Good", "--resume"), "nothing to resume"),
}


@pytest.mark.slow
def test_an_error_of_a_real_process_is_one_line(tmp_path: Path) -> None:
    done = hasten(*ERRORS["missing file"][0], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("hasten: nowhere.py:J: the file nowhere.py does not exist")


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_on_stderr_and_exit_1(tmp_path: Path, case: str) -> None:
    write_job(tmp_path)
    head = "schema = 1\n"
    (tmp_path / "bad.toml").write_text(head + "[optimizations.metric_reading]\nevry = 3\n")
    (tmp_path / "unknown.toml").write_text(head + "[optimizations.magic]\n")
    (tmp_path / "near.toml").write_text(head + "[optimizations.precison]\n")
    (tmp_path / "syntax.py").write_text("import torch\nclass J(:\n")
    (tmp_path / "imports.py").write_text("import torch\n\nimport no_such\n")
    (tmp_path / "raises.py").write_text(RAISES)
    (tmp_path / "loader.py").write_text(LOADER)
    (tmp_path / "torn.py").write_text('raise ValueError("first line\\nsecond line")\n')
    arguments, words = ERRORS[case]
    done = called(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("hasten: ")] == lines[-1:], done.stderr
    assert words in lines[-1]
    assert "Traceback" not in done.stderr
    assert len(lines) == 1 or case == "missing class", done.stderr


def test_traceback_shows_all_frames(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "raises.py").write_text(RAISES)
    for arguments in (("--traceback", "run", "raises.py:J"), ("run", "raises.py:J", "--traceback")):
        done = called(*arguments, cwd=tmp_path)
        assert "Traceback (most recent call last)" in done.stderr
        assert "torch/nn/functional.py" in done.stderr


def test_a_fault_of_hasten_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.optimizations.catalogue", mock.Mock(side_effect=ZeroDivisionError))
    done = called("schema", "plan")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_the_schemas_describe_the_files(tmp_path: Path) -> None:
    plan = json.loads(called("schema", "plan").stdout)
    assert set(plan["properties"]["optimizations"]["properties"]) == set(catalogue())
    every = {name: kind().settings() for name, kind in catalogue().items()}
    for name, settings in every.items():
        described = plan["properties"]["optimizations"]["properties"][name]["properties"]
        assert {key: item["default"] for key, item in described.items()} == settings
    assert_described(tomllib.loads(Plan.from_dict({"precision": {}}, catalogue()).to_toml()), plan, plan)
    evidence = json.loads(called("schema", "evidence").stdout)
    save(parse(full()), tmp_path / "evidence.json")
    whole = json.loads((tmp_path / "evidence.json").read_text())
    assert_described(whole, evidence, evidence)
    del whole["rungs"]
    with pytest.raises(AssertionError, match="rungs"):
        assert_described(whole, evidence, evidence)
    with pytest.raises(AssertionError):
        assert_described({**whole, "rungs": [{"name": 3}]}, evidence, evidence)


TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def assert_described(value: Any, rule: dict[str, Any], whole: dict[str, Any]) -> None:  # noqa: C901 - a branch a keyword
    """Check a value against the parts of JSON schema that the schemas use."""
    if "$ref" in rule:
        rule = whole["$defs"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        for arm in rule["anyOf"]:
            try:
                assert_described(value, arm, whole)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{value!r} is none of {rule['anyOf']}")
    if "enum" in rule:
        assert value in rule["enum"]
    if "type" in rule:
        names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
        assert any(isinstance(value, TYPES[name]) for name in names), (value, names)
    if isinstance(value, dict):
        missing = set(rule.get("required", ())) - set(value)
        assert not missing, missing
        for key, item in value.items():
            inner = rule.get("properties", {}).get(key, rule.get("additionalProperties", {}))
            assert inner is not False, key
            assert_described(item, inner, whole)
    if isinstance(value, list):
        for item in value:
            assert_described(item, rule.get("items", {}), whole)


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


def test_doctor_reports_the_machine_as_json() -> None:
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
def test_the_doctor_names_what_is_wrong_and_how_to_fix_it(changes: Any, words: Any) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_verb_says_so(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr("hasten.core.machine.read_machine", lambda: signal.raise_signal(number))
    done = called("doctor")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hasten: interrupted\n")


def test_details_are_printed_with_v_and_steps_are_not_with_q(capsys: pytest.CaptureFixture[str]) -> None:
    for level, step, detail in ((0, True, False), (1, True, True), (-1, False, False)):
        token = voice.set(Voice(level=level))
        narrator = Narrator(None)
        narrator("profiling [the] :job:")
        narrator("  real steps")
        voice.reset(token)
        said = capsys.readouterr().err
        assert ("profiling [the] :job:" in said) == step
        assert ("real steps" in said) == detail


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
    ended: str,
    outcomes: tuple[Any, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rungs = [Candidate(name="x", settings={}, outcome="refused", reason="it does not fit")]
    rungs += [
        replace(rungs[0], outcome=outcome, evidence=(Check(name="fired", passed=True, seen="1"),)) for outcome in outcomes
    ]
    found = replace(parse(bare()), ended=ended, rungs=tuple(rungs))
    monkeypatch.setattr(Session, "__init__", lambda *_: None)
    monkeypatch.setattr(Session, "run", lambda _: found)
    monkeypatch.setattr("hasten.cli.say.LOADING_S", 0.0)  # a busy machine: the line about loading is not an error
    request = TuneRequest(target="x.py", out=tmp_path, command=(__file__,))
    ended_with = 0
    try:
        run_session(request)
    except typer.Exit as ending:
        ended_with = ending.exit_code
    assert ended_with == code
    said = " ".join(capsys.readouterr().err.split())
    assert ("hasten: " in said) == (code == 1 and ended == "done")


def test_a_tuning_says_why_it_tried_nothing() -> None:
    refused = Candidate(name="x", settings={}, outcome="refused", reason="it does not fit")
    late = replace(refused, outcome="undecided", reason=no_time(30))
    tried = replace(refused, evidence=(Check(name="fired", passed=True, seen="1"),))
    assert "larger --budget" in nothing_learnt_words([refused, late])
    assert "none applies" in nothing_learnt_words([refused])
    assert "failed" in nothing_learnt_words([late, replace(refused, outcome="failed")])
    assert nothing_learnt_words([late, tried]) == ""
