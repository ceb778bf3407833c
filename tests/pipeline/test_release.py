"""Releases: models that do not change, a pointer that always works, gates that fail closed, backups that are verified."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.pipeline.readers import KINDS, measure
from hasten.core.errors import CorruptError, DataError, HastenError, MachineError
from hasten.monitor.alerts.deliver import AlertsFile
from hasten.monitor.alerts.engine import Alert
from hasten.pipeline.backup import backup, drill, restore
from hasten.pipeline.model_folder import MANIFEST, MODEL, check_model
from hasten.pipeline.release import GATES, HISTORY, MODELS, POINTER, Pointer, Releases
from tests.cli.called import called, printed
from tests.pipeline.conftest import Longer
from tests.pipeline.releasing import change, load, processes
from tests.train.runs import as_if, held, trained

GATE = '[loss]\nmetric = "loss"\nthreshold = {}\nat_most = true\nexact = true\n'
KEYS = [f"user-{number}" for number in range(1000)]


FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def releases(tmp_path: Path, runs: list[Path]) -> Releases:
    """The first run is in use."""
    made = Releases(tmp_path / "releases")
    made.promote(runs[0])
    return made


def everything(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_model_has_the_weights_of_the_run_and_what_is_known_about_it(releases: Releases, runs: list[Path]) -> None:
    folder = releases.choose()
    weights, wanted = load_file(folder / MODEL), torch.load(runs[0] / "model.pt", weights_only=True)
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert set(check_model(folder)) == {MODEL, "hasten.toml", "run.toml", "metrics.jsonl"}
    facts = json.loads((folder / MANIFEST).read_bytes())["facts"]
    assert facts["update"] == 12
    assert all(facts[key] for key in ("code", "data", "machine", "versions"))
    assert not any(path.stat().st_mode & 0o222 for path in folder.iterdir())
    with pytest.raises(DataError, match="is in use already"):
        releases.promote(runs[0])
    assert releases.verify() == 1, "equal content is one model"


def test_a_share_grows_and_a_key_keeps_its_model(releases: Releases, runs: list[Path]) -> None:
    old, before = releases.pointer.used, set[str]()
    for share in (0.1, 0.3, 0.9):
        new = releases.promote(runs[1] if not before else "", share=share).waiting
        got = {key for key in KEYS if releases.choose(key).name == new}
        assert len(got) / len(KEYS) == pytest.approx(share, abs=0.05)
        assert before < got
        assert {releases.choose(key).name for key in KEYS if key not in got} == {old}
        assert releases.choose().name == old, "without a key, the model in use"
        before = got
    assert releases.promote().used == new
    assert {releases.choose(key).name for key in KEYS} == {new}


def test_another_trial_has_other_readers(releases: Releases, runs: list[Path]) -> None:
    def on_trial() -> set[str]:
        new = releases.pointer.waiting
        return {key for key in KEYS if releases.choose(key).name == new}

    old = releases.pointer.used
    releases.promote(runs[1], share=0.1)
    first = on_trial()
    releases.promote()
    releases.promote(old, share=0.1)
    assert len(first & on_trial()) < 40, "about 10 of 100 by chance"


def test_rollback_goes_back_and_a_withdrawn_trial_keeps_the_way_back(releases: Releases, runs: list[Path]) -> None:
    one = releases.pointer.used
    two = releases.promote(runs[1]).used
    releases.promote(one)
    assert releases.pointer == Pointer(serial=3, live="green", blue=two, green=one)
    releases.promote(two, share=0.5)
    with pytest.raises(DataError, match=f"{two} is on trial"):
        releases.promote(trained(releases.folder.parent / "three", Longer()))
    releases.rollback("slow")
    assert (releases.pointer.used, releases.pointer.waiting, releases.pointer.share) == (one, two, 0)
    assert releases.rollback("wrong").used == two
    with pytest.raises(DataError, match="no model to go back to"):
        releases.rollback("again")
    assert releases.promote(one).used == one, "any model that is there can be released again"
    actions = [(entry["action"], entry["words"]) for entry in releases.history()]
    assert actions[3:6] == [("promote", f"{two} to 0.5 of the readers"), ("rollback", "slow"), ("rollback", "wrong")]
    assert releases.history()[-1]["pointer"] == asdict(releases.pointer)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda to, _: to.promote(), "no model is on trial"),
        (lambda to, run: to.promote(run, share=1.0), "between 0 and 1, not 1"),
        (lambda to, run: to.promote(run, share=float("nan")), "between 0 and 1, not nan"),
        (lambda to, _: to.promote("0" * 32), "does not exist"),
        (lambda to, run: to.promote(run / "checkpoints"), "is not a run"),
        (lambda to, run: to.promote(run, metrics=run / "checkpoints"), "has no metrics that can be read"),
        (lambda to, _: to.rollback(" "), "needs a reason"),
        (lambda to, _: to.rollback("x"), "no model to go back to"),
        (lambda to, _: to.judge("0" * 32, {}), "is not the newest model"),
        (lambda to, _: to.judge(to.pointer.used, {}), "gates.toml is missing"),
        (lambda to, _: Releases(to.folder / "none").rollback("x"), "has no releases"),
        (lambda to, _: Releases(to.folder / "none").choose(), "has no model in use"),
        (lambda to, run: Releases(to.folder / "none").promote(run, share=0.5), "Leave out the share"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    releases: Releases, runs: list[Path], what: Callable[[Releases, Path], object], words: str
) -> None:
    before = everything(releases.folder)
    with pytest.raises(DataError, match=words):
        what(releases, runs[1])
    assert everything(releases.folder) == before


@pytest.mark.parametrize(
    ("gates", "metrics", "words"),
    [
        (GATE.format(0.0001), None, r"loss, all: not passed, 0\.\d+"),
        (GATE.format(9).replace('"loss"', '"crisis"'), None, "crisis, all: not passed, it was not measured"),
        (GATE.format(9), {"loss": float("nan")}, "it was not measured"),
        (GATE.format(9), {"other": 1}, "it was not measured"),
        (GATE.format(9) + 'slices = ["all", "teens"]\n', None, "teens: not passed"),
        ("", None, "it has no gates"),
        ("[loss]\nmetric = 'loss'\n", None, "no threshold"),
        ("[loss", None, "cannot be read"),
    ],
)
def test_gates_fail_closed(
    releases: Releases, runs: list[Path], gates: str, metrics: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    (releases.folder / GATES).write_text(gates)
    before = everything(releases.folder)
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(DataError, match=words):
        releases.promote(runs[1], metrics=tmp_path if metrics else None)
    assert everything(releases.folder) == before


def test_a_trial_that_fails_its_gates_is_rolled_back_once(releases: Releases, runs: list[Path], tmp_path: Path) -> None:
    (releases.folder / GATES).write_text(GATE.format(0.5))
    old = releases.pointer.used
    (tmp_path / "metrics.json").write_text('{"loss": 0.4}')
    new = releases.promote(runs[1], share=0.5, metrics=tmp_path).waiting
    assert json.loads((releases.path(new) / "metrics.json").read_text()) == {"loss": 0.4}
    assert releases.judge(new, {"loss": 0.45}) == []
    assert releases.pointer.share == 0.5
    (words,) = releases.judge(new, {})
    assert "it was not measured" in words
    assert (releases.pointer.used, releases.pointer.share) == (old, 0)
    assert releases.history()[-1]["words"] == words
    with pytest.raises(DataError, match="is not the newest"):
        releases.judge(new, {})  # the same measurements do not withdraw the next model
    assert releases.promote(new).used == new
    assert releases.judge(new, {"loss": 0.6})
    assert releases.pointer.used == old
    with pytest.raises(DataError, match=r"no model to go back to .*not passed"):
        releases.judge(old, {"loss": 0.6})


def test_a_run_in_breach_of_its_contract_is_refused(releases: Releases, runs: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[1], run)
    told = AlertsFile(folder=run)

    def tell(state: Any, rank: int) -> None:
        told(
            Alert(rule="contract", state=state, rank=rank, at=0, step=9, since_at=0, since_step=5, value=1.1, words="slow"),
            "r",
        )

    for state, rank in (("firing", 0), ("firing", 1), ("resolved", 0)):
        tell(state, rank)
    with pytest.raises(DataError, match="in breach of its gain contract"):
        releases.promote(run)
    tell("resolved", 1)
    assert releases.promote(run).serial == 2


@pytest.mark.parametrize("outcome", ["killed", "stopped", "failed", "running"])
def test_a_run_that_has_not_finished_is_refused(releases: Releases, runs: list[Path], tmp_path: Path, outcome: str) -> None:
    shutil.copytree(runs[1], tmp_path / "run")
    run = tmp_path / "run"
    record = (run / "run.toml").read_text()
    if outcome in ("killed", "running"):
        as_if(run, "killed")
    else:
        (run / "run.toml").write_text(record.replace('outcome = "finished"', f'outcome = "{outcome}"'))
    with held(run) if outcome == "running" else nullcontext(), pytest.raises(DataError, match=f"is {outcome}, not finished"):
        releases.promote(run)


def test_a_damaged_checkpoint_is_refused(releases: Releases, runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[1], tmp_path / "run")
    change_byte(max((tmp_path / "run" / "checkpoints").glob("*/rank0.safetensors")))
    with pytest.raises(CorruptError, match="newest checkpoint"):
        releases.promote(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(DataError, match="has no checkpoints"):
        releases.promote(tmp_path / "run")


def change_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.chmod(0o644)
    path.write_text(json.dumps(content))


def replace_by_link(path: Path) -> None:
    path.rename(path.parent.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent.parent / "elsewhere")


TAMPERED: dict[str, Callable[[Path], object]] = {
    "a changed byte": lambda model: change_byte(model / MODEL),
    "a removed file": lambda model: (model / "run.toml").unlink(),
    "an added file": lambda model: (model / ".hidden").touch(),
    "an added folder": lambda model: (model / "more").mkdir(),
    "a renamed file": lambda model: (model / "run.toml").rename(model / "ran.toml"),
    "a link": lambda model: replace_by_link(model / MODEL),
    "a changed manifest": lambda model: edit(model / MANIFEST, lambda found: found["facts"].update(update=13)),
    "a removed manifest": lambda model: (model / MANIFEST).unlink(),
    "a moved manifest": lambda model: (model / MANIFEST).rename(model / "run.toml"),
    "a renamed model": lambda model: model.rename(model.with_name("0" * 32)),
    "a removed model": shutil.rmtree,
    "another file": lambda model: (model.parent / "notes.txt").touch(),
    "another pointer": lambda model: edit(model.parent.parent / POINTER, lambda found: found.update(blue=found["green"])),
}
UNREAD = {"an added file", "an added folder", "another file", "a link"}
"""What is not read from a backup, because no manifest names it, or is the same there."""
POINTERS = ["", "{", "[]", "null", "[" * 50_000, '{"serial": 1, "share": NaN}', '{"live": "red"}', '{"blue": "../../etc"}',
            '{"share": 0.5}', '{"serial": "1"}', '{"new": 1}']  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
def test_verify_finds(releases: Releases, what: str) -> None:
    assert releases.verify() == 1
    TAMPERED[what](releases.choose())
    with pytest.raises(CorruptError) as raised:
        releases.verify()
    assert "Restore a backup" in str(raised.value) or "remove it" in str(raised.value) or "was changed" in str(raised.value)


@pytest.mark.parametrize("content", POINTERS)
def test_a_damaged_pointer_is_never_followed(releases: Releases, runs: list[Path], content: str) -> None:
    (releases.folder / POINTER).write_text(content)
    for do in (releases.choose, releases.verify, lambda: releases.rollback("x"), lambda: releases.promote(runs[1])):
        with pytest.raises(CorruptError, match=r"pointer\.json is damaged"):
            do()


def test_a_lost_pointer_does_not_cost_the_history(releases: Releases, runs: list[Path]) -> None:
    releases.promote(runs[1])
    (releases.folder / POINTER).unlink()
    before = (releases.folder / HISTORY).read_bytes()
    with pytest.raises(CorruptError, match="is missing, or older"):
        releases.promote(runs[1])
    assert (releases.folder / HISTORY).read_bytes() == before


def test_a_damaged_model_is_not_gone_back_to(releases: Releases, runs: list[Path]) -> None:
    releases.promote(runs[1])
    change_byte(releases.path(releases.pointer.waiting) / MODEL)
    with pytest.raises(CorruptError, match="was changed"):
        releases.rollback("x")
    assert releases.pointer.serial == 2


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """Let no file of this process grow beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("free", [0, 100, 600])
def test_a_full_disk_changes_nothing(releases: Releases, runs: list[Path], tmp_path: Path, free: int) -> None:
    backup(releases, str(tmp_path / "backup"))
    before, (folder, pointer) = everything(releases.folder), (releases.folder, releases.pointer)
    words = os.strerror(errno.EFBIG)
    with full_disk(free), pytest.raises(MachineError, match=words):
        releases.promote(runs[1])
    assert everything(folder) == before
    releases.promote(runs[1], share=0.5)
    before, pointer = everything(folder), releases.pointer
    with full_disk(100), pytest.raises(MachineError, match="try again"):
        releases.rollback("the history cannot be written")
    assert everything(folder) == before
    with full_disk(free), pytest.raises(MachineError):
        backup(releases, str(tmp_path / "other"))
    with full_disk(free), pytest.raises(MachineError):
        restore(str(tmp_path / "backup"), tmp_path / "restored")
    assert {path.name for path in tmp_path.iterdir()} <= {"releases", "backup", "other"}
    assert releases.pointer == pointer
    assert backup(releases, str(tmp_path / "other")) >= 1
    assert drill(str(tmp_path / "other"))


