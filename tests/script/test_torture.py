"""All kinds of scripts behave as without Hasten: same output, exit code and final weights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hasten.script.entry.launch import run_under

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(SCRIPTS / "ranks.py"))
PLAIN = str(SCRIPTS / "plain.py")
KINDS = str(SCRIPTS / "kinds.py")

CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "plain": ((PLAIN,), 0),
    "arguments": ((PLAIN, "--epochs", "2", "--sampler"), 0),
    "wrong arguments": ((PLAIN, "--nonsense"), 2),
    "workers": ((PLAIN, "--workers", "1", "--epochs", "1"), 0),
    "accumulation": ((PLAIN, "--accumulate", "2"), 0),
    "raises": ((PLAIN, "--end", "raise"), 1),
    "exits with 3": ((PLAIN, "--end", "exit"), 3),
    "interrupts itself": ((PLAIN, "--end", "sigint"), -signal.SIGINT),
    "is killed": ((PLAIN, "--end", "killed"), -signal.SIGKILL),
    "processes": ((str(SCRIPTS / "processes.py"),), 0),
    "iterable": ((KINDS, "iterable"), 0),
    "grad scaler": ((KINDS, "scaled"), 0),
    "two optimizers": ((KINDS, "two_players"), 0),
    "LBFGS": ((KINDS, "closures"), 0),
    "compiled": ((KINDS, "compiled"), 0),
    "module": (("-m", "package.train", "--lr", "1"), 0),
}
STEPS = {"plain": 17, "arguments": 11, "workers": 5, "accumulation": 8, "raises": 8, "exits with 3": 8, "two optimizers": 5,
         "LBFGS": 3, "iterable": 4, "grad scaler": 5, "compiled": 5, "module": 5, "processes": 5}  # fmt: skip


def run(command: tuple[str, ...], *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False, cwd=SCRIPTS,
        env={**os.environ, **(env or {})}, input="a line\n",
    )  # fmt: skip


def watched(
    command: tuple[str, ...], tmp_path: Path, **more: Any
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    path = tmp_path / "seen.json"
    done = run(("-m", "hasten.script", "--json", str(path), *command), **more)
    return done, json.loads(path.read_text())


QUICK = {"workers"}
"""Cases of `make test`; the others belong to `make test-all`."""


@pytest.mark.slow
@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.long) for case in CASES])
def test_it_prints_and_exits_as_without_us(tmp_path: Path, case: str) -> None:
    command, code = CASES[case]
    with ThreadPoolExecutor() as pool:
        others = pool.submit(run, command)
        done, seen = watched(command, tmp_path)
        alone = others.result()
    # With tabulate installed, torch's exit handlers make Python forget that it was interrupted, and end with 1.
    assert alone.returncode in ((code, 1) if code == -signal.SIGINT else (code,)), alone.stderr
    assert done.stdout == alone.stdout
    assert done.stderr == alone.stderr
    assert done.returncode == alone.returncode
    if case in STEPS:
        assert seen["0"]["steps"] == STEPS[case]


Ended = TypeVar("Ended")


def unless_aborted(start: Callable[[], Ended], stderr: Callable[[Ended], str]) -> Ended:
    """Return the result of `start`. Retry up to three times if torch aborts a rank at its end.

    Observed occasionally with torch 2.13 on a busy machine, also without Hasten: gloo's threads outlive
    `destroy_process_group` if `DistributedDataParallel` was used, and the process may die of SIGABRT as it ends.
    """
    for _ in range(3):
        ended = start()
        if "terminate called without an active exception" not in stderr(ended):
            return ended
    return start()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_both_ranks_of_torchrun_are_watched(tmp_path: Path) -> None:
    alone = unless_aborted(lambda: run(TORCHRUN), lambda ended: ended.stderr)
    assert alone.returncode == 0, alone.stderr
    done, seen = unless_aborted(lambda: watched(TORCHRUN, tmp_path), lambda ended: ended[0].stderr)
    assert (done.stdout, done.returncode) == (alone.stdout, 0), done.stderr
    assert {rank: found["steps"] for rank, found in seen.items()} == {"0": 5, "1": 5}


@pytest.mark.long
@pytest.mark.slow
def test_the_users_sitecustomize_and_path_are_kept(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SITE_OF_THE_USER'] = 'was here'\n")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}/nowhere"}
    alone = run((PLAIN, "--epochs", "1"), env=env)
    done, seen = watched((PLAIN, "--epochs", "1"), tmp_path, env=env)
    assert "was here True" in alone.stdout
    assert (done.stdout, done.stderr) == (alone.stdout, alone.stderr)
    assert seen["0"]["steps"] == 5


def test_a_signal_that_arrives_while_the_script_is_started_reaches_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, ready = tmp_path / "script.py", tmp_path / "ready"
    script.write_text(
        "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "pathlib.Path(sys.argv[1]).touch()\ntime.sleep(60)\n"
    )
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **options)
        until = time.monotonic() + 20
        while not ready.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)  # before the launcher has received the process
        return process

    monkeypatch.setattr("hasten.script.entry.launch.subprocess.Popen", start)
    assert run_under((str(script), str(ready)), {}, env=os.environ).code == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_to_the_launcher_reaches_the_script(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time, torch\nprint('ready', flush=True)\ntime.sleep(60)\n")
    for words in ((), ("-m", "hasten.script")):
        with subprocess.Popen(
            [sys.executable, *words, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.1)
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            assert process.returncode == -number
            assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)


@pytest.mark.slow
def test_what_of_ours_fails_is_told_and_the_script_goes_on(tmp_path: Path) -> None:
    (tmp_path / "hasten").mkdir()
    (tmp_path / "hasten" / "__init__.py").write_text("raise RuntimeError('broken on purpose')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec(open('plain.py').read())"
    script = tmp_path / "wrapped.py"
    script.write_text(f"import os, sys\nsys.path.insert(0, os.getcwd())\nsys.path.insert(0, {str(tmp_path)!r})\n{code}\n")
    done, seen = watched((str(script), "--epochs", "1"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^[0-9a-f]{64}$", done.stdout, re.MULTILINE)
    assert "rank 0 was not watched" in done.stderr
    assert "broken on purpose" in done.stderr
    assert seen == {}


@pytest.mark.slow
def test_a_module_of_an_unusual_kind_is_watched_too_and_the_reason_is_told(tmp_path: Path) -> None:
    done, seen = watched((str(SCRIPTS / "torn.py"),), tmp_path)
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert done.stderr.count("was not watched, or only in part") == 1
    assert "TypeError: not hashable" in done.stderr
    assert seen["0"]["steps"] == 2
    forward = seen["0"]["phases"].index("forward")
    assert all(step[forward] > 0 for step in seen["0"]["seconds"])


def test_the_launcher_imports_no_torch() -> None:
    code = "import sys, hasten.script.entry.launch; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    assert run(("-c", code)).stdout == "[]\n"


@pytest.mark.slow
def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done, _ = watched((PLAIN, "--end", "killed"), tmp_path, env={"TMPDIR": str(scratch)})
    assert done.returncode == -signal.SIGKILL
    assert list(scratch.glob("hasten*")) == []  # torch leaves its own folder
