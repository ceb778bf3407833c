"""Public scripts: entries are complete, data has the expected format, and runs are recorded faithfully."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import result_file
from benchmarks.public import prepare, run
from benchmarks.public import whole as whole_runs
from benchmarks.public.cases import Case, load_cases, read_case
from benchmarks.public.makers import MAKERS
from benchmarks.public.output import compare
from benchmarks.public.page import tables
from benchmarks.public.processes import Ended, last_words
from benchmarks.public.run import PublicRun, call, copy_sources, run_public, shortened, whole
from benchmarks.public.verdict import as_without, is_faster, judge_tuning, patch_share, score, whole_ratio
from benchmarks.result_file import ResultFile
from hasten.core.errors import HastenError, TargetError
from tests.report.sample import bare, rung

ENTRY: dict[str, Any] = {
    "repository": "owner/thing",
    "licence": "MIT",
    "field": "vision",
    "loader": "DataLoader",
    "files": ["part"],
    "folder": "part",
    "script": "train.py",
    "arguments": ["--lr", "0.1"],
    "path": [".."],
    "data": {"make": "characters", "into": "../data"},
    "about": "a net; a loop",
    "changed": ["nothing"],
}


def case(**changes: Any) -> Case:
    return read_case("thing", {**ENTRY, **changes})


# The entries


def test_there_are_scripts_of_enough_repositories_and_kinds() -> None:
    cases = load_cases()
    assert len({case.repository for case in cases.values()}) >= 30
    assert len({case.field for case in cases.values()}) >= 10
    assert sum(case.loader != "DataLoader" for case in cases.values()) >= 10
    assert sum(case.unseen for case in cases.values()) >= 5
    assert all(case.changed and case.about and case.licence for case in cases.values())


def test_scripts_are_chosen_by_name() -> None:
    assert list(load_cases(["vae", "nanogpt"])) == ["nanogpt", "vae"]
    with pytest.raises(HastenError, match="no public script unknown"):
        load_cases(["unknown", "vae"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"colour": "red"}, "colour"), ({"data": {"make": "gold", "into": "."}}, "the data maker gold is unknown")],
)
def test_a_wrong_entry_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HastenError, match=words):
        case(**changes)


def test_an_entry_must_say_what_was_changed() -> None:
    with pytest.raises(HastenError, match=r"missing or unknown in .*: changed"):
        read_case("thing", {name: value for name, value in ENTRY.items() if name != "changed"})


def test_what_an_entry_leaves_out() -> None:
    found = read_case(
        "thing", {name: ENTRY[name] for name in ("repository", "licence", "field", "loader", "script", "about", "changed")}
    )
    assert (found.clone, found.files, found.folder, found.arguments, found.path) == ("thing", (".",), ".", (), ())
    assert (found.maker, found.into) == ("", ".")
    assert (found.shorter, found.environment, found.unseen) == ((), {}, False)


# The data


@pytest.mark.parametrize("name", MAKERS)
def test_each_maker_says_what_it_makes(name: str) -> None:
    assert (MAKERS[name].__doc__ or "").partition("\n")[0].endswith(".")


def test_characters_hold_what_a_script_begins_its_samples_with(tmp_path: Path) -> None:
    MAKERS["characters"](tmp_path)
    text = (tmp_path / "input.txt").read_text(encoding="ascii")
    assert len(text) == prepare.NUM_CHARACTERS
    assert set("O God, O God!") <= set(text)


def test_numbers_of_characters_give_the_text_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "NUM_CHARACTERS", 1000)
    MAKERS["characters"](tmp_path)
    MAKERS["character_bins"](tmp_path)
    meta = pickle.loads((tmp_path / "meta.pkl").read_bytes())
    ids = [np.fromfile(tmp_path / f"{name}.bin", dtype=np.uint16) for name in ("train", "val")]
    assert [len(part) for part in ids] == [900, 100]
    text = "".join(meta["itos"][number] for number in np.concatenate(ids).tolist())
    assert text == (tmp_path / "input.txt").read_text(encoding="ascii")
    assert meta["vocab_size"] == len(set(text))


def test_words_are_many_and_few_of_them_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "NUM_WORDS", {"train": 9000, "valid": 900, "test": 900})
    monkeypatch.setattr(prepare, "NUM_DIFFERENT_WORDS", 100)
    MAKERS["words"](tmp_path)
    seen: Counter[str] = Counter()
    for name, count in (("train", 9000), ("valid", 900), ("test", 900)):
        lines = (tmp_path / f"{name}.txt").read_text(encoding="ascii").splitlines()
        found = [word for line in lines for word in [*line.split(), "<eos>"]]
        assert count <= len(found) <= count + 100
        seen.update(found)
    assert len(seen) <= 100
    assert seen["<unk>"] < seen.total() / 2
    MAKERS["fewer_words"](tmp_path)
    assert 1200 < len((tmp_path / "train.txt").read_text(encoding="ascii").split()) < 1900


def test_digits_lie_in_the_files_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "NUM_DIGITS", {"train": 30, "t10k": 10})
    MAKERS["mnist"](tmp_path)
    raw = tmp_path / "MNIST" / "raw"
    images = (raw / "train-images-idx3-ubyte").read_bytes()
    labels = (raw / "t10k-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">IIII", images[:16]) == (2051, 30, 28, 28)
    assert struct.unpack(">II", labels[:8]) == (2049, 10)
    pixels = np.frombuffer(images[16:], dtype=np.uint8).reshape(30, 28, 28)
    assert pixels.max() == 255
    assert (pixels.reshape(30, -1).max(axis=1) > 0).all()
    assert set(labels[8:]) <= set(range(10))
    assert len(labels) == 18


def test_images_are_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "NUM_PICTURES", {"train": 2, "val": 1})
    MAKERS["pictures"](tmp_path)
    assert len(list(tmp_path.glob("train/class*/*.png"))) == 20
    assert len(list(tmp_path.glob("val/class*/*.png"))) == 10
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    found, at = {}, 8
    data = prepare.png(pixels)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        found[kind] = data[at + 8 : at + 8 + length]
        assert zlib.crc32(data[at + 4 : at + 8 + length]) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        at += 12 + length
    assert struct.unpack(">II", found[b"IHDR"][:8]) == (3, 2)
    lines = np.frombuffer(zlib.decompress(found[b"IDAT"]), dtype=np.uint8).reshape(2, 10)
    assert not lines[:, 0].any()
    assert (lines[:, 1:].reshape(2, 3, 3) == pixels).all()


# The sources


def git(clone: Path, *words: str) -> None:
    settings = ["-c", "user.name=someone", "-c", "user.email=someone@nowhere", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *settings, "-C", str(clone), *words], check=True, capture_output=True)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a folder with one clone: all its files are committed except `part/note.py`."""
    clone = tmp_path / "sources" / "thing"
    (clone / "part").mkdir(parents=True)
    (clone / "part" / "train.py").write_text("print('training')\n", encoding="utf-8")
    (clone / "part" / "data.bin").write_bytes(b"1")
    (clone / "other.py").touch()
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "all")
    (clone / "part" / "note.py").touch()
    return clone.parent


