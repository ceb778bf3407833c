"""If a rank dies, the others are killed and all resume from the newest checkpoint, unless it died there before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hasten.core.errors import MachineError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.saver import Pace
from hasten.train.launch import Ended, launch, run_group, why_no_restart
from hasten.train.process_group import rank_environment, restarted
from hasten.train.rendezvous import fresh_part
from hasten.train.run import RunOptions, train
from tests.train.dying_job import Dying

ROOT = Path(__file__).parents[2]
TARGET = "tests/train/dying_job.py:Dying"
UPDATES = 18


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", "."]), **more}


def hasten(*words: object, ranks: int = 2, launcher: tuple[str, ...] = (), **more: str) -> Any:
    """Run `hasten run` with the job that dies."""
    given = ("run", TARGET, "--checkpoint-every", 2, *(() if launcher else ("--ranks", ranks)), *words)
    command = [sys.executable, *launcher, "-m", "hasten", *map(str, given)]
    return subprocess.run(command, cwd=ROOT, env=environ(**more), capture_output=True, text=True, timeout=110, check=False)


def plan_file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.toml"
    Plan.from_dict({name: {}}, catalogue()).save(path)
    return path


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(out / "model.pt", weights_only=True)
    return found


def near(one: Path, other: Path) -> None:
    for name, value in weights(one).items():
        torch.testing.assert_close(value, weights(other)[name], rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks under gradient_buckets without interruptions."""
    folder = tmp_path_factory.mktemp("untouched")
    done = hasten("--out", folder / "run", "--plan", plan_file(folder, "gradient_buckets"))
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.long
def test_a_killed_rank_is_restarted_with_the_others_from_the_newest_checkpoint(tmp_path: Path, untouched: Path) -> None:
    die = f"1:13:SIGKILL:{tmp_path / 'mark'}"
    done = hasten("--out", tmp_path / "run", "--plan", plan_file(tmp_path, "gradient_buckets"), "--restarts", 2, DIE=die)
    assert done.returncode == 0, done.stderr
    message = "rank 1 was ended by SIGKILL after update 13. All ranks resume from the newest checkpoint (restart 1 of 2)"
    assert message in done.stderr
    went_on = int(done.stdout.partition("Resumed from update ")[2].partition(".")[0])
    assert 2 <= went_on <= 12  # the epoch's end waited for the first checkpoint
    assert (tmp_path / "run" / "model.pt").read_bytes() == (untouched / "model.pt").read_bytes()


@pytest.mark.long
def test_an_error_at_the_same_update_is_not_tried_a_third_time(tmp_path: Path) -> None:
    done = hasten("--out", tmp_path / "run", "--restarts", 5, DIE="0:3:error")
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: dying as requested") == 2
    messages = re.findall(r"rank [01] .* after update 3\. (All ranks resume|It is not restarted)", done.stderr)
    assert messages == ["All ranks resume", "It is not restarted"]


@pytest.mark.long
def test_torchrun_restarts_ranks_that_resume(tmp_path: Path, untouched: Path) -> None:
    done = hasten(
        "--out", tmp_path / "run", "--plan", plan_file(tmp_path, "gradient_buckets"), "--resume",
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"),
        DIE=f"0:11:SIGKILL:{tmp_path / 'mark'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mark").exists()
    assert "Resumed from update" in done.stdout
    assert (tmp_path / "run" / "model.pt").read_bytes() == (untouched / "model.pt").read_bytes()


