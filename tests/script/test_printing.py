"""What is printed and logged in the background: the same bytes in the same order, and nothing lost."""
# ruff: noqa: T201, PLW0108
# Printing is what is tested, on streams that are looked up when it is done.

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hasten.core.optimization import StepTrace
from hasten.optimizations.async_logging import AsyncLogging
from hasten.script.output import outlet
from hasten.script.output.outlet import Outlet, Tap
from hasten.script.output.printing import AsyncPrinting
from hasten.script.patches import Patches
from hasten.script.plan.live import script_live


class Slow:
    """A stream that writes only while it is open; remembers what was done to it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.seen: list[str] = []

    def write(self, text: str) -> int:
        assert self.opened.wait(20)
        self.seen.append(text)
        return len(text)

    def flush(self) -> None:
        self.seen.append("<flush>")

    def tap(self, *, by_lines: bool = True) -> Tap:
        return Tap(write=self.write, flush=self.flush, by_lines=lambda: by_lines)


@pytest.fixture
def out() -> Iterator[Outlet]:
    found = Outlet()
    assert found.begin()
    yield found
    found.close()
    assert not any(thread.name == "hasten-printing" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("by_lines", "seen"),
    [
        (True, ["a\nb\n", "c", "<flush>", "d", "other", "e\n", "f", "<flush>"]),
        (False, ["a\n", "b\n", "c", "<flush>", "d", "other", "e", "\n", "f", "<flush>"]),
    ],
)
def test_lines_are_written_together_and_streams_keep_their_order(by_lines: bool, seen: list[str]) -> None:
    stream, out = Slow(), Outlet()
    one, other = stream.tap(by_lines=by_lines), stream.tap(by_lines=by_lines)
    out._do([
        (one, "a\n"), (one, None), (one, "b\n"), (one, "c"), (one, None), (one, "d"), (other, "other"), (one, "e"),
        (one, "\n"), (one, "f"), (one, None),
    ])  # fmt: skip
    assert stream.seen == seen


def test_the_caller_goes_on_while_the_stream_is_slow_and_waits_when_the_queue_is_full(
    out: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []
    monkeypatch.setattr(out, "_count", lambda name, _amount: waits.append(name))
    monkeypatch.setattr(outlet, "MAX_ITEMS", 10)
    stream = Slow()
    tap = stream.tap()
    stream.opened.clear()
    for number in range(10):
        out.write(tap, f"{number} ")
    assert "report_waits" not in waits
    threading.Timer(0.05, stream.opened.set).start()
    out.write(tap, "10 ")
    assert waits.count("report_waits") == 1
    assert stream.opened.is_set()
    assert "".join(stream.seen) == "".join(f"{number} " for number in range(11))
    stream.opened.clear()
    threading.Timer(0.05, stream.opened.set).start()
    out.write(tap, "x" * (outlet.MAX_CHARS + 1))  # what is large does not lie in memory
    assert stream.opened.is_set()


def test_it_begins_again_after_its_end() -> None:
    found, stream = Outlet(), Slow()
    for _ in range(2):
        assert found.begin()
        found.write(stream.tap(), "line\n")
        found.close()
    assert "".join(stream.seen) == "line\nline\n"


def test_many_threads_lose_nothing(out: Outlet) -> None:
    stream = Slow()
    tap = stream.tap()

    def talk(name: int) -> None:
        for number in range(500):
            out.write(tap, f"{name}:{number}\n")
            if number % 100 == 0:
                out.drain()

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.drain()
    lines = "".join(stream.seen).splitlines()
    for name in range(4):
        assert [line for line in lines if line.startswith(f"{name}:")] == [f"{name}:{number}" for number in range(500)]


def test_a_handler_of_a_signal_may_print_while_something_is_printed(out: Outlet) -> None:
    stream = Slow()
    tap, before = stream.tap(), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda *_: out.write(tap, "from the handler\n"))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(20000):
            out.write(tap, "line\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    out.drain()
    lines = "".join(stream.seen).splitlines()
    assert lines.count("line") == 20000
    assert "from the handler" in lines


Start = Callable[[], AsyncPrinting]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Put the seams on files in place of the streams, in the test itself: pytest has streams of its own before it."""
    with contextlib.ExitStack() as stack:

        def begin() -> AsyncPrinting:
            for name in ("stdout", "stderr"):
                stream = stack.enter_context((tmp_path / name).open("w", encoding="utf-8"))
                monkeypatch.setattr(sys, name, stream)
                monkeypatch.setattr(sys, f"__{name}__", stream)
            live, patches = script_live(), Patches()
            live.around.report_async = True
            found = AsyncPrinting(live)
            found.install(patches)
            stack.callback(patches.restore)
            stack.callback(found.close)
            return found

        yield begin
        monkeypatch.undo()