def test_an_entry_without_its_pointer_does_not_count(releases: Releases, runs: list[Path]) -> None:
    """As if the process was killed between the two."""
    entries = releases.history()
    left = {**entries[0], "pointer": {**entries[0]["pointer"], "serial": 2}}
    with (releases.folder / HISTORY).open("a") as file:
        file.write(json.dumps(left) + "\n")
    assert releases.history() == entries
    assert releases.verify() == 1
    releases.promote(runs[1])
    assert [entry["pointer"]["serial"] for entry in releases.history()] == [1, 2]


def kill_often(folder: Path, runs: list[Path], kills: int) -> int:
    """Kill two processes that change releases, at random moments. Return how often a change was in progress."""
    context, draw, caught = processes(), random.Random(0), 0
    releases = Releases(folder)
    releases.promote(runs[0])
    for number in range(kills):
        begun = context.Event()
        both = [context.Process(target=change, args=(folder, runs, 2 * number + one, begun)) for one in range(2)]
        for process in both:
            process.start()
        assert begun.wait(60)
        time.sleep(draw.random() * 0.1)
        for process in both:
            process.kill()
        for process in both:
            process.join()
        left = [path for path in folder.rglob("*") if path.name.startswith(".new-") or path.name.endswith(".part")]
        unfinished = len((folder / HISTORY).read_bytes().splitlines()) != releases.pointer.serial
        caught += bool(left) or unfinished
        assert releases.verify() >= 1
        assert load(releases, "user") in {releases.pointer.used, releases.pointer.waiting}
        assert [entry["pointer"]["serial"] for entry in releases.history()] == list(range(1, releases.pointer.serial + 1))
        with suppress(DataError):
            releases.rollback("after a kill")
        assert not list(folder.rglob("*.part")) + list(folder.glob(f"{MODELS}/.new-*")), (
            "the next change removes what was left"
        )
    return caught


