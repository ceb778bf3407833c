"""Many pipelines at once: owners take turns, nothing is lost or doubled by any kill, and one failure stops no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from hasten.cli.queue import table_of
from hasten.cli.say import console
from hasten.core.errors import HastenError, MachineError
from hasten.pipeline import postgres, queue
from hasten.pipeline.control import state_of
from hasten.pipeline.queue import Entry, turns
from hasten.pipeline.queue_launcher import report
from tests.cli.called import called, printed
from tests.pipeline.described import command, described
from tests.pipeline.queues import all_ended, kill, new_queue, processes, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TRAIN = """\
[stages.train]
job = "stages.py:Stage"
needs = ["data"]
options = ["--checkpoint-every", "2"]
env = { EPOCHS = 3, PAUSE = "0.05" }
cores = 1
memory = "1 GiB"
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with new_queue(monkeypatch) as folder:
        yield folder


class Simulation:
    """One pipeline at a time, each ending before the next starts."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, owner: str, count: int) -> None:
        for turn in turns(self.entries, owner, count):
            number = len(self.entries)
            self.entries.append(
                Entry(run=str(number), owner=owner, pipeline="", state="waiting", turn=turn, added=float(number))
            )

    def run(self, count: int) -> str:
        """Run so many, and return their owners."""
        order = ""
        for _ in range(count):
            first = min((entry for entry in self.entries if entry.state == "waiting"), key=lambda one: (one.turn, one.added))
            self.entries[int(first.run)] = Entry(**{**vars(first), "state": "ended"})
            order += first.owner
        return order


def test_owners_take_turns() -> None:
    simulation = Simulation()
    simulation.add("a", 4)
    simulation.add("b", 2)
    simulation.add("c", 1)
    assert simulation.run(7) == "abcabaa"


def test_a_late_owner_neither_waits_for_all_others_nor_overtakes_them() -> None:
    simulation = Simulation()
    simulation.add("a", 50)
    assert simulation.run(10) == "a" * 10
    simulation.add("b", 20)
    assert simulation.run(1) == "b"
    assert {simulation.run(2) for _ in range(10)} == {"ab"}
    assert simulation.run(9) == "ababababa"


def test_nobody_starves_beside_an_owner_who_adds_one_at_a_time_or_who_ran_much_before() -> None:
    simulation = Simulation()
    simulation.add("a", 20)
    order = ""
    for _ in range(10):
        simulation.add("b", 1)
        order += simulation.run(2)
    assert order.count("a") == 10
    idle = Simulation()
    idle.add("a", 30)
    idle.run(30)
    idle.add("b", 4)
    idle.add("a", 4)
    assert idle.run(8) in ("babababa", "bbababaa"), "what an owner ran before counts for nothing"


def test_a_queue_is_fair_and_a_failed_pipeline_stops_no_other(folder: Path) -> None:
    """One at a time, so that the order is known: the first of each owner comes before the second of anybody."""
    fails = command("a").replace('"counted.py"', '"-c", "raise SystemExit(\'no such corpus\')"')
    texts = {"a1": command("a"), "a2": command("a"), "b1": fails}
    root = {name: described(folder.parent / name, text).root for name, text in texts.items()}
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "pipeline.toml").write_text("schema = 1\n[stages.a]\ncores = 1\n")
    where = ("--queue", str(folder))

    assert "there is no queue in" in called("pipeline", "queue", "add", str(root["a1"]), *where).stderr
    started = called("pipeline", "queue", "start", str(folder), "--at-once", "1")
    assert started.returncode == 0, started.stderr
    assert "starting PostgreSQL" in started.stderr
    assert called("pipeline", "queue", "add", str(root["a1"]), str(broken), *where).returncode == 1
    assert not queue.entries(folder), "one wrong description: nothing is queued"
    for owner, names in {"ann": ["a1", "a2"], "bob": ["b1"]}.items():
        done = called("pipeline", "queue", "add", *(str(root[name]) for name in names), "--owner", owner, *where)
        assert done.returncode == 0, done.stderr
    again = called("pipeline", "queue", "add", str(root["a2"]), "--owner", "bob", *where)
    assert "a2 is already waiting, for ann. Add it when it has ended." in again.stderr

    found = until(folder, all_ended)
    launched = {entry.run: json.loads((folder / "runs" / f"{entry.run}.json").read_text())["launched"] for entry in found}
    assert [Path(one.pipeline).parent.name for one in sorted(found, key=lambda one: launched[one.run])] == [
        "a1", "b1", "a2",
    ]  # fmt: skip
    assert [entry.state for entry in found] == ["ended", "ended", "failed"]
    assert "stage a exited with 1: no such corpus" in found[2].error
    assert all((root[name] / "a.count").read_text() == "x" for name in ("a1", "a2"))
    with printed(80) as paper:
        assert called("pipeline", "queue", "status", str(folder)).returncode == 0
    lines = paper.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "2 ended, 1 failed. The queue is running." in lines[-1]
    shown = json.loads(called("pipeline", "queue", "status", str(folder), "--json").stdout)
    assert all(run["added"] < run["began"] < run["ended"] for run in shown["runs"])

    assert called("pipeline", "queue", "stop", str(folder)).returncode == 0
    assert not processes(folder.parent)
    assert "is not running. Nothing is lost" in called("pipeline", "queue", "status", str(folder)).stderr


def test_long_names_leave_room_for_the_times() -> None:
    far, near = f"/{'p' * 90}/last/pipeline.toml", str(Path("here/pipeline.toml").absolute())
    entries = [
        Entry(run="1", owner="o" * 30, pipeline=far, state="stopping", turn=1, added=0, began=5e5, ended=6e5),
        Entry(run="2", owner="a", pipeline=near, state="ended", turn=2, added=0, ended=9),
    ]
    with printed(80) as paper:
        console.print(table_of(entries))
    head, first, second = paper.getvalue().splitlines()
    assert head.split() == ["owner", "pipeline", "state", "waited", "ran"]
    assert first.split() == [
        "o" * 13 + "…",
        f"…{'p' * 18}/last",
        "stopping",
        *["138", "h", "53", "min", "27", "h", "47", "min"],
    ]
    assert second.split() == ["a", "here", "ended", "9.0", "s"]
    assert max(map(len, (head, first, second))) <= 80


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Weights of an undisturbed run."""
    pipeline = described(tmp_path_factory.mktemp("whole"), command("data") + TRAIN)
    assert called("pipeline", "run", str(pipeline.root)).returncode == 0
    return (pipeline.work / "stages" / "train" / "latest" / "model.pt").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["-m hasten run", "queue_run", "dagster._daemon", "postgres", "", "stop"])
