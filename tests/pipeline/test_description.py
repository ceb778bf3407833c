"""A description is checked wholly before anything starts, and each error names the stage and the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hasten.pipeline.description import METRICS, PipelineError, filled, read_pipeline
from hasten.pipeline.lease import Totals, need_of
from hasten.pipeline.worker import command_of
from tests.pipeline.described import command, described

JOB = '[stages.{}]\njob = "stages.py:Stage"\n'
MERGE = """\
[stages.base]
job = "stages.py:Stage"
[stages.one]
job = "stages.py:Stage"
after = "base"
[stages.two]
job = "stages.py:Stage"
after = "{}"
[stages.joined]
merge = ["one", "two"]
judge = "python judge.py {{merged}} {{out}}"
gates.error = {{ metric = "error", {} }}
"""
GATE = '[stages.a]\nevaluate = "python judge.py"\n[stages.a.gates.good]\n'


def test_what_follows_from_the_kind_is_added(tmp_path: Path) -> None:
    pipeline = described(tmp_path, MERGE.format("base", "within = 0.1"))
    assert list(pipeline.stages) == ["base", "one", "two", "joined"]
    assert pipeline.stages["two"].needs == ("base",)
    assert pipeline.stages["joined"].needs == ("one", "two")
    assert pipeline.stages["joined"].gives == pipeline.stages["one"].gives == ("model.pt",)
    evaluation = described(tmp_path, GATE + 'metric = "good"\nthreshold = 0.5\n').stages["a"]
    assert evaluation.gives == (METRICS,)
    assert evaluation.words == ("python", "judge.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one or more [stages.NAME]"),
        ("x = 1\n" + command("a"), "nothing else"),
        ("[stages", "not valid TOML"),
        ("[stages.a]\n", "stages.a: needs one of job, script, command, evaluate, merge; found none"),
        (JOB.format("a") + 'command = ["x"]\n', "found job and command"),
        (JOB.format("A"), "stages.A.name: is 'A'"),
        (JOB.format("out"), "'out' is a placeholder"),
        (JOB.format("a") + 'need = ["b"]\n', "stages.a.need: is not a key here. Did you mean needs?"),
        (JOB.format("a") + 'needs = ["b"]\n', "stages.a.needs: 'b' is not a stage"),
        (JOB.format("a") + 'needs = ["a"]\n', "stages.a: needs itself"),
        (JOB.format("a") + 'folder = "x"\n', "`folder` is not a key of a stage with `job`"),
        (JOB.format("a") + "updates = -1\n", "stages.a.updates: is -1"),
        (JOB.format("a") + "cores = true\n", "stages.a.cores: is True"),
        (JOB.format("a") + "memory = 8\n", "stages.a.memory: is 8: input should be greater"),
        (JOB.format("a") + 'memory = "lots"\n', "stages.a.memory: is 'lots': could not parse value and unit"),
        (JOB.format("a") + 'device_memory = "1 GiB"\n', "stages.a: device_memory needs devices"),
        (JOB.format("a") + 'options = ["--out", "x"]\n', "the pipeline sets --out"),
        (JOB.format("a") + 'plan = "none.toml"\n', "stages.a.plan: there is no 'none.toml'"),
        (JOB.format("a") + 'plan = "../none.toml"\n', "stages.a.plan: '../none.toml' is outside the folder"),
        (JOB.format("a") + 'reads = ["../data"]\n', "stages.a.reads: there is no '../data'"),
        (JOB.format("a") + 'gives = ["/tmp/x"]\n', "is outside the folder"),
        (JOB.format("a") + 'gives = ["x", "x"]\n', "`gives` names 'x' twice"),
        (JOB.format("a") + 'gives = ["x", "x/y"]\n', "makes x/y twice"),
        (JOB.format("a") + 'env = { X = "{b}" }\n', "stages.a: {b} in '{b}' is not known. Add 'b' to its needs"),
        ('[stages.a]\njob = "none.py:Stage"\n', "stages.a.job: there is no 'none.py'"),
        ('[stages.a]\njob = "no.such:Stage"\n', "stages.a: no module named 'no.such' can be found"),
        (JOB.format("a") + 'plan = "source.txt"\n', "stages.a: source.txt is not valid TOML"),
        ('[stages.a]\njob = "stages"\n', "stages.a.job: is 'stages'"),
        ('[stages.a]\nscript = "none.py"\n', "stages.a.script: there is no 'none.py'"),
        (command("a", needs="b") + command("b", needs="a"), "in a circle: "),
        ('[stages.a]\nevaluate = "python judge.py"\n', "evaluates, but has no gates"),
        (GATE + "threshold = 0.5\n", "stages.a.gates.good.metric: is missing: write metric = ..."),
        (GATE + 'metric = "good"\n', "stages.a.gates.good: no threshold"),
        (GATE + 'metric = "good"\nthreshold = nan\n', "stages.a.gates.good.threshold"),
        (GATE + 'metric = "good"\nthreshold = 0.5\nslices = []\n', "one or more slices"),
        (
            GATE + 'metric = "good"\nthreshold = 0.5\nslice = ["a"]\n',
            "stages.a.gates.good.slice: is not a key here. Did you mean",
        ),
        (GATE + 'metric = "good"\nwithin = 0.5\n', "`within` is for a merge"),
        ('[stages.a]\nmerge = ["b", "c"]\n', "a merge needs gates"),
        (MERGE.format("one", "threshold = 1"), "branches of joined must start from the same stage"),
        (MERGE.format("base", "threshold = 1") + "[stages.joined.x]\n", "stages.joined.x: is not a key here"),
        (MERGE.format("base", "threshold = 1").replace("judge =", "weights = [0.5, 0.6]\njudge ="), "1 in total"),
        (
            MERGE.format("base", "threshold = 1").replace("judge =", 'file = "x.pt"\njudge ='),
            "stages.one does not give 'x.pt'",
        ),
    ],
)
def test_an_error_names_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(words)):
        described(tmp_path, text)


def test_another_schema_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="There is no"):
        read_pipeline(tmp_path)
    (tmp_path / "pipeline.toml").write_text("schema = 2\n" + command("a"), encoding="utf-8")
    with pytest.raises(PipelineError, match="needs `schema = 1`"):
        read_pipeline(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cores = 3", "stages.a.cores: it needs 3; there are 2"),
        ("devices = 1", "stages.a.devices: it needs 1; there are 0"),
        ('memory = "9 GiB"', "stages.a.memory: it needs 9 GiB; there are 4 GiB"),
    ],
)
def test_resources_that_the_machine_lacks_are_refused(tmp_path: Path, line: str, words: str) -> None:
    stage = described(tmp_path, JOB.format("a") + line + "\n").stages["a"]
    with pytest.raises(PipelineError, match=re.escape(words)):
        need_of(stage, Totals(cores=(0, 1), memory_bytes=4 * 2**30), None)


def test_each_kind_becomes_a_command(tmp_path: Path) -> None:
    (tmp_path / "hasten.toml").write_text("schema = 1\n", encoding="utf-8")
    text = 'plan = "hasten.toml"\nupdates = 7\noptions = ["--keep", "1"]\n'
    script = '[stages.s]\nscript = "judge.py"\nneeds = ["a"]\narguments = ["{a}/model.pt", "{out}"]\n'
    pipeline = described(tmp_path, JOB.format("a") + text + script + command("c"))
    places = {"a": Path("/a"), "out": Path("/o")}
    words = {name: command_of(pipeline, stage, places, Path("/o"))[1:] for name, stage in pipeline.stages.items()}
    plan = f"--plan {tmp_path}/hasten.toml"
    assert " ".join(words["a"]) == f"-m hasten run stages.py:Stage --out /o --resume {plan} --updates 7 --keep 1"
    assert " ".join(words["s"]) == f"-m hasten run {tmp_path}/judge.py --out /o -- /a/model.pt /o"
    assert words["c"] == ["counted.py", "/o"]


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    assert filled(["{out}/x", "{'a': 1}", "{unknown}"], {"out": Path("/o")}) == ["/o/x", "{'a': 1}", "{unknown}"]