def text(printing: AsyncPrinting, name: str = "stdout") -> str:
    printing.finish()
    stream = getattr(sys, name)
    stream.flush()
    printing.finish()
    return Path(stream.name).read_text(encoding="utf-8")


def hold(printing: AsyncPrinting, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keep the thread from writing until the event is set."""
    opened, do = threading.Event(), printing._outlet._do

    def held(items: list[object]) -> None:
        assert opened.wait(20)
        do(items)  # type: ignore[arg-type]

    monkeypatch.setattr(printing._outlet, "_do", held)
    return opened


def test_print_returns_before_anything_is_written(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    printing = start()
    opened = hold(printing, monkeypatch)
    print("a line", 1, flush=True)
    assert Path(sys.stdout.name).read_text() == ""
    opened.set()
    assert text(printing) == "a line 1\n"
    assert printing.live.counters["reports_in_background"] == 1


def test_stderr_follows_what_was_printed_before(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    printing = start()
    opened = hold(printing, monkeypatch)
    print("out")
    threading.Timer(0.05, opened.set).start()
    print("err", file=sys.stderr)
    assert opened.is_set()
    assert not printing._outlet._queue
    assert text(printing, "stderr") == "err\n"


MOMENTS: dict[str, Callable[[], Any]] = {
    "input": lambda: input(),
    "a process": lambda: subprocess.run(["true"], check=True),
    "os.system": lambda: os.system("true"),  # noqa: S605
    "a fork": lambda: os.waitpid(_forked(), 0),
    "fileno": lambda: sys.stdout.fileno(),
    "dup2": lambda: os.dup2(2, 2),
    "tell": lambda: sys.stdout.tell(),
    "a signal": lambda: os.kill(os.getpid(), 0),
}


def _forked() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return child


@pytest.mark.parametrize("what", MOMENTS)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_everything_is_written_before_somebody_else_may_act(
    start: Start, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    printing = start()
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    opened = hold(printing, monkeypatch)
    print("before")
    threading.Timer(0.05, opened.set).start()
    MOMENTS[what]()
    assert opened.is_set()
    assert text(printing) == "before\n"


def test_streams_in_place_of_stdout(start: Start) -> None:
    printing = start()
    with contextlib.redirect_stdout(io.StringIO()) as caught:
        print("caught")
        assert caught.getvalue() == "caught\n"

    class Tee:
        def __init__(self) -> None:
            self.terminal, self.kept = sys.stdout, io.StringIO()

        def write(self, words: str) -> None:
            self.terminal.write(words)
            self.kept.write(words)

        def flush(self) -> None:
            self.terminal.flush()

    before = sys.stdout
    sys.stdout = tee = Tee()
    try:
        print("twice")
    finally:
        sys.stdout = before
    print("once")
    assert tee.kept.getvalue() == "twice\n"
    assert text(printing) == "twice\nonce\n"


def test_a_stream_is_the_object_it_was_and_answers_as_before(start: Start) -> None:
    printing = start()
    print("x")
    assert type(sys.stdout) is io.TextIOWrapper
    assert sys.stdout is sys.__stdout__
    assert sys.stdout.isatty() is False
    assert sys.stdout.encoding == "utf-8"
    assert sys.stdout.write("é\n") == 2
    sys.stdout.writelines(["a\n", "b\n"])
    assert text(printing) == "x\né\na\nb\n"
    with pytest.raises(TypeError, match="must be str"):
        sys.stdout.write(b"bytes")  # type: ignore[arg-type]


def test_what_cannot_be_encoded_is_told_at_the_call(start: Start) -> None:
    printing = start()
    with pytest.raises(UnicodeEncodeError):
        print("\ud800")
    print("after")
    assert text(printing).strip() == "after"


def test_handlers_of_logging_write_in_the_background_what_the_record_says_now(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printing = start()
    logger, values = logging.getLogger("of this test"), [1]
    file = logging.FileHandler(tmp_path / "log")
    handlers = [logging.StreamHandler(sys.stderr), file]
    monkeypatch.setattr(logger, "handlers", handlers)
    monkeypatch.setattr(logger, "propagate", False)
    opened = hold(printing, monkeypatch)
    logger.warning("values %s", values)
    values[0] = 2
    assert (tmp_path / "log").read_text() == Path(sys.stderr.name).read_text() == ""
    opened.set()
    printing.finish()
    assert (tmp_path / "log").read_text() == Path(sys.stderr.name).read_text() == "values [1]\n"
    file.close()
    assert len(printing._taps) == 2  # a file that is closed is let go
    assert printing.live.counters["reports_in_background"] == 2


def test_a_log_file_that_rotates_loses_nothing(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start()
    logger = logging.getLogger("rotating")
    handler = logging.handlers.RotatingFileHandler(tmp_path / "log", maxBytes=200, backupCount=100)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    for number in range(200):
        logger.warning("line %03d", number)
    handler.close()
    files = sorted(tmp_path.glob("log*"), key=lambda path: -int(path.suffix[1:] or 0))
    assert len(files) > 5
    assert all(path.stat().st_size <= 200 for path in files)
    assert "".join(path.read_text() for path in files) == "".join(f"line {number:03d}\n" for number in range(200))


def test_what_the_thread_met_is_raised_by_the_next_print_and_told_at_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = start()
    print("a")
    printing.finish()
    tap = printing._taps[id(sys.stdout)][1]

    def broken(_text: str) -> None:
        raise BrokenPipeError("nobody reads")

    with monkeypatch.context() as patched:
        patched.setattr(tap, "write", broken)
        print("b")
        printing.finish()
        with pytest.raises(BrokenPipeError, match="nobody reads"):
            print("c")
        print("d")
        printing.close()
    assert "not all could be written: BrokenPipeError" in text(printing, "stderr")


def working(printing: AsyncPrinting) -> bool:
    return printing._outlet._thread is not None


def test_without_the_plan_nothing_is_put_off_and_at_the_end_everything_is_put_back(start: Start) -> None:
    printing = start()
    printing.live.around.report_async = False
    print("plain")
    assert not working(printing)
    printing.live.around.report_async = True
    print("later")
    assert working(printing)
    printing.close()
    print("plain again")
    assert not working(printing)
    assert printing._patches is not None
    printing._patches.restore()
    assert "write" not in vars(sys.stdout)
    assert "flush" not in vars(sys.stderr)
    assert type(input).__name__ == "builtin_function_or_method"
    assert logging.StreamHandler.emit.__closure__ is None
    assert text(printing) == "plain\nlater\nplain again\n"


def test_a_rehearsal_is_the_evidence_and_prints_nothing(start: Start) -> None:
    printing = start()
    technique = AsyncLogging()
    assert not technique.evidence(printing.live, StepTrace(counters=dict(printing.live.counters)))[0].passed
    printing.rehearse()
    assert technique.evidence(printing.live, StepTrace(counters=dict(printing.live.counters)))[0].passed
    assert text(printing) == ""


SCRIPT = """
import logging, os, subprocess, sys, threading
if sys.argv[1] == "ours":
    from hasten.script.plan.live import script_live
    from hasten.script.patches import Patches
    from hasten.script.output.printing import AsyncPrinting
    live = script_live()
    live.around.report_async = True
    AsyncPrinting(live).install(Patches())
from tqdm import tqdm
logging.basicConfig(level=logging.INFO, format="%(message)s")
for number in tqdm(range(300), mininterval=1000.0, ncols=10, bar_format="{n}\\n"):
    print("line", number, "\\u00e9")
    if number % 7 == 0:
        logging.info("logged %d", number)
    if number % 50 == 0:
        print("to stderr", number, file=sys.stderr)
    if number % 100 == 0:
        print("flushed", flush=True)
        subprocess.run(["echo", f"child {number}"], check=True)
if os.fork() == 0:
    print("in the child", flush=True)
    os._exit(0)
os.wait()
print("in a thread", end=" ")
thread = threading.Thread(target=print, args=("said",))
thread.start()
thread.join()
how = sys.argv[2]
if how == "raises":
    raise ValueError("odd")
if how == "exits":
    sys.exit("with words")
if how == "exits at once":
    print("last words", flush=True)
    os._exit(7)
if how == "is killed":
    print("last words", flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ends", "raises", "exits", "exits at once", "is killed"])
def test_a_script_says_the_same_on_both_streams_together(tmp_path: Path, how: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def said(who: str) -> tuple[bytes, int]:
        done = subprocess.run(
            [sys.executable, "script.py", who, how], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=60, check=False, env={**os.environ, "PYTHONUTF8": "1"},
        )  # fmt: skip
        return done.stdout, done.returncode

    alone, ours = said("alone"), said("ours")
    assert b"child 200" in alone[0]
    assert ours == alone