@pytest.mark.long
@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_other_numbers_of_ranks_resume(tmp_path: Path) -> None:
    """Resume from two sharded ranks with three sharded ranks, then with one unsharded process."""
    out, plan = tmp_path / "run", plan_file(tmp_path, "sharding")
    done = hasten("--out", out, "--plan", plan, "--checkpoint-every", 100, DIE="1:5:SIGTERM")
    assert done.returncode == 0, done.stderr
    assert "Stopped by SIGTERM. Run the same command with --resume to continue." in done.stdout
    (saved,) = CheckpointFolder(out).all()
    assert (saved.update, saved.world) == (5, 2)
    assert set(saved.files) == {"rank0.safetensors", "rank1.safetensors"}
    train(Dying(), Plan(), tmp_path / "alone", max_updates=5)
    near(out, tmp_path / "alone")  # the unsharded weights of that update

    done = hasten("--out", out, "--plan", plan, "--resume", "--updates", 9, ranks=3)
    assert done.returncode == 0, done.stderr
    assert "checkpoint 00000005 was written by 2 ranks; resuming with 3 ranks" in done.stderr
    said: list[str] = []
    result = train(Dying(), Plan(), out, max_updates=UPDATES, options=RunOptions(resume=True, pace=Pace(), say=said.append))
    assert (result.went_on_from, result.updates) == (9, UPDATES)
    assert said == ["checkpoint 00000009 was written by 3 ranks; resuming with one process"]
    train(Dying(), Plan(), tmp_path / "whole", max_updates=UPDATES)
    near(out, tmp_path / "whole")
    assert result.samples == 2 * 205


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_to_the_launcher_reaches_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import os, signal, sys, time\n"
        "def ended(number, frame):\n    time.sleep(0.3)\n    open(sys.argv[1] + os.environ['RANK'], 'w').close()\n"
        "    sys.exit(130 if number == signal.SIGINT else 0)\n"
        "signal.signal(signal.SIGTERM, ended)\nsignal.signal(signal.SIGINT, ended)\n"
        "ready = sys.argv[1] + '-is-ready'\n"
        "if os.environ['RANK'] == '0':\n    open(ready, 'w').close()\n"
        "else:\n    while not os.path.exists(ready):\n        time.sleep(0.01)\n"
        "    os.kill(int(os.environ['HASTEN_LAUNCHER']), int(sys.argv[2]))\n"
        "time.sleep(60)\n"
    )
    ended = run_group(2, [sys.executable, "-c", script, str(tmp_path / "rank"), str(int(number))])
    assert ended.asked
    assert ended.status == (0 if number == signal.SIGTERM else 130)
    assert all((tmp_path / f"rank{rank}").exists() for rank in range(2))


HANDLES_SIGTERM = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    "open(sys.argv[1] + os.environ['RANK'], 'w').close()\ntime.sleep(60)\n"
)


def signal_during_start(monkeypatch: pytest.MonkeyPatch, folder: Path, during: int) -> list[subprocess.Popen[bytes]]:
    """Send SIGTERM to this process while the launcher starts the given rank, and return the ranks started."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **options)
        started.append(process)
        until = time.monotonic() + 20
        while not (folder / f"rank{len(started) - 1}").exists() and time.monotonic() < until:
            time.sleep(0.01)
        if len(started) == during + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr("hasten.train.launch.subprocess.Popen", start)
    return started


def test_a_signal_reaches_a_rank_that_is_just_being_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = signal_during_start(monkeypatch, tmp_path, during=1)
    ended = run_group(2, [sys.executable, "-c", HANDLES_SIGTERM, str(tmp_path / "rank")])
    assert (ended.status, ended.asked) == (0, True)
    assert [process.returncode for process in started] == [0, 0]  # neither was killed


def test_no_rank_is_started_after_a_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = signal_during_start(monkeypatch, tmp_path, during=0)
    ended = run_group(2, [sys.executable, "-c", HANDLES_SIGTERM, str(tmp_path / "rank")])
    assert [process.returncode for process in started] == [0]
    assert ended == Ended(status=128 + signal.SIGTERM, asked=True)  # nothing was trained, so it must not look finished


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_ranks_that_wait_for_others_end_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    """Rank 1 never joins, so rank 0 waits in torch, where no Python handler would run."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("hasten.train.launch.BROKEN_S", 30.0)
    script = (
        "import os, sys, time\nsys.path.insert(0, 'src')\n"
        "from hasten.train.process_group import join_group, stay_with_launcher\n"
        "stay_with_launcher(2)\nready = sys.argv[1]\n"
        "if os.environ['RANK'] == '0':\n    open(ready, 'w').close()\n    join_group()\n"
        "while not os.path.exists(ready):\n    time.sleep(0.01)\n"
        "time.sleep(1)\nos.kill(int(os.environ['HASTEN_LAUNCHER']), int(sys.argv[2]))\ntime.sleep(60)\n"
    )
    ended = run_group(2, [sys.executable, "-c", script, str(tmp_path / "ready"), str(int(number))])
    assert (ended.status, ended.asked) == (128 + number, True)