def test_a_run_gets_what_was_committed_and_needed(sources: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    commit = copy_sources(case(), sources, work)
    assert len(commit) == 40
    assert {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()} == {"part/train.py", "part/data.bin"}


def test_a_large_file_may_be_missing_in_a_clone(sources: Path, tmp_path: Path) -> None:
    (sources / "thing" / "part" / "data.bin").unlink()
    copy_sources(case(), sources, tmp_path / "work")
    assert not (tmp_path / "work" / "part" / "data.bin").exists()


def test_a_changed_script_is_not_run(sources: Path, tmp_path: Path) -> None:
    (sources / "thing" / "part" / "train.py").write_text("print('faster')\n", encoding="utf-8")
    with pytest.raises(TargetError, match=r"changed: part/train\.py"):
        copy_sources(case(), sources, tmp_path / "work")


def test_a_missing_clone_is_named_before_anything_runs(
    sources: Path, results: ResultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_part", lambda *_: pytest.fail("it ran"))
    cases = {"thing": case(), "other": case(repository="owner/other")}
    with pytest.raises(TargetError, match="must be a clone of owner/other"):
        run_public(results, cases, PublicRun(sources=sources))


# The runs

PROFILE: dict[str, Any] = {
    "bottleneck": {"name": "input", "share": 0.5, "words": "It reads | a lot."},
    "phases": {"data": 0.5, "forward": 0.3, "backward": 0.15, "optimizer": 0.05},
    "step_ms": 12.34,
    "own_cost_frac": 0.004,
}


def evidence(ratio: float | None, low: float | None, *, gate: str = "passed", quality: str | None = None) -> dict[str, Any]:
    final = None
    if ratio is not None:
        figures = {"baseline": 1.0, "tuned": 1.0, "margin": 0.1}
        judged = None if quality is None else {"metric": "loss", "verdict": quality, **figures}
        final = {"ratio": ratio, "low": low, "high": ratio * 1.1, "pairs": 5, "verdict": "faster", "quality": judged}
    numerics = {"class": "exact", "verdict": gate, "why": "as it is"}
    measured = {"ratio": 1.5, "low": 1.4, "high": 1.6, "pairs": 5, "verdict": "faster"}
    rungs = [
        rung("sample_cache", "applied", "faster", settings={"where": "ram"}, numerics=numerics, comparison=measured),
        rung("compile", "refused", "no compiler"),
    ]
    return {**bare(), "final": final, "rungs": rungs if ratio else rungs[1:], "ended": "budget"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace `hasten` by a fake."""
    called: list[list[str]] = []

    def played(arguments: list[str], case: Case, run: PublicRun, work: Path, limit_s: float) -> str:
        called.append(arguments)
        assert (work / "data" / "input.txt").exists()
        if arguments[0] == "profile":
            Path(arguments[-1]).write_text(json.dumps({**PROFILE, "where": f"{work}/part/train.py:1"}), encoding="utf-8")
        else:
            Path(arguments[-1]).mkdir()
            (Path(arguments[-1]) / "evidence.json").write_text(json.dumps(evidence(1.5, 1.4)), encoding="utf-8")
        return ""

    monkeypatch.setattr(prepare, "NUM_CHARACTERS", 10)
    monkeypatch.setattr(run, "call", played)
    return called


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultFile:
    """Return rows that are written to a folder of the test, at a commit of the test."""
    monkeypatch.setattr(result_file, "RESULTS", tmp_path)
    monkeypatch.setattr(result_file, "measured_commit", lambda: "ours")
    monkeypatch.setattr(result_file, "record", lambda *_: None)
    return ResultFile("public", "run it", lambda _rows, _beside: {})


def test_a_script_is_profiled_and_tuned(sources: Path, results: ResultFile, calls: list[list[str]]) -> None:
    run_public(results, {"thing": case()}, PublicRun(sources=sources, budget="1m", parts=("profile", "tune")))
    assert [arguments[0] for arguments in calls] == ["profile", "tune"]
    assert calls[1][1:4] == ["train.py", "--budget", "1m"]
    row = results.rows["thing"]
    assert row["profile"]["found"]["where"] == "part/train.py:1"
    assert (row["tune"]["found"]["low"], row["tune"]["found"]["plan"]) == (1.4, {"sample_cache": {"where": "ram"}})
    assert len(row["tune"]["of"]) == 40


def test_what_was_measured_is_not_measured_again(sources: Path, results: ResultFile, calls: list[list[str]]) -> None:
    cases = {"thing": case()}
    run_public(results, cases, PublicRun(sources=sources, parts=("profile",)))
    both = PublicRun(sources=sources, parts=("profile", "tune"))
    run_public(results, cases, both)
    assert [arguments[0] for arguments in calls] == ["profile", "tune"]
    run_public(results, cases, PublicRun(sources=sources, parts=("profile",), again=True))
    results.rows["thing"]["tune"]["of"] = "another commit of the script"
    run_public(results, cases, both)
    assert [arguments[0] for arguments in calls[2:]] == ["profile", "tune"]
    results.rows["thing"]["tune"]["commit"] = "another commit of Hasten"
    run_public(results, cases, PublicRun(sources=sources, parts=("tune",), keep_any=True))
    assert len(calls) == 4


def test_a_part_that_fails_is_a_row_that_says_why(
    sources: Path, results: ResultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "NUM_CHARACTERS", 10)
    monkeypatch.setattr(run, "call", lambda arguments, *_: f"no {arguments[0]}" if arguments[0] == "profile" else "")
    run_public(results, {"thing": case()}, PublicRun(sources=sources, parts=("profile", "tune")))
    assert (results.rows["thing"]["profile"]["found"], results.rows["thing"]["profile"]["why"]) == (None, "no profile")
    assert results.rows["thing"]["tune"]["why"] == "`hasten tune` wrote no evidence"


def test_the_result_tells_how_each_script_was_started() -> None:
    part = {"found": None, "why": "it did not run", "of": "abc"}
    result = whole({"mingpt": {"name": "mingpt", "profile": part}, "nanogpt": {"name": "nanogpt", "tune": part}}, {})
    assert [row["name"] for row in result["rows"]] == ["nanogpt", "mingpt"]
    row = result["rows"][1]
    assert row["command"] == "python chargpt.py --model.model_type=gpt-nano"
    assert (row["script"], row["path"]) == ("projects/chargpt/chargpt.py", ["../.."])
    assert row["data"].startswith("The source of Python's standard library")
    assert row["profile"] == part


def test_a_failed_command_is_reported_with_the_error_of_the_script() -> None:
    said = ["Traceback:", "ModuleNotFoundError: No module named 'x'", "", "│ The script ended with exit code 1. │", "╰────╯"]
    assert last_words(said) == "The script ended with exit code 1. (ModuleNotFoundError: No module named 'x')"
    assert last_words(["it is so"]) == "it is so"
    assert last_words(["", "────"]) == "it printed nothing"


def test_folders_of_this_machine_are_not_shown(tmp_path: Path) -> None:
    told = shortened(
        f"{tmp_path}/part/train.py, /env/lib/a.py", PublicRun(sources=tmp_path, python="/env/bin/python"), tmp_path
    )
    assert told == "part/train.py, <environment>/lib/a.py"


@pytest.mark.slow
def test_the_command_runs_in_the_folder_of_the_script(sources: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    copy_sources(case(), sources, work)
    why = call(["profile", "nothing.py"], case(), PublicRun(sources=sources), work, 60.0)
    assert why.startswith("`hasten profile` ended with ")
    assert "nothing.py" in why
    why = call(["profile", "train.py"], case(), PublicRun(sources=sources, python=sys.executable), work, 60.0)
    assert "Fewer than two optimizer steps were observed" in why


# Whole runs

PLAIN = ["epoch 1 loss 0.500 time 1.25s\nnote 7\ndone", "epoch 1 loss 0.500 time 1.31s\nnote 9\ndone"]


def test_the_same_output_with_other_times_is_the_same() -> None:
    found = compare(PLAIN, "epoch 1 loss 0.500 time 0.80s\nnote 8\ndone\n[hasten] ok")
    assert (found["lines"], found["missing"], found["numbers"], found["equal"]) == (3, [], 2, 2)
    assert found["typical"] is None


def test_another_loss_and_a_missing_line_are_seen() -> None:
    found = compare(PLAIN, "epoch 1 loss 0.510 time 0.80s\nnote 8")
    assert found["missing"] == ["done"]
    assert (found["numbers"], found["equal"]) == (2, 1)
    assert found["typical"] == pytest.approx(0.01 / 0.51)
    assert compare(PLAIN, PLAIN[0].replace("0.500", "nan"))["largest"] == float("inf")


def test_numbers_that_plain_runs_share_by_chance_are_not_compared() -> None:
    plain = ["epoch 1 accuracy 0.81\nepoch 2 accuracy 0.82", "epoch 1 accuracy 0.81\nepoch 2 accuracy 0.79"]
    found = compare(plain, "epoch 1 accuracy 0.80\nepoch 2 accuracy 0.80")
    assert (found["numbers"], found["equal"], found["missing"]) == (2, 2, [])
    assert compare(plain, "epoch 1 accuracy 0.80\nepoch 7 accuracy 0.80")["equal"] == 1


def ended(wall_s: float, out: str = PLAIN[0], code: int = 0) -> Ended:
    return Ended(code=code, wall_s=wall_s, cpu_s=wall_s, out=out, errors="")


def played_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, Ended], tuned: dict[str, Any] | None
) -> tuple[list[str], dict[str, Any]]:
    """Measure whole runs of a fake script: `runs` has one for each arm. Return the order of the arms, and the result."""
    order = []

    def start(command: list[str], _case: Case, work: Path, _limit_s: float, **variables: str) -> Ended:
        patched = (work / "part" / "train.py").read_text(encoding="utf-8") == "fast\n" or "LD_PRELOAD" in variables
        if "--plan" in command:
            order.append("empty" if any(word.endswith("empty.toml") for word in command) else "plan")
        else:
            order.append("alone" if "hasten" in command else "patch" if patched else "plain")
        assert ("LD_PRELOAD" in variables) == (order[-1] == "patch")
        return runs[order[-1]]

    monkeypatch.setattr(whole_runs, "start", start)
    template = tmp_path / "files"
    (template / "part").mkdir(parents=True)
    (template / "part" / "train.py").write_text("slow\n", encoding="utf-8")
    return order, whole_runs.measure_whole(case(), "python", template, tuned)


TUNED: dict[str, Any] = {
    "plan": {"precision": {}},
    "plan_text": "plan",
    "patch_text": "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-slow\n+fast\n",
    "patch_variables": {"LD_PRELOAD": "allocator"},
}


def test_whole_runs_are_made_in_turns_each_on_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"plain": ended(3.0), "alone": ended(3.3), "empty": ended(2.5), "plan": ended(2.0), "patch": ended(2.4)}
    order, result = played_whole(tmp_path, monkeypatch, runs, TUNED)
    assert order == [
        "plain", "empty", "plan", "patch", "alone", "patch", "plan", "empty", "plain", "plain", "empty", "plan", "patch",
    ]  # fmt: skip
    found = result["found"]
    assert found["plan"]["ratio"] == pytest.approx(1.5)
    assert found["patch"]["ratio"] == pytest.approx(1.25)
    assert found["alone"]["same"]
    assert len(found["arms"]["plan"]) == 3
    row = {"whole": result}
    assert as_without(row)
    assert whole_ratio(row) == pytest.approx(1.5)
    assert patch_share(row) == 1.0  # it saves 0.6 s, more than the 0.5 s of the techniques
    found["patch"]["ratio"] = 3.0 / 2.8
    assert patch_share(row) == pytest.approx((3.0 - 2.8) / (2.5 - 2.0))
    found["plan"]["ratio"] = 3.0 / 2.4
    assert patch_share(row) is None  # the techniques save 0.1 s of 3 s
    found["empty"]["same"] = False
    assert not as_without(row)


def test_variables_alone_count_as_a_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"plain": ended(3.0), "alone": ended(3.3), "empty": ended(3.0), "plan": ended(2.0), "patch": ended(2.5)}
    _, result = played_whole(tmp_path, monkeypatch, runs, {**TUNED, "patch_text": ""})
    assert patch_share({"whole": result}) == pytest.approx(0.5)


def test_an_empty_plan_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"plain": ended(3.0), "alone": ended(3.3), "empty": ended(2.5)}
    order, result = played_whole(tmp_path, monkeypatch, runs, {"plan": {}, "plan_text": "plan"})
    assert order == ["plain", "empty", "alone", "empty", "plain", "plain", "empty"]
    assert result["found"]["plan"] is None
    assert whole_ratio({"whole": result}) == pytest.approx(1.2)
    assert patch_share({"whole": result}) is None


def test_a_script_that_was_not_tuned_needs_no_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, result = played_whole(tmp_path, monkeypatch, {"plain": ended(3.0), "alone": ended(3.3)}, None)
    assert order == ["plain", "alone", "plain"]
    assert whole_ratio({"whole": result}) == 1.0
    assert patch_share({"whole": result}) is None


def test_a_run_that_fails_under_the_plan_is_not_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"plain": ended(3.0), "alone": ended(3.3), "empty": ended(3), "plan": ended(2.0, "epoch\nTypeError: x", code=1)}
    _, result = played_whole(tmp_path, monkeypatch, runs, {**TUNED, "patch_text": "", "patch_variables": {}})
    assert result["found"]["plan"]["failures"][0] == "ended with 1: TypeError: x"
    assert as_without({"whole": result}) is False


def test_a_script_that_fails_alone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = played_whole(tmp_path, monkeypatch, {"plain": ended(1.0, "KeyError: 'a'", code=1)}, None)
    assert result == {"why": "the script alone ended with 1: KeyError: 'a'", "found": None}


def test_a_patch_that_does_not_apply_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"plain": ended(3.0), "alone": ended(3.3), "empty": ended(3), "plan": ended(2.0)}
    wrong = {**TUNED, "patch_text": TUNED["patch_text"].replace("-slow", "-other")}
    _, result = played_whole(tmp_path, monkeypatch, runs, wrong)
    assert "train.py" in result["found"]["patch_refused"]
    assert result["found"]["patch"] is None


# What is kept


def test_a_gain_counts_with_its_losses_within_the_gate() -> None:
    assert judge_tuning(evidence(1.5, 1.4))["within_gate"]
    assert not judge_tuning(evidence(1.5, 1.4, gate="failed"))["within_gate"]
    assert not judge_tuning(evidence(1.5, 1.4, quality="worse"))["within_gate"]
    assert judge_tuning(evidence(1.5, 1.4, quality="not_worse"))["within_gate"]
    assert is_faster({"tune": {"found": judge_tuning(evidence(1.5, 1.3))}})
    assert not is_faster({"tune": {"found": judge_tuning(evidence(1.5, 1.29))}})
    assert not is_faster({"tune": {"found": judge_tuning(evidence(1.5, 1.4, gate="failed"))}})
    assert not is_faster({"tune": {"found": judge_tuning(evidence(None, None))}})
    assert not is_faster({"tune": {"found": None}})
    assert not is_faster({})


def part(found: Any, why: str = "") -> dict[str, Any]:
    return {"found": found, "why": why, "of": "abc"}


def rows() -> list[dict[str, Any]]:
    named = {"licence": "MIT", "about": "a net; a loop", "script": "part/train.py", "folder": "part", "path": [".."]}
    named |= {"repository": "owner/thing", "arguments": ["--lr", "0.1"], "changed": ["less"], "data": "Noise."}
    return [
        {**named, "name": "fast", "profile": part(PROFILE), "tune": part(judge_tuning(evidence(1.5, 1.4)))},
        {**named, "name": "good", "profile": part(PROFILE), "tune": part(judge_tuning(evidence(None, None)))},
        {**named, "name": "broken", "profile": part(None, "no | optimizer"), "tune": part(None, "none")},
        {**named, "name": "open", "profile": part(PROFILE)},
    ]


def whole_row(plan: float, patch: float) -> dict[str, Any]:
    """Return the part of whole runs with these ratios."""

    def arm(ratio: float) -> dict[str, Any]:
        output = {"lines": 3, "missing": [], "numbers": 2, "equal": 1, "typical": 0.01, "largest": 0.01}
        told = {"failures": [], "output": [output], "said": [], "wall_s": 9.0}
        return {"same": ratio == 1.0, "close": True, "ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, **told}

    plain = [{"code": 0, "wall_s": 18.0, "cpu_s": 30.0}] * 3
    arms = {"plan": arm(plan), "patch": arm(patch), "alone": arm(1.0), "empty": arm(1.0)}
    return part({"arms": {"plain": plain}, **arms, "patch_refused": ""})


def measured() -> dict[str, Any]:
    """Return a row with every part."""
    functions = part({"own": [{"function": "a.py:1(read)", "own": 0.6, "calls": 2, "total": 0.7}]})
    rivals = part(
        {
            "train_doctor": {"version": "0.2.0", "outcome": "ended", "says": ["thing: no proven win."], "gain": None},
            "traceml": {"version": "0.5.0", "outcome": "ended", "says": [], "kind": "INPUT_BOUND", "marked": True},
        }
    )
    judged = {"right": True, "reason": "reading takes 60 %"}
    return {**rows()[0], "whole": whole_row(1.5, 1.4), "cprofile": functions, "rivals": rivals, "judged": judged}


def test_the_score_counts_what_was_reached() -> None:
    found = score(rows())
    assert (found["scripts"], found["profiled"], found["tuned"], found["faster"]) == (4, 3, 2, 1)
    assert not found["reached"]
    thirty = [measured()] * 30
    assert score(thirty)["reached"]
    assert not score(thirty[1:])["reached"]
    assert not score([*thirty, {**measured(), "whole": whole_row(0.9, 1.0)}])["reached"]


def test_times_of_runs_that_end_by_chance_are_not_compared() -> None:
    rows = [measured(), {**measured(), "varies": "it stops early", "whole": whole_row(9.0, 9.0)}]
    counts = score(rows)
    assert (counts["ran"], counts["as_without"]) == (2, 2)
    assert counts["whole_mean"] == pytest.approx(whole_ratio(rows[0]))
    text = tables({"command": "", "machine": "", "row_commits": [], "versions": {"torch": ""}, **counts, "rows": rows})
    assert "| not comparable: it stops early | - | - | yes |" in text


def test_the_page_lists_every_script() -> None:
    listed = [measured(), *rows()[1:]]
    head = {"command": "run it", "machine": "two cores", "row_commits": ["ours"], "versions": {"torch": "2.13"}}
    text = tables({**head, **score(listed), "rows": listed})
    assert "Measured on two cores, at ours: 3 of 4 profiled, 2 tuned; 1 of 1 whole runs as without Hasten" in text
    assert "| `fast` | 18.0 s | 1.00x (0.90 to 1.10) | 1.50x (1.40 to 1.60) | 1.40x (1.30 to 1.50) | yes |" in text
    assert "| `open` | not run | - | - | - | - |" in text
    assert "| `fast` | 12.3 ms | data 50%, forward 30%, backward 15% | yes |" in text
    assert "- Tuned in 5m: **1.50x** a step (1.40 to 1.65, 5 pairs)\n- Plan: sample_cache (where=ram)" in text
    assert "- The plan: 1 of 2 printed numbers differ, by 1.0% in the median" in text
    assert "- train-doctor 0.2.0: ended: thing: no proven win." in text
    assert "| `fast` | no proven win | - | input bound | yes |" in text
    assert "On 1 scripts. train-doctor proves a gain in 0, and breaks 0.\nTraceML answers in 1, 1 of them" in text
    assert "| `broken` | - | not profiled: no / optimizer | - |" in text
    assert "- Not tuned: none" in text
    assert "PYTHONPATH=.. hasten tune train.py -- --lr 0.1" in text
    assert "cd thing/part" in text
    assert "https://github.com/owner/thing/blob/abc/part/train.py" in text
    assert text.count("### ") == 4