def test_whatever_is_killed_no_run_is_lost_or_run_twice(folder: Path, whole: bytes, victim: str) -> None:
    pipelines = [described(folder.parent / f"p{number}", command("data") + TRAIN) for number in range(4)]
    queue.start(folder, at_once=2)
    queue.add(folder, [pipeline.root for pipeline in pipelines], "ann")
    until(folder, lambda found: any(entry.state == "running" for entry in found))
    while not any(folder.parent.glob("p*/hasten-pipeline/stages/train/*/checkpoints/*/*")):
        until(folder, lambda _: True)
    if victim == "stop":
        queue.stop(folder)
        assert not processes(folder.parent)
    else:
        found = processes(folder.parent, victim)
        assert found
        kill(found)
    queue.start(folder)
    ended = until(folder, all_ended, 350)
    assert [(entry.state, entry.error) for entry in ended] == [("ended", "")] * 4
    for pipeline in pipelines:
        assert (pipeline.root / "data.count").read_text() == "x"
        assert (pipeline.work / "stages" / "train" / "latest" / "model.pt").read_bytes() == whole
        assert state_of(pipeline).complete
    logs = [(pipeline.work / "logs" / "train.log").read_text() for pipeline in pipelines]
    if victim in ("-m hasten run", "", "stop"):
        assert any("Resumed from update" in log for log in logs)
    else:
        assert all(log.count("--- ") == 1 for log in logs), "the trainings outlived what was killed"


@pytest.mark.long
def test_a_kill_between_two_records_loses_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run was recorded but not queued, another was taken from the queue but not started."""
    pipelines = [described(folder.parent / name, command("a")) for name in ("taken", "recorded")]
    queue.start(folder)
    kill(processes(folder.parent, "dagster._daemon"))
    done = called("pipeline", "queue", "add", str(pipelines[0].root), "--queue", str(folder))
    assert "nothing starts yet" in done.stderr
    with queue._records(folder) as instance:
        (run,) = instance.get_runs()
        report(instance, run, dg.DagsterEventType.RUN_STARTING)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_submit_left", lambda _: None)
        queue.add(folder, [pipelines[1].root], "ann")
    queue.start(folder)
    assert [entry.state for entry in until(folder, all_ended)] == ["ended", "ended"]
    assert [(pipeline.root / "a.count").read_text() for pipeline in pipelines] == ["x", "x"]


@pytest.mark.long
def test_a_server_of_the_users_own_is_used_and_remembered(folder: Path) -> None:
    server = folder.parent / "server"
    postgres.start(server)
    pipeline = described(folder.parent / "p", command("a"))
    queue.start(folder, url=postgres.url_of(server).replace("+psycopg2", ""))
    queue.add(folder, [pipeline.root], "ann")
    until(folder, all_ended)
    queue.stop(folder)
    assert postgres.is_running(server), "it is not ours to stop"
    queue.start(folder)
    assert [entry.state for entry in queue.entries(folder)] == ["ended"]
    assert not (folder / "postgres").exists()
    postgres.stop(server)
    with pytest.raises(MachineError, match=r"PostgreSQL cannot be used: .*[Cc]onnection"):
        queue.entries(folder)


def test_what_postgresql_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError, match=r"has \d+ bytes, and the path of a socket may have 107"):
        postgres.start(tmp_path / ("x" * 120))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", lambda name: {}[name])
    with pytest.raises(MachineError, match="no system user postgres"):
        postgres._user(tmp_path)
    other = SimpleNamespace(pw_uid=1, pw_gid=-1)
    monkeypatch.setattr("pwd.getpwnam", {"postgres": other}.get)
    tmp_path.chmod(0o700)
    with pytest.raises(MachineError, match="the system user postgres cannot enter /"):
        postgres._user(tmp_path / "postgres")
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("pathlib.Path.glob", lambda *_: iter(()))
    with pytest.raises(MachineError, match="sudo apt-get install postgresql"):
        postgres._program("initdb")


def test_a_folder_with_other_files_is_not_taken_for_a_queue(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(HastenError, match="holds other files"):
        queue.start(tmp_path)
    with pytest.raises(HastenError, match="there is no queue in"):
        queue.stop(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_its_extra_the_queue_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "dagster_postgres" else name)
    assert "pip install 'hasten[pipeline,queue]'" in called("pipeline", "queue", "status").stderr