@pytest.mark.slow
def test_a_rank_that_ignores_the_signal_is_killed_soon_after_another_died_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hasten.train.launch.BROKEN_S", 0.1)
    script = (
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    open(sys.argv[1], 'w').close()\n    time.sleep(60)\n"
        "while not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\n"
        "os.kill(int(os.environ['HASTEN_LAUNCHER']), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    ended = run_group(2, [sys.executable, "-c", script, str(tmp_path / "ready")])
    assert (ended.status, ended.rank, ended.asked) == (128 + signal.SIGKILL, 0, True)


@pytest.mark.parametrize(
    ("ended", "before", "left", "why"),
    [
        (Ended(status=137, update=4), None, 1, ""),
        (Ended(status=137, update=4), None, 0, "the limit of --restarts is reached"),
        (Ended(status=1, update=4), Ended(status=137, update=3), 3, ""),
        (Ended(status=1, update=4), Ended(status=137, update=4), 3, "at the same update twice in a row"),
        (Ended(status=1), Ended(status=1), 3, "at the same update twice in a row"),
        (Ended(status=1), Ended(status=1, update=1), 3, ""),
    ],
)
def test_when_a_group_is_restarted(ended: Ended, before: Ended | None, left: int, why: str) -> None:
    found = why_no_restart(ended, before, left)
    assert why in found
    assert bool(why) == bool(found)


def test_the_description_of_how_a_group_ended() -> None:
    assert Ended(status=137, rank=1, update=7).words == "rank 1 was ended by SIGKILL after update 7"
    assert Ended(status=3, rank=0).words == "rank 0 failed (3) before its first update"


@pytest.mark.slow
def test_ranks_know_that_they_were_restarted_and_how_far_they_came_is_known(tmp_path: Path) -> None:
    script = (
        "import os, sys\nsys.path.insert(0, 'src')\n"
        "from hasten.train.process_group import progress_for_launcher, restarted\n"
        "tell = progress_for_launcher()\nattempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "assert restarted() == (attempt > 0)\n"
        "tell(3 + attempt) if os.environ['RANK'] == '0' else None\n"
        "sys.exit(5 if attempt < 2 else 0)\n"
    )
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert launch(1, [sys.executable, "-c", script], restarts=3, say=said.append) == 0
    assert said == [
        "rank 0 failed (5) after update 3. All ranks resume from the newest checkpoint (restart 1 of 3)",
        "rank 0 failed (5) after update 4. All ranks resume from the newest checkpoint (restart 2 of 3)",
    ]


def test_a_process_that_was_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert not restarted()
    assert rank_environment(0, 1, 1, {})["WORLD_SIZE"] == "1"


@pytest.mark.slow
def test_restarts_without_checkpoints_or_under_torchrun_are_refused(tmp_path: Path) -> None:
    done = hasten("--out", tmp_path, "--restarts", 1, "--checkpoint-every", 0)
    assert done.returncode == 1
    assert "--checkpoint-every 0 writes none" in done.stderr
    done = hasten("--out", tmp_path, "--restarts", 1, RANK="0", WORLD_SIZE="2", HASTEN_LAUNCHER="1")
    assert done.returncode == 1
    assert "With torchrun, use its --max-restarts" in done.stderr


def test_ranks_of_one_attempt_meet_in_a_store_that_outlives_it() -> None:
    """The ids of an earlier attempt with three ranks, which died at its start, are still in the store."""
    store = HashStore()
    for rank in range(3):
        store.set(f"hasten/number/{rank}", f"old{rank}")
    store.set("hasten/attempt", '["old0", "old1", "old2"]')
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(fresh_part, store, 1, 2)
        first = pool.submit(fresh_part, store, 0, 2)
        names = {first.result(timeout=20), second.result(timeout=20)}
    assert len(names) == 1
    assert "old0" not in names
    with pytest.raises(MachineError, match="Rank 1 waited 0 s, but not all 2 ranks came"):
        fresh_part(store, 1, 2, wait_s=0.1)