@FORKS
@pytest.mark.slow
def test_killing_the_promoting_process_leaves_releases_that_work(tmp_path: Path, runs: list[Path]) -> None:
    kill_often(tmp_path / "releases", runs, 10)


@FORKS
@pytest.mark.long
@pytest.mark.timeout(480)
def test_killing_it_hundreds_of_times_hits_every_moment(tmp_path: Path, runs: list[Path]) -> None:
    assert kill_often(tmp_path / "releases", runs, 300) > 30


@FORKS
@pytest.mark.slow
def test_readers_that_load_all_the_time_never_fail(tmp_path: Path) -> None:
    """Through all kinds of changes, a restore, and kills of the process that changes: the benchmark, for a short time."""
    found = measure(tmp_path, {"quiet": 1.0, "changes": 2.0, "kills": 2.0})
    assert found["failed"] == []
    assert found["inconsistent"] == 0
    assert set(found["changes"]) == set(KINDS)
    assert found["kills"]
    assert min(found["loads"].values()) > 10


def same(one: Path, two: Path) -> bool:
    return everything(one) == everything(two)


@pytest.mark.parametrize("url", ["{}/backup", "file://{}/backup", "memory://backup/of/releases"])
def test_a_backup_has_everything_and_is_continued(releases: Releases, runs: list[Path], tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    (releases.folder / GATES).write_text(GATE.format(9))
    assert backup(releases, url) == 1
    releases.promote(runs[1], share=0.5)
    assert backup(releases, url) == 1
    assert backup(releases, url) == 0
    restored = restore(url, tmp_path / "new" / "restored")
    assert same(releases.folder, restored.folder)
    assert restored.pointer == releases.pointer
    assert drill(url) == dict.fromkeys(sorted(path.name for path in releases.folder.glob(f"{MODELS}/*")), 4)
    assert restored.promote().serial == 3
    with pytest.raises(DataError, match="exists already"):
        restore(url, restored.folder)
    other = Releases(tmp_path / "other")
    other.promote(runs[1])
    with pytest.raises(DataError, match="holds other releases"):
        backup(other, url)
    backup(restored, url)
    with pytest.raises(DataError, match="or later ones"):
        backup(releases, url)
    assert not list(tmp_path.rglob("*.part"))


@FORKS
def test_a_backup_that_is_killed_is_the_earlier_or_the_new_one(releases: Releases, runs: list[Path], tmp_path: Path) -> None:
    backup(releases, str(tmp_path / "backup"))
    releases.promote(runs[1])
    draw, got = random.Random(0), set[int]()
    for number in range(12):
        there = tmp_path / f"backup-{number}"
        shutil.copytree(tmp_path / "backup", there)
        process = processes().Process(target=backup, args=(releases, str(there)))
        process.start()
        time.sleep(draw.random() * 0.04)
        process.kill()
        process.join()
        got.add(restore(str(there), tmp_path / f"restored-{number}").pointer.serial)
        backup(releases, str(there))
        assert restore(str(there), tmp_path / f"again-{number}").pointer == releases.pointer
    assert got <= {1, 2}


def test_a_backup_killed_in_the_middle_of_a_model_is_the_earlier_one(
    releases: Releases, runs: list[Path], tmp_path: Path
) -> None:
    backup(releases, str(tmp_path / "backup"))
    first = releases.pointer
    releases.promote(runs[1])
    half = tmp_path / "backup" / MODELS / releases.pointer.used
    half.mkdir()
    (half / "model.safetensors.part").write_bytes(b"half")
    restored = restore(str(tmp_path / "backup"), tmp_path / "restored")
    assert restored.pointer == first
    assert not restored.path(half.name).exists()
    backup(releases, str(tmp_path / "backup"))
    (half / MANIFEST).unlink()  # of a model that is in the backup's history
    with pytest.raises(CorruptError, match="incomplete"):
        restore(str(tmp_path / "backup"), tmp_path / "again")


@pytest.mark.slow
def test_a_backup_on_s3_can_be_restored(releases: Releases, tmp_path: Path) -> None:
    s3fs = pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
        s3fs.S3FileSystem(**options, skip_instance_cache=True).mkdir("released")
        assert backup(releases, "s3://released/releases", **options) == 1
        assert same(releases.folder, restore("s3://released/releases", tmp_path / "restored", **options).folder)
        with pytest.raises(DataError, match="has no backup"):
            drill("s3://released/other", **options)
    finally:
        server.stop()
    with pytest.raises(MachineError, match="Check the address"):
        drill("s3://released/releases", **options, config_kwargs={"retries": {"max_attempts": 0}})


def hostile(name: str) -> Callable[[Path], object]:
    """Return a change that makes a manifest name a file outside, with a model folder of the right name."""

    def change(model: Path) -> None:
        files = {MODEL: [0, hashlib.sha256(b"").hexdigest()], name: [4, hashlib.sha256(b"evil").hexdigest()]}
        manifest = json.dumps({"files": files}).encode()
        made = model.with_name(hashlib.sha256(manifest).hexdigest()[:32])
        made.mkdir()
        (made / MANIFEST).write_bytes(manifest)
        (made / MODEL).touch()
        (made.parent / "evil").write_text("evil")

    return change


@pytest.mark.parametrize(
    "damage",
    [
        *(TAMPERED[name] for name in TAMPERED if name not in UNREAD),
        hostile("../evil"),
        hostile("/etc/evil"),
        hostile(".."),
        hostile("a/b"),
        lambda model: (model / MODEL).unlink(),
        lambda model: (model / MODEL).write_bytes((model / MODEL).read_bytes() + b"x"),
        lambda model: (model / MODEL).write_bytes((model / MODEL).read_bytes()[:-1]),
        lambda model: (model.parent.parent / POINTER).write_text('{"ser'),
        lambda model: (model.parent.parent / POINTER).write_text('{"serial": 0}'),
        lambda model: (model.parent.parent / HISTORY).write_text('{"ser'),
        lambda model: (model.parent.parent / GATES).write_text("[loss"),
        lambda model: (model / MANIFEST).write_bytes(b"[" * 2**24),
        lambda model: (model / MANIFEST).write_bytes(b" " * (2**24 + 1)),
    ],
)  # fmt: skip
def test_a_damaged_backup_is_refused_and_nothing_appears(
    releases: Releases, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    backup(releases, str(tmp_path / "backup"))
    damage(tmp_path / "backup" / MODELS / releases.pointer.used)
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError):
        restore(str(tmp_path / "backup"), tmp_path / "here" / "restored")
    with pytest.raises(DataError):
        drill(str(tmp_path / "backup"))
    assert list((tmp_path / "here").iterdir()) == []
    assert not Path("/etc/evil").exists()


def test_the_commands_say_what_to_do_next(runs: list[Path], tmp_path: Path) -> None:
    def told(*words: object) -> str:
        done = called("release", *map(str, words))
        assert "Traceback" not in done.stderr
        return f"{done.returncode} {done.stdout}{done.stderr}"

    folder = tmp_path / "releases"
    assert "1 hasten: " in told("list", folder)
    assert f"hasten release promote {folder} RUN" in told("verify", folder)
    assert told("promote", folder, runs[0]).startswith("0 In use: ")
    assert "0.25 of the readers get" in told("promote", folder, runs[1], "--share", "0.25")
    found = json.loads(told("list", folder, "--json")[2:])
    assert [row["state"] for row in found["models"]] == ["0.25 of all", "in use"]
    assert len(found["history"]) == 2
    with printed(80) as paper:
        called("release", "list", str(folder))
    lines = paper.getvalue().splitlines()
    assert any(found["models"][0]["model"] in line and "0.25 of all" in line and "UTC" not in line for line in lines)
    assert max(map(len, lines[:3])) <= 80
    (folder / GATES).write_text(GATE.format(0.0001))
    assert told("judge", folder, found["models"][0]["model"], runs[1]).startswith("1 hasten: ")
    assert "rollback: loss" in told("list", folder)
    assert told("backup", folder, tmp_path / "backup").startswith("0 Models copied")
    assert "The backup can be restored." in told("drill", tmp_path / "backup")
    assert told("restore", tmp_path / "backup", tmp_path / "restored").startswith("0 Restored")
    assert "2 models are intact" in told("verify", tmp_path / "restored")
    assert "--reason TEXT" in told("rollback", folder)
    assert "Give both" in told("rollback", folder, "--reason", "x", "--name", "dialogue")
    done = told("promote", tmp_path / "mirrored", runs[0], "--mlflow", "ftp://nowhere", "--name", "dialogue")
    assert done.startswith("0 In use: ")
    assert "MLflow was not told" in done


def test_mlflow_gets_the_aliases(
    releases: Releases, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    from hasten.pipeline.mirror import mirror

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)

    def aliases() -> dict[str, str]:
        mirror(releases, uri, "dialogue")
        mirror(releases, uri, "dialogue")
        set_ = client.get_registered_model("dialogue").aliases
        return {alias: client.get_model_version_by_alias("dialogue", alias).tags["hasten.model"] for alias in set_}

    one = releases.pointer.used
    assert aliases() == {"live": one}
    two = releases.promote(runs[1], share=0.5).waiting
    assert aliases() == {"live": one, "canary": two}
    version = client.get_model_version_by_alias("dialogue", "canary")
    assert version.source == releases.path(two).as_uri()
    releases.promote()
    assert aliases() == {"live": two}
    releases.rollback("a test")
    assert aliases() == {"live": one}
    assert len(client.search_model_versions("name = 'dialogue'")) == 2
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="tells MLflow again"):
        mirror(releases, str(tmp_path / "file"), "dialogue")
    with pytest.raises(HastenError, match="without quotes"):
        mirror(releases, uri, "it's")
